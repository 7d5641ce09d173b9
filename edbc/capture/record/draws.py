"""Random operations in training mode: what they draw is an operand.

Eager PyTorch draws random numbers while an operation runs. Here operations run batch by batch, in an order that is the
policy's, and perhaps once more in the backward pass; so numbers are drawn beforehand and read as operands.

Definitions.

(1) A *draw* is a tensor of random numbers that forward asks for once: of a distribution, a shape and a dtype. It is an
    external; its source names the distribution (`Draw`), and its index the draw: instance * 2**32 + number, counting
    what the instance draws in the order of its nodes, and in the order of its operations where a cell draws.
(2) Random operations are ordinary ones over draws: dropout is x * m, where m is 0 with probability p and 1 / (1 - p)
    otherwise; alpha dropout (x + a) * m + b; feature dropout has an m of one number per channel; in training `rrelu` is
    relu(x) - relu(-x) * u. `torch.rand_like`, `torch.randn_like`, and `torch.rand` and `torch.randn` of sizes are the
    draw itself, as are `uniform_` and `normal_` of a recorded tensor, or of one that forward makes
    (`torch.empty(n).normal_()`); `exponential_` is its logarithm, `bernoulli` its comparison, `torch.normal` its
    product and sum, `multinomial` of one item of a row the place of the greatest weight over such times. Attention with
    dropout is products around a softmax that drops. A function of torch's that is written in Python
    (`F.multi_head_attention_forward`, `F.gumbel_softmax`) is what its code calls (`as_written`).
(3) The draws of a cell are further operands of it, behind those that its caller passes. They are no part of its
    signature: in training a node is of the type that it has in evaluation, so that the plan's policy knows it.

What a draw holds depends on its instance's seed and its number alone (`runtime.draws`), so policies, batches and
recomputation cannot change it. Outside of training random operations are refused: a plan must give eager's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.nn import functional

from edbc.base.graph import ValueClass
from edbc.capture.record.table import Draw
from edbc.capture.semantics import rules
from edbc.capture.standins.made import Made
from edbc.capture.standins.standin import Symbol, class_of, refuse

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

INSTANCE_BITS = 32
"""A draw's index is its instance times 2 ** INSTANCE_BITS, plus its number; see definition (1)."""
VERTEX_BITS = 8
"""The number of a draw in its instance, where vertex functions draw, is that of its vertex times 2 ** VERTEX_BITS, plus
its number there."""
SUPPORTED = "dropout of all kinds, rrelu, torch.rand, torch.randn, bernoulli, and uniform_, normal_ and their like"
_UNIT = (("from", 0.0), ("to", 1.0))
_ALPHA = 1.7580993408473766
"""Of SELU: minus its limit for small arguments."""
_OF_CHANNELS = frozenset("dropout1d dropout2d dropout3d feature_dropout feature_alpha_dropout".split())
"""They drop whole channels."""
_DROPS = _OF_CHANNELS | {"dropout", "alpha_dropout", "rrelu"}
_UNBATCHED = {"dropout1d": 2, "dropout3d": 4}
"""Dimensions of what these take for one sample without a batch dimension, so that channels come first."""


def differs_in_training(module: nn.Module) -> bool:
    """Whether a module of torch's computes otherwise in training, or one of the user's may: its code drops out."""
    rate = getattr(module, "p", getattr(module, "dropout", 0.0))
    if isinstance(module, nn.modules.dropout._DropoutNd | nn.RNNBase | nn.MultiheadAttention):
        return rate != 0.0 and (not isinstance(module, nn.RNNBase) or module.num_layers > 1)
    if isinstance(module, nn.RReLU | nn.modules.batchnorm._NormBase):
        return True
    if type(module).__module__.startswith("torch."):
        return False
    named = [{*f.__code__.co_names} for f in vars(type(module)).values() if isinstance(f, FunctionType)]
    return any("training" in names and names & _DROPS for names in named)


def probability(p: Any) -> float:
    """The argument `p` of a dropout. Raises UnsupportedError for what eager refuses."""
    if not isinstance(p, int | float) or not 0 <= p <= 1:
        refuse(f"expected a dropout probability between 0 and 1, got {p!r}", "correct the argument p")
    return float(p)


def _mask(rec: Recorder, name: str, x: Any, p: float, scale: float) -> Any:
    shape = _channels(name, x) if name in _OF_CHANNELS else tuple(x.shape)
    return rec.draw(Draw("keep", p, scale), ValueClass(shape, class_of(x).dtype))


def dropout(rec: Recorder, name: str, x: Any, p: float = 0.5, *_: Any, **__: Any) -> Any:
    """Elements, or channels, kept with probability 1 - p."""
    p = probability(p)
    return rec.function(torch.mul, (x, _mask(rec, name, x, p, 1 / (1 - p) if p < 1 else 0.0)), {})


def alpha_dropout(rec: Recorder, name: str, x: Any, p: float = 0.5, *_: Any, **__: Any) -> Any:
    """Elements (channels, of `feature_alpha_dropout`) kept with probability 1 - p, others at SELU's limit, mean and
    variance restored (Klambauer et al., "Self-Normalizing Neural Networks", NIPS 2017)."""
    p = probability(p)
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p)) if p < 1 else 0.0
    mask = _mask(rec, name, x, p, scale)
    shifted = rec.function(torch.add, (x, _ALPHA), {})
    return rec.function(torch.sub, (rec.function(torch.mul, (shifted, mask), {}), _ALPHA * scale * (1 - p)), {})


def rrelu(rec: Recorder, name: str, x: Any, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any) -> Any:
    """Negative numbers times a slope drawn between `lower` and `upper`."""
    slope = rec.draw(Draw("uniform", float(lower), float(upper)), class_of(x))
    below = rec.function(torch.relu, (rec.function(torch.neg, (x,), {}),), {})
    return rec.function(
        torch.sub, (rec.function(torch.relu, (x,), {}), rec.function(torch.mul, (below, slope), {})), {}
    )


def _like(kind: str) -> Callable[..., Any]:
    def draw(rec: Recorder, name: str, x: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
        if options.get("requires_grad"):
            refuse(f"{name}(requires_grad=True): what is drawn while recording has no gradient", "leave it out")
        dtype = dtype or x.dtype
        if not dtype.is_floating_point:
            refuse(f"{name}: expected a floating dtype, got {dtype}", "draw numbers in floating point")
        return rec.draw(Draw(kind, 0.0, 1.0), class_of(torch.empty(x.shape, dtype=dtype, device="meta")))

    return draw


def bernoulli(rec: Recorder, name: str, x: Any, p: Any = None, *, generator: Any = None) -> Any:
    """1 with probability p, of each element by itself where that is a tensor; without it x has the probabilities."""
    _refuse_generator(name, generator)
    if p is not None and not isinstance(p, torch.Tensor):
        return rec.draw(Draw("keep", 1 - probability(p), 1.0), class_of(x))
    drawn = rec.draw(Draw("uniform", 0.0, 1.0), class_of(x))
    return rec.function(torch.Tensor.to, (rec.function(torch.lt, (drawn, x if p is None else p), {}), x.dtype), {})


def uniform(rec: Recorder, name: str, x: Any, *between: float, generator: Any = None, **named: float) -> Any:
    """Between two numbers, the second not among them."""
    _refuse_generator(name, generator)
    first, last = (*between, *(named.get(end, default) for end, default in _UNIT[len(between) :]))
    return rec.draw(Draw("uniform", float(first), float(last)), class_of(x))


def normal(rec: Recorder, name: str, x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Of that mean and standard deviation."""
    _refuse_generator(name, generator)
    return rec.draw(Draw("normal", float(mean), float(std)), class_of(x))


def exponential(rec: Recorder, name: str, x: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Of that rate: -log(1 - u) / rate."""
    _refuse_generator(name, generator)
    below = rec.function(torch.neg, (rec.draw(Draw("uniform", 0.0, 1.0), class_of(x)),), {})
    return rec.function(torch.div, (rec.function(torch.log1p, (below,), {}), -float(lambd)), {})


def normal_of(rec: Recorder, name: str, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    """`torch.normal`: of means and deviations in tensors of one shape, or of numbers and a size."""
    _refuse_generator(name, options.pop("generator", None))
    tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    if options.pop("out", None) is not None or len({tuple(x.shape) for x in tensors}) > 1:
        refuse(f"{name} of tensors of several shapes, or into one", "write mean + std * torch.randn_like(mean)")
    if rec.flows and any(isinstance(x, Symbol) or x.requires_grad for x in tensors):
        refuse(f"{name} gives a gradient of zeros", "write mean + std * torch.randn_like(mean), or use torch.no_grad()")
    if not tensors:
        return made_of_sizes(rec, "randn", *([] if size is None else [size]), **options) * std + mean
    drawn = DRAWN["randn_like"](rec, name, tensors[0])
    return rec.function(torch.add, (rec.function(torch.mul, (drawn, std), {}), mean), {})


def multinomial(rec: Recorder, name: str, weights: Any, count: int, *_: Any, generator: Any = None) -> Any:
    """One of each row: the first to come of exponential clocks whose rates are the weights."""
    _refuse_generator(name, generator)
    if count != 1:
        refuse(f"{name} of {count} from a row", "draw them one by one, or outside of forward")
    time = rec.function(torch.clamp_min, (exponential(rec, name, weights), torch.finfo(weights.dtype).tiny), {})
    return rec.function(torch.argmax, (rec.function(torch.div, (weights, time), {}), -1, True), {})


def attention(
    rec: Recorder, name: str, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`F.scaled_dot_product_attention` as torch documents it."""
    if dropout_p == 0 or enable_gqa:
        return NotImplemented
    scores = torch.matmul(q, k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2], scores.shape[-1], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(torch.logical_not(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = rec.function(torch.softmax, (scores, -1), {})
    return torch.matmul(dropout(rec, name, weights, dropout_p), v)


def made_of_sizes(rec: Recorder, name: str, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """`torch.rand` and `torch.randn`: numbers that no recorded tensor has to do with."""
    _refuse_generator(name, options.get("generator"))
    sizes = {"size": options["size"]} if "size" in options else {}
    return DRAWN[f"{name}_like"](rec, name, torch.empty(*size, **sizes, dtype=dtype, device="meta"),
                                 requires_grad=options.get("requires_grad", False))  # fmt: skip


def drawn_anywhere(rec: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one of ANYWHERE draws, in whatever code it is called; NotImplemented where it is to run as it is: nothing is
    recorded, or it is of recorded tensors."""
    if rec is None or not rec.tracer.may_draw:
        return NotImplemented
    name = ANYWHERE[func]
    if func in (torch.rand, torch.randn):
        return made_of_sizes(rec, name, *args, **kwargs)
    if func is torch.normal and not any(isinstance(x, Symbol) for x in (*args, *kwargs.values())):
        return normal_of(rec, name, *args, **kwargs)
    is_plain = args and type(args[0]) in (torch.Tensor, Made) and args[0].dtype.is_floating_point
    return (
        DRAWN[name](rec, name, *args, **kwargs) if is_plain and not rules.is_off(name, args, kwargs) else NotImplemented
    )


def _refuse_generator(name: str, generator: Any) -> None:
    if generator is not None:
        refuse(f"{name} draws from a generator of its own", "leave it out: each instance has its own numbers")


@cache
def as_written(func: FunctionType) -> Callable[..., Any]:
    """A function of torch's that is written in Python, which stand-ins go through as tensors do."""
    names = {name: lambda *_: False for name in func.__globals__ if name.startswith("has_torch_function")}
    copied = FunctionType(func.__code__, {**func.__globals__, **names}, func.__name__, func.__defaults__)
    copied.__kwdefaults__ = func.__kwdefaults__
    return copied


def _channels(name: str, x: Any) -> tuple[int, ...]:
    """Shape with one number per channel."""
    shape = tuple(x.shape)
    leading = 1 if _UNBATCHED.get(name) == len(shape) else 2
    if len(shape) < 2:
        refuse(f"{name}: expected a tensor of at least two dimensions, got one of shape {shape}", "use dropout")
    return (*shape[:leading], *(1 for _ in shape[leading:]))


DRAWN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"), dropout),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), alpha_dropout),
    "rrelu": rrelu,
    "rand_like": _like("uniform"),
    "randn_like": _like("normal"),
    **dict.fromkeys(("bernoulli", "bernoulli_"), bernoulli),
    "uniform_": uniform,
    "normal_": normal,
    "exponential_": exponential,
    "normal": normal_of,
    "multinomial": multinomial,
    "scaled_dot_product_attention": attention,
}
"""Definition (2), by name: a function of the recorder, the name, and the call's arguments, which gives NotImplemented
where nothing is drawn."""


_ANYWHERE = "rand randn rand_like randn_like bernoulli normal multinomial".split()
ANYWHERE: dict[Any, str] = {
    **{getattr(functional, name): name for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")},
    **{getattr(torch, name): name for name in _ANYWHERE},
}
"""Functions that draw where no tensor is recorded, or of one that is not."""


def refuse_drawing(name: str) -> NoReturn:
    """Raise UnsupportedError for a function that draws, and is not recorded as definition (2) says."""
    remedy = "draw outside of forward, and pass the numbers in"
    if name in DRAWN:
        remedy = f"such functions are recorded in training mode only; pass training=self.training, or {remedy}"
    refuse(f"'{name}' draws random numbers", f"{remedy} (known are {SUPPORTED})")
