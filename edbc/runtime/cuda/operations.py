"""The element-wise operations of cells as Triton expressions: the fixed operation table of the device.

An operation is lines of Triton source over named values. `{0}`, `{1}` are the sources, `{y}` the result and a prefix
for names of the operation's own, `{F}` the type of computation (float32, for float64 float64). Numbers that float32
cannot hold are `tl.full`, which keeps all digits in either type. Masked lanes hold 1, so that no lane divides by zero.

Accuracy, beside the device's `exp` and `log`: tanh takes its series where 1 - exp(-2x) would cancel, so its error
stays within a few units in the last place of the result, not of 1; softplus uses Kahan's log1p.
"""

from __future__ import annotations

from collections.abc import Sequence

_SIGMOID = (
    "{y}_z = tl.exp(-tl.abs({0}))",
    "{y} = tl.where({0} < 0.0, {y}_z, 1.0) / (1.0 + {y}_z)",
)
_TANH = (
    "{y}_z = tl.exp(-2.0 * tl.abs({0}))",
    "{y}_b = (1.0 - {y}_z) / (1.0 + {y}_z)",
    "{y}_q = {0} * {0}",
    "{y}_s = {0} * (1.0 - {y}_q * (tl.full((1, 1), 0.3333333333333333, {F}) - {y}_q * (tl.full((1, 1), "
    "0.13333333333333333, {F}) - {y}_q * (tl.full((1, 1), 0.05396825396825397, {F}) - {y}_q * "
    "tl.full((1, 1), 0.021869488536155203, {F})))))",
    "{y} = tl.where(tl.abs({0}) < {CUT}, {y}_s, tl.where({0} < 0.0, -{y}_b, {y}_b))",
)
_SOFTPLUS = (
    "{y}_e = tl.exp(tl.where({0} > 20.0, 20.0, {0}))",
    "{y}_u = 1.0 + {y}_e",
    "{y}_l = tl.where({y}_u == 1.0, {y}_e, tl.log({y}_u) * {y}_e / tl.where({y}_u == 1.0, 1.0, {y}_u - 1.0))",
    "{y} = tl.where({0} > 20.0, {0}, {y}_l)",
)
OPERATIONS: dict[str, tuple[str, ...]] = {
    "sigmoid": _SIGMOID,
    "tanh": _TANH,
    "relu": ("{y} = tl.where({0} < 0.0, 0.0, {0})",),
    "neg": ("{y} = -{0}",),
    "exp": ("{y} = tl.exp({0})",),
    "log": ("{y} = tl.log({0})",),
    "sqrt": ("{y} = tl.sqrt({0})",),
    "abs": ("{y} = tl.abs({0})",),
    "square": ("{y} = {0} * {0}",),
    "reciprocal": ("{y} = 1.0 / {0}",),
    "gelu": ("{y} = 0.5 * {0} * (1.0 + tl.erf({0} * tl.full((1, 1), 0.7071067811865476, {F})))",),
    "silu": (*(line.replace("{y}", "{y}_g") for line in _SIGMOID), "{y} = {0} * {y}_g"),
    "softplus": _SOFTPLUS,
    "add": ("{y} = {0} + {1}",),
    "sub": ("{y} = {0} - {1}",),
    "mul": ("{y} = {0} * {1}",),
    "div": ("{y} = {0} / {1}",),
    "maximum": ("{y} = tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",),
    "minimum": ("{y} = tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",),
    "sum": (),
}
"""`pow` is left to torch: its corner cases (negative bases, whole exponents) need the device's own library."""
_CUT = {"tl.float32": "0.25", "tl.float64": "0.02"}
"""Where tanh changes from its series (nine powers) to exponentials: both are accurate there."""


def lines_of(op: str, result: str, sources: Sequence[str], compute: str) -> list[str]:
    """Source lines that leave `op(*sources)` in the name `result`, computed in the Triton type `compute`."""
    if op == "sum":
        return [f"{result} = {' + '.join(sources)}"]
    names = {"y": result, "F": compute, "CUT": _CUT[compute]}
    return [line.format(*sources, **names) for line in OPERATIONS[op]]
