"""Constants that forward makes are descriptions until somebody needs their bytes, and nobody can tell."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, captured, seeded
from torch import nn
from torch.nn import functional as F

from edbc.capture.standins import made as descriptions
from edbc.capture.standins.made import Made

SIZE = 6
CACHE: dict[str, Any] = {}
Use = Callable[["Uses", torch.Tensor], Any]


class Uses(nn.Module):
    """What the functions below are the `forward` of, for an instance `(SIZE,)`."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.start = nn.Linear(SIZE, SIZE), nn.Parameter(torch.randn(SIZE))


def model_of(how: Use) -> Uses:
    """Seeded. Constants are described in methods, which recording runs copies of."""
    return seeded(type("Uses", (Uses,), {"forward": how, "__module__": __name__}))


def first_state(net: Uses, x: torch.Tensor) -> Any:
    h = torch.zeros(SIZE)
    for _ in range(3):
        h = torch.tanh(net.up(x) + h)
    return h


def scaled(net: Uses, x: torch.Tensor) -> Any:
    return net.up(x) * torch.ones(SIZE, dtype=torch.float64) + torch.eye(SIZE)[2]


def looked_at(net: Uses, x: torch.Tensor) -> Any:
    zeros, eye = torch.zeros(SIZE), torch.eye(2)
    assert not zeros.any()
    assert eye.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert float(eye[0, 0]) == 1
    assert bool(eye[0, 0] == 1)
    assert eye.numpy().sum() == 2
    assert np.asarray(zeros).shape == (SIZE,)
    assert zeros.data.sum() == 0
    assert repr(zeros).startswith("tensor")
    assert isinstance(zeros, torch.Tensor)
    assert type(zeros) is torch.Tensor
    assert not isinstance(zeros, nn.Parameter)
    return net.up(x) + zeros if len(eye) == 2 else x


def changed_once(net: Uses, x: torch.Tensor) -> Any:
    h = torch.zeros(SIZE)
    before = net.up(x) + h
    h.fill_(2)
    return before + h


def changed_by_numpy(net: Uses, x: torch.Tensor) -> Any:
    h = torch.zeros(SIZE)
    before = net.up(x) * h
    h.numpy()[:] = 3
    return before + net.up(x) * h


def written_into(net: Uses, x: torch.Tensor) -> Any:
    rows = torch.zeros(2, SIZE)
    rows[0] = net.up(x)
    rows[1] += x
    return rows


def of_constants(net: Uses, x: torch.Tensor) -> Any:
    mask = torch.triu(torch.ones(SIZE, SIZE), diagonal=1) @ torch.eye(SIZE)
    return net.up(x) @ mask.masked_fill(mask == 0, 0.5), torch.cat([torch.zeros(2), torch.ones(1)])


def returned(net: Uses, x: torch.Tensor) -> Any:
    zeros = torch.zeros(SIZE)
    return zeros, [torch.ones(2), net.up(x)], {"again": zeros}


def in_an_object(net: Uses, x: torch.Tensor) -> Any:
    return SimpleNamespace(state=torch.zeros(SIZE)).__dict__, x


def copied(net: Uses, x: torch.Tensor) -> Any:
    one = torch.ones(SIZE)
    parts = copy.deepcopy(one), copy.copy(one), pickle.loads(pickle.dumps(one))
    parts[0].add_(1)
    return net.up(x) * one + sum(parts)


def by_python_functions(net: Uses, x: torch.Tensor) -> Any:
    return F.gaussian_nll_loss(net.up(x), torch.zeros(SIZE), torch.ones(SIZE)) + F.mse_loss(net.up(x), torch.ones(SIZE))


def in_lists(net: Uses, x: torch.Tensor) -> Any:
    below = [torch.zeros(SIZE), net.up(x), torch.zeros(SIZE)]
    return torch.stack(below).sum(0) + torch.cat([torch.zeros(1), x])[1:] + torch.stack(below)[0]


def with_parameters(net: Uses, x: torch.Tensor) -> Any:
    return net.up(x) + net.start * torch.ones(SIZE) + torch.zeros(SIZE).copy_(net.start.detach() * 0 + 1)


def where_none_flows(net: Uses, x: torch.Tensor) -> Any:
    with torch.no_grad():
        scale = torch.ones(SIZE) * 2
    return net.up(x) * scale


def asks_for_gradients(net: Uses, x: torch.Tensor) -> Any:
    h = torch.zeros(SIZE)
    assert not h.requires_grad
    h.requires_grad = True
    assert h.requires_grad
    assert h.is_leaf
    return net.up(x) + h


def through_a_recurrence(net: Uses, x: torch.Tensor) -> Any:
    return net.up(torch.zeros(SIZE)) + x, torch.zeros(SIZE).unsqueeze(0) + x


def onto_constants(net: Uses, x: torch.Tensor) -> Any:
    """Sums that begin with one, of equal and of other ones, written into or not, for each instance."""
    assert "nothing" not in CACHE  # which keeps records of one instance from serving others
    h = net.up(x)
    sums = [made + h for made in (torch.zeros(SIZE), torch.ones(SIZE), torch.zeros(SIZE), torch.zeros(1))]
    sums += [torch.zeros(SIZE, dtype=torch.float64) + h, torch.zeros(2, SIZE) + h, torch.zeros(SIZE) + h[0]]
    written = torch.zeros(SIZE)
    written[1] = 3.0
    return sums, written + h, torch.zeros(SIZE) + h + h, torch.zeros(SIZE).fill_(0.5) + h


def views(net: Uses, x: torch.Tensor) -> Any:
    """Of equal elements; what is written into one of them, or into what they show, all show."""
    assert "nothing" not in CACHE
    h, zeros = net.up(x), torch.zeros(SIZE)
    row = zeros.view(1, -1)
    again = row.squeeze(0)
    before = row + h, again + h, zeros.unsqueeze(0).expand(2, -1) * h, torch.ones(SIZE).reshape((2, -1)).view(-1) + h
    zeros[1] = 2.0
    after = row + h, again + h
    again[2] = 3.0
    ones = torch.ones(2, 3)
    flat = ones.reshape(6)
    flat.fill_(0.5)
    filled, late = torch.zeros(SIZE).fill_(2.0), torch.zeros(SIZE)
    seen = late.unsqueeze(0)
    late.fill_(4.0)
    with pytest.raises(RuntimeError):
        torch.zeros(3).view(2)
    bits = torch.ones(4).view(torch.int32).sum()
    return before, after, zeros + h, row.sum(), ones + h[0], filled.view(1, -1) + h, seen + h, bits, row[0] + h


def views_that_what_is_recorded_changes(net: Uses, x: torch.Tensor) -> Any:
    h, zeros = net.up(x), torch.zeros(SIZE)
    seen = zeros.view(2, -1)
    zeros += h
    return seen * 2, seen.view(-1) + zeros


def views_of_what_rows_are_assigned_to(net: Uses, x: torch.Tensor) -> Any:
    h, states = net.up(x), torch.ones(2, SIZE)
    seen = states.view(-1)
    states[0] = h
    return seen * 2, states + h


def of_integers(net: Uses, x: torch.Tensor) -> Any:
    one, many, h = torch.tensor([3]), torch.tensor([1, -2, 1 << 62]), net.up(x)
    before = h * one
    one.add_(1)
    with pytest.raises((RuntimeError, ValueError)):
        torch.tensor([1 << 80])
    others = torch.tensor([True, 2]), torch.as_tensor([7], dtype=torch.int64), torch.tensor([7], dtype=torch.int32)
    with torch.device("meta"):
        assert torch.tensor([1]).is_meta
        assert torch.tensor([1, 2]).is_meta
    return before, h * one, many, many.clone().resize_(2), others


def in_another_dtype(net: Uses, x: torch.Tensor) -> Any:
    return torch.zeros(SIZE).to(x) + x, torch.ones(SIZE).type_as(x) * net.up(x), torch.zeros(SIZE, dtype=torch.long) + x


def kept_in_a_cache(net: Uses, x: torch.Tensor) -> Any:
    return net.up(x) + CACHE.setdefault("zeros", torch.zeros(SIZE))


HOWS = [first_state, scaled, looked_at, changed_once, changed_by_numpy, written_into, of_constants, returned,
        in_an_object, copied, by_python_functions, in_lists, with_parameters, where_none_flows, asks_for_gradients,
        through_a_recurrence, onto_constants, of_integers, views, views_that_what_is_recorded_changes,
        views_of_what_rows_are_assigned_to, in_another_dtype, kept_in_a_cache]  # fmt: skip


def numbers_of_a_list(net: Uses, x: torch.Tensor) -> Any:
    data = [0.5, -0.0, 1, True, float("inf"), 3.25e-5]
    h = torch.tensor(data)
    before = net.up(x).minimum(h)
    data[0], h[1] = 7.0, 5.0
    after = net.up(x).minimum(h)
    with pytest.raises(ValueError, match="expected sequence of length 1"):
        torch.tensor([[0.5], [0.5, 1.0]])
    many = torch.tensor([data, data]), net.up(x) @ torch.tensor([[0.5 * k] for k in range(SIZE)])
    return before, after, many, torch.tensor(data, dtype=torch.float64) + x, torch.tensor(data[:3]).resize_(2, 2)[0, 0]


HOWS.append(numbers_of_a_list)
MADE_OF = {"torch.zeros(SIZE)": "torch.tensor([0.0] * SIZE)", "torch.ones(SIZE)": "torch.tensor((1.0,) * SIZE)"}


def of_numbers(how: Use) -> Use:
    """The same function, with constants made of lists."""
    text = inspect.getsource(how)
    for one, other in MADE_OF.items():
        text = text.replace(one, other)
    scope: dict[str, Any] = {}
    exec(text, globals(), scope)
    return scope[how.__name__]


def rows(seed: int, count: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=generator) for _ in range(count)]


def require_same(ours: Any, theirs: Any) -> None:
    """Nests of equal tensors, real ones."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        return
    for one, other in zip(*(x.values() if isinstance(x, dict) else x for x in (ours, theirs)), strict=True):
        require_same(one, other)


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.__name__)
@pytest.mark.parametrize(("cells", "made"), [("marked", str), ("auto", str), ("marked", of_numbers)])
def test_nobody_can_tell(how: Use, cells: str, made: Any) -> None:
    """Values as in eager, whatever is done to a constant, of zeros or of a list of numbers; several times, and by two
    nets in turn."""
    CACHE.clear()
    how = how if made is str else made(how)
    nets = [bound(model_of(how), rows(0), cells=cells) for _ in range(2)]
    model = model_of(how)
    for seed in (1, 2, 3):
        for net in nets:
            require_same(net(rows(seed)), [model(x) for x in rows(seed)])


def test_gradients_pass_by() -> None:
    """What constants are added to and multiplied with has eager's gradients."""
    for how in (first_state, in_lists, with_parameters, by_python_functions):
        ours, theirs = model_of(how), model_of(how)
        sum(result.sum() for result in bound(ours, rows(0))(rows(1))).backward()
        sum(theirs(x).sum() for x in rows(1)).backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            if other.grad is not None:
                require_same(one.grad, other.grad)


@torch.no_grad()
def test_leaves_that_no_gradient_reaches_are_constants() -> None:
    """And require one, for whoever gets them; what is written into them shows nowhere else."""

    def how(net: Uses, x: torch.Tensor) -> Any:
        assert "nothing" not in CACHE
        h = net.up(x)
        leaf, written, kept, alone = [h.new(SIZE).fill_(0.5).requires_grad_() for _ in range(4)]
        sums = leaf + h, h * leaf
        written[1] = 2.0
        assert kept.requires_grad
        assert not h.new(SIZE).requires_grad
        changed = written * h, kept.fill_(3.0) + h, kept
        return sums, leaf, changed, alone, h.new(SIZE).zero_().requires_grad_(False)

    model = model_of(how)
    net = bound(model, rows(0))
    for seed in (1, 2):
        ours, theirs = net(rows(seed)), [model(x) for x in rows(seed)]
        require_same(ours, theirs)
        for one, other in zip(ours, theirs, strict=True):
            for part in (lambda x: x[1], lambda x: x[2][2], lambda x: x[3], lambda x: x[4]):
                assert part(one).requires_grad is part(other).requires_grad

    def many(net: Uses, x: torch.Tensor) -> Any:
        h = net.up(x)
        return [torch.cumsum(h + h.new(SIZE).fill_(0.5).requires_grad_(), 0) for _ in range(3)]

    assert sum(map(len, captured(model_of(many), rows(1)).constants.values())) == 1 + len(rows(1))


def test_equal_constants_are_one_external() -> None:
    """Of a mini-batch, whoever makes them; those of another shape or dtype are others."""

    def how(net: Uses, x: torch.Tensor) -> Any:
        parts = [torch.zeros(SIZE), torch.zeros(SIZE), torch.zeros(SIZE, dtype=torch.float64), torch.ones(SIZE)]
        return [torch.cumsum(net.up(x) + part, 0) for part in parts]

    constants = [x for tensors in captured(model_of(how), rows(1)).constants.values() for x in tensors]
    assert len(constants) == 3 + len(rows(1))


def test_constants_are_descriptions() -> None:
    """Or nothing here would be tested."""

    def how(net: Uses, x: torch.Tensor) -> Any:
        kinds.extend(map(type, [torch.zeros(SIZE), torch.tensor([1, 2.5]), torch.as_tensor((1,), dtype=torch.double)]))
        kinds.extend(map(type, [torch.tensor(2.0), torch.tensor([[1.0]]), torch.tensor([(0.5, 1), [True, 2]])]))
        others.extend(map(type, [torch.tensor([1, 2]), torch.tensor([]), torch.tensor([[], []]), torch.tensor(2)]))
        return net.up(x)

    kinds: list[type] = []
    others: list[type] = []
    captured(model_of(how), rows(1))
    assert set(kinds) == {Made}
    assert set(others) == {torch.Tensor}


def test_numbers_are_torchs_to_the_bit() -> None:
    """As an operand, and when somebody looks: of both dtypes, with integers beyond what floats tell apart."""
    random = Random(0)
    kinds = [lambda: random.uniform(-1, 1), lambda: random.randrange(-9, 9), lambda: random.randrange(2**80),
             lambda: random.choice([True, -0.0, float("nan"), float("inf"), 1e300, 1e-45, 5e-324])]  # fmt: skip
    count = 200
    lists: list[Any] = [[random.choice(kinds)() for _ in range(SIZE - 1)] + [0.5] for _ in range(count)]
    ways: list[Any] = [lambda data: float(data[0]), lambda data: [data], lambda data: [data, data[::-1]]]
    lists += [way(data) for way in ways for data in lists]
    expected = [torch.tensor(data, dtype=dtype) for data in lists for dtype in (torch.float32, torch.float64)]
    found: list[torch.Tensor] = []

    def how(net: Uses, x: torch.Tensor) -> Any:
        for data in lists:
            for dtype in (torch.float32, torch.float64):
                made = torch.tensor(data, dtype=dtype)
                net.start.to(dtype) + made
                found.append(made.real())
        return net.up(x)

    constants = captured(model_of(how), rows(1, 1)).constants
    bits: dict[Any, set[bytes]] = {}
    for row in found:
        bits.setdefault((row.dtype, row.shape), set()).add(row.numpy().tobytes())
    for made, other in zip(found, expected, strict=True):
        assert made.numpy().tobytes() == other.numpy().tobytes()
    operands = [tensors for tensors in constants.values() if len(tensors) >= count]
    assert {(tensors[0].dtype, tensors[0].shape) for tensors in operands} == bits.keys()
    for tensors in operands:
        assert {row.numpy().tobytes() for row in tensors} >= bits[tensors[0].dtype, tensors[0].shape]


WRITES: list[Any] = [
    *[(index, 0.3) for index in (2, -1, (1, 2), (-4, -6), (1, [0, 2, -1]), ([0, 1], [2, 3]), [3, 3], (2, []), [])],
    *[(index, 0.3) for index in (slice(1, 3), (0, slice(None)), (slice(None, 2), [1, 4]), (slice(2), slice(-3, 9)))],
    *[(index, 0.3) for index in (4, (0, -7), (1, [6]), [0.5], (slice(None, None, 2), 1), (0, 0, 0))],
    *[(([0, 1], [0, 1, 2]), 0.3), ((0, 1), True), ((0, 1), -7)],
    *[((0, 1), value) for value in (2**24 + 1, 2**53 + 1, 2**62 + 3, 2**80, -0.0, 1e-45, 1e39, 1e309, -1e309)],
    *[((0, [1, 2]), value) for value in (float("nan"), 16777217.5, None, "x", [1.0], 1j)],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_are_written_as_torch_writes_them(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every kind of place, and refused where torch refuses them; most of them without torch."""
    counted: list[torch.Tensor] = []
    monkeypatch.setattr(descriptions, "increment_version", counted.append)

    def how(net: Uses, x: torch.Tensor) -> Any:
        seen: list[Any] = []
        for index, value in WRITES:
            whole = torch.zeros(4, SIZE, dtype=dtype)
            try:
                whole[index] = value
            except Exception as error:
                seen.append(type(error))
            else:
                seen.append(whole.double().numpy().tobytes())
        shown = torch.zeros(1, 3, dtype=dtype).expand(2, 3)
        shown[0, 1] = 2.0
        found.append([*seen, shown.double().numpy().tobytes()])
        return net.up(x)

    found: list[Any] = []
    model_of(how)(rows(1)[0])
    captured(model_of(how), rows(1))
    assert found == found[:1] * len(found)
    assert len(counted) > 20 * len(rows(1)) or dtype is torch.bfloat16


class Keeps(nn.Module):
    """Keeps a constant on the module and on its instance."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.last = nn.Linear(SIZE, SIZE), None

    def forward(self, node: SimpleNamespace) -> torch.Tensor:
        node.state, node.many = torch.zeros(SIZE), (torch.ones(1), [torch.eye(2)])
        self.last = torch.ones(SIZE)
        return self.up(node.x) + node.state * self.last


def test_what_is_left_is_a_tensor() -> None:
    """Constants that forward leaves on instances and on the model are real tensors afterwards."""
    model = seeded(Keeps)
    net = bound(model, [SimpleNamespace(x=x) for x in rows(0)])
    nodes = [SimpleNamespace(x=x) for x in rows(1)]
    net(nodes)
    for node in nodes:
        found = [node.state, node.many[0], node.many[1][0], model.last]
        assert all(type(x) is torch.Tensor and type(x) is not Made for x in found)
        require_same(found, [torch.zeros(SIZE), torch.ones(1), torch.eye(2), torch.ones(SIZE)])
