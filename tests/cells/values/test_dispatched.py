"""Functions along dimensions and broadcast operands in native code: which calls are known, and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bound import net_for
from helpers import require_eager
from test_matrices import loops
from test_walk import both
from torch import nn

from edbc.capture.code.mark import cell
from edbc.run.cpu.walktables import NativeKernel

pytestmark = pytest.mark.compiled

KNOWN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "softmax": lambda net, v, m: torch.softmax(v, 0),
    "softmax-of-rows": lambda net, v, m: m.softmax(dim=-1),
    "softmax-of-columns": lambda net, v, m: F.softmax(m, 0),
    "module": lambda net, v, m: nn.Softmax(dim=1)(m),
    "log-softmax": lambda net, v, m: F.log_softmax(m, dim=1) + m.log_softmax(0),
    "logsumexp": lambda net, v, m: torch.logsumexp(m, 0) + m.logsumexp(1) + torch.logsumexp(v, 0),
    "sums": lambda net, v, m: (m.sum(), m.sum(0), torch.sum(m, 1, keepdim=True), m.sum((0, 1)), m.sum(dim=-2)),
    "means": lambda net, v, m: (m.mean(), m.mean(0), torch.mean(m, dim=(1,)), v.mean(-1, keepdim=True)),
    "of-all": lambda net, v, m: (m.sum(dim=[]), m.mean(()), m.amax(dim=[]), m.sum(None, True), v.amin(())),
    "numbers-of-elements": lambda net, v, m: (
        m[0].gather(0, m[0].argmax(0, keepdim=True)) * v + m.gather(0, m.max(0)[1].unsqueeze(0)),
        m.index_select(0, v.argmax().reshape(1))
        + m.gather(1, m.min(1, True).indices).sum()
        + m[:, v.argmin().reshape(1)],
        F.embedding(m.argmax(1), net.matrix),
    ),
    "extremes": lambda net, v, m: (m.amax(0), m.amin(1), torch.amax(v, 0), m.amin()),
    "of-four-dimensions": lambda net, v, m: (
        m.reshape(2, 2, 2, 2).sum((1, 2)) + m.view(2, 2, 2, 2).softmax(2).amax((0, 1))
    ),
    "norm": lambda net, v, m: F.layer_norm(v, (4,)) + net.norm(v) + net.norm(m).sum(0),
    "norm-of-all": lambda net, v, m: F.layer_norm(m, (4, 4), eps=0.1),
    "norm-by-operands": lambda net, v, m: F.layer_norm(m, (4,), v, v * v),
    "weights": lambda net, v, m: (v.unsqueeze(-1) * m).sum(0),
    "bias": lambda net, v, m: m + v - net.vector / (m * m + 1) - v.sum() * m,
    "first-operand": lambda net, v, m: v - m + (net.scale - m) / (2 + v.unsqueeze(1).tanh()),
    "two-broadcast": lambda net, v, m: v.unsqueeze(0) * v.unsqueeze(1),
    "no-common-sizes": lambda net, v, m: v[:2].reshape(2, 1) * v[:3] + (v[1:4].reshape(3, 1) * v[2:]).reshape(2, 3),
    "parameter": lambda net, v, m: net.scale * v + m.sum() * net.vector + torch.maximum(net.matrix, v)[0],
    "middle": lambda net, v, m: m.reshape(2, 1, 8) * net.matrix.reshape(2, 2, 4).repeat(1, 1, 2),
    "part-of-a-row": lambda net, v, m: torch.softmax(m[1], 0) + m[2:].sum(0) + torch.softmax(v[1:3], 0).sum(),
    "transposed-back": lambda net, v, m: m.t().t().softmax(0),
    "attention": lambda net, v, m: torch.softmax(m @ v / 2, 0) @ m,
    "products": lambda net, v, m: (
        (m @ m.t() + m.t() @ m + m[:2].t() @ m[2:]) * (v @ m) + torch.mv(m.T, v),
        (net.matrix @ m.tanh()).t() @ net.matrix,
        torch.matmul(v, v.sigmoid()) + m.reshape(2, 8) @ m.view(8, 2),
    ),
    "expanded": lambda net, v, m: (
        m.mean(0, keepdim=True).expand_as(m) * m + v.expand(3, -1).softmax(0).sum(0) + v.unsqueeze(1).expand(4, 4)
    ),
    "bounds": lambda net, v, m: (
        m.clamp(-0.5, 0.5) + torch.clamp(m, max=0.3) + m.clamp_min(0.1) + F.hardtanh(m) + nn.Hardtanh(-0.2, 0.7)(m),
        F.relu6(m * 9) + nn.ReLU6()(-m) + torch.clip(v, min=0) + torch.clamp_max(m, -0.25),
    ),
    "leaky-relu": lambda net, v, m: F.leaky_relu(m, 0.2) + nn.LeakyReLU()(v) + F.leaky_relu(v, negative_slope=0),
    "linear-of-rows": lambda net, v, m: net.wide(m).sum(0) + F.linear(m.reshape(2, 2, 4), net.matrix).sum((0, 1)).sum(),
    "numbers-on-both-sides": lambda net, v, m: (1 - v, v.tanh() - 1, 2 / v.exp(), v.sigmoid() / 2, v.abs() + 1, 1 + v),
    "gelu": lambda net, v, m: (
        nn.GELU()(v) + F.gelu(m) + nn.Softplus()(v) + F.softplus(v, 1, 20) + torch.add(v, v, alpha=1)
    ),
    "activations": lambda net, v, m: [
        f(x)
        for x in (m, 40 * v)
        for f in (
            F.elu,
            F.selu,
            F.celu,
            F.mish,
            F.hardswish,
            F.logsigmoid,
            F.softsign,
            F.tanhshrink,
            F.softshrink,
            F.hardshrink,
            torch.erf,
            torch.expm1,
            torch.sign,
            F.silu,
        )
    ],
    "activations-with-arguments": lambda net, v, m: (
        F.elu(m, 0.5) + F.threshold(m, 0.1, -2) + F.softplus(40 * m, 2) + F.gelu(m, approximate="tanh"),
        F.prelu(m, net.vector) + F.leaky_relu(m, -0.5) + F.leaky_relu(m, 2.0) + torch.add(m, v, alpha=2),
        F.glu(v) + torch.rsqrt(1 + v.square()).sum() + torch.log1p(v[2:].exp()),
    ),
    "losses": lambda net, v, m: [
        F.mse_loss(v, m[0]),
        F.l1_loss(v, m[0]),
        F.smooth_l1_loss(v, m[1]),
        F.huber_loss(v, m[1], delta=0.3),
        F.binary_cross_entropy_with_logits(40 * v, m[3].sigmoid()),
        F.kl_div(v.log_softmax(0), m[0].log_softmax(0), log_target=True, reduction="sum"),
        F.soft_margin_loss(v, m[0].detach().sign()),
    ],
    "norms": lambda net, v, m: [
        F.normalize(v, dim=0),
        v.norm(),
        m.norm(dim=1),
        (v - v).norm() + v[0],
        m.norm(p=1),
        F.normalize(0 * m) + m,
        F.cosine_similarity(v, m),
        F.pairwise_distance(m, m.flip(0)),
        m.var(),
        m.std(0),
        m.var(1, unbiased=False),
        F.group_norm(m.unsqueeze(0), 2, net.vector),
        F.rms_norm(m, (4,), net.vector),
        (v - v).std() + v[1],
        F.batch_norm(m, net.vector.detach(), net.vector.detach().exp(), eps=0.1),
    ],
    "choices": lambda net, v, m: (
        torch.where(m > v, m, 2 * v) + m.masked_fill(m < 0, -1e9).softmax(1) + m.masked_fill(~(m >= v), 0.5),
        torch.where((v > 0) & (v < 0.5) | (v == v[0]), v, 0.0) + (v != v[0]) * v + (v <= 0.1) * m.clamp(min=v),
        (m > 0).float() * m if m.dtype is torch.float32 else (m > 0).double() * m,
    ),
    "a-parameter-before-a-product": lambda net, v, m: net.wide(torch.cat([net.vector[:3], m[1:2, 2]])) * v.sum(),
    "movements": lambda net, v, m: (
        m.t().softmax(0)
        + m.flip(0) * m.roll(1, 1)
        + F.pad(m[:, :2], (1, 1), value=0.3)
        + torch.diagonal(m)
        + v.repeat(4, 1),
        v[::2].sum(0)
        + v.unfold(0, 2, 1).amax(1).sum()
        + v.reshape(1, 4, 1) * m.reshape(2, 4, 2)
        + m.reshape(4, 4, 1)[:2, :, :2],
        m.reshape(2, 4, 2).sum((0, 2)),
        torch.stack([v, m[0]], 1).reshape(2, 4).softmax(1),
    ),
    "prefixes": lambda net, v, m: (
        m.cumsum(0) + m.cumprod(1) * v.cumsum(0) + m.prod(1, keepdim=True),
        m.sort(1)[0] * net.vector + m.sort(dim=0, descending=True).values + v.relu().sort().values,
        m.max(0)[0] + m.relu().min(dim=1).values + m.relu().max(1, keepdim=True)[0],
    ),
    "triangles": lambda net, v, m: (
        m.tril() + m.triu(1) * v + m[:2].tril(4)[0] + m[:1].tril(-1)[0],
        m.diagonal().prod() + v[:3].prod(),
    ),
    "crosses": lambda net, v, m: (
        torch.linalg.cross(v[:3], m[0, 1:]) + torch.cross(m[:3], net.matrix[1:], dim=0).sum(1),
        torch.linalg.cross(m[:, :3], m[:, 1:]).sum(0),
    ),
    "spread": lambda net, v, m: (
        F.conv_transpose2d(m.reshape(1, 2, 2, 4), net.matrix.reshape(2, 2, 2, 2), net.vector[:2], stride=2),
        F.conv_transpose1d(m.reshape(2, 2, 4), net.matrix[:, :3].reshape(2, 2, 3), stride=3).sum((0, 1)),
        F.conv_transpose2d(m.reshape(4, 1, 2, 2), net.matrix[:2].reshape(1, 4, 1, 2), stride=(1, 2)).sum(),
        F.conv_transpose1d(m.unsqueeze(0), net.matrix.unsqueeze(-1)),
    ),
    "heads": lambda net, v, m: (
        (m.view(4, 2, 2).transpose(0, 1) @ m.view(4, 2, 2).permute(1, 2, 0)).softmax(-1).sum((0, 1)) + v,
        F.scaled_dot_product_attention(*torch.cat([m, m, m.tanh()], 1).reshape(1, 4, 12).chunk(3, -1)),
        m.unfold(0, 2, 1).flatten(1).tanh(),
    ),
    "convolutions": lambda net, v, m: (
        net.line(m.t().unsqueeze(0)).relu().amax(2),
        net.plane(m.reshape(2, 2, 4)) + F.conv2d(m.reshape(1, 1, 4, 4), net.matrix.reshape(1, 1, 4, 4)).sum(),
        F.conv1d(m.reshape(2, 2, 4), net.matrix[:, :2].reshape(2, 2, 2), net.vector[:2], dilation=2),
        F.conv2d(m.unsqueeze(0), net.matrix[:, :2].reshape(2, 1, 2, 2).repeat(1, 1, 1, 2), padding=(1, 0)),
    ),
    "windows": lambda net, v, m: (
        F.max_pool2d(m.relu().unsqueeze(0), 2) + F.avg_pool2d(m.unsqueeze(0), 2),
        F.max_pool1d(m, 4) + F.max_pool1d(m.unsqueeze(0), 2).sum() + F.unfold(m.reshape(1, 1, 4, 4), 2, stride=2),
    ),
    "transposed-and-not-square": lambda net, v, m: (
        net.tall(torch.cat([m, m.tanh()], 1)).sum(0),
        torch.stack([torch.cat([m.flatten()] * 5), torch.cat([m.flatten().exp()] * 5)], 1).amax(1),
        m.reshape(2, 8).t().softmax(0) @ m.reshape(2, 8)[:, :3],
    ),
    "contractions": lambda net, v, m: [
        torch.einsum("ij,kj->ik", m, m[:3]),
        torch.einsum("i,ij->j", v, m),
        torch.outer(v, v),
        torch.inner(v, m[0]),
        F.bilinear(v[None], m[:1], net.matrix.reshape(1, 4, 4)),
        torch.bmm(m.reshape(2, 2, 4), m.reshape(2, 4, 2)),
        torch.cdist(m, net.matrix),
        torch.addmm(v, m, m),
        torch.tensordot(m, m, dims=([0], [1])),
        torch.dist(v, m[0]),
        F.scaled_dot_product_attention(m[None], net.matrix[None], m[None]),
        torch.addcmul(v, m, m, value=0.5),
        v.lerp(m[0], 0.3),
        nn.functional.scaled_dot_product_attention(m[None], m[None], m[None], attn_mask=net.matrix),
    ],
}
LEFT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "other-dtype": lambda net, v, m: m.softmax(0, dtype=torch.float16),
    "other-dtype-by-position": lambda net, v, m: torch.softmax(m, 0, torch.float32).double() * m.double(),
    "a-number-that-is-computed-with": lambda net, v, m: m.gather(0, (m.max(0)[1] // 2).unsqueeze(0)),
    "a-row-without-a-gradient": lambda net, v, m: F.embedding(v.argmax(), net.matrix, padding_idx=1),
    "any-of-equal-ones": lambda net, v, m: v.topk(4)[0],
    "windows-that-overlap": lambda net, v, m: F.max_pool2d(m.unsqueeze(0), 3, stride=1),
    "convolution-of-many-parts": lambda net, v, m: F.conv2d(
        m.reshape(1, 1, 4, 4).repeat(16, 2, 1, 1), net.matrix.reshape(1, 1, 4, 4).repeat(1, 2, 1, 1), padding=2
    ),
    "convolutions-of-many-parts-together": lambda net, v, m: sum(
        F.conv2d((m * k).reshape(1, 1, 4, 4).repeat(2, 2, 1, 1), net.matrix.repeat(2, 1).reshape(1, 2, 4, 4), padding=2)
        for k in range(1, 9)
    ),
    "transposed-convolution": lambda net, v, m: F.conv_transpose1d(m.unsqueeze(0), net.matrix.reshape(4, 2, 2)),
    "transposed-convolution-of-more": lambda net, v, m: F.conv_transpose1d(
        m.unsqueeze(0), net.matrix.reshape(4, 2, 2), stride=2, output_padding=1
    ),
    "product-of-many": lambda net, v, m: torch.cat([m, m[:1]]).prod(),
    "of-gamma": lambda net, v, m: torch.lgamma(v.abs() + 1) + torch.digamma(m.abs() + 1),
    "large-weights": lambda net, v, m: F.linear(m, net.matrix.repeat(1000, 1)).sum(0),
    "clamped-gradient": lambda net, v, m: F.binary_cross_entropy(v.sigmoid(), m[2].sigmoid()),
    "own-function": lambda net, v, m: softmax(m),
    "own-gradient": lambda net, v, m: Straight.apply(v) * m,
}
"""Calls that torch runs."""


class Straight(torch.autograd.Function):
    """A gradient that is not that of what forward computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def softmax(m: torch.Tensor) -> torch.Tensor:
    """A user's function of a known name, which is recorded by what it calls."""
    return torch.logcumsumexp(m, 0)


class Cell(nn.Module):
    """One function over a vector and a matrix, and what it may read of the model's."""

    def __init__(self, function: Callable[[Any, Any, Any], Any]):
        super().__init__()
        self.function = function
        self.norm, self.wide, self.tall = nn.LayerNorm(4), nn.Linear(4, 5), nn.Linear(8, 66)
        self.line, self.plane = nn.Conv1d(4, 5, 3, padding=1), nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=1)
        self.vector, self.matrix = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.randn(()))
        with torch.no_grad():
            self.norm.weight.normal_()
            self.norm.bias.normal_()

    def forward(self, v: torch.Tensor, m: torch.Tensor) -> Any:
        return self.function(self, v, m)


class Model(nn.Module):
    """The cell over rows of tables, and over what it returned."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], as_cell: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.vectors, self.matrices = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 4, 4))
        inner = Cell(function)
        self.inner = cell(inner) if as_cell else inner

    def forward(self, words: tuple[int, int]) -> Any:
        i, j = words
        return [
            self.inner(self.vectors[i], self.matrices[j]),
            self.inner(torch.tanh(self.vectors[j]), self.matrices[i]),
        ]


INSTANCES = [(0, 1), (1, 1), (4, 2), (3, 0), (2, 2)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.slow] if i % 4 and dtype is torch.float32 else [],
                     id=f"{name}-{dtype}")
        for i, name in enumerate(KNOWN)
        for dtype in (torch.float32, torch.float64)
    ],
)  # fmt: skip
def test_known_calls_run_natively_and_equal_eager(name: str, dtype: torch.dtype) -> None:
    """In cells and between them, in both widths (a quarter of the narrow ones without `--slow`); in float64 every value
    is that of the walk's twin in plain Python."""
    for as_cell in (True, False):
        net = net_for(Model(KNOWN[name], as_cell).to(dtype), INSTANCES)

        graph = net.mini_batch(INSTANCES).graph
        if as_cell or name not in ("choices", "prefixes", "numbers-of-elements"):  # between cells these are torch's
            assert all(net.backend.runs_natively(t, net.kernel(k)) for k, t in enumerate(graph.types))
        require_eager(net, INSTANCES)
        if dtype is torch.float64:
            _, native, twin = both(net, INSTANCES[:2], 2)
            for ours, theirs in zip(native, twin, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LEFT)
def test_other_calls_go_to_torch(name: str) -> None:
    """What is not known stays a call of torch's, with eager's numbers."""
    net = net_for(Model(LEFT[name]).double(), INSTANCES)

    require_eager(net, INSTANCES)
    kernels = [net.kernel(k) for k, t in enumerate(net.mini_batch(INSTANCES).graph.types) if t.op == "cell inner"]
    assert kernels
    assert not any(isinstance(kernel, NativeKernel) for kernel in kernels)


@pytest.mark.parametrize("name", KNOWN)
def test_gradients_equal_eager(name: str) -> None:
    """Of the model's own parameters, through forward passes in native code."""
    net = net_for(Model(KNOWN[name]).double(), INSTANCES)
    found = []
    for run in (net, lambda instances: [net.model(instance) for instance in instances]):
        net.model.zero_grad()
        leaves = [x for result in run(INSTANCES) for x in _leaves(result)]
        sum((x * torch.arange(1.0, 1 + x.numel()).reshape(x.shape)).sum() for x in leaves).backward()
        found.append({n: p.grad.clone() for n, p in net.model.named_parameters() if p.grad is not None})
    ours, theirs = found

    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        torch.testing.assert_close(ours[key], gradient, rtol=1e-11, atol=1e-11)


BENT: list[Callable[[Any], Any]] = [
    *(F.relu, F.leaky_relu, F.elu, F.selu, F.celu, F.relu6, F.hardtanh, F.hardsigmoid, F.hardswish, torch.sinc),
    *(torch.abs, F.softshrink, F.hardshrink),
    lambda v: F.leaky_relu(v, 2.0) + F.leaky_relu(v, -0.5) + F.threshold(v, 1.0, 3.0),
    lambda v: v.clamp(0, 1) + v.clamp(min=-1) + v.clamp(max=3),
    lambda v: torch.clamp(v, min=v.flip(0)) + torch.maximum(v, v.flip(0)),
    lambda v: F.adaptive_max_pool1d(v.reshape(1, 1, 4), 1) + F.adaptive_max_pool1d(v.reshape(1, 1, 4), 2),
]
"""Functions whose slope jumps, or that are a limit somewhere."""


@pytest.mark.parametrize("number", range(len(BENT)))
def test_gradients_where_functions_bend(number: int) -> None:
    """The slope there is torch's: of one side, of the other, or none, as each function has it."""
    net = net_for(Model(lambda net, v, m: BENT[number](v)).double(), INSTANCES)
    bends = [[0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 0.0, 3.0], [6.0, -3.0, 0.5, -0.5], [2.0, 2.0, 1.0, 1.0], [3.0] * 4]
    with torch.no_grad():
        net.model.vectors.copy_(torch.tensor(bends))
    found = []
    for run in (net, lambda instances: [net.model(instance) for instance in instances]):
        net.model.zero_grad()
        firsts = [result[0] for result in run(INSTANCES)]
        sum((x * torch.arange(1.0, 1 + x.numel()).reshape(x.shape)).sum() for x in firsts).backward()
        found.append(net.model.vectors.grad)

    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-11)  # torch takes a sixth of float32


def _leaves(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [x for item in result for x in _leaves(item)]


def test_the_first_of_equal_elements_is_chosen_and_no_number_before_all() -> None:
    """As torch's choices are, with what is picked by them."""
    net = net_for(Model(KNOWN["numbers-of-elements"]), INSTANCES)
    with torch.no_grad():
        for row, special in enumerate((0.0, -0.0, float("inf"), float("nan"))):
            net.model.vectors[row] = torch.tensor([special, 1.0, special, 1.0])
            net.model.matrices[row] = torch.tensor([[1.0, special, special, 1.0]] * 4)

    for ours, instance in zip(net(INSTANCES), INSTANCES, strict=True):
        torch.testing.assert_close(ours, net.model(instance), equal_nan=True)


def test_a_change_of_weights_is_seen() -> None:
    """Norms' weights and operands that are parameters are read anew, as those of maps are."""
    net = net_for(Model(KNOWN["norm"]).double(), INSTANCES)
    net(INSTANCES)
    with torch.no_grad():
        net.model.inner.norm.weight.mul_(3)
        net.model.inner.norm.bias.add_(1)
    require_eager(net, INSTANCES)


def test_a_concatenation_that_is_read_whole_is_copied() -> None:
    """A softmax over parts of two operands needs them in one piece."""

    def joined(net: Any, v: Any, m: Any) -> Any:
        both = torch.cat([v, v + 1, m[0]])
        return both.softmax(0), both.amax(0) + v

    net = net_for(Model(joined).double(), INSTANCES)
    require_eager(net, INSTANCES)
    _, native, twin = both(net, INSTANCES, 2)
    for ours, theirs in zip(native, twin, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert {v.op for loop in loops(net) for _, v, _ in loop.stores} >= {"total", "largest"}
