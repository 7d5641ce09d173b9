"""Random operations in training: eager's values given eager's numbers, and numbers that depend on the seed alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients import Gradients, gradients, random_loss, require_equal
from helpers import bound
from torch import Tensor, nn
from torch.distributions import Categorical, Exponential, Normal, Uniform

import edbc
from edbc.capture.captured.structurecache import StructureCache
from edbc.capture.record.draws import INSTANCE_BITS
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import Draw, Source
from edbc.capture.standins.standin import class_of
from edbc.cells.program import Map
from edbc.errors import UnsupportedError
from edbc.run.passes.randomrows import drawn
from edbc.run.session import Net
from edbc.vertex import Vertex, VertexFunction, VertexInstance

DOUBLE = torch.float64
SIZE = 8
WORDS = [[1, 2, 3], [4], [5, 5, 6, 1], [7, 8]]


@edbc.cell
class Cell(nn.Module):
    """Dropout of an operand, of gates that share a product, and of what it returns."""

    def __init__(self, p: float = 0.5):
        super().__init__()
        self.gates = nn.Linear(2 * SIZE, 3 * SIZE)
        self.inner = nn.Dropout(p)
        self.outer = nn.Dropout(0.25)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        i, o, u = self.gates(torch.cat([self.outer(x), h])).chunk(3)
        return self.outer(torch.sigmoid(o) * torch.tanh(torch.sigmoid(i) * self.inner(torch.tanh(u)) + h))


class Model(nn.Module):
    """Whatever `rule` does with a table and a cell."""

    def __init__(self, rule: Callable[[Any, list[int]], Any], dtype: torch.dtype = DOUBLE):
        super().__init__()
        torch.manual_seed(0)
        self.rule = rule
        self.table = nn.Embedding(12, SIZE)
        self.cell = Cell()
        self.between = nn.Dropout(0.3)
        self.h0 = nn.Parameter(torch.randn(SIZE))
        self.to(dtype)

    def forward(self, instance: list[int]) -> Any:
        return self.rule(self, instance)


def chain(m: Model, words: list[int]) -> Tensor:
    h = m.h0
    for w in words:
        h = m.cell(m.between(m.table.weight[w]), h)
    return m.between(h)


def variational(m: Model, words: list[int]) -> Tensor:
    """One mask for all steps of an instance."""
    mask = F.dropout(torch.ones_like(m.h0), 0.4, m.training)
    h = m.h0
    for w in words:
        h = torch.tanh(m.table.weight[w] + h * mask)
    return h


class OfData(Model):
    """Dropout of tensors that are not recorded: of the instance's, and of what forward makes."""

    def forward(self, words: list[int]) -> Any:
        x = F.dropout(torch.tensor(words[0]).double().expand(SIZE), 0.5, self.training)
        return self.table.weight[words[0]] * x * F.dropout(torch.ones(SIZE, dtype=DOUBLE), 0.25, training=self.training)


def samples(m: Model, words: list[int]) -> Tensor:
    x = m.table.weight[words[0]]
    return x + torch.randn_like(x) * x.exp() + (torch.rand_like(x) if m.training else 0)


def slopes(m: Model, words: list[int]) -> Tensor:
    return F.rrelu(m.table.weight[words[0]], 0.1, 0.4, m.training) * m.h0


class Heads(Model):
    """A function of torch's that is written in Python, and drops weights of attention."""

    def __init__(self, rule: Any):
        super().__init__(rule)
        self.heads = nn.MultiheadAttention(SIZE, 2, dropout=0.25, batch_first=True, dtype=DOUBLE)

    def forward(self, words: list[int]) -> Any:
        x = self.table(torch.tensor(words))[None]
        return self.heads(x, x, x, need_weights=True)[0]


class Rows(Model):
    """Dropout of rows: of look-ups, of some of these with others, and of their sum."""

    def forward(self, words: list[int]) -> Any:
        h = self.between(self.table(torch.tensor(words)))
        h = torch.tanh(self.between(torch.cat([h[1:], h])))
        return self.between(h.sum(0)), h


def training_net(rule: Callable[[Any, list[int]], Any], instances: Sequence[Any] = WORDS, **options: Any) -> Net:
    net = bound(rule(chain) if isinstance(rule, type) else Model(rule), instances, **options)
    net.model.train()
    return net


def step(net: Net, seed: int = 1, groups: Sequence[Sequence[Any]] = (WORDS,)) -> tuple[Tensor, Gradients]:
    """The loss over all groups, and its gradients."""
    torch.manual_seed(seed)
    loss = random_loss([result for group in groups for result in net(group)])
    return loss.detach(), gradients(net.model, loss)


@contextmanager
def the_same_numbers(monkeypatch: pytest.MonkeyPatch, instances: int) -> Iterator[Callable[[int], None]]:
    """Eager's random functions draw what a net would draw of the instances after the next seed; gives what begins an
    instance."""
    bounds = torch.iinfo(torch.int64)
    seeds = torch.randint(bounds.min, bounds.max, (instances,)).numpy()
    at = [0]

    def next_draw(draw: Draw, like: Tensor) -> Tensor:
        at[0] += 1
        return drawn(Source("draw", None, class_of(like), draw), np.array([at[0] - 1]), seeds)[0]

    def dropout(x: Tensor, p: float, training: bool = True, inplace: bool = False) -> Tensor:
        return x * next_draw(Draw("keep", p, 1 / (1 - p)), x) if training else x

    def rrelu(x: Tensor, lower: float, upper: float, training: bool) -> Tensor:
        return torch.where(x <= 0, x * next_draw(Draw("uniform", lower, upper), x), x)

    def begin(instance: int) -> None:
        at[0] = instance << INSTANCE_BITS

    with monkeypatch.context() as patch:
        patch.setattr(F, "dropout", dropout)
        patch.setattr(F, "rrelu", rrelu)
        patch.setattr(torch, "rand_like", lambda x: next_draw(Draw("uniform", 0.0, 1.0), x))
        patch.setattr(torch, "randn_like", lambda x: next_draw(Draw("normal", 0.0, 1.0), x))
        yield begin


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rule", [chain, variational, slopes, OfData, Heads], ids=lambda rule: rule.__name__)
def test_values_and_gradients_given_the_numbers(rule: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers that a net draws, in the order in which instances ask for them, eager gives the same results and
    gradients: masks act where forward says, scaled as eager scales them."""
    net = training_net(rule, backend=backend)
    _, ours = step(net)
    torch.manual_seed(1)
    results = []
    with the_same_numbers(monkeypatch, len(WORDS)) as begin:
        for number, words in enumerate(WORDS):
            begin(number)
            results.append(net.model(words))

    require_equal(ours, gradients(net.model, random_loss(results)))


def test_sampling_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rand_like` and `randn_like`: new numbers per call, gradients as eager's; in eval mode they are refused."""
    model = Model(samples)
    with pytest.raises(UnsupportedError, match=r"test_random\.py:\d+: 'randn_like' draws.*in training mode only"):
        bound(model, WORDS)

    net = training_net(lambda m, words: m.table.weight[words[0]])
    net = Net(net.plan, model.train())
    _, ours = step(net)
    torch.manual_seed(1)
    results = []
    with the_same_numbers(monkeypatch, len(WORDS)) as begin:
        for number, words in enumerate(WORDS):
            begin(number)
            results.append(model(words))

    require_equal(ours, gradients(model, random_loss(results)))


def test_numbers_depend_on_the_seed_alone() -> None:
    """Neither on policy, on back end, on layout, nor on which instances share a mini-batch; another seed and another
    step give others."""
    net = training_net(chain)
    loss, ours = step(net)
    others = [
        step(Net(net.plan, net.model, policy="depth")), step(Net(net.plan, net.model, policy="agenda")),
        step(Net(net.plan, net.model, backend="reference")), step(Net(net.plan, net.model, layout="variable-order")),
        step(net, groups=[WORDS[:1], WORDS[1:]]), step(net, groups=[[words] for words in WORDS]), step(net),
    ]  # fmt: skip
    for other, theirs in others:
        torch.testing.assert_close(other, loss, rtol=1e-12, atol=0)
        require_equal(ours, theirs)
    assert torch.equal(others[-1][0], loss)
    assert not torch.isclose(step(net, seed=2)[0], loss)
    torch.manual_seed(1)
    assert not torch.isclose(random_loss(net(WORDS)), random_loss(net(WORDS)))


@pytest.mark.parametrize("gradients_on", [True, False])
def test_known_forwards_draw(gradients_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that draws is kept for all sizes. Each row has a draw, and what an instance draws hangs on its seed
    alone: not on whether its forward is known, nor on how many others are."""
    sentences = [[(3 * i + j) % 12 for j in range(2 + i % 5)] for i in range(9)]
    net = training_net(Rows, sentences, cells="auto", rows=True)
    net = Net(net.plan, net.model)  # of training mode
    results: list[Any] = []
    before = 0
    for groups in ([sentences], [sentences], [[words] for words in sentences]):
        torch.manual_seed(1)
        before = net._idle[0][1].found_forwards if results else 0
        with torch.set_grad_enabled(gradients_on):
            results.append([result for group in groups for result in net(group)])
    assert net._idle[0][1].found_forwards == before + len(sentences)
    torch.manual_seed(1)
    with the_same_numbers(monkeypatch, len(sentences)) as begin, monkeypatch.context() as patch:
        whole = F.dropout

        def by_rows(x: Tensor, *given: Any) -> Tensor:
            return torch.stack([whole(row, *given) for row in x]) if x.ndim > 1 else whole(x, *given)

        patch.setattr(F, "dropout", by_rows)
        results.append([(begin(number), net.model(words))[1] for number, words in enumerate(sentences)])
    for of in results[:-1]:
        torch.testing.assert_close(of, results[-1], rtol=1e-12, atol=1e-12)
    if gradients_on:
        require_equal(*[gradients(net.model, random_loss(of)) for of in (results[1], results[-1])])


def test_masks_of_retained_graphs_stay() -> None:
    """A second backward pass over a kept graph sees the masks of its forward pass, though another mini-batch ran."""
    net = training_net(chain)
    torch.manual_seed(1)
    loss = random_loss(net(WORDS))
    first = torch.autograd.grad(loss, [net.model.h0], retain_graph=True)[0]
    random_loss(net(WORDS)).backward()

    assert torch.equal(torch.autograd.grad(loss, [net.model.h0])[0], first)


def test_structures_captured_once_draw_anew() -> None:
    """With a structure cache, instances of one structure draw what they draw without it."""
    net = training_net(chain)
    expected, _ = step(net, groups=[[[1, 2], [1, 2], [3]]])
    cached = Net(net.plan, net.model)
    cached.cache = StructureCache(tuple, verify=True)
    for _ in range(2):
        assert torch.equal(step(cached, groups=[[[1, 2], [1, 2], [3]]])[0], expected)
    assert cached.cache.hits == 4
    net.cache = StructureCache(tuple)
    for mode in (True, False, True):
        net.model.train(mode)
        with torch.no_grad():
            net([[1, 2], [1, 2]])
    assert (net.cache.hits, net.cache.misses) == (4, 2), "modes share the cache, not what it holds"
    assert copy.deepcopy(net).cache.hits == 0


def test_eager_s_distribution() -> None:
    """BUGS 11: an element is zero with probability p or scaled by 1 / (1 - p), as eager's is, and every node draws a
    mask of its own."""
    p, nodes, size = 0.3, 40, 500

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ones = nn.Parameter(torch.ones(size))
            self.drop = nn.Dropout(p)

        def forward(self, count: int) -> list[Tensor]:
            return [self.drop(self.ones * 1.0) for _ in range(count)]

    net = bound(Wide(), [1])
    net.model.train()
    torch.manual_seed(1)
    masks = torch.stack([mask for masks in net([nodes, nodes]) for mask in masks]).detach()
    torch.manual_seed(1)
    eager = torch.stack(net.model(2 * nodes)).detach()
    bound_of_rate = 5 * math.sqrt(p * (1 - p) / masks.numel())

    assert masks.unique().tolist() == eager.unique().tolist()
    for drawn_by in (masks, eager):
        assert abs((drawn_by == 0).double().mean() - p) < bound_of_rate
    centred = (masks != 0).double() - (1 - p)
    products = centred @ centred.T / size
    between = products[~torch.eye(2 * nodes, dtype=torch.bool)].abs().max()
    assert between < 6 * p * (1 - p) / math.sqrt(size)


def test_eval_mode_draws_nothing() -> None:
    """BUGS 11: in eval mode there is no mask, torch's generator is left alone, and training mode comes back."""
    net = training_net(chain)
    torch.manual_seed(1)
    net(WORDS)
    net.model.eval()
    before = torch.get_rng_state()
    with torch.no_grad():
        ours, theirs = net(WORDS), [net.model(words) for words in WORDS]

    torch.testing.assert_close(ours, theirs)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(step(net)[0], step(net)[0])


def test_a_planned_cell_keeps_its_batches() -> None:
    """In training the plan's batches and memory order serve the cell with its masks: as many products as without."""
    model = training_net(chain).model
    plan = bound(model, WORDS).plan
    [kind] = [i for i, t in enumerate(plan.types) if t.name == "cell"]
    programs = []
    for mode in (False, True):
        net = Net(plan, model.train(mode))
        net(WORDS)
        programs.append(net.program(kind))
    quiet, drawing = programs

    assert quiet is not None
    assert drawing is not None
    assert [(w.rows, w.columns) for w in drawing.weights] == [(w.rows, w.columns) for w in quiet.weights]
    assert len(drawing.loads) == len(quiet.loads) + 3
    assert sum(isinstance(s, Map) for s in drawing.steps) == sum(isinstance(s, Map) for s in quiet.steps) + 3


@pytest.mark.parametrize("make", [
    lambda: nn.Dropout(0.0), lambda: nn.Dropout(1.0), lambda: nn.AlphaDropout(0.4), lambda: nn.Dropout1d(0.5),
    lambda: nn.FeatureAlphaDropout(0.5), lambda: nn.RReLU(),
], ids=["none", "all", "alpha", "features", "alpha of features", "rrelu"])  # fmt: skip
@pytest.mark.parametrize("inside", [True, False], ids=["cell", "between"])
def test_kinds_of_dropout(make: Callable[[], nn.Module], inside: bool) -> None:
    """Every kind gives numbers that eager gives with some mask: per channel the same few values, the same moments."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.full((50, 20), -0.5))
            self.layer = nn.Sequential(make(), nn.Identity())
            if inside:
                self.layer = edbc.cell(self.layer)

        def forward(self, _: int) -> Tensor:
            return self.layer(self.x * 1.0)

    net = bound(Model(), [0])
    net.model.train()
    torch.manual_seed(0)
    ours = torch.stack(net([0] * 20)).detach()
    theirs = torch.stack([net.model(0) for _ in range(20)]).detach()

    if not isinstance(make(), nn.RReLU):
        torch.testing.assert_close(ours.unique(), theirs.unique(), rtol=1e-5, atol=1e-6)
    same_channels = [(x == x[..., :1]).all() for x in (ours, theirs)]
    assert same_channels[0] == same_channels[1]
    spread = 6 * theirs.std() / math.sqrt(1000) + 1e-6
    assert abs(ours.mean() - theirs.mean()) < spread


class Vertices(nn.Module):
    """A tree cell with dropout, as a vertex function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(6, SIZE))
        self.cell = Cell()
        self.drop = nn.Dropout(0.5)

    def vertices(self) -> dict[str, VertexFunction]:
        return {"node": self.node}

    def node(self, v: Vertex) -> None:
        children = v.gather_all()
        h = self.cell(self.drop(v.pull("word", self.table)), sum(children) if children else self.table[0])
        v.scatter(h)
        v.push("state", h)


def test_vertex_functions_draw() -> None:
    """Vertices draw masks of their own, that depend on the seed, the instance and the vertex and not on the batch."""
    trees = [
        VertexInstance.build([(0, []), (0, []), (0, [0, 1])], {"word": [1, 1, 2]}),
        VertexInstance.build([(0, []), (0, [0])], {"word": [1, 3]}),
    ]
    model = Vertices().double()
    net = Net(bound(Model(chain), WORDS).plan, model.train(), rebind=False)
    losses, found = [], []
    for groups in ([trees], [trees[:1], trees[1:]]):
        torch.manual_seed(1)
        results = [result["state"] for group in groups for result in net(group)]
        losses.append(torch.cat(results).detach())
        found.append(gradients(model, torch.cat(results).square().sum()))

    torch.testing.assert_close(losses[0], losses[1])
    require_equal(found[0], found[1])
    first, second = losses[0][0], losses[0][1]
    assert not torch.equal(first, second)
    assert not torch.equal(first, losses[0][3])


def attended(x: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.25, **options)


def attended_in_words(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return F.dropout((x @ x.t() * scale).masked_fill(~mask, -math.inf).softmax(-1), 0.25, True) @ x


def gumbel_in_words(x: Tensor) -> Tensor:
    return ((x - torch.log(torch.log1p(-torch.rand_like(x)).neg())) / 0.5).softmax(-1)


def filled(x: Tensor) -> Tensor:
    e = torch.empty(x.shape, dtype=x.dtype)
    e.uniform_()
    return e


def with_a_view(x: Tensor) -> Tensor:
    y = 2 * x
    first = y[0]
    y += 1
    return y * first


def filled_through_a_view(x: Tensor) -> Tensor:
    e = torch.zeros(3 * SIZE, dtype=DOUBLE)
    e.view(3, SIZE).bernoulli_(x.sigmoid())
    return x * e.view(3, SIZE)


TRIANGLE, ALL = torch.ones(3, 3, dtype=torch.bool).tril(), torch.ones(3, 3, dtype=torch.bool)
IN_WORDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "bernoulli_": (
        lambda x: x * torch.empty_like(x).bernoulli_(0.25),
        lambda x: x * (0.25 * F.dropout(torch.ones_like(x), 0.75, True)),
    ),
    "bernoulli_ of tensors": (
        lambda x: x * torch.zeros_like(x).bernoulli_(x.sigmoid()),
        lambda x: x * (torch.rand_like(x) < x.sigmoid()).to(x.dtype),
    ),
    "bernoulli_ of a view": (filled_through_a_view, lambda x: x * (torch.rand_like(x) < x.sigmoid()).to(x.dtype)),
    "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()) * x, lambda x: (torch.rand_like(x) < x.sigmoid()) * x),
    "uniform_": (lambda x: x * torch.zeros_like(x).uniform_(1.0, to=3.0), lambda x: x * (1 + 2 * torch.rand_like(x))),
    "normal_": (lambda x: x * (x + 1).normal_(2.0, std=0.5), lambda x: x * (2 + 0.5 * torch.randn_like(x))),
    "exponential_": (
        lambda x: x * torch.empty_like(x).exponential_(2.0),
        lambda x: x * torch.log1p(-torch.rand_like(x)) / -2.0,
    ),
    "attention": (lambda x: attended(x), lambda x: attended_in_words(x, ALL, SIZE**-0.5)),
    "causal": (lambda x: attended(x, is_causal=True), lambda x: attended_in_words(x, TRIANGLE, SIZE**-0.5)),
    "masked": (
        lambda x: attended(x, attn_mask=TRIANGLE, scale=0.5),
        lambda x: attended_in_words(x, TRIANGLE, 0.5),
    ),
    "a tensor's own": (lambda x: x * x.data.new(x.size()).normal_(), lambda x: x * torch.randn_like(x)),
    "by a name": (lambda x: x * filled(x), lambda x: x * torch.rand_like(x)),
    "a real one's": (lambda x: x * F.dropout(torch.ones(3, SIZE, dtype=DOUBLE)), lambda x: F.dropout(x)),
    "distributions": (
        lambda x: Normal(x, x.exp()).rsample() + Exponential(x.exp()).rsample() + Uniform(x, x + 2).rsample(),
        lambda x: (
            x + torch.randn_like(x) * x.exp() - torch.log1p(-torch.rand_like(x)) / x.exp() + x + 2 * torch.rand_like(x)
        ),
    ),
    "where views change": (
        lambda x: with_a_view(x) * Normal(x, x.exp()).rsample() + x * Uniform(x, x + 2).rsample(),
        lambda x: with_a_view(x) * (x + torch.randn_like(x) * x.exp()) + x * (x + 2 * torch.rand_like(x)),
    ),
    "samples": (
        lambda x: x * Normal(x, x.exp()).sample() + torch.normal(0.5, 2.0, (3, 1), dtype=DOUBLE) * x,
        lambda x: x * (x + torch.randn_like(x) * x.exp()).detach() + (0.5 + 2 * torch.randn_like(x[:, :1])) * x,
    ),
    "Categorical": (
        lambda x: x * Categorical(logits=x).sample()[:, None],
        lambda x: x * (x.softmax(-1) / torch.log1p(-torch.rand_like(x)).neg()).argmax(-1, keepdim=True),
    ),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x, tau=0.5), gumbel_in_words),
}


@pytest.mark.parametrize("name", IN_WORDS)
def test_random_functions_are_what_they_are_in_words(name: str) -> None:
    """The same numbers and gradients as of the functions that definition (2) gives for them, twice in a row."""
    found = []
    for function in IN_WORDS[name]:

        def rule(m: Model, words: list[int], function: Callable[[Tensor], Tensor] = function) -> Tensor:
            x = torch.tanh(m.table(torch.tensor(words)))
            return function(x) if m.training else x

        net = training_net(rule, [[1, 2, 3], [4, 5, 6]])
        found.append([step(net, seed, ([[1, 2, 3], [4, 5, 6]], [[7, 8, 9]])) for seed in (1, 2)])
    for (one, its), (other, others) in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
        require_equal(its, others)
    assert not torch.equal(found[0][0][0], found[0][1][0])


class OfRows(nn.Module):
    """Noise for each row of so many, beside a draw of one size."""

    def __init__(self, noise: Callable[[Tensor], Tensor]):
        super().__init__()
        torch.manual_seed(0)
        self.noise, self.up, self.out = noise, nn.Linear(3, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x))
        h = h * self.noise(h) if self.training else h
        total = self.out(h).sum(0)
        return total * self.noise(total) if self.training else total


def test_rows_are_filled_by_chance_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `randn_like`, and without books of who shares memory."""
    opened = []
    monkeypatch.setattr(Recorder, "open_books", lambda self, *kind: opened.append(kind))
    points = [torch.linspace(-1, 1, 3 * n).view(n, 3) for n in range(2, 5)]
    found = []
    for noise in (lambda h: Normal(h, torch.ones_like(h)).rsample() - h, torch.randn_like):
        model = OfRows(noise).eval()
        plan = bound(model, points, "marked", True).plan
        net = Net(plan, model.train())
        net(points[:1])
        torch.manual_seed(3)
        found.append(torch.stack(net(points)))
    assert torch.allclose(*found, atol=1e-5)
    assert plan.ragged
    assert not opened


class OfSizes(Model):
    def forward(self, words: list[int]) -> Any:
        x = self.table.weight[words[0]]
        return x * torch.rand(SIZE, dtype=DOUBLE) + x * torch.randn((1, SIZE), dtype=DOUBLE)[0] if self.training else x


def of_such_sizes(m: Model, words: list[int]) -> Tensor:
    x = m.table.weight[words[0]]
    return x * torch.rand_like(x) + x * torch.randn_like(x) if m.training else x


def test_numbers_of_sizes_are_draws() -> None:
    """`torch.rand` and `torch.randn` where forward names them, as those of tensors of such sizes."""
    ours, theirs = step(training_net(OfSizes)), step(training_net(of_such_sizes))
    assert torch.allclose(ours[0], theirs[0], rtol=1e-12)
    require_equal(ours[1], theirs[1])


def choice(m: Any, words: list[int]) -> Tensor:
    return m.table.weight[:4][torch.multinomial(m.table.weight[words[0], :4].sigmoid(), 2)]


def own_generator(m: Any, words: list[int]) -> Tensor:
    return torch.zeros_like(m.cell(m.h0, m.h0)).normal_(generator=torch.Generator())


def seen_by_another(m: Any, words: list[int]) -> Tensor:
    """In code that runs as it is written."""
    return m.table.weight[words[0]] * part_filled()


def part_filled() -> Tensor:
    e = torch.zeros(SIZE, dtype=DOUBLE)
    e[1:].normal_()
    return e


def expected_value(m: Any, words: list[int]) -> Tensor:
    return torch.normal(m.table.weight[words[0]], 1.0)


def too_likely(m: Any, words: list[int]) -> Tensor:
    return F.dropout(m.table.weight[words[0]], 1.5, m.training)


@pytest.mark.parametrize(
    "rule", [choice, own_generator, seen_by_another, expected_value, too_likely], ids=lambda rule: rule.__name__
)
def test_other_random_functions_are_refused(rule: Any) -> None:
    """With the user's line, and never a gradient through numbers that nobody drew."""
    line = (part_filled if rule is seen_by_another else rule).__code__.co_firstlineno
    model = Model(rule).train()
    net = Net(bound(Model(chain), WORDS).plan, model)
    with pytest.raises(UnsupportedError, match=rf"test_random\.py:({line + 1}|{line + 2}): "):
        net(WORDS)
