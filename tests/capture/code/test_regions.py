"""Regions: the same values, side effects and order as the lines that they stand for, in eager mode and recorded."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from gradients import require_equal_gradients
from helpers import bound, imported, recorded, seeded
from torch import Tensor, nn

from edbc.capture.code import shadow
from edbc.capture.code.closed import Closed, definition_of, methods_of
from edbc.capture.code.regions import Region, Regions, compiled_like
from edbc.plan.writer import plan_text
from edbc.run.session import Stats
from edbc.tools.cli.main import main
from edbc.tools.compile.compiler import compile_model
from edbc.tools.explain.foundcells import cell_notes
from edbc.tools.explain.observe import observe

SIZE = 4
SCALE = 0.5


class Base(nn.Module):
    """Modules and methods that the models of these tests use; `note` and `taken` do more than compute."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.pair = nn.Linear(SIZE, SIZE), nn.Linear(2 * SIZE, SIZE)
        self.words, self.mlp = nn.Embedding(9, SIZE), nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())
        self.bias, self.factor = nn.Parameter(torch.ones(SIZE)), 0.5

    def note(self, h: Tensor, log: list[Any]) -> Tensor:
        log.append(float(h.detach().sum()) if type(h) is Tensor else None)
        return h

    def taken(self, xs: list[Tensor]) -> Tensor:
        return xs.pop()

    def __hidden(self, h: Tensor) -> Tensor:
        return torch.tanh(h) * 2

    def hides(self, h: Tensor) -> Tensor:
        return torch.sigmoid(self.__hidden(h) + h)


class Idioms(Base):
    """A method per idiom; instances are words."""

    def forward(self, item: tuple[str, list[int]]) -> Any:
        name, words = item
        return getattr(self, name)([self.words(torch.tensor(w)) for w in words])

    def run(self, xs: list[Tensor]) -> Tensor:
        h = torch.zeros(SIZE)
        for x in xs:
            z = torch.sigmoid(self.step(x) + h)
            n = torch.tanh(self.pair(torch.cat([x, h])))
            h = (1 - z) * h + z * n
        return h

    def several_results(self, xs: list[Tensor]) -> list[Tensor]:
        states, h = [], xs[0]
        for x in xs[1:]:
            i, o = torch.cat([torch.sigmoid(h), torch.tanh(x)]).chunk(2)
            h = i * torch.tanh(o)
            states.append(h + x * SCALE)
        return states + [h]

    def part_of_the_state_before(self, xs: list[Tensor]) -> list[Tensor]:
        h, states = xs[0][None], []
        for x in xs:
            h = torch.tanh(self.step(h[:1]) + x)
            states.append(torch.relu(self.step(h)))
        return states

    def nested(self, xs: list[Tensor]) -> Tensor:
        def fold(rest: list[Tensor]) -> Tensor:
            if len(rest) == 1:
                return torch.tanh(self.step(rest[0]))
            return torch.relu(self.step(rest[0]) + fold(rest[1:]) * self.bias)

        return fold(xs)

    def comprehended(self, xs: list[Tensor]) -> Tensor:
        scores = [torch.tanh(self.step(x)).sum(0, keepdim=True) for x in xs]
        weights = F.softmax(torch.cat(scores), dim=0)
        return sum(w * x for w, x in zip(weights, xs, strict=True)) + torch.stack(xs).mean(0)

    def generated(self, xs: list[Tensor]) -> list[Tensor]:
        def states() -> Any:
            h = xs[0]
            for x in xs:
                h = torch.tanh(self.step(h) + x)
                yield h * 2 + x

        return list(states())

    def mapped(self, xs: list[Tensor]) -> list[Tensor]:
        return list(map(lambda x: torch.tanh(self.step(x)) * self.factor, xs))  # noqa: C417

    def private(self, xs: list[Tensor]) -> Tensor:
        return self.hides(torch.tanh(self.step(xs[0])) + xs[-1])

    def annotated(self, xs: list[Tensor]) -> Tensor:
        h: Tensor = torch.tanh(self.step(xs[0]))
        g = k = torch.sigmoid(h) + 1
        return (g * k).sum() + h

    def branches(self, xs: list[Tensor]) -> Tensor:
        if len(xs) > 2:  # noqa: SIM108
            h = torch.tanh(self.step(xs[0])) + xs[1]
        else:
            h = torch.relu(self.step(xs[0])) - 1
        h = h * 2 if len(xs) % 2 else torch.sigmoid(self.step(h))
        return torch.tanh(h) + SCALE

    def constants(self, xs: list[Tensor]) -> Tensor:
        rows = [*xs, *[torch.zeros(SIZE)] * 3][:3]
        return torch.tanh(self.step(torch.stack(rows).sum(0)) + torch.ones(SIZE))

    def in_place(self, xs: list[Tensor]) -> Tensor:
        def doubled(x: Tensor) -> Tensor:
            x *= 2
            return x + 1

        g = self.step(xs[0]) + 1
        return torch.tanh(g) * self.bias + doubled(g) * torch.sigmoid(g)

    def buffers(self, xs: list[Tensor]) -> Tensor:
        rows = torch.zeros(len(xs), SIZE, dtype=xs[0].dtype)
        for i, x in enumerate(xs):
            rows[i] = torch.tanh(self.step(x)) + x
        rows = torch.relu(rows - self.bias)
        return rows.sum(0)

    def a_list_that_shrinks(self, xs: list[Tensor]) -> Tensor:
        xs = [*xs, xs[0] * 2]
        return torch.stack(xs).sum(0) * 2 + self.taken(xs) * torch.tanh(xs[-1])

    def a_variable_of_two(self, xs: list[Tensor]) -> Tensor:
        total = xs[0]

        def add(x: Tensor) -> Tensor:
            nonlocal total
            total = total + x
            return total

        total = torch.tanh(total) * 2
        return torch.relu(self.step(total) + add(xs[-1])) * total


IDIOMS = sorted(name for name, item in vars(Idioms).items() if type(item) is FunctionType and name[0] != "_")
IDIOMS.remove("forward")


def regions_of(model: nn.Module) -> dict[str, Region]:
    """The regions of a model's forward."""
    return Regions(model, Closed(model)).of_method(type(model), methods_of(model)["forward"])


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_equal_eager(idiom: str) -> None:
    """Values and gradients, with regions as cells."""
    model = seeded(Idioms).double()
    random = Random(0)
    instances = [(idiom, [random.randrange(9) for _ in range(random.randint(2, 5))]) for _ in range(12)]
    net = bound(model, instances[:8], cells="auto")
    for size in (1, 12):
        for got, expected in zip(net(instances[-size:]), map(model, instances[-size:]), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    require_equal_gradients(net, instances[:7])


def test_old_names_are_operations() -> None:
    """F.sigmoid and F.tanh, which torch lets nobody override, as code from before torch.sigmoid has them."""

    class Gated(Base):
        def forward(self, h: Tensor) -> Tensor:
            i = F.sigmoid(self.step(h))
            return i * F.tanh(h)

    [region] = filter(lambda region: region.is_whole, regions_of(seeded(Gated)).values())

    assert region.location.endswith(f":{Gated.forward.__code__.co_firstlineno + 1}")


def test_regions_are_cells() -> None:
    """What a person would have marked: the lines of a loop are one node for each round."""

    class Recurrent(Base):
        def forward(self, words: list[int]) -> Tensor:
            h = torch.zeros(SIZE)
            for word in words:
                x = self.words(torch.tensor(word))
                z = torch.sigmoid(self.step(x) + h)
                n = torch.tanh(self.pair(torch.cat([x, h])))
                h = (1 - z) * h + z * n
            return h

    net = bound(seeded(Recurrent), [[1, 2, 3]] * 2, cells="auto")

    assert set(net.view.automatic) == {"forward:1"}
    [cell] = [t for t in net.plan.types if t.signature.startswith("cell ")]
    assert cell.signature == "cell forward:1(f32[4], f32[4]) -> f32[4]"
    assert net.run([[1, 2, 3, 4]])[1].whole[0].graph.num_nodes == 4


class Halting(Base):
    """Goes on until a number is large, as each word has it; `else` computes, too."""

    def forward(self, words: list[int]) -> Tensor:
        h, total = torch.zeros(SIZE), torch.zeros(1)
        for word in words:
            h = torch.tanh(self.step(h) + self.words(torch.tensor(word)))
            total = total + h.sum(0, keepdim=True)
            if total > 1 - SCALE:
                h = torch.relu(self.step(h) * 2)
                total = torch.zeros(1)
            elif (h * h).sum() >= 2:
                break
            else:
                h = torch.sigmoid(self.step(h)) - h
        return h


def test_what_is_computed_for_a_condition_is_one_node() -> None:
    """With the comparison, a number in the cell, whose truth is read; what it decides has regions of its own."""
    model = seeded(Halting)
    sentences = [[i % 9 for i in range(first, first + length)] for first in range(8) for length in (1, 4, 9)]
    net = bound(model, sentences, cells="auto")
    by_name = {f"forward:{number}" for number in range(1, 5)}

    assert set(net.view.automatic) == by_name
    assert not any(t.signature.startswith("torch.") for t in net.plan.types)
    for size in (1, 7, 24):
        for got, expected in zip(net(sentences[:size]), map(model, sentences[:size]), strict=True):
            torch.testing.assert_close(got, expected)
    stats = Stats()
    net.run(sentences, stats)
    assert set(stats.reads) == {f"test_regions.py:{line}" for line in lines_of(Halting, "if total", "elif")}


def lines_of(kind: type, *starts: str) -> list[int]:
    """The lines of a class that begin so."""
    lines, first = inspect.getsourcelines(kind)
    return [first + i for i, line in enumerate(lines) if line.strip().startswith(starts)]


def test_a_condition_asks_for_nothing_new() -> None:
    """What is compared with a number that forward has would be a type per number; what no region computes is none."""

    class Asked(Base):
        def forward(self, words: list[int], best: float) -> Tensor:
            h = torch.tanh(self.step(self.bias) + 1)
            if h.sum() > best:
                return h
            h = torch.relu(self.step(h) - 1)
            if len(words) > 2:
                return h * 2
            n = h.dim()
            if n > 3:
                return h
            return h * 3

    assert all("best" not in str(region) and ">" not in str(region) for region in texts_of(Asked()))


def texts_of(model: nn.Module) -> list[str]:
    return [ast.unparse(region.function.__dict__["_edbc_definition"]) for region in regions_of(model).values()]


class OfTheInstance(Base):
    """Reads values of what it computes of the instance alone, which eager code may."""

    def spread(self, points: Tensor) -> Tensor:
        centred = points - points.mean(0)
        return (centred * centred).sum(1)

    def forward(self, points: Tensor) -> Tensor:
        near = torch.cdist(points, points).topk(2, largest=False).indices
        h = torch.tanh(self.step(points[near].sum(1)) + points)
        order = (points * points).sum(1).argsort()
        if float(self.spread(points).max()) > 1.0:
            h = torch.relu(h * 2 + points) - 1
        widest = int(self.spread(points).argmax())
        return h[order.tolist()[0]] + h[widest] + torch.tanh(self.spread(h)).sum()


def test_what_the_instance_brings_is_computed_at_once() -> None:
    """Its values may be read; the same method is in a cell where it gets recorded tensors."""
    model = seeded(OfTheInstance)
    generator = torch.Generator().manual_seed(0)
    clouds = [torch.randn(5, SIZE, generator=generator) * scale for scale in (0.2, 1.0, 2.0) * 8]
    net = bound(model, clouds, cells="auto")

    assert net.view.automatic
    for size in (1, 7, 24):
        for got, expected in zip(net(clouds[:size]), map(model, clouds[:size]), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("beside", "types"), [("", 1), (" * n", 42)])
def test_divisors_are_operands(beside: str, types: int, tmp_path: Path) -> None:
    """A mean over as many as there are: a whole number that divides is a float of the region's call, which of many is
    an operand from the start; one that is read beside is a constant, a type for each."""
    (tmp_path / "means.py").write_text(f"""from test_regions import Base, torch


class Means(Base):
    def forward(self, words):
        total = self.bias
        for n, word in enumerate(words, 1):
            total = torch.tanh(self.step(total + self.words.weight[word]) / n{beside})
        return total
""")
    make = imported(tmp_path / "means.py", "means").Means
    instances = [[(5 * i + k) % 9 for i in range(n)] for k, n in enumerate((40, 41, 42))]
    net, model = bound(seeded(make), instances, "auto"), seeded(make).eval()
    assert all(map(torch.allclose, net(instances), map(model, instances)))

    texts = [t.signature for t in net.table.graph_types() if "forward:1" in t.signature]
    assert len(texts) == types
    assert any("f32[]" in text for text in texts) != bool(beside)


def test_one_torch_call_is_no_region() -> None:
    """Nor is a call of a module of the user's, which is a candidate itself."""

    class One(Base):
        def forward(self, item: int) -> Tensor:
            return self.step(self.words(torch.tensor(item)))

    assert not regions_of(One())


def test_lines_and_tracebacks_stay() -> None:
    """An error inside a region shows the line that the user wrote."""

    class Wrong(Base):
        def forward(self, item: int) -> Tensor:
            x = self.words(torch.tensor(item))
            h = torch.tanh(self.step(x))
            return torch.relu(self.pair(h) + x)

    model = Wrong()
    region, _, _ = regions_of(model).values()
    with pytest.raises(RuntimeError) as caught:
        region.function(model, torch.ones(SIZE))
    lines = {frame.line for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__}
    assert "return torch.relu(self.pair(h) + x)" in lines
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as recorded:
        bound(model, [1, 2], cells="auto")
    lines = {frame.line for frame in traceback.extract_tb(recorded.value.__traceback__) if frame.filename == __file__}
    assert "return torch.relu(self.pair(h) + x)" in lines


def test_code_that_is_not_what_the_source_says_has_no_regions() -> None:
    """As where a debugger, or whoever counts lines, has put something in."""
    model = Idioms()
    function = Idioms.run
    changed = FunctionType(function.__code__.replace(co_consts=(*function.__code__.co_consts, 7)), function.__globals__)

    assert Regions(model, Closed(model)).of_method(Idioms, function)
    assert not Regions(model, Closed(model)).of_method(Idioms, changed)


def test_a_last_statement_may_be_a_region_of_its_own() -> None:
    """An output that nothing waits for is one product for all steps, and no part of each."""

    class Language(Base):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(SIZE, 20000)

        def forward(self, words: list[int]) -> list[Tensor]:
            h, scores = torch.zeros(SIZE), []
            for word in words:
                h = torch.tanh(self.pair(torch.cat([self.words(torch.tensor(word)), h])))
                scores.append(torch.relu(self.out(h)))
            return scores

    assert set(regions_of(Language())) == {"forward:1", "forward:1a", "forward:1b"}
    net = bound(seeded(Language), [[1, 2, 3, 4, 5, 6]] * 4, cells="auto")
    assert set(net.view.automatic) == {"forward:1a", "forward:1b"}


def made(is_first: bool) -> Any:
    """Methods of one name."""
    if is_first:

        def method(self: Any, x: Tensor) -> Tensor:
            return torch.tanh(self.step(x)) + 1
    else:

        def method(self: Any, x: Tensor) -> Tensor:
            return torch.relu(self.step(x)) - 1

    return method


def test_methods_of_one_name_are_told_apart() -> None:
    """Functions that a class has by other names than theirs have no regions."""

    class Named(Base):
        first, second = made(True), made(False)

        def forward(self, word: int) -> Tensor:
            self.seen = word
            x = self.words(torch.tensor(word))
            return torch.cat([self.first(x), self.second(x)])

    model = seeded(Named)
    net = bound(model, [1, 2, 3], cells="auto")
    regions = Regions(model, Closed(model))
    assert not regions.of_method(Named, vars(Named)["first"])
    for got, word in zip(net([4, 5]), (4, 5), strict=True):
        torch.testing.assert_close(got, model(word))


def test_compiled_definitions_are_the_code() -> None:
    """Of every method of this file: the same instructions, names and constants."""
    for function in (f for kind in (Base, Idioms) for f in vars(kind).values() if type(f) is FunctionType):
        definition = definition_of(function)
        if definition is None or function.__name__ == "__init__":
            continue
        code = compiled_like(function, definition)
        assert code is not None
        assert (code.co_code, code.co_names) == (function.__code__.co_code, function.__code__.co_names)
        assert list(code.co_positions()) == list(function.__code__.co_positions())


def test_moving_is_told() -> None:
    """Operations that another call's arguments move behind are known to."""

    class Moves(Base):
        def forward(self, xs: Sequence[int]) -> Tensor:
            if len(xs) == 1:
                return torch.tanh(self.step(self.words.weight[xs[0]]))
            return torch.relu(self.step(self.forward(xs[:1])) + self.step(self.forward(xs[1:])))

    assert {name: region.moves for name, region in regions_of(Moves()).items()} == {
        "forward:1": False,
        "forward:2": True,
    }


def folded(model: Any, tree: Any) -> Tensor:
    """A helper that is given the model, and calls itself."""
    if isinstance(tree, int):
        return model.words(torch.tensor(tree))
    left, right = folded(model, tree[0]), folded(tree=tree[1], model=model)
    h = model.pair(torch.cat([left, right]))
    return torch.tanh(h) * model.bias + left


def composed(tree: Any, words: Any, w: Tensor, b: Tensor) -> Tensor:
    """One that is given a module of torch's and parameters."""
    if isinstance(tree, int):
        return words(torch.tensor(tree))
    x = torch.cat([composed(tree[0], words, w, b), composed(tree[1], words, w, b)])
    return torch.sigmoid(w @ x + b) * x[:SIZE]


def chained(xs: list[Tensor]) -> Tensor:
    """One that is given tensors alone, calls another, and does more than compute."""
    print(end="")
    h = xs[0]
    for x in xs[1:]:
        h = torch.relu(h + x) * 2 - x
    return ended(h, xs)


def ended(h: Tensor, xs: list[Tensor]) -> Tensor:
    """What that calls."""
    print(end="")
    return torch.tanh(h) * 0.5 + xs[-1]


def changing(model: Any, xs: list[Tensor]) -> Tensor:
    """One with a tensor that changes in place."""
    print(end="")
    h = model.step(xs[0]) + 1
    h += torch.tanh(h) * model.bias
    return h


def scaled(model: Any, x: Tensor) -> Tensor:
    """One that is closed, but for what the model is."""
    return torch.tanh(model.step(x) * SCALE) + x


class Other(nn.Module):
    """A module that `folded` is given too, of which it is no method."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.pair = nn.Embedding(9, SIZE), lambda x: x[:SIZE] - x[SIZE:]
        self.bias = nn.Parameter(torch.ones(SIZE))


class Helped(Base):
    """A method per helper."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.other = nn.Parameter(torch.randn(SIZE, 2 * SIZE)), Other()

    def forward(self, item: tuple[str, Any]) -> Any:
        return getattr(self, f"of_{item[0]}")(item[1])

    def of_folded(self, tree: Any) -> Tensor:
        return folded(self, tree)

    def of_composed(self, tree: Any) -> Tensor:
        return composed(tree, self.words, self.w, self.bias)

    def of_others(self, tree: Any) -> Tensor:
        return folded(self, tree) + folded(self.other, tree)

    def of_chained(self, tree: Any) -> Tensor:
        return chained([folded(self, tree), folded(self, tree[0]), self.bias])

    def of_changing(self, tree: Any) -> Tensor:
        return changing(self, [folded(self, tree)])

    def of_scaled(self, tree: Any) -> Tensor:
        print(end="")
        return scaled(self, folded(self, tree))


HELPED = {
    "folded": {"folded:1"}, "composed": {"words.composed:1"}, "others": {"folded:1"},
    "chained": {"folded:1", "chained:1", "ended:1"}, "changing": {"folded:1"}, "scaled": {"folded:1", "scaled:1"},
}  # fmt: skip


@pytest.mark.parametrize("way", HELPED)
def test_lines_of_helpers_are_cells(way: str) -> None:
    """Functions outside of classes, given a model, parameters, or tensors: values and gradients are eager's, and a
    module that a region is no method of runs the lines as they are."""
    model = seeded(Helped).double()
    random = Random(0)
    tree = lambda depth: (tree(depth - 1), tree(random.randrange(depth))) if depth else random.randrange(9)  # noqa: E731
    instances = [(way, tree(3)) for _ in range(8)]
    net = bound(model, instances, cells="auto")

    assert HELPED[way] <= set(net.view.automatic)
    for got, expected in zip(net(instances), map(model, instances), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    require_equal_gradients(net, instances[:7])


def test_a_helper_that_is_another_function_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its regions are none any more; those of other helpers stay."""
    model = seeded(Helped).double()
    instances = [("chained", (1, (2, 3))), ("chained", ((4, 5), 6))]
    net = bound(model, instances, cells="auto")
    net(instances)
    monkeypatch.setitem(globals(), "ended", lambda h, xs: torch.sigmoid(h) * xs[0])

    for got, expected in zip(net(instances), map(model, instances), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    assert net.view.given_up == {"ended:1": "the code of ended"}
    assert {"folded:1", "chained:1"} <= set(net.view.automatic)


# --- programs at random ---------------------------------------------------------------------------------------------


class Writer:
    """Writes a method of variables a, b, c (tensors), xs, ys (lists of them) and n (a number), in which calls with side
    effects stand wherever they may."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.lines: list[str] = []
        self.depth = 0

    def write(self) -> str:
        self.block(2, self.random.randint(2, 6))
        first, last = "        c, ys = a, list(xs)", "        return a, b, c, xs, ys\n"
        return "\n".join(["    def forward(self, a, b, xs, n, log):", first, *self.lines, last])

    def block(self, indent: int, count: int) -> None:
        for _ in range(count):
            self.statement(indent)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int) -> None:
        kind = self.random.randrange(15)
        names = self.random.choice("abc")
        if kind < 6:
            self.put(indent, f"{names} = {self.tensor(3)}")
        elif kind == 6:
            self.put(indent, f"a, {self.random.choice('bc')} = {self.tensor(2)}, {self.tensor(2)}")
        elif kind == 7:
            self.put(indent, f"{self.random.choice(['xs', 'ys'])}.append({self.tensor(3)})")
        elif kind == 8:
            place = self.random.choice(["xs[0]", "xs[-1]", "ys[0]", "ys[-1]"])
            self.put(indent, f"{place} = {self.tensor(2)}")
        elif kind == 9 and indent < 4:
            self.put(indent, self.random.choice(["for x in list(xs)[:2]:", "if n > 1:", "for i in range(n):"]))
            self.block(indent + 1, self.random.randint(1, 3))
        elif kind == 10 and indent < 4:
            self.put(indent, "try:")
            self.block(indent + 1, 2)
            self.put(indent + 1, f"{names} = {self.tensor(2)} + self.fails(n, log)")
            self.put(indent, "except KeyError:")
            self.put(indent + 1, f"c = {self.tensor(2)}")
        elif kind == 14 and indent < 4:
            self.put(indent, f"m = ({self.tensor(2)}).sum()")
            for test in ("if m > 0.5:", f"elif ({self.tensor(1)}).sum() <= 2 * SIZE:", "else:"):
                self.put(indent, test)
                self.block(indent + 1, self.random.randint(1, 2))
        elif kind == 11:
            self.put(indent, f"{names} = self.note({self.tensor(2)}, log)")
        elif kind == 12:
            self.put(indent, f"ys = [{self.tensor(2)} for x in ys[:2]] + ys")
        else:
            self.put(indent, f"def inner(x):\n{'    ' * (indent + 1)}nonlocal b\n{'    ' * (indent + 1)}b = b * 0.5")
            self.put(indent + 1, f"return {self.tensor(2)}")
            self.put(indent, f"c = {self.tensor(1)} + inner(a) * b")

    def tensor(self, depth: int) -> str:
        pick = self.random.randrange
        inner = lambda: self.tensor(depth - 1)  # noqa: E731
        if depth == 0 or pick(6) == 0:
            return self.random.choice(["a", "b", "c", "xs[0]", "ys[-1]", "self.words(torch.tensor(n))", "self.bias",
                                       "self.words(torch.tensor([n]))[0]",
                                       "self.words(torch.LongTensor([n])).squeeze(0)"])  # fmt: skip
        kind = pick(14)
        if kind < 3:
            return f"torch.{self.random.choice(['tanh', 'sigmoid', 'relu'])}({inner()})"
        if kind < 5:
            return f"({inner()} {self.random.choice('+-*')} {inner()})"
        return [
            lambda: f"self.step({inner()})",
            lambda: f"self.pair(torch.cat([{inner()}, {inner()}]))",
            lambda: f"torch.stack({self.random.choice(['xs', 'ys'])}).sum(0)",
            lambda: f"torch.stack([{inner()}, *{self.random.choice(['xs', 'ys'])}]).mean(0)",
            lambda: f"self.note({inner()}, log)",
            lambda: f"self.changed({self.random.choice(['xs', 'ys'])}, {inner()})",
            lambda: f"{inner()}.view(2, 2).t().reshape(-1)",
            lambda: f"({inner()} if n % 2 else {inner()})",
            lambda: f"({inner()} / {self.random.choice(['max(n, 1)', 'len(xs)', 'self.factor', '(a * a + 1)'])})",
        ][kind - 5]()


HEAD = """\
import torch
from torch import nn
from test_regions import SIZE, Base

class Model(Base):
    def fails(self, n, log):
        log.append("fails")
        if n % 2:
            raise KeyError(n)
        return 1.0

    def changed(self, xs, h):
        xs[0] = xs[0] * 2
        if len(xs) > 2:
            xs.pop()
        return h

"""
_numbers = itertools.count()


def written(text: str, folder: Path) -> nn.Module:
    """The model of a file with a method."""
    path = folder / f"regions_{next(_numbers)}.py"
    path.write_text(HEAD + text)
    return seeded(imported(path, path.stem, sys.modules.__setitem__).Model)


def outcome(function: Any, model: nn.Module, n: int) -> tuple[Any, ...]:
    """What a method returns or raises, what it did to its arguments, and what it noted, in order."""
    torch.manual_seed(n)
    a, b, xs = torch.randn(SIZE), torch.randn(SIZE), [torch.randn(SIZE) for _ in range(3)]
    log: list[Any] = []
    try:
        result = function(model, a, b, xs, n, log)
    except Exception as error:
        result = type(error)
    return _plain(result), _plain(xs), log


def _plain(nest: Any) -> Any:
    if isinstance(nest, Tensor):
        return nest.tolist()
    return [_plain(x) for x in nest] if isinstance(nest, list | tuple) else nest


def as_helper(text: str) -> str:
    """The method as a function that the model's forward calls."""
    outside = textwrap.dedent(text).replace("def forward(self", "def helper(model").replace("self.", "model.")
    return "    def forward(self, *given):\n        return helper(self, *given)\n\n\n" + outside


@pytest.mark.long
@pytest.mark.parametrize("is_helper", [False, True], ids=["method", "helper"])
@pytest.mark.parametrize("num", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_programs_at_random_do_what_they_did(num: int, is_helper: bool, tmp_path: Path) -> None:
    """Outlined, in eager execution: bit-equal values, the same side effects in the same order."""
    count = moving = 0
    for seed in range(num):
        text = Writer(seed).write()
        model = written(as_helper(text) if is_helper else text, tmp_path)
        kind = type(model)
        function = vars(sys.modules[kind.__module__])["helper"] if is_helper else kind.forward
        regions = Regions(model, Closed(model))
        found = regions.of_method(kind, function)
        for chosen in (frozenset(found), frozenset(list(found)[::2])):
            outlined = regions.outlined(kind, function, chosen)
            if outlined is None:
                continue
            for name in found:
                setattr(kind, name, found[name].function)
            for n in range(4):
                assert outcome(outlined, model, n) == outcome(function, model, n), text
        count += len(found)
        moving += sum(region.moves for region in found.values())
        del sys.modules[kind.__module__]
    assert count > num * (1 if is_helper else 2)
    assert moving == 0 if is_helper else moving > num // 15


def test_regions_are_what_is_left_out(tmp_path: Path) -> None:
    """An outlined method calls its regions and makes none of their calls itself."""
    model = written(Writer(5).write(), tmp_path)
    regions = Regions(model, Closed(model))
    found = regions.of_method(type(model), type(model).forward)
    outlined = regions.outlined(type(model), type(model).forward, frozenset(found))
    assert outlined is not None
    assert found
    wholes = {name for name in found if name[-1] not in "ab"}
    assert wholes <= {name for code in _codes(outlined.__code__) for name in code.co_names}
    assert all(isinstance(definition_of(region.function), ast.FunctionDef) for region in found.values())


def _codes(code: Any) -> Any:
    yield code
    for inner in code.co_consts:
        if hasattr(inner, "co_names"):
            yield from _codes(inner)


NOTES = """\
import random
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.size, self.words, self.step = size, nn.Embedding(50, size), nn.Linear(2 * size, size)
        self.out, self.log = nn.Linear(size, size), []

    def noted(self, h):
        self.log.append(len(h))
        self.log.clear()
        return torch.tanh(h)

    def forward(self, words):
        h, seen = torch.zeros(self.size), []
        for word in words:
            h = torch.tanh(self.step(torch.cat([self.words(torch.tensor(word)), h])))
            seen.append(self.noted(h))
        return torch.relu(self.out(torch.stack(seen).sum(0)))

def build():
    return Reader()

def sample(count, seed):
    rng = random.Random(seed)
    return [[rng.randrange(50) for _ in range(rng.randint(2, 60))] for _ in range(count)]
"""


def test_explain_says_what_is_no_cell(tmp_path: Path) -> None:
    """The cells with their lines, a method with the line that prevents it, and a region that does not pay."""
    (tmp_path / "reader.py").write_text(NOTES)
    runner, plan = CliRunner(), str(tmp_path / "reader.yaml")
    made = runner.invoke(main, ["compile", str(tmp_path / "reader.py"), "-o", plan, "--policy", "critical"])
    assert made.exit_code == 0, made.output
    text = " ".join(runner.invoke(main, ["explain", plan]).output.split())

    assert "cells that nobody marked: forward:1 (reader.py:19)" in text
    assert "noted is no cell" in text
    assert "of the mini-batch: reader.py:12" in text
    told = r"forward:2 is no cell, so that 64 nodes in it are recorded one by one, which with running them takes "
    found = re.search(told + r"([\d,]+) us of the mini-batch: reader.py:21: on the sample", text)
    assert found is not None
    assert int(found[1].replace(",", "")) > 0

    options = ["-o", plan, "--policy", "critical", "--cells", "marked"]
    assert runner.invoke(main, ["compile", str(tmp_path / "reader.py"), *options]).exit_code == 0
    text = " ".join(runner.invoke(main, ["explain", plan]).output.split())
    assert "reader.py:19: compiled with '--cells marked', or on the sample that costs less" in text


FALLS_BACK = """\
import torch
from torch import nn

class Step(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x, h, kind):
        z = torch.sigmoid(self.a(x) + self.b(h))
        if kind == 7 and z.sum() > 0:
            return z * h
        return z * torch.tanh(h) + x

class Model(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.words, self.step = nn.Embedding(20, size), Step(size)

    def forward(self, words):
        h = self.words.weight[0]
        for word, kind in words:
            h = self.step(self.words.weight[word], h, kind)
        return h

def build():
    return Model()

def sample(count, seed):
    return [[(k % 20, 0) for k in range(3 + i % 7)] for i in range(count)]

def load(path):
    return [[(3, 0), (4, 7), (5, 0)]]
"""


def test_explain_says_which_calls_of_a_cell_are_none(tmp_path: Path) -> None:
    """By the line that prevents it; the lines of the cell are no regions that cost more."""
    (tmp_path / "model.py").write_text(FALLS_BACK)
    runner, plan = CliRunner(), str(tmp_path / "model.yaml")
    made = runner.invoke(main, ["compile", str(tmp_path / "model.py"), "-o", plan, "--policy", "critical"])
    assert "cells that nobody marked: step (model.py:9)" in made.output, made.output
    data = tmp_path / "data.txt"
    data.write_text("unlike the sample")
    text = " ".join(runner.invoke(main, ["explain", plan, "--input", str(data)]).output.split())

    assert "1 call of step is no node: model.py:11: the value of a tensor was asked for" in text
    assert "is no cell" not in text


READER = """\
import random
import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.size, self.words = size, nn.Embedding(50, size)
        self.step, self.pair, self.out = nn.Linear(size, size), nn.Linear(2 * size, size), nn.Linear(size, 3)

    def forward(self, words):
        h = torch.zeros(self.size)
        for word in words:
            x = self.words(torch.tensor(word))
            z = torch.sigmoid(self.step(x) + h)
            n = torch.tanh(self.pair(torch.cat([x, h])))
            h = (1 - z) * h + z * n
        return self.score(h)

    def score(self, h):
        return torch.relu(self.out(torch.tanh(h)))


def build():
    return Reader()


def sample(count, seed):
    rng = random.Random(seed)
    return [[rng.randrange(50) for _ in range(rng.randint(2, 9))] for _ in range(count)]
"""


def lines_of_plan(text: str, folder: Path) -> list[str]:
    """The plan of a model file, without the file's hash."""
    file = folder / "reader.py"
    file.write_text(text)
    sys.modules.pop("reader", None)
    plan = compile_model(file, policy="critical", measure_gain=False).plan
    assert set(plan.automatic) == {"forward:1", "score"}
    return re.sub(r'sha256: "?[0-9a-f]{64}"?', "sha256: ...", plan_text(plan)).splitlines()


def test_a_changed_line_of_a_region_is_a_changed_line_of_its_cell(tmp_path: Path) -> None:
    """And of nothing else in the plan, where it is as many operations as before."""
    before = lines_of_plan(READER, tmp_path)
    after = lines_of_plan(READER.replace("h = (1 - z) * h + z * n", "h = (1 - z) * h - z * n"), tmp_path)

    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert all(before[i].replace(" = sum(", " = sub(") == after[i] for i in changed)
    heads = [i for i in range(before.index("cells:"), len(before)) if re.fullmatch(r"  \w+:", before[i])]
    owners = {before[max(head for head in heads if head < i)] for i in changed}
    cells = {before[head] for head in heads}
    assert {"  score:", "  forward_1:"} < cells
    assert owners == {cell for cell in cells if cell.startswith("  forward_1")}


@pytest.mark.parametrize("place", ["    def forward", "def build"])
def test_a_comment_moves_lines_and_changes_nothing_else(place: str, tmp_path: Path) -> None:
    """Above the cells the plan's line numbers are one more; below them it is the same plan."""
    before = lines_of_plan(READER, tmp_path)
    after = lines_of_plan(READER.replace(place, f"# about this\n{place}"), tmp_path)

    by = 1 if place == "    def forward" else 0
    assert [re.sub(r"(?<=reader\.py:)\d+", lambda n: str(int(n[0]) + by), line) for line in before] == after


def test_explain_tells_cells_that_are_given_rows() -> None:
    """They have no nodes of their own: their operations have, one for each row."""

    class OfRows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

        def forward(self, series: Tensor) -> Tensor:
            h = self.up(series)
            g = torch.tanh(h) * h + torch.exp(h)
            return torch.tanh(self.out(g.sum(0))) * 2

    model = seeded(OfRows)
    batch = [torch.randn(n, SIZE, generator=torch.Generator().manual_seed(n)) for n in range(2, 9)]
    net = bound(model, batch, cells="auto", rows=True)
    assert net.plan.ragged
    assert set(net.plan.automatic) == {"forward:1"}
    notes = list(cell_notes(net.plan, model, observe(net, batch, "given")))
    assert re.fullmatch(
        r"cells by their code, which are given as many rows .*, one for each row: forward:1 \(.*\)", notes[0]
    )
    assert not any("nobody marked" in note for note in notes)


class LooksUpLongs(nn.Module):
    """Words in the older way of writing `torch.tensor`, to which a number is a size and what is no integer is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.step = nn.Embedding(9, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.words(torch.LongTensor([tree])).squeeze(0)
        some = [len(part) if isinstance(part, tuple) else part for part in tree]
        of_all = self.words(torch.LongTensor(some)).sum(0) + self.words(torch.LongTensor([len(tree) + 0.5]))[0]
        return torch.tanh(self.step(sum(map(self.forward, tree)) + of_all)) + self.words(torch.LongTensor(0)).sum(0)


def test_look_ups_by_the_older_constructor_make_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    model, trees = seeded(LooksUpLongs), [(1, (2, 3)), 4, ((5, 6, 8), (7, (1, 0))), (3, 3), ((1, 2), (3, 4), 5)]
    net = bound(model, trees, cells="auto")
    require_equal_gradients(net, trees, tolerance=1e-6)
    embedded, made = shadow.embedded, list[Any]()
    monkeypatch.setattr(shadow, "embedded", lambda *of: made.append(of[2]) or embedded(*of))
    recorded(net, trees)
    inner = sum(str(tree).count("(") for tree in trees)
    assert len(made) <= 2 * inner + 1, "expected tensors of what is no integer, and of a size, and the first list's"
