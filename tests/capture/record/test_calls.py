"""Unrolled calls of modules leave the recording that general calls leave."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import torch
from gradients import require_equal_gradients
from helpers import bound, graph_of, model_file, require_parity, seeded
from ordinary.registry import load_all
from test_cache import described
from test_cells import IDS, Around
from test_structures import SIZE
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.record import calls
from edbc.capture.record import recorder as recorders
from edbc.capture.record.table import TypeTable


class Nested(nn.Module):
    """Two operands, one in a nest; outputs in a nest."""

    def forward(self, a: torch.Tensor, pair: Any, b: Any = None) -> Any:
        c, (d,) = pair
        total = a + c + d
        return total if b is None else (total, (total * b, total))


class Scaled(nn.Module):
    """One or two operands of any shape."""

    def forward(self, a: torch.Tensor, b: Any = 2.0) -> torch.Tensor:
        return a * b


def nested(net: Any, ids: list[int]) -> Any:
    h = net.inner(net.row(ids[0]), (net.start, [net.row(1)]))
    for i in ids:
        h = net.inner(h, (net.row(i), [h]))
        h, (g, _) = net.inner(h, (h, [net.row(i)]), h)
        h = net.inner(a=h, pair=(g, [h]))
    return h


def nest_between_tensors(net: Any, ids: list[int]) -> Any:
    h = net.start + net.row(ids[0])
    for i in ids:
        h, (g, _) = net.inner(h, (net.row(i), [net.row(1)]), net.row(2))
        h = h + g
    return h


def fewer_and_more_arguments(net: Any, ids: list[int]) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        found += [net.inner(found[-1], net.row(i)), net.inner(found[-1]), net.inner(a=net.row(i), b=found[-1])]
    return found


def of_many_forms(net: Any, ids: list[int]) -> Any:
    found = []
    filled = torch.zeros(SIZE)
    for i in ids:
        a = net.row(i)
        found += [net.inner(filled.fill_(i), a), net.inner(a, filled), net.inner(filled)]
        found += [net.inner(a), net.inner(a[:2]), net.inner(a, a), net.inner(a[:2], a[2:4]), net.inner(a, 3.0)]
        found += [net.inner(a, net.start), net.inner(net.start), net.inner(a, b=a), net.inner(torch.ones(SIZE), a)]
        found += [net.inner(a, net.table(torch.tensor([i]))), net.inner(found[-1], a)]
        found += [net.inner(net.table(torch.tensor([i])), torch.stack([a])), net.inner(a, net.table(torch.tensor([i])))]
    return found


def constants_and_parameters(net: Any, ids: list[int]) -> Any:
    found = []
    kept = torch.ones(SIZE)
    for i in ids:
        a, given = net.row(i), torch.full((SIZE,), float(i))
        found += [net.inner(a, a), net.inner(given, net.start), net.inner(net.start, given), net.inner(given)]
        found += [net.inner(kept, given), net.inner(kept, kept), net.inner(given, 3.0), net.inner(given, b=net.start)]
        found += [net.inner(a, given[:2].sum()), net.inner(net.start, kept), net.inner(a), net.inner(a, a)]
    return found


def nests_of_constants(net: Any, ids: list[int]) -> Any:
    found = []
    for i in ids:
        a, given = net.row(i), torch.full((SIZE,), float(i))
        found += [net.inner(a, (a, [a])), net.inner(given, (given, [net.start])), net.inner(a, (net.start, [given]))]
        found += [net.inner(given, (net.start, [a])), net.inner(net.start, (a, [given]), given)]
    return found


class Named(nn.Module):
    """States in dicts, of a class of Python's or with more in them; keywords; None and truth values."""

    def forward(self, state: dict[str, Any], index: Any = None, *, is_last: bool = False, other: Any = None) -> Any:
        h = state["h"] * state["c"] if index is None else state["h"] + index
        h = h if other is None else h - other["x"][0]
        return {"h": h, "c": {"c": h + 1.0}} if is_last else {"h": h, "c": h * 2.0}


def dicts_and_keywords(net: Any, ids: list[int]) -> Any:
    found, state = [], {"h": net.row(ids[0]), "c": net.start}
    for i in ids:
        a, filled = net.row(i), torch.full((SIZE,), float(i))
        state = net.inner(state, index=None)
        found += [net.inner(state), net.inner(state=state, index=a), net.inner(index=a, state=state)]
        found += [
            net.inner(state, a, is_last=True),
            net.inner(state, other={"x": (a,)}),
            net.inner(state, index=filled),
        ]
        found += [
            net.inner({"c": a, "h": a}),
            net.inner({"h": a, "c": filled}),
            net.inner({"h": filled, "c": net.start}),
        ]
        found += [net.inner(state, net.table(torch.tensor([i])), is_last=False), net.inner({"h": a, "c": a, "d": a})]
        found += [net.inner(state, index=None, other={"x": [filled]}), net.inner(state, is_last=bool(i % 2))]
        found += [net.inner({"h": a[:2], "c": a[2:4]}, index=None), net.inner(state, index=2.0), net.inner(state, 1)]
    return found


class Counted(nn.Module):
    """Integers and texts that say what is computed; nests of them."""

    def forward(self, a: torch.Tensor, n: Any = 1, how: Any = ("sum", 0), b: Any = None) -> torch.Tensor:
        h = a * n if how[0] == "sum" else a - n
        return torch.tanh(h + how[1]) if b is None else h * b


def integers_and_texts(net: Any, ids: list[int]) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        a = net.row(i)
        found += [net.inner(found[-1], 1), net.inner(found[-1], True), net.inner(found[-1], 1.0), net.inner(a)]
        found += [net.inner(a, 0), net.inner(a, False), net.inner(a, n=i), net.inner(a, i, ("sum", 0), b=found[-1])]
        found += [net.inner(a, 2, ("less", i)), net.inner(a, 2, ["less", 2]), net.inner(a, how=("sum", 1.5))]
        found += [net.inner(a, 2, ("sum'\n", i)), net.inner(net.start, 3), net.inner(torch.ones(SIZE), 3)]
    return found


def few_floats(net: Any, ids: list[int]) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        a = net.row(i)
        found += [net.inner(a, 0.0), net.inner(a, -0.0), net.inner(found[-1], 0.5), net.inner(a, b=0.25), net.inner(a)]
        found += [net.inner(a[:2], 0.5), net.inner(a, 1), net.inner(net.start, 0.5), net.inner(a, float("inf"))]
        found += [net.inner(torch.ones(SIZE), 0.25), net.inner(a, a)]
    return found


def many_floats(net: Any, ids: list[int]) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        a = net.row(i)
        found += [
            net.inner(a, 0.1 + i),
            net.inner(found[-1], 0.7 * i),
            net.inner(a, -0.0),
            net.inner(a),
            net.inner(a, a),
        ]
        found += [net.inner(a[:2], 0.3 * i), net.inner(net.start, 0.2 * i), net.inner(a, b=0.4 + i), net.inner(a, i)]
    return found


class Like(nn.Module):
    """What tells dtypes, devices and sizes."""

    def forward(self, a: torch.Tensor, like: Any, size: Any = (2, -1)) -> torch.Tensor:
        return a.reshape(size).to(like if like is not None else torch.float32)


def dtypes_devices_and_sizes(net: Any, ids: list[int]) -> Any:
    found = [net.inner(net.row(ids[0]), None)]
    for i in ids:
        a, shape = net.row(i), net.start.shape
        found += [net.inner(a, a.dtype), net.inner(a, torch.float64), net.inner(a, a.device), net.inner(a, None, shape)]
        found += [
            net.inner(a, torch.float32, shape),
            net.inner(a, a.dtype, tuple(shape)),
            net.inner(a, a.dtype, [SIZE]),
        ]
        found += [net.inner(a, torch.device("cpu"), size=a.unsqueeze(0).shape), net.inner(a, a.dtype, size=shape[:1])]
        found += [net.inner(torch.ones(SIZE), a.dtype, shape), net.inner(a, a.dtype), net.inner(a, "cpu", shape)]
    return found


def both(model: nn.Module, instances: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Capture, Capture]:
    """The second of two equal mini-batches, recorded with and without unrolled calls."""
    captures = []
    for unrollable in (calls.is_unrollable, lambda entry: False):
        monkeypatch.setattr(calls, "is_unrollable", unrollable)
        shadow, recorder = recording_shadow(ModelView(model), TypeTable())
        capture(shadow, recorder, instances)
        captures.append(capture(shadow, recorder, instances))
    return captures[0], captures[1]


@pytest.mark.parametrize(("cell", "use"), [
    (Nested, nested), (Nested, nest_between_tensors), (Scaled, of_many_forms), (Scaled, fewer_and_more_arguments),
    (Scaled, constants_and_parameters), (Nested, nests_of_constants), (Named, dicts_and_keywords),
    (Counted, integers_and_texts), (Scaled, few_floats), (Scaled, many_floats), (Like, dtypes_devices_and_sizes),
])  # fmt: skip
@pytest.mark.parametrize("often", [2, calls.OFTEN])
def test_every_form_of_call(often: int, cell: Any, use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests, keywords, parameters, constants, views and other shapes in between: graph, externals, results, sites;
    whichever form is asked for first."""
    monkeypatch.setattr(calls, "OFTEN", often)
    unrolled, general = both(seeded(lambda: Around(cell(), use)), IDS, monkeypatch)

    assert described(unrolled) == described(general)
    assert [t.sites for t in unrolled.graph.types] == [t.sites for t in general.graph.types]


def test_the_form_that_is_met_most_often_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose first call has a constant in the place of what all others have: hardly any looks at its nest."""
    looked, form_of = Counter[type](), calls._form_of

    def counting(item: Any) -> Any:
        looked[type(item)] += 1
        return form_of(item)

    def use(net: Any, ids: list[int]) -> Any:
        total = 2.0
        for i in range(200):
            total = net.inner(net.row(i % 6), total)
        return total

    monkeypatch.setattr(calls, "_form_of", counting)
    graph_of(seeded(lambda: Around(Scaled(), use)), IDS[:1])
    assert calls.OFTEN <= looked[dict] < 2 * calls.OFTEN  # of keywords, one a call


@pytest.mark.parametrize("before", [False, True])
def test_parameters_alone_where_nothing_is_known_yet(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first unrolled call has no operand that is recorded, in this mini-batch or ever."""

    def use(net: Any, ids: list[int]) -> Any:
        return [net.inner(net.start, net.start), net.inner(net.start, net.row(0)) if before else net.start]

    unrolled, general = both(seeded(lambda: Around(Scaled(), use)), IDS[:2], monkeypatch)
    assert described(unrolled) == described(general)


def additions(net: Any, ids: list[int], add: Any) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        h, g = net.inner(net.row(i), found[-1]), net.inner(found[-1], net.row(1))
        found += [add(h, g), add(add(g, h), net.row(i)), add(h[:2], g[:2]), add(h[2:4], g[:2]), add(h, net.start)]
        with torch.no_grad():
            found.append(add(h, g))
        with torch.autocast("cpu", torch.bfloat16):
            found.append(add(h @ torch.ones(SIZE, 2), g @ torch.ones(SIZE, 2)))
            found.append(add(h, g))
        found.append(add(h, g))
    return found


def test_additions_by_operator_and_by_function() -> None:
    """`+` records what torch.add does: of other slots, views, parameters, without gradients and under autocast."""
    captures = []
    for add in (lambda h, g: h + g, torch.add):
        model = seeded(lambda add=add: Around(Scaled(), lambda net, ids: additions(net, ids, add)))
        shadow, recorder = recording_shadow(ModelView(model), TypeTable())
        capture(shadow, recorder, IDS)
        captures.append(capture(shadow, recorder, IDS))

    assert described(captures[0]) == described(captures[1])
    assert (captures[0].detached == captures[1].detached).all()


def test_the_dtype_of_another_tensor() -> None:
    """Of a value, a parameter or a stack: nothing where it is the tensor's own, else a cast."""

    def cast(net: Any, ids: list[int]) -> Any:
        h = net.inner(net.row(ids[0]), net.row(1))
        narrow, stack = h.to(torch.float32), torch.stack([h, h * 2])
        assert h.type_as(net.start) is h.to(h) is h
        return narrow.type_as(h) * h, narrow.to(net.start), stack.type_as(narrow), stack.to(stack) + h

    require_parity(seeded(lambda: Around(Scaled(), cast)), IDS)


class Multiplied(nn.Module):
    """A product with a matrix that the caller names, and an addend."""

    def forward(self, xs: list[torch.Tensor], weight: torch.Tensor, addend: Any = None) -> torch.Tensor:
        return torch.tanh(nn.functional.linear(xs[0] * xs[1], weight, addend))


class OfRules(Around):
    """A matrix and a vector of parameters for each rule."""

    def __init__(self, use: Any) -> None:
        super().__init__(Multiplied(), use)
        self.matrices = nn.ParameterList(torch.randn(SIZE, SIZE) for _ in range(3))
        self.vectors = nn.ParameterList(torch.randn(SIZE) for _ in range(3))


def of_matrices(net: Any, ids: list[int]) -> Any:
    found = [net.row(ids[0])]
    for i in ids:
        xs = [net.row(i), found[-1]]
        found += [net.inner(xs, net.matrices[i % 3], net.vectors[i % 2]), net.inner(xs, net.matrices[0], found[-1])]
        found += [
            net.inner([found[-1], net.start], net.matrices[i % 3], net.row(i)),
            net.inner(xs, net.matrices[i % 2]),
        ]
        found += [net.inner([net.start, net.start], net.matrices[0], net.vectors[0])]
        found += [net.inner(xs, net.matrices[1] * 2, net.row(i)), net.inner(xs, torch.ones(SIZE, SIZE), net.row(i))]
    return found


def test_matrices_of_parameters_are_no_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell has a type for each; vectors beside them are operands of one type. Values and gradients as in eager."""
    model = seeded(lambda: OfRules(of_matrices))
    unrolled, general = both(model, IDS, monkeypatch)
    assert described(unrolled) == described(general)
    of_parameters = [t for t in unrolled.graph.types if "inner" in t.name and "matrices." in t.constants]
    assert all(len(c.shape) == 1 for t in of_parameters for c in t.operands)
    assert {t.constants for t in of_parameters} >= {f"[_, _], matrices.{i}, _" for i in range(3)}
    require_equal_gradients(require_parity(model, IDS), IDS, tolerance=1e-4)


def test_reflected_operators_take_their_operands_in_order() -> None:
    """Also when the same function of operands in the other order, of the same slots, has been recorded."""

    def reflected(net: Any, ids: list[int]) -> Any:
        h = net.inner(net.row(ids[0]), net.row(1))
        g = net.inner(h, net.row(1))
        return h - g, h.__rsub__(g), h / g, h.__rtruediv__(g), 2 - h, 3 / g

    require_parity(seeded(lambda: Around(Scaled(), reflected)), IDS)


def test_wrong_arguments_are_the_modules_own_error() -> None:
    """A call that the module does not take fails as it would without recording, unrolled or not."""
    for wrong in (lambda net: net.inner(), lambda net: net.inner(net.start, net.start, net.start)):
        for use in (lambda net, ids, wrong=wrong: wrong(net),
                    lambda net, ids, wrong=wrong: [net.inner(net.row(0), net.row(1)), wrong(net)]):  # fmt: skip
            with pytest.raises(TypeError, match=r"forward\(\)"):
                graph_of(seeded(lambda use=use: Around(Scaled(), use)), IDS[:1])


@pytest.mark.parametrize("name", ["tree_lstm", "lattice_lstm", "bilstm_tagger_char", "dag_gru", "transition_parser",
                                  "query_plan_cost"])  # fmt: skip
def test_models_of_the_zoo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on made-up instances of the zoo."""
    file = model_file(name)
    torch.manual_seed(0)
    unrolled, general = both(file.build(hidden_size=8).eval(), list(file.sample(4, 0)), monkeypatch)

    assert described(unrolled) == described(general)


def test_a_call_is_unrolled_once_its_form_is_known() -> None:
    """The code of an unrolled call serves the second call of a module; a form that is no number stays general."""
    for use, unrolled in ((lambda net, ids: net.inner(net.row(0), net.row(1)), True),
                          (lambda net, ids: net.inner(net.row(0), "x"), True),
                          (lambda net, ids: net.inner(net.row(0), torch.float32), True),
                          (lambda net, ids: net.inner(net.row(0), net.start.device), True),
                          (lambda net, ids: net.inner(net.row(0), 0.5), True),
                          (lambda net, ids: net.inner(net.row(0), float("nan")), False)):  # fmt: skip
        model = seeded(lambda use=use: Around(Constant(), use))
        shadow, recorder = recording_shadow(ModelView(model), TypeTable())
        capture(shadow, recorder, IDS[:2])
        assert (type(shadow.inner).__call__.__code__.co_filename == "<unrolled call>") is unrolled


@pytest.mark.parametrize("given", [lambda a: a.dtype, lambda a: a.device, lambda a: a.shape, lambda a: [a.shape]])
def test_what_is_told_of_another_tensor_is_unrolled(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype, a device or a shape among the arguments makes no call general."""
    shadow, recorder = recording_shadow(
        ModelView(seeded(lambda: Around(Constant(), lambda net, ids: net.inner(net.row(0), given(net.start))))),
        TypeTable(),
    )
    capture(shadow, recorder, IDS)
    monkeypatch.setattr(calls, "_form_of", None)  # what general calls ask for
    capture(shadow, recorder, IDS)


class Constant(nn.Module):
    """Takes anything beside its operand."""

    def forward(self, a: torch.Tensor, b: Any) -> torch.Tensor:
        return a.tanh()


def test_graphs_of_unrolled_calls_are_lint_free() -> None:
    """Numbers of values stay in step when calls of all forms follow each other."""
    graph_of(seeded(lambda: Around(Scaled(), of_many_forms)), IDS)


class TakesSizesThatAreTensors(nn.Module):
    """A length that is a tensor, in the place of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = (words != 0).sum(-1).max()
        return self.words(words).mean(1, keepdim=True).repeat(1, length, 1)


def test_what_takes_numbers_is_known_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked once whether it takes a tensor for a size, not of every instance: that took 100 us a call."""
    asked: list[Any] = []
    ask = recorders.run_on_meta
    monkeypatch.setattr(recorders, "run_on_meta", lambda *args: asked.append(args[0]) or ask(*args))
    model = TakesSizesThatAreTensors()
    lengths = [4 + n % 3 for n in range(6)]
    net = bound(model, [torch.ones(1, n, dtype=torch.int64) for n in lengths])
    for turn in range(2):
        asked.clear()
        instances = [torch.full((1, n), 2 + turn) for n in lengths]
        for found, instance in zip(net(instances), instances, strict=True):
            torch.testing.assert_close(found, model(instance))
        assert not asked or not turn


def test_calls_that_are_no_cells_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sums messages and updates a state is a cell of several, and one operation of one: of that the recorder is
    not asked again, and `explain` counts each call."""
    program = load_all()["LoopOverEdges"]
    model = program.build(64)
    net = bound(model, program.instances(0, 32), "auto")
    net.alike = None  # forward runs for every instance
    for seed in range(3):
        net(program.instances(seed, 8))
    asked, call = [], recorders.Recorder.call
    monkeypatch.setattr(
        recorders.Recorder, "call", lambda *args, **kwargs: (asked.append(args[1]), call(*args, **kwargs))[1]
    )
    others = program.instances(9, 8)

    torch.testing.assert_close(net(others), [model(graph) for graph in others])
    assert asked == []
    [((_, why), number)] = net.calls_without_nodes().items()
    assert number == 2 * sum(count == 1 for of in others for count in Counter(j for _, j in of.edges).values())
    assert "1 operations" in why


class Gathers(nn.Module):
    """What gathers the states of those before is a cell of several, and hands back a single one; it gets a number."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up, self.gate = nn.Embedding(9, SIZE), nn.Linear(2 * SIZE, 3 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, dag: list[list[int]]) -> Any:
        states, cells = [], []
        for word, before in enumerate(dag):
            x = self.words.weight[word]
            if before:
                h, c = torch.stack([states[i] for i in before]), torch.stack([cells[i] for i in before])
                gates = torch.sigmoid(self.gate(torch.cat([x.expand(len(before), -1), h], 1)))
                total, c = h.sum(0), (gates * c).sum(0)
            else:
                total = c = torch.zeros(SIZE)
            i, o, u = self.up(torch.cat([x, total])).chunk(3)
            c = c + torch.sigmoid(i) * torch.tanh(u)
            states.append(torch.sigmoid(o) * torch.tanh(c))
            cells.append(c)
        return torch.stack(states).mean(0)


def test_calls_that_are_no_cells_are_asked_once_though_they_get_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where a number is beside what is recorded."""
    rng = Random(0)
    dags = [[[j for j in range(i) if rng.random() < 0.35] for i in range(rng.randint(5, 9))] for _ in range(24)]
    model = seeded(Gathers)
    net = bound(model, dags, "auto")
    net.alike = None
    net(dags)
    asked, call = [], recorders.Recorder.call
    monkeypatch.setattr(
        recorders.Recorder, "call", lambda *args, **kwargs: (asked.append(args[1]), call(*args, **kwargs))[1]
    )

    torch.testing.assert_close(net(dags[::-1]), [model(dag) for dag in dags[::-1]])
    assert asked == []
    assert [*net.calls_without_nodes().values()] == [sum(len(before) == 1 for dag in dags for before in dag)]
