"""The table of operations as lines of Triton source.

`{0}` is what a primitive is of, `{y}` its result and a prefix for names of its own, `{F}` the type of computation
(float32, for float64 float64). Numbers that float32 cannot hold are `tl.full`, which keeps all digits in either type.
Masked lanes hold 1, so that no lane divides by zero.

Accuracy, beside the device's `exp`, `log`, `sin` and `cos` (the last two its library's, for arguments of any size):
tanh takes its series where 1 - exp(-2x) would cancel, so its error stays within a few units in the last place of the
result, not of 1; log1p is Kahan's.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from edbc.base.operations import FORMULAS, Formula, parse

_PRIMITIVES: dict[str, tuple[str, ...]] = {
    "exp": ("tl.exp({0})",),
    "log": ("tl.log({0})",),
    "log1p": (
        "{y}_u = 1.0 + {0}",
        "{y}_r = tl.where({y}_u == {0}, 1.0, {0} / tl.where({y}_u == 1.0, 1.0, {y}_u - 1.0))",
        "{y} = tl.where({y}_u == 1.0, {0}, tl.log({y}_u) * {y}_r)",
    ),
    "sin": ("tl.sin({0})",),
    "cos": ("tl.cos({0})",),
    "sqrt": ("tl.sqrt({0})",),
    "abs": ("tl.abs({0})",),
    "sigmoid": (
        "{y}_z = tl.exp(-tl.abs({0}))",
        "{y} = tl.where({0} < 0.0, {y}_z, 1.0) / (1.0 + {y}_z)",
    ),
    "tanh": (
        "{y}_z = tl.exp(-2.0 * tl.abs({0}))",
        "{y}_b = (1.0 - {y}_z) / (1.0 + {y}_z)",
        "{y}_q = {0} * {0}",
        "{y}_s = {0} * (1.0 - {y}_q * (tl.full((1, 1), 0.3333333333333333, {F}) - {y}_q * (tl.full((1, 1), "
        "0.13333333333333333, {F}) - {y}_q * (tl.full((1, 1), 0.05396825396825397, {F}) - {y}_q * "
        "tl.full((1, 1), 0.021869488536155203, {F})))))",
        "{y} = tl.where(tl.abs({0}) < {CUT}, {y}_s, tl.where({0} < 0.0, -{y}_b, {y}_b))",
    ),
    "density": ("tl.full((1, 1), 0.3989422804014327, {F}) * tl.exp(-0.5 * {0} * {0})",),
    "cdf": ("0.5 * (1.0 + tl.erf({0} * tl.full((1, 1), 0.7071067811865476, {F})))",),
}
_CUT = {"tl.float32": "0.25", "tl.float64": "0.02"}
"""Where tanh changes from its series (nine powers) to exponentials: both are accurate there."""


def _is_known(formula: Formula) -> bool:
    nodes = list(ast.walk(parse(formula.text)))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return calls <= _PRIMITIVES.keys() and not any(isinstance(node, ast.Pow) for node in nodes)


OPERATIONS = tuple(name for name, formula in FORMULAS.items() if _is_known(formula))
"""Powers are left to torch: their corner cases (negative bases, whole exponents) need the device's own library."""


class _Rendering(ast.NodeTransformer):
    """A formula of some sources as lines that leave its value in the name `result`."""

    def __init__(self, formula: Formula, result: str, sources: Sequence[str], compute: str):
        self.result, self.compute = result, compute
        self.sources = dict(zip(formula.names, sources, strict=True))
        self.calls: dict[str, ast.expr] = {}
        self.names = 0
        self.lines: list[str] = []
        self.root = ast.dump(parse(formula.text))
        value = ast.unparse(self.visit(parse(formula.text)))
        if value != result:
            self.lines.append(f"{result} = {value}")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.sources[node.id])

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Constant(float(node.value))  # type: ignore[arg-type]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = map(self.visit, (node.test, node.body, node.orelse))
        return ast.parse(f"tl.where({', '.join(map(ast.unparse, parts))})", mode="eval").body

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        sign = " & " if isinstance(node.op, ast.And) else " | "
        parts = (f"({ast.unparse(self.visit(value))})" for value in node.values)
        return ast.parse(sign.join(parts), mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        key, name = ast.dump(node), ast.unparse(node.func)
        if key not in self.calls:
            self.calls[key] = self._call(name, self.visit(node.args[0]), key == self.root)
        return self.calls[key]

    def _call(self, name: str, source: ast.expr, is_root: bool) -> ast.expr:
        *before, last = _PRIMITIVES[name]
        if not isinstance(source, ast.Name):
            named = self._name()
            self.lines.append(f"{named} = {ast.unparse(source)}")
            source = ast.Name(named)
        result = self.result if is_root or not before else self._name()
        texts = [t.format(source.id, y=result, F=self.compute, CUT=_CUT[self.compute]) for t in (*before, last)]
        self.lines += texts if before else ()
        return ast.Name(result) if before else ast.parse(texts[0], mode="eval").body

    def _name(self) -> str:
        self.names += 1
        return f"{self.result}_g{self.names if self.names > 1 else ''}"


def lines_of(op: str, result: str, sources: Sequence[str], compute: str) -> list[str]:
    """Source lines that leave `op(*sources)` in the name `result`, computed in the Triton type `compute`."""
    return _Rendering(FORMULAS[op], result, sources, compute).lines
