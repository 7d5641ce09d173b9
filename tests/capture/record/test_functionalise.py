"""Tensors that change in place: every name of their memory shows it, as in eager; BUGS 9."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from expressions import Expression, require_equal
from gradients import require_equal_gradients
from helpers import bound, captured, require_eager, require_parity, seeded
from test_asker import Model
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.capture.ragged.rows import Pool
from edbc.capture.record import functionalise
from edbc.errors import UnsupportedError

PROGRAMS: dict[str, Expression] = {}


def program(function: Expression) -> Expression:
    PROGRAMS[function.__name__] = function
    return function


@program
def divided(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h /= 3.0
    h %= 4.0
    h **= 2
    return h * x


@program
def augmented(m: Any, x: Any) -> Any:
    h = m.linear(x)
    other = h
    h += x
    return other * 2


@program
def view_sees_a_change(m: Any, x: Any) -> Any:
    h = m.linear(x)
    seen = h.view(2, 3)
    h += x
    return seen


@program
def change_through_a_view(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h.view(2, 3)[0] *= 2
    return h


@program
def change_through_a_transposed_view(m: Any, x: Any) -> Any:
    h = m.linear(x).view(2, 3)
    h.t()[1] += 1
    return h


@program
def copies_stay(m: Any, x: Any) -> Any:
    h = m.linear(x)
    copies = [h.clone(), h.view(2, 3).t().reshape(6), sum([h]), h + 0]
    h.mul_(3)
    return torch.stack(copies) + h


@program
def weights_filled_without_gradients(m: Any, x: Any) -> Any:
    h = m.linear(x)
    weights, mask = torch.zeros_like(h), torch.ones(6)
    with torch.no_grad():
        weights[1:] = h[1:].abs()
        weights[0] += 2.0
        mask[2] = 0.0
        mask *= weights.tanh()
    return h * weights * mask


@program
def items_and_slices(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h[1] = x[2]
    h[:4] *= 2
    h[2:5] = 1.5
    h[1:3].zero_()
    h[4].fill_(2.0)
    return h + x


@program
def slices_and_computed_numbers(m: Any, x: Any) -> Any:
    h = m.linear(x)
    table, halves = torch.zeros(2, 3, 6), h.view(2, 3) * 1
    table[1, :, h.argmax().reshape(1)] = h[0]
    table[:, 1:, h.argmin()] = 2.0
    halves[:, h[:3].argmax().reshape(1)] = 1.5
    return (table + h).sum((0, 1)) * halves.flatten()


@program
def methods(m: Any, x: Any) -> Any:
    return m.linear(x).mul_(2).add_(1).masked_fill_(x > 0, 3.0).tanh_()


@program
def overwritten(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h.copy_(x + x)
    return h


@program
def functions_in_place(m: Any, x: Any) -> Any:
    h, g = m.linear(x), m.linear(x * 2)
    F.relu(h, inplace=True)
    torch.relu_(g)
    return h + g


@program
def modules_in_place(m: Any, x: Any) -> Any:
    h = m.linear(x)
    m.relu(h)
    return h


@program
def buffer(m: Any, x: Any) -> Any:
    rows = torch.zeros(3, 6, dtype=x.dtype)
    for i in range(3):
        rows[i] = x * i
    return rows.sum(0) + rows[1]


@program
def views_of_a_buffer(m: Any, x: Any) -> Any:
    rows = torch.zeros(3, 6, dtype=x.dtype)
    flat, last = rows.view(-1), rows[2]
    rows[1] = x
    flat[12:15] = x[:3]
    return torch.cat([rows.reshape(-1), last, flat])


@program
def a_buffer_returned(m: Any, x: Any) -> Any:
    rows = torch.zeros(2, 6, dtype=x.dtype)
    rows[0] = x
    return rows


@program
def sums_into_zeros(m: Any, x: Any) -> Any:
    h, untouched = torch.zeros_like(x), torch.zeros_like(x)
    total = torch.zeros(6, dtype=x.dtype)
    for _ in range(3):
        total += m.linear(x)
        h += x
    return h + total - untouched


@program
def rows_of_many(m: Any, x: Any) -> Any:
    h = torch.cat([torch.outer(x, x), torch.outer(x, x)])
    row = h[9]
    h[9] += 1
    row *= 2
    return h.sum(1) + row.sum()


@program
def masks_and_indices(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h[x > 0.5] = 0.0
    h[[0, 2]] = x[:2]
    h[torch.tensor([1])] = x[3]
    return h


@program
def lists_without_a_number(m: Any, x: Any) -> Any:
    h, g, z = m.linear(x), m.linear(x).view(2, 3), torch.zeros(2, 3)
    h[[]] = 3.0
    g[[], []] = 1.0
    z[[], []] = 1.0
    g[[0, 1], [2, 0]] = 2.0
    return h + (g * z).reshape(6)


@program
def views_in_the_shape_of_another(m: Any, x: Any) -> Any:
    h, like = m.linear(x), x.view(2, 3)
    h.view_as(like)[0] *= 2
    h.reshape_as(like)[:, 1] += 1
    z = torch.zeros(2, 3).type_as(h)
    z[0, :2] = 1
    w = torch.zeros(2, 3).to(h)
    w.view_as(m.linear(x))[:2] = 3
    z = z * h.view_as(z) * w
    return h * z.reshape(6) + h[:1].expand_as(h) + h.view(1, 6).expand_as(torch.zeros(4, 6)).sum(0)


@program
def one_of_a_list_of_views(m: Any, x: Any) -> Any:
    h = m.linear(x)
    parts = [h[i] for i in range(6)]
    parts[2] += 1
    parts[3].mul_(x[0])
    return h + torch.stack(parts)


@program
def another_shape(m: Any, x: Any) -> Any:
    h = m.linear(x)
    h.unsqueeze_(0)
    return h


@program
def rows_of_a_table(m: Any, x: Any) -> Any:
    rows, one = m.table(torch.tensor([1, 2])), m.table(torch.tensor(1))
    rows[0] += x
    one += x
    return rows + one


@program
def copies_of_a_parameter(m: Any, x: Any) -> Any:
    slots, kept = m.table.weight.clone(), m.table.weight.clone()
    for i in range(3):
        slots = slots.clone()
        slots[i] = torch.tanh(x + slots[i + 1].clone())
    kept *= 2.0
    return slots + kept + m.table.weight.clone()


def modules() -> dict[str, Any]:
    return {"linear": nn.Linear(6, 6), "relu": nn.ReLU(inplace=True), "table": nn.Embedding(4, 6)}


@pytest.mark.parametrize("in_cell", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_change_tensors(name: str, in_cell: bool) -> None:
    """Values and gradients are eager's, aliases and copies included, between cells and inside of one."""
    require_equal(PROGRAMS[name], modules, in_cell)


VIEWS = [
    lambda t: t[t.shape[0] // 2 :],
    lambda t: t[0] if t.ndim > 1 else t[:2],
    lambda t: t.t() if t.ndim == 2 else t[1:],
    lambda t: t.reshape(-1),
    lambda t: t.unsqueeze(0)[0],
    lambda t: t.clone(),
    lambda t: t * 1,
]
CHANGES = [
    lambda t, x: t.mul_(1.5),
    lambda t, x: t.add_(x[0]),
    lambda t, x: t.neg_(),
    lambda t, x: t.__setitem__(0, 0.5),
    lambda t, x: t.__setitem__(slice(0, 1), t[-1:] * 2),
    lambda t, x: t.__iadd__(t * 0.25),
]
"""Linear ones: of others eager's autograd refuses some, whose operands have changed since."""


def _random_program(seed: int, forgets: bool = False) -> Expression:
    """Names of one or two tensors, views of them and copies, changed and read in a random order; where it forgets, a
    name may be all that is left of its memory."""

    def run(m: Any, x: Any) -> Any:
        draw = random.Random(seed)
        made = torch.zeros(2, 3, dtype=x.dtype)
        names = [m.linear(x).view(2, 3), made]
        for _ in range(8):
            if forgets and len(names) > 1 and draw.random() < 0.4:
                del names[draw.randrange(len(names))]
            if draw.random() < 0.5:
                found = draw.choice(VIEWS)(draw.choice(names))
                names += [found] if found.numel() else []
            else:
                draw.choice(CHANGES)(draw.choice(names), x)
        return torch.cat([name.reshape(-1) for name in names])

    return run


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    """Random programs of views, copies, changes and reads have eager's values and gradients."""
    require_equal(_random_program(seed, forgets=seed % 2 == 1), modules, in_cell=seed % 4 == 3)


def _first(h: Any) -> Any:
    h += 1
    return h


def _of_detached(h: Any) -> Any:
    return _first(h.detach()), h


REFUSED: dict[str, tuple[Any, str]] = {
    "parameter": (
        lambda m: _first(m.table.weight),
        "a parameter or buffer of the model was changed in place, table.weight",
    ),
    "statistics": (lambda m: m.norm(torch.tanh(m.table.weight[:3])), "was changed in place, norm.num_batches_tracked"),
    "row of a parameter": (lambda m: _first(m.table.weight[1]), "a tensor that others hold was changed in place"),
    "detached": (lambda m: _of_detached(torch.tanh(m.table.weight[1])), r"changed in place through .detach\(\)"),
    "without gradients": (
        lambda m: torch.no_grad()(_first)(torch.tanh(m.table.weight[1])),
        "that requires a gradient was changed in place where gradients are switched off",
    ),
    "unknown view": (
        lambda m: _first(torch.view_as_real(torch.complex(m.table.weight[1], m.table.weight[2]))),
        "by a function that is not known as a view",
    ),
    "read while it changes": (
        lambda m: _into_itself(torch.tanh(m.table.weight[1])),
        "'masked_scatter_' was told to read the tensor that it changes",
    ),
}


def _into_itself(x: Any) -> Any:
    return x.masked_scatter_(torch.tensor([True, False, True]), x)


class Training(nn.BatchNorm1d):
    """It keeps statistics in evaluation too."""

    def train(self, mode: bool = True) -> Training:
        return super().train(True)


class Changing(nn.Module):
    def __init__(self, change: Any):
        super().__init__()
        self.table, self.norm = nn.Embedding(4, 3), Training(3)
        self.change = change

    def forward(self, instance: Any) -> Any:
        return self.change(self)


@pytest.mark.parametrize("name", REFUSED)
def test_changes_that_others_would_not_see_are_refused(name: str) -> None:
    """What is not the instance's own to change is refused with file and line."""
    change, message = REFUSED[name]

    with pytest.raises(UnsupportedError, match=rf"test_functionalise.py:\d+: .*{message}.*; "):
        captured(seeded(Changing, change), [None])


def test_what_training_batch_norm_needs_is_told() -> None:
    """Its statistics are of a mini-batch, which an instance does not see; no new tensor mends that."""
    with pytest.raises(UnsupportedError, match=r"num_batches_tracked; a norm that trains .*: call eval\(\)"):
        captured(seeded(Changing, REFUSED["statistics"][0]), [None])


class Norms(nn.Module):
    """Norms by functions, which keep statistics in evaluation too where they are told to."""

    def __init__(self, norm: Any, keeps: bool) -> None:
        super().__init__()
        self.linear, self.norm, self.keeps = nn.Linear(3, 3), norm, keeps
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.linear(x)
        h = h.T[None] if self.norm is F.instance_norm else h
        return self.norm(h, self.mean, self.variance, None, None, self.keeps).sum()


@pytest.mark.parametrize("norm", [F.batch_norm, F.instance_norm])
@pytest.mark.parametrize("rows", [False, True])
def test_norms_that_keep_statistics_are_refused(norm: Any, rows: bool) -> None:
    """Batches of other sizes first would leave other statistics; a norm by those that are kept is right."""
    instances = [torch.rand(n, 3) for n in (2, 4, 2, 3)]
    model = Norms(norm, False)
    torch.testing.assert_close(bound(model, instances, rows=rows)(instances), [model(x) for x in instances])

    with pytest.raises(UnsupportedError, match="statistics that the model keeps are changed in place by"):
        bound(Norms(norm, True), instances, rows=rows)(instances)


def test_the_caller_s_tensor_is_not_written_into() -> None:
    """A tensor that the instance brings must not hold what is not yet computed: refused, and left as it was."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            x[0] = self.linear(torch.ones(3))[0]
            return x

    brought = torch.zeros(3)
    with pytest.raises(UnsupportedError, match=r"^test_functionalise.py:\d+: .* into a tensor that forward did not"):
        captured(seeded(Writes), [brought])

    assert torch.equal(brought, torch.zeros(3))


def _detached(h: Any) -> Any:
    rows = torch.zeros(6)
    alias = rows.detach()
    alias[0] = h[0]
    return rows + h


def _view_of_data(h: Any) -> Any:
    rows = torch.zeros(2, 6)
    rows.data.view(6, 2)[0] = h[:2]
    return rows.sum(0) + h


def _variable(h: Any) -> Any:
    rows = torch.autograd.Variable(torch.zeros(6))
    rows += h
    return rows * 2


def _seen_by_another(h: Any) -> Any:
    rows = torch.zeros(2, 6)
    alias, constant = rows.data, rows.detach()[1]
    rows[0] = h
    rows[1, 1] = h[2]
    return alias.sum(0) * 3 + constant + h


class Kept(nn.Module):
    """A function that recording makes no copy of, where books are kept."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        view = h.view(6, 1)
        h += 1
        return self.function(h + view.view(6))


@pytest.mark.parametrize("function", [_variable, _seen_by_another])
def test_other_names_of_fresh_memory_show_what_is_written(function: Any) -> None:
    """Names that autograd knows as no views: values, and gradients that do not pass through them."""
    model, rows = seeded(Kept, function), [torch.full((6,), float(i)) for i in range(8)]
    require_equal_gradients(require_parity(model, rows, sizes=(1, 8)), rows, tolerance=1e-5)


@pytest.mark.parametrize("function", [_detached, _view_of_data])
def test_values_are_not_written_behind_autograd(function: Any) -> None:
    """Eager's fresh tensor would hold them without their gradient."""
    with pytest.raises(UnsupportedError, match=r"changed in place through .detach\(\)"):
        captured(seeded(Kept, function), [torch.ones(6)])


class Masked(nn.Module):
    """Scores that are masked behind autograd's back, where a mask of the instance's shows something."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        mask, scores = x < 0, self.linear(x)
        scores.data.masked_fill_(mask, -1e9)
        scores.data[mask] = 0.0
        return scores.softmax(-1)


def test_masks_that_show_nothing_change_nothing() -> None:
    """Whatever is asked to change; others are refused."""
    model, rows = seeded(Masked), [torch.full((6,), float(i)) for i in range(8)]
    require_equal_gradients(require_parity(model, rows, sizes=(1, 8)), rows, tolerance=1e-5)
    with pytest.raises(UnsupportedError, match=r"changed in place through .detach\(\)"):
        captured(model, [-rows[1]])


class Packing(nn.Module):
    """A sequence that is written into a fresh tensor, and packed by torch's own code, which asks where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gru = nn.Linear(6, 6), nn.GRU(2, 2)

    def forward(self, x: Any) -> Any:
        h = self.linear(x).view(3, 1, 2)
        turned = h.new(h.size())
        turned[:3, 0] = h[:3, 0].flip(0)
        packed = nn.utils.rnn.pack_padded_sequence(turned, torch.tensor([3]), enforce_sorted=False)
        return self.gru(packed)[1]


def test_a_fresh_tensor_tells_where_it_lies() -> None:
    """Not where its stand-in does."""
    model, rows = seeded(Packing), [torch.full((6,), float(i)) for i in range(8)]
    require_equal_gradients(require_parity(model, rows, sizes=(1, 8)), rows, tolerance=1e-5)


class OfFrozen(nn.Module):
    """Positions, counted in a copy of a parameter that is no weight, element by element."""

    def __init__(self, is_frozen: bool) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(3, 3), nn.Parameter(torch.zeros(1), requires_grad=not is_frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.first.repeat(3)
        for i in range(3):
            places.data[i] = i
        return self.linear(x) * places.unsqueeze(0)


def test_what_requires_no_gradient_may_change_through_its_data() -> None:
    """A frozen parameter's copy; one that trains would keep its gradient of what it was, which is refused."""
    model, rows = seeded(OfFrozen, True), [torch.full((3,), float(i)) for i in range(8)]
    net = require_parity(model, rows, sizes=(1, 8))
    require_equal_gradients(net, rows, tolerance=1e-5)

    with pytest.raises(UnsupportedError, match=r"changed in place through .detach\(\)"):
        captured(seeded(OfFrozen, False), rows)


def test_models_that_change_nothing_keep_no_books() -> None:
    """What shares memory is known only from the first change on that another name shows."""
    plain, changing = seeded(Model, lambda h: h.view(3, 1)), seeded(Model, _through_a_view)

    assert not _keeps_books(plain)
    assert _keeps_books(changing)


def _through_a_view(h: Any) -> Any:
    view = h.view(3, 1)
    h += 1.0
    return view


def _keeps_books(model: nn.Module, instances: Sequence[Any] = (1, 2)) -> bool:
    from edbc.capture.code.shadow import ModelView, recording_shadow
    from edbc.capture.forward.build import capture
    from edbc.capture.record.table import TypeTable

    shadow, recorder = recording_shadow(ModelView(model), TypeTable())
    capture(shadow, recorder, instances)
    return recorder.keeps_books


def test_attention_with_masks() -> None:
    """nn.MultiheadAttention fills a mask of its own in place."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.attention = nn.Embedding(8, 6), nn.MultiheadAttention(6, 2)

        def forward(self, words: Any) -> Any:
            x = self.table(torch.tensor(words))
            mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
            return self.attention(x, x, x, attn_mask=mask)[0]

    require_parity(seeded(Attends), [[1, 2, 3], [4, 5, 6], [7, 0, 1]])


class Filling(nn.Module):
    """A buffer filled row by row, changed through views, and read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(3, 4)
        h = self.linear(x)
        for i in range(3):
            h = torch.tanh(self.linear(h))
            rows[i] = h
            rows[i, 1] += x[0]
        rows[:, :2] *= 2.0
        first, second = rows.chunk(2, 1)
        second += 1.0
        return first.sum() + rows.mean(0)


def test_what_changes_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing through a chain of views writes to, and which views show their memory, is known from mini-batches
    before; and each position is a constant once per mini-batch."""
    instances = [torch.randn(4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    net = require_parity(seeded(Filling), instances * 11)
    monkeypatch.setattr(net, "alike", None)  # the three are recorded
    with torch.no_grad():
        net(instances)
        for worked_out in ("_positions", "_columns", "_shown_by_numbers"):
            monkeypatch.setattr(functionalise, worked_out, None)
        monkeypatch.setattr(functionalise, "_is_seen_in_place", None)
        constants = net.prepare(instances).capture.constants
    tensors = [tensor for pool in constants.values() for tensor in pool]
    assert sum(tensor.dtype is torch.int64 for tensor in tensors) == 1  # a part; the other is of columns
    assert sum(bool(tensor.sum() == 1) for tensor in tensors) == 3 + 3  # rows and elements, by one number of each


PARTS: list[Any] = [1, -1, (slice(None), 2), (0, slice(None), 1), (2, 1, 0), slice(1, 2), (slice(0, 1), slice(None), 1),
                    (slice(2, 3), 0)]  # fmt: skip


class WritesParts(nn.Module):
    """What a layer computes, with a part written, and one changed."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(4, 24), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x).view(3, 4, 2)
        whole = torch.sigmoid(h).clone()
        whole[self.part] = torch.tanh(h)[self.part]
        whole[self.part] += h[self.part] * x[0]
        return whole * 2


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_parts_by_one_number_are_written_natively(part: Any) -> None:
    """Whichever dimensions the numbers are of; torch ran what writes into any part, 30 microseconds a node."""
    generator = torch.Generator().manual_seed(0)
    instances = [torch.randn(4, generator=generator) for _ in range(5)]
    net = require_parity(seeded(WritesParts, part), instances)
    require_equal_gradients(net, instances, tolerance=1e-5)
    graph = net.prepare(instances).capture.graph

    assert any(of.op == "torch.replaced" for of in graph.types)
    assert all(net.backend.runs_natively(of, net.kernel(i)) for i, of in enumerate(graph.types))


def test_a_constant_is_asked_alone_whether_it_requires_a_gradient() -> None:
    """Of each row what the row itself says, and rows that are written together stay together: asking all constants
    of the mini-batch made recording quadratic."""
    pool = Pool(torch.Size([2]), torch.float32)
    pool.add(torch.zeros(3, 2))
    pool.append(torch.zeros(2, requires_grad=True))
    pool.add(torch.zeros(2, 2, requires_grad=True))
    pool.append(torch.zeros(2))
    pool.append(torch.zeros(2))
    asked = [pool.requires_grad(number) for number in range(len(pool))]

    assert pool.num_written == 2
    assert asked == [row.requires_grad for row in pool]
    assert asked == [False] * 3 + [True] * 3 + [False] * 2


class WritingByMasks(nn.Module):
    """What each kind of an instance's rows gives, written where its mask shows; an inverse beside views."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, instance: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, kinds = instance
        made = torch.zeros(len(x), 4)
        for kind, linear in enumerate(self.kinds):
            mask = kinds == kind
            if mask.sum() > 0:
                made[mask] = torch.relu(linear(x[mask]))
        first = made[0]
        made[:, 1] += 1
        return first * torch.linalg.inv(made.t() @ made + torch.eye(4))


def test_functions_that_take_no_zeros_may_stand_beside_views() -> None:
    """Whether they give memory of their own was asked of zeros: a mask that shows nothing, and a singular matrix."""
    rng = torch.Generator().manual_seed(0)
    instances = [
        (torch.randn(n, 4, generator=rng), torch.randint(0, 2, (n,), generator=rng)) for n in (3, 4, 5, 3, 4, 5, 3, 4)
    ]
    net = require_parity(seeded(WritingByMasks), instances)
    require_equal_gradients(net, instances, tolerance=1e-4)


class Shifted(nn.Module):
    """Writes rows of a buffer that its own code does not make, of which it returns a view taken before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.make = nn.Linear(4, 4), [torch.zeros]

    def forward(self, instance: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, torch.Tensor]:
        x, n = instance
        made = self.make[0](n, 4)
        later = made[1:, 1:3]
        for i in range(n):
            x = torch.tanh(self.linear(x))
            made[i] = x
        return later, made[-1]


def test_views_of_fresh_tensors_that_are_returned_show_what_was_written() -> None:
    """Where results stand in the memory of all was taken for where the view begins: another instance's numbers."""
    instances = [(torch.randn(4, generator=torch.Generator().manual_seed(i)), 2 + i % 3) for i in range(8)]
    net = require_parity(seeded(Shifted), instances)
    with torch.no_grad():
        require_eager(net, instances)
    require_equal_gradients(net, instances, tolerance=1e-5)


class Slanted(nn.Module):
    """Writes into a tensor that is no row after row, and looks at a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.arange(12.0).view(4, 3).t().clone()
        first = made[0]
        made[1] = self.linear(x)
        return first + self.linear(x)


def test_views_of_what_does_not_stand_row_by_row_are_refused() -> None:
    """What is recorded does: a view by strides would show other elements."""
    with pytest.raises(UnsupportedError, match="no row after row"):
        captured(seeded(Slanted), [torch.randn(4)])


def require_equal_when_compiled(model: nn.Module) -> Any:
    """The net of a model over rows, whose automatic cells are found, and which gives what eager does."""
    net = edbc.compile(model, [torch.randn(n, 6) for n in range(1, 9)], force=True)
    rows = [torch.randn(n, 6) for n in (3, 1, 5, 9)]
    torch.testing.assert_close(net(rows), [model(x) for x in rows], rtol=1e-4, atol=1e-5)
    return net


class Results(nn.Module):
    """A cell whose results are its state and what a function sees of it."""

    def __init__(self, seen: Any):
        super().__init__()
        self.inner, self.outer, self.seen = nn.Linear(6, 6), nn.Linear(6, 6), seen
        self.leaf = nn.Unflatten(0, (2, 3))

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.inner(x)) + self.outer(x)
        return (h, self.leaf(h)) if self.seen is None else self.seen(h)


SEEN: dict[str, Any] = {
    "whole and view": lambda h: (h, h.view(2, 3)),
    "overlapping": lambda h: (h[:4], h[2:]),
    "parts": lambda h: (h[:3], h[3:]),
    "marked": edbc.cell(lambda h: (h, h.view(2, 3))),
    "leaf": None,
}


class Sums(nn.Module):
    """Changes one result of a cell in place, and reads the other."""

    def __init__(self, seen: Any):
        super().__init__()
        self.start, self.cell = nn.Linear(6, 6), Results(seen)

    def forward(self, rows: Any) -> Any:
        total = self.start(rows[0])
        for row in rows:
            one, other = self.cell(total + row)
            one.mul_(2)
            total = torch.cat([one.flatten(), other.flatten()])[-6:]
        return total


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_results_of_a_call_that_share_memory_change_together(seen: Any) -> None:
    model = seeded(lambda: Sums(seen))
    net = require_equal_when_compiled(model)
    assert any(kind.name == "sum" for kind in net.plan.types) != (seen is SEEN["parts"])  # recorded by its operations


class LinesThatShare(nn.Module):
    """Lines that become a region, whose results are two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        doubled = torch.stack([h, h], 0).sum(0)
        same = h.contiguous()
        turned = doubled.view(len(x), 2, -1).transpose(1, 2).reshape(len(x), -1)
        h.zero_()
        return same, turned


def test_results_of_lines_that_share_memory_change_together() -> None:
    require_equal_when_compiled(seeded(LinesThatShare))


class Steps:
    """A solver, which is no module: its code runs as it is."""

    def __init__(self, function: nn.Module, wrap: Any) -> None:
        self.function, self.wrap = function, wrap

    def run(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        states, sums = self.wrap(torch.empty(len(x), 4)), self.wrap(x.new_zeros(2, 4))
        for i in range(len(x)):
            y = torch.tanh(self.function(y) + x[i])
            states[i] = y
            sums[i % 2] += y
        return torch.cat([states, sums, x.new_full((1, 4), 0.5)])


class Solved(nn.Module):
    """A model that has a buffer filled elsewhere."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.step, self.wrap = nn.Linear(4, 4), [wrap]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Steps(self.step, self.wrap[0]).run(self.step(x[0]), x)


def _itself(made: Any) -> Any:
    return made


def _torchs_own(made: Any) -> Any:
    assert type(made) is torch.Tensor
    return made


@pytest.mark.parametrize(("wrap", "keeps"), [(_itself, False), (_torchs_own, True)])
def test_makers_that_other_code_calls_give_descriptions_too(wrap: Any, keeps: bool) -> None:
    """No books where a buffer of rows is filled in code that is no copy; where such code cannot take what stands for
    it, it has torch's own again, and books."""
    model = seeded(Solved, wrap)
    instances = [torch.randn(2 + i % 3, 4, generator=torch.Generator().manual_seed(i)) for i in range(9)]
    require_equal_gradients(require_parity(model, instances), instances, tolerance=1e-5)

    assert _keeps_books(model, instances) == keeps
