"""Gradients of small models that each do one thing: sharing, reductions, embeddings, parametrizations, detaching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import gradients, random_loss, require_equal, require_equal_gradients
from helpers import bound
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import edbc
from edbc.errors import StaleError, UnsupportedError

DOUBLE = torch.float64
Forward = Callable[["Model", Any], Any]


@edbc.cell
class Gate(nn.Module):
    def __init__(self, size: int = 4):
        super().__init__()
        self.a = nn.Linear(size, size)
        self.b = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(self.a(x)) * torch.tanh(self.b(y)) + x


class Model(nn.Module):
    """Whatever `rule` does with a table, a cell and a linear layer."""

    def __init__(self, rule: Forward, **embedding: Any):
        super().__init__()
        torch.manual_seed(0)
        self.rule = rule
        self.embedding = nn.Embedding(12, 4, **embedding)
        self.gate = Gate()
        self.out = nn.Linear(4, 3)
        self.h0 = nn.Parameter(torch.randn(4))
        self.double()

    def forward(self, instance: Any) -> Any:
        return self.rule(self, instance)

    def word(self, index: int) -> Tensor:
        return self.embedding(torch.tensor([index]))[0]


def net_of(rule: Forward, instances: Sequence[Any], **embedding: Any):
    return bound(Model(rule, **embedding), instances)


WORDS = [[1, 2, 3], [4], [5, 5, 6, 1], [7, 8]]


def chain(m: Model, words: list[int]) -> Tensor:
    h = m.h0
    for w in words:
        h = m.gate(h, m.word(w))
    return m.out(h)


def repeated_operand(m: Model, words: list[int]) -> Tensor:
    x = m.word(words[0])
    h = m.gate(x, x)
    return m.out(torch.cat([h + h, h * h]).view(2, 4).sum(0))


def shared_subtree(m: Model, words: list[int]) -> list[Tensor]:
    shared = m.gate(m.word(words[0]), m.h0)
    return [m.out(m.gate(shared, m.word(w))) for w in words] + [shared]


def sum_into_product(m: Model, words: list[int]) -> Tensor:
    total = sum(m.word(w) for w in words) + m.h0
    return total * m.gate(m.h0, m.word(words[-1]))


def means(m: Model, words: list[int]) -> Tensor:
    return m.out(torch.stack([m.gate(m.h0, m.word(w)) for w in words]).mean(0))


def extremes(m: Model, words: list[int]) -> Tensor:
    states = torch.stack([m.gate(m.word(w), m.h0).relu() for w in words])
    return m.out(states.amax(0) - states.amin(dim=0))


def views(m: Model, words: list[int]) -> Tensor:
    h = m.gate(m.word(words[0]), m.h0)
    left, right = h.chunk(2)
    return torch.cat([right, left]) * h.flip(0) + h[1]


def loss_inside(m: Model, words: list[int]) -> Tensor:
    return F.cross_entropy(chain(m, words)[None], torch.tensor([words[0] % 3]))


def attention(m: Model, words: list[int]) -> Tensor:
    keys = torch.stack([m.gate(m.word(w), m.h0) for w in words])
    return torch.softmax(keys @ m.h0, 0) @ keys


def result_is_a_parameter(m: Model, words: list[int]) -> tuple[Tensor, Tensor]:
    return m.h0, m.word(words[0])


def detached(m: Model, words: list[int]) -> Tensor:
    h = m.gate(m.word(words[0]), m.h0)
    return m.out(m.gate(h.detach(), m.word(words[-1])) + h.detach() * m.h0.detach())


RULES = [
    chain, repeated_operand, shared_subtree, sum_into_product, means, extremes, views, loss_inside, attention,
    result_is_a_parameter, detached,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_gradients_equal_eager(rule: Forward) -> None:
    """Sharing, repeated operands, sums that feed products (BUGS 2), reductions, views, losses inside: all as eager."""
    require_equal_gradients(net_of(rule, WORDS), WORDS)


CHECKED = [chain, repeated_operand, sum_into_product, means, attention]


@pytest.mark.parametrize("rule", CHECKED, ids=lambda rule: rule.__name__)
def test_numeric_gradients(rule: Forward) -> None:
    """torch.autograd.gradcheck, over all parameters at once."""
    net = net_of(rule, WORDS)
    parameters = list(net.model.parameters())
    used = [p for p, g in zip(parameters, gradients(net.model, random_loss(net(WORDS))).values(), strict=True)
            if g is not None]  # fmt: skip

    assert torch.autograd.gradcheck(lambda *_: random_loss(net(WORDS)), used)


def test_features_of_instances_get_gradients() -> None:
    """Tensors that instances bring, and what the user's code computes of them, get eager's gradients; None where
    unused."""

    def rule(m: Model, features: list[Tensor]) -> Tensor:
        return m.out(m.gate(features[0] * 2, m.h0) + features[1])

    def features() -> list[list[Tensor]]:
        generator = torch.Generator().manual_seed(1)
        return [
            [torch.randn(4, dtype=DOUBLE, generator=generator, requires_grad=(i + k) % 4 > 0) for k in range(3)]
            for i in range(4)
        ]

    ours, theirs = features(), features()
    net = net_of(rule, ours)
    random_loss(net(ours)).backward()
    random_loss([net.model(x) for x in theirs]).backward()
    pairs = [(a.grad, b.grad) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]

    assert sum(b is None for _, b in pairs) == 6
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"padding_idx": 1}, {"sparse": True}, {"padding_idx": -7, "sparse": True}],
                         ids=str)  # fmt: skip
def test_embeddings(options: dict[str, Any]) -> None:
    """Padding rows get no gradient, sparse tables a sparse one; indexing the table knows neither, as in eager."""
    net = net_of(chain, WORDS, **options)
    ours = require_equal_gradients(net, WORDS)
    table = ours["embedding.weight"]
    assert table is not None
    assert table.is_sparse == options.get("sparse", False)

    require_equal_gradients(net_of(lambda m, words: m.out(m.embedding.weight[words[0]]), WORDS, **options), WORDS)


def test_tied_weights() -> None:
    """One parameter under two names has one gradient."""
    net = net_of(lambda m, words: F.linear(chain(m, words) @ m.out.weight, m.gate.a.weight), WORDS)
    net.model.gate.b.weight = net.model.gate.a.weight
    tied = bound(net.model, WORDS)
    require_equal_gradients(tied, WORDS)


def test_parametrizations() -> None:
    """Gradients reach what a parametrization computes the weight of, before and after a step."""
    model = Model(chain)
    parametrizations.weight_norm(model.gate.a)
    parametrizations.weight_norm(model.out)
    parametrizations.orthogonal(model.gate.b)
    net = bound(model, WORDS)
    ours = require_equal_gradients(net, WORDS)
    assert {"gate.a.parametrizations.weight.original0", "out.bias"} <= ours.keys()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    require_equal_gradients(net, WORDS)


def test_modes() -> None:
    """Code that asks for `self.training` runs as the model's mode says at the call, back and forth."""
    net = net_of(lambda m, words: chain(m, words) * (3 if m.training else 1), WORDS)
    for mode in (True, False, True):
        net.model.train(mode)
        require_equal_gradients(net, WORDS)


def test_modes_of_a_cell() -> None:
    """A cell that computes something else in training: its plan, made of evaluation, serves both modes."""

    @edbc.cell
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, dtype=DOUBLE)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y.tanh() * 3 if self.training else y.sigmoid()

    model = Model(lambda m, words: [m.moody(m.moody(m.word(w))) for w in words])
    model.moody = Moody()
    net = bound(model, WORDS)
    for mode in (True, False, True):
        model.train(mode)
        require_equal_gradients(net, WORDS)
        with torch.no_grad():
            for ours, words in zip(net(WORDS), WORDS, strict=True):
                torch.testing.assert_close(ours, model(words), rtol=1e-12, atol=1e-12)
    model.moody.linear.bias = None
    with pytest.raises(StaleError, match="bind the model again"):
        net(WORDS)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    """torch's own layers over a whole sequence are a node each, in both modes, after a step too."""

    def rule(m: Model, words: list[int]) -> Tensor:
        outputs, _ = m.layer(torch.stack([m.word(w) for w in words])[:, None])
        return m.out(outputs[-1, 0])

    model = Model(rule)
    model.layer = kind(4, 4 // (1 + options.get("bidirectional", False)), **options).double()
    net = bound(model, WORDS)
    for mode in (True, False):
        model.train(mode)
        require_equal_gradients(net, WORDS)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)


def test_an_operation_that_keeps_state() -> None:
    """BUGS 3: an autograd function that saves for its backward runs once per node, in several batches, and each keeps
    its own."""

    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    @edbc.cell
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, dtype=DOUBLE))

        def forward(self, x: Tensor) -> Tensor:
            return Saving.apply(x * self.weight).sqrt().tanh()

    model = Model(lambda m, words: [m.square(m.square(m.word(w))) for w in words])
    model.square = Squares()
    require_equal_gradients(bound(model, WORDS), WORDS)


def test_float32_by_the_parity_rule() -> None:
    """float32 gradients are as near to float64's as eager's own, four times over."""
    net, model = bound(Model(chain).float(), WORDS), Model(chain)
    exact = gradients(model, random_loss([model(words) for words in WORDS]))
    loss = lambda results: random_loss([r.double() for r in results])  # noqa: E731
    ours = gradients(net.model, loss(net(WORDS)))
    theirs = gradients(net.model, loss([net.model(words) for words in WORDS]))
    for name, reference in exact.items():
        assert reference is not None
        error, eager = ((g[name].double() - reference).abs().max() for g in (ours, theirs))  # type: ignore[union-attr]
        assert error <= 4 * eager + 1e-6 * reference.abs().max()


def test_gradients_do_not_depend_on_the_order_of_instances_beyond_rounding() -> None:
    """BUGS 20 for gradients: permuting instances permutes nothing of a sum."""
    net = net_of(chain, WORDS)
    loss = lambda results: torch.stack([r.square().sum() for r in results]).sum()  # noqa: E731
    require_equal(gradients(net.model, loss(net(WORDS))), gradients(net.model, loss(net(WORDS[::-1]))))


def test_gradients_are_bit_equal_between_runs() -> None:
    """Two backward passes over the same mini-batch agree in every bit."""
    net = net_of(shared_subtree, WORDS)
    first, second = (gradients(net.model, random_loss(net(WORDS))) for _ in range(2))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first.values(), second.values(), strict=True))


@pytest.mark.parametrize("hook", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_modules_inside_cells_are_refused(hook: str) -> None:
    """They cannot fire inside a batch, and binding says so."""
    model = Model(chain)
    getattr(model.gate.a, f"register_{hook}_hook")(lambda *_: None)
    with pytest.raises(UnsupportedError, match=r"gate\.a.*hook"):
        bound(model, WORDS)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler looks at it itself
def test_a_compiled_step_has_one_graph_break() -> None:
    """torch.compile of a function that calls the net breaks the graph there, once, and gradients stay eager's."""
    net = net_of(chain, WORDS)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def loss(words: list[list[int]], scale: Tensor) -> Tensor:
        scale = scale * 2
        return (torch.stack(net(words)) * scale).square().sum()

    ours = gradients(net.model, loss(WORDS, torch.tensor(3.0, dtype=DOUBLE)))
    eager = (torch.stack([net.model(words) for words in WORDS]) * 6).square().sum()
    require_equal(ours, gradients(net.model, eager))
    assert len(graphs) == 2
