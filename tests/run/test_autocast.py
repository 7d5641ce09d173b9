"""Mini-batches under torch.autocast: eager's dtypes, eager's numbers, and products really in the short dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bound import plan_for
from gradients import tensors
from helpers import bound, opened
from torch import Tensor, nn

import edbc
from edbc.capture.semantics.autocast import INSIDE, effect
from edbc.capture.standins.lazy import REDUCTIONS
from edbc.cells.program import Copy, Product
from edbc.errors import StaleError, UnsupportedError
from edbc.run.session import Net, Stats
from edbc.tools.parity import Eager, Parity

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SIZE = 6
WORDS = [[1, 2, 3], [4], [5, 5, 6, 1], [7, 8]]
QUICK = ("tree_lstm", "tree_gru")
ELEVEN = ("tree_lstm", "tree_gru", "tree_lstm_2type", "mv_rnn", "lattice_lstm", "lattice_gru", "bilstm_tagger",
          "bilstm_tagger_char", "lstm_nmt", "child_sum_tree_lstm", "dag_gru")  # fmt: skip


def short(dtype: torch.dtype = BF16, enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype, enabled=enabled)


def require_eager(net: Net, instances: list[Any], given: list[Any] | None = None, dtype: torch.dtype = BF16) -> None:
    """The rule of `edbc.tools.parity`, with eager under the same autocast; equal dtypes, output by output."""
    parity, eager = Parity(), Eager(net.model)
    with torch.no_grad(), short(dtype):
        ours, theirs = net(given or instances), [net.model(instance) for instance in instances]
    for results in zip(ours, theirs, eager.reference(instances), strict=True):
        parity.add(*results)
    parity.require()
    assert {t.dtype for t in tensors(ours)} == {t.dtype for t in tensors(theirs)}
    if not given:
        assert [t.dtype for t in tensors(ours)] == [t.dtype for t in tensors(theirs)]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ELEVEN]
)
def test_the_zoo_equals_eager(name: str) -> None:
    """Recorded and through vertex functions; the same net outside of the context, before and after, is what it was."""
    file, config = opened(name, hidden_size=8)
    instances = file.sample(3, 3, config)
    model = file.build(config, 0)
    net = Net(plan_for(model, instances), model)
    with torch.no_grad():
        before = list(tensors(net(instances)))
    require_eager(net, instances)
    if hasattr(file.module, "vertex_instance"):
        require_eager(net, instances, list(map(file.vertex_instance(config), instances)))
    with torch.no_grad():
        after = list(tensors(net(instances)))

    assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(before, after, strict=True))


# --- what models do --------------------------------------------------------------------------------------------------


@edbc.cell
class Gated(nn.Module):
    """Two products that are added, gates in the short dtype, a state in the wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(SIZE, 3 * SIZE)
        self.h = nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.scale = nn.Parameter(torch.randn(SIZE))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        i, f, u = (self.x(x) + self.h(h)).chunk(3)
        return torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(u) * self.scale


@edbc.cell
class Half(nn.Module):
    """One product under autocast, one without it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        left = self.a(torch.cat([x, h])[:SIZE])
        with torch.autocast("cpu", enabled=False):
            right = self.b(h.to(self.b.weight.dtype))
        return left * right


@edbc.cell
class Joined(nn.Module):
    """A product with a concatenation, as cells are often written."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * SIZE, 2 * SIZE)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.gates(torch.cat([x, h])).chunk(2)
        return torch.tanh(a) + h, b


class Model(nn.Module):
    """Whatever `rule` does with a table, cells and layers."""

    def __init__(self, rule: Callable[[Any, list[int]], Any]):
        super().__init__()
        torch.manual_seed(0)
        self.rule = rule
        self.table = nn.Embedding(12, SIZE)
        self.gated, self.partly, self.joined = Gated(), Half(), Joined()
        self.lstm, self.gru = edbc.cell(nn.LSTMCell(SIZE, SIZE)), edbc.cell(nn.GRUCell(SIZE, SIZE))
        self.rnn = edbc.cell(nn.RNNCell(SIZE, SIZE))
        self.attention = nn.MultiheadAttention(SIZE, 2)
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.normal = nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, SIZE))
        self.out, self.other = nn.Linear(SIZE, 3), nn.Linear(SIZE, 3)
        self.matrix = nn.Parameter(torch.randn(SIZE, SIZE))
        self.h0 = nn.Parameter(torch.randn(SIZE))

    def forward(self, instance: list[int]) -> Any:
        return self.rule(self, instance)


def chain(m: Any, words: list[int], cell: str = "gated") -> Tensor:
    h = m.h0
    for w in words:
        h = getattr(m, cell)(m.table.weight[w], h)
    return h


def layers(m: Any, words: list[int]) -> Any:
    return m.out(chain(m, words)), m.normal(m.table.weight[words[0]])


def disabled(m: Any, words: list[int]) -> Any:
    """nn.Linear and products inside and outside of a disabled region, twice."""
    h = m.gated(m.table.weight[words[0]], m.h0)
    found = []
    for w in words:
        with torch.autocast("cpu", enabled=False):
            h = m.gated(m.table.weight[w], h.to(m.h0.dtype))
            found += [m.out(h), m.matrix @ h]
        found += [m.out(h), m.matrix @ h]
    return found


def losses(m: Any, words: list[int]) -> Any:
    """A loss per word, in the model: float32 from short floats."""
    logits = m.out(m.table.weight[words[0]])
    target = torch.tensor(words[0] % 3)
    return nn.functional.cross_entropy(logits, target), nn.functional.mse_loss(logits, m.table.weight[words[0]][:3])


def reductions(m: Any, words: list[int]) -> Any:
    """Stacks of short and of wide values, sums by the operator, a softmax."""
    wide = [m.table.weight[w] for w in words]
    low = [m.matrix @ x for x in wide]
    mixed = torch.stack([wide[0], low[0]])
    return (torch.stack(low).sum(0), sum(low), torch.stack(wide).mean(0), mixed.sum(0), torch.softmax(low[0], 0),
            torch.cat([wide[0], low[0]]), low[0] * wide[0] / 3 + 0.5, torch.stack(low).amax(0))  # fmt: skip


def recurrent(m: Any, words: list[int]) -> Any:
    h, c, g, r = m.h0[None], m.h0[None], m.h0[None], m.h0[None]
    for w in words:
        x = m.table.weight[w][None]
        h, c = m.lstm(x, (h, c))
        g, r = m.gru(x, g), m.rnn(x, r)
    return h, c, g, r


def leaves(m: Any, words: list[int]) -> Any:
    """Attention of torch's own, and a convolution with parameters in float32."""
    x = torch.stack([m.table.weight[w] for w in words[:1] * 3])[:, None]
    return m.attention(x, x, x, need_weights=False)[0], m.conv(x.reshape(1, 3, SIZE))


def of_parameters(m: Any, words: list[int]) -> Any:
    """A product of parameters alone is a parameter by another name: it too is in the short dtype."""
    return (m.matrix @ m.matrix) @ m.table.weight[words[0]]


def asks(m: Any, words: list[int]) -> Any:
    """Code that asks for the state is answered as in eager."""
    x = m.table.weight[words[0]]
    return m.matrix @ x.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else x


def not_on_this_device(m: Any, words: list[int]) -> Any:
    with torch.autocast("cuda", enabled=False):
        return m.matrix @ m.table.weight[words[0]]


@torch.autocast("cpu", BF16)
def decorated(m: Any, words: list[int]) -> Any:
    """autocast in forward, inside and outside of the user's own."""
    return m.out(chain(m, words))


def region(m: Any, words: list[int]) -> Any:
    x = m.table.weight[words[0]]
    with torch.autocast("cpu", BF16):
        low = m.out(m.gated(x, m.h0)), m.matrix @ x
    return *low, m.out(m.gated(x, m.h0)), m.matrix @ x


RULES: list[Callable[[Any, list[int]], Any]] = [
    chain, layers, disabled, losses, reductions, recurrent, leaves, of_parameters, asks, not_on_this_device, decorated,
    region, lambda m, words: chain(m, words, "partly"), lambda m, words: m.joined(m.h0, chain(m, words)),
]  # fmt: skip
NAMES = [getattr(rule, "__name__", "").replace("<lambda>", "cell") for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_models_equal_eager(rule: Callable[[Any, list[int]], Any]) -> None:
    """Inside of the context and outside of it, alternately."""
    model = Model(rule)
    net = bound(model, WORDS)
    require_eager(net, WORDS)
    with torch.no_grad():
        for ours, words in zip(net(WORDS), WORDS, strict=True):
            for a, b in zip(tensors([ours]), tensors([model(words)]), strict=True):
                assert a.dtype is b.dtype
                assert torch.allclose(a.float(), b.float(), atol=0.05 if b.dtype is BF16 else 1e-5)
    require_eager(net, WORDS)


def test_float16_is_as_in_eager() -> None:
    """The other dtype that autocast has on a CPU, and no twin of bfloat16's."""
    net = bound(Model(layers), WORDS)

    require_eager(net, WORDS)
    require_eager(net, WORDS, dtype=F16)


def test_autocast_of_another_device_does_nothing() -> None:
    """`torch.autocast("cuda")` around a net on the CPU."""
    net = bound(Model(layers), WORDS)
    with torch.no_grad():
        outside = net(WORDS)
        with torch.autocast("cuda", BF16) if torch.cuda.is_available() else torch.autocast("xpu", enabled=False):
            inside = net(WORDS)

    assert all(torch.equal(a, b) for a, b in zip(tensors(inside), tensors(outside), strict=True))


@pytest.mark.parametrize("cell", ["gated", "joined"])
def test_products_are_in_the_short_dtype(cell: str) -> None:
    """1 + 2**-9 is 1 in bfloat16 and itself in float32, so one look at a sum of products tells where they ran."""
    fine = 1 + 2**-9
    model = Model(lambda m, words: getattr(m, cell)(m.table.weight[words[0]], m.h0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(0 if "bias" in name or "scale" in name else 1.0 if name == "h0" else 0.125)
        model.table.weight.fill_(fine)
        model.gated.h.weight.zero_()
        model.gated.scale.fill_(1.0)
    net = bound(model, WORDS)
    with torch.no_grad():
        wide = net(WORDS)
        with short():
            low, eager = net(WORDS), [model(words) for words in WORDS]

    for ours, theirs, other in zip(tensors(low), tensors(eager), tensors(wide), strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours.float(), other.float())


def test_the_plans_batches_and_order_serve() -> None:
    """A cell under autocast has as many products as the plan gave it, and copies nothing but operands to cast."""
    net = bound(Model(chain), WORDS)
    require_eager(net, WORDS)
    net(WORDS)
    with short():
        twin = net.in_mode()
    kinds = [k for k in range(twin.table.num_known) if twin.plan.types[k].name == "gated"]
    (low,), (wide,) = [twin.program(k) for k in kinds], [net.program(k) for k in kinds]

    assert dict(low.widths).keys() == {"f32", "bf16"}
    assert sum(isinstance(step, Product) for step in low.steps) == sum(isinstance(step, Product) for step in wide.steps)
    copies = [step for step in low.steps if isinstance(step, Copy)]
    assert len(copies) <= sum(isinstance(step, Copy) for step in wide.steps) + 1


def test_other_dtypes_of_a_cell_are_counted() -> None:
    """A cell that is called with operands in several dtypes has types that the plan does not know: run, counted, and
    refused where strictness is asked for."""

    def rule(m: Any, words: list[int]) -> Any:
        return m.joined(m.h0, m.joined(m.table.weight[words[0]], m.h0)[1])

    model = Model(rule)
    net, strict, stats = bound(model, WORDS), bound(model, WORDS, strict=True), Stats()
    require_eager(net, WORDS)
    with torch.no_grad(), short():
        net.in_mode().run(WORDS, stats)
        with pytest.raises(StaleError, match="joined"):
            strict(WORDS)

    assert {name.split(".")[0] for name in stats.unseen_types} == {"joined"}
    assert stats.paths["joined"].name == "torch"


def test_a_stale_plan_is_refused_under_autocast_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell is compared as the plan knows it, in float32."""
    plan = bound(Model(chain), WORDS).plan
    monkeypatch.setattr(Gated, "forward", lambda self, x, h: torch.tanh(self.x(x)[:SIZE]) + h)
    with short(), torch.no_grad(), pytest.raises(StaleError, match="gated"):
        Net(plan, Model(chain).eval())(WORDS)


def test_streams_follow_the_thread_that_reads_them() -> None:
    """Mini-batches are prepared in another thread, which has no autocast of its own."""
    net = bound(Model(layers), WORDS)
    with torch.no_grad(), short():
        ours, theirs = list(net.stream(WORDS, batch_size=2)), net(WORDS)

    assert all(torch.equal(a, b) and a.dtype is BF16 for a, b in zip(tensors(ours), tensors(theirs), strict=True))


def test_deep_recursion_keeps_the_state() -> None:
    """forward that moves to a larger stack is on another thread."""

    def deep(m: Any, words: list[int]) -> Any:
        def step(n: int) -> Any:
            return torch.maximum(m.table.weight[n % 12], step(n - 1)) if n else m.matrix @ m.h0

        return step(words[0])

    model = Model(deep)
    net = bound(model, WORDS)
    with torch.no_grad(), short():
        ours, shallow = net([[1200]]), net([[12]])

    assert ours[0].dtype is shallow[0].dtype is F32
    assert torch.equal(ours[0], shallow[0])


def test_a_switch_that_is_no_context_is_refused() -> None:
    """Nothing tells of `torch.set_autocast_enabled`: the line is named."""

    def rule(m: Any, words: list[int]) -> Any:
        torch.set_autocast_enabled("cpu", False)
        try:
            return m.matrix @ m.table.weight[words[0]]
        finally:
            torch.set_autocast_enabled("cpu", True)

    model = Model(chain)
    net = bound(model, WORDS)
    model.rule = rule
    with torch.no_grad(), short(), pytest.raises(UnsupportedError, match=r"test_autocast.py:\d+: .*context torch.auto"):
        Net(net.plan, model)(WORDS)


def test_effects_are_observed() -> None:
    """Of products, losses, promotions, composed functions and reductions over children."""
    x, w, low = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(3, 4, dtype=BF16)
    cases: list[tuple[Any, tuple[Any, ...], Any]] = [
        (nn.functional.linear, (x, w), BF16), (nn.functional.linear, (low, w), BF16), (torch.matmul, (x, w.t()), BF16),
        (torch.einsum, ("ij,kj->ik", x, w), BF16), (nn.functional.mse_loss, (low, low), F32),
        (nn.functional.mse_loss, (x, x), None), (torch.sigmoid, (low,), None), (torch.mul, (x, low), None),
        (torch.cat, ([x, low],), None), (nn.functional.linear, (x.double(), w.double()), None),
        (torch.lstm_cell, (x, (x, x), torch.zeros(16, 4), torch.zeros(16, 4)), INSIDE),
    ]  # fmt: skip
    assert [effect(call, arguments, {}, BF16) for call, arguments, _ in cases] == [found for *_, found in cases]
    assert {effect(call, (low[0], low[1]), {}, BF16) for call in REDUCTIONS.values()} == {None}
    assert effect(torch.matmul, (x, w.t()), {}, None) is None


@pytest.mark.long
def test_compiling_ignores_the_callers_autocast(tmp_path: Path) -> None:
    """The same bytes of plan inside of the context."""
    source = Path(__file__).resolve().parents[2] / "models" / "tree_fc.py"
    edbc.compile(source, tmp_path / "outside.yaml", trials=20, encoding="sort")
    with short():
        edbc.compile(source, tmp_path / "inside.yaml", trials=20, encoding="sort")

    assert (tmp_path / "inside.yaml").read_bytes() == (tmp_path / "outside.yaml").read_bytes()
