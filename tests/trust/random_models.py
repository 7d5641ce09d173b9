"""Random typed DAGs of random cells, driven by bytes: what the parity properties run.

(1) Values have a *kind*: a vector of 3 or of 5, a matrix, a scalar (all of the model's dtype), an index, a mask, or a
    vector of 3 in another float dtype, which nothing casts back (its rounding would hide behind no tolerance).
(2) A *cell* is a fixed random recipe over operands of random kinds, 0 to 4 of them; it returns 1 to 3 values of any
    kinds, an operand of its own or one value twice among them.
(3) An *instance* is code, CODE bytes an operation: which cell or torch function, and which earlier values it reads.
    So every byte string is an instance, shrinking bytes shrinks the graph, and instances cost nothing to make.

Everything that a cell computes passes a tanh before it leaves, so magnitudes stay near one.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from torch import nn

from edbc.capture.code.mark import cell

CODE = 6
"""Bytes of an operation: what, three operands, one for details, one that says whether the value is returned."""
SHAPES: dict[str, tuple[int, ...]] = {"v": (3,), "w": (5,), "m": (3, 3), "s": ()}
KINDS = (*SHAPES, "i", "b", "o")
OTHER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}
UNARY = (
    torch.sigmoid, torch.tanh, torch.relu, torch.neg, torch.nn.functional.silu, torch.nn.functional.softplus,
    torch.nn.functional.gelu, lambda x: (x / 4).exp(), lambda x: x.abs(), lambda x: x.square() / 4,
)  # fmt: skip
BINARY = (torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum, lambda x, y: x + y + x)


class Step(NamedTuple):
    """One operation of a recipe: its name, the positions of what it reads, and a number for details."""

    name: str
    reads: tuple[int, ...]
    detail: int


class TypedCell(nn.Module):
    """Definition (2)."""

    def __init__(self, rng: random.Random, dtype: torch.dtype):
        super().__init__()
        self.operands = tuple(rng.choice(KINDS) for _ in range(rng.randrange(5)))
        self.other = OTHER[dtype]
        self.start = nn.ParameterDict({kind: torch.randn(shape) for kind, shape in SHAPES.items()})
        self.rows = nn.Parameter(torch.randn(5, 3))
        self.narrow = nn.ModuleList([nn.Linear(3, 3), nn.Linear(5, 3, bias=False), nn.Linear(8, 3)])
        self.wide = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 5, bias=False), nn.Linear(8, 5)])
        self.kinds = [*SHAPES, *self.operands]
        self.recipe = [self.draw_step(rng) for _ in range(rng.randrange(1, 9))]
        computed = range(len(SHAPES), len(self.kinds))
        self.returned = [rng.choice(computed) for _ in range(rng.randrange(1, 4))]
        self.to(dtype)

    def draw_step(self, rng: random.Random) -> Step:
        """A random operation on values that exist; its result's kind is appended."""
        while True:
            name = rng.choice(list(STEPS))
            wanted, result = STEPS[name]
            if "*" in wanted:
                wanted = wanted.replace("*", rng.choice(list(SHAPES)))
            result = wanted[0] if result == "*" else result
            choices = [[i for i, kind in enumerate(self.kinds) if kind == k] for k in wanted]
            if all(choices):
                reads = tuple(rng.choice([*c[-2:], rng.choice(c)]) for c in choices)
                self.kinds.append(result)
                return Step(name, reads, rng.randrange(60))

    def forward(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [*(self.start[kind] for kind in SHAPES), *operands]
        for step in self.recipe:
            values.append(getattr(self, step.name)(step.detail, *(values[i] for i in step.reads)))
        first = len(SHAPES) + len(operands)
        return tuple(
            torch.tanh(values[i]) if i >= first and self.kinds[i] in SHAPES else values[i] for i in self.returned
        )

    # Operations: a number for details first, then operands. STEPS says which kinds each takes and gives.

    def unary(self, n, x):
        return UNARY[n % len(UNARY)](x)

    def binary(self, n, x, y):
        return BINARY[n % len(BINARY)](x, y)

    def peephole(self, n, x, y):
        return x * self.start["v"] + y

    def to_narrow(self, n, x, y):
        return self.narrow[n % 2]((x, y)[n % 2])

    def to_wide(self, n, x, y):
        return self.wide[n % 2]((x, y)[n % 2])

    def joined(self, n, x, y):
        return self.narrow[2](torch.cat([x, y]))

    def joined_wide(self, n, x, y):
        return self.wide[2](torch.cat([x, y]))

    def added(self, n, x, y, z):
        return self.narrow[0](x) + self.narrow[1](y) + self.narrow[0](z)

    def gated(self, n, x, y):
        first, second = torch.cat([x, y]).chunk(2)
        return first.sigmoid() * second

    def sliced(self, n, x):
        return x[n % 3 : n % 3 + 3]

    def product(self, n, m, x):
        return m @ x if n % 2 else x @ m

    def matrices(self, n, m, k):
        return m @ k if n % 2 else self.narrow[0](m) + k.t()

    def outer(self, n, x, y):
        return torch.outer(x, y) if n % 2 else torch.stack([x, y, x + y])

    def row(self, n, m):
        return m[n % 3] if n % 2 else m[:, n % 3]

    def total(self, n, x, m):
        return x.sum() if n % 2 else m.mean()

    def scaled(self, n, x, s):
        return x * s if n % 2 else s - x

    def normed(self, n, x, m):
        if n % 3:
            return nn.functional.layer_norm(m, (3,), *([x, self.start["v"]][: n % 3])).mean(n % 2)
        return torch.logsumexp(m, n % 2)

    def weighed(self, n, x, m):
        weights = torch.softmax(m, n % 2) if n % 3 else torch.softmax(x, 0).unsqueeze(1 - n % 2)
        return (weights * m, weights - m, x / (1 + torch.sigmoid(m)), m * x.unsqueeze(0))[n % 4]

    def extreme(self, n, m):
        return m.amax(n % 2) - torch.amin(m, dim=(n // 2) % 2)

    def largest(self, n, x):
        return x.argmax()

    def looked_up(self, n, i):
        return self.rows[i]

    def compared(self, n, x):
        return x > 0.0625

    def chosen(self, n, b, x, y):
        return torch.where(b, x, y)

    def other_dtype(self, n, x):
        return x.to(self.other)

    def in_other_dtype(self, n, o, x):
        return torch.tanh(o) + x.to(self.other)


STEPS = {
    "unary": ("*", "*"), "binary": ("**", "*"), "peephole": ("vv", "v"), "to_narrow": ("vw", "v"),
    "to_wide": ("vw", "w"), "joined": ("vw", "v"), "joined_wide": ("wv", "w"), "added": ("vwv", "v"),
    "gated": ("vv", "v"), "sliced": ("w", "v"), "product": ("mv", "v"), "matrices": ("mm", "m"),
    "outer": ("vv", "m"), "row": ("m", "v"), "total": ("vm", "s"), "scaled": ("ws", "w"), "normed": ("vm", "v"),
    "weighed": ("vm", "m"), "extreme": ("m", "v"), "largest": ("w", "i"), "looked_up": ("i", "v"),
    "compared": ("v", "b"), "chosen": ("bvv", "v"), "other_dtype": ("v", "o"), "in_other_dtype": ("ov", "o"),
}  # fmt: skip
"""Kinds that an operation takes and gives; `*` is any float kind of the model's dtype, the same everywhere."""
CONTINUOUS_ONLY = {torch.float32: ("largest", "compared")}
"""In float32, rounding alone may flip these: what they give is a value of its own, not a rounding error."""


class RandomModel(nn.Module):
    """Definition (3): cells and torch functions over the values of an instance, as its code says."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64, num_cells: int = 4):
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.other = OTHER[dtype]
        self.tables = nn.ParameterDict({kind: torch.randn(7, *shape) for kind, shape in SHAPES.items()})
        self.whole = nn.ParameterDict({kind: torch.randn(shape) for kind, shape in SHAPES.items()})
        self.leaf = nn.Linear(3, 5)
        self.to(dtype)
        cells = []
        while len(cells) < num_cells:
            drawn = TypedCell(rng, dtype)
            if not any(step.name in CONTINUOUS_ONLY.get(dtype, ()) for step in drawn.recipe):
                cells.append(cell(drawn))
        self.cells = nn.ModuleList(cells)

    def forward(self, code: bytes) -> dict[str, list[torch.Tensor]]:
        values: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}
        returned: dict[str, list[torch.Tensor]] = {}
        for at in range(0, len(code) - CODE + 1, CODE):
            what, a, b, c, detail, flag = code[at : at + CODE]
            for kind, value in self.operation(what, (a, b, c), detail, values):
                values[kind].append(value)
                if flag % 2:
                    returned.setdefault(kind, []).append(value)
        return returned

    def operation(self, what, operands, detail, values) -> list[tuple[str, Any]]:
        """What one operation gives, with kinds."""
        choice = what % (len(self.cells) + len(FUNCTIONS))
        if choice >= len(self.cells):
            function = FUNCTIONS[choice - len(self.cells)]
            return [function(self, *(lambda kind, at=at: self.pick(values, kind, at) for at in operands), detail)]
        chosen = self.cells[choice]
        own = getattr(chosen, "operands")  # noqa: B009 - a recording stand-in answers to names too
        reads = [self.pick(values, kind, operands[k % 3] + k // 3) for k, kind in enumerate(own)]
        results = chosen(*reads)
        return [(chosen.kinds[i], result) for i, result in zip(chosen.returned, results, strict=True)]

    def pick(self, values: dict[str, list[torch.Tensor]], kind: str, at: int) -> torch.Tensor:
        """An earlier value of a kind, or an external: a row of a table, a whole parameter, a constant."""
        known = values[kind]
        at %= len(known) + 3
        if at < len(known):
            return known[-1 - at]
        if kind in SHAPES and at == len(known):
            return self.tables[kind][len(known) % 7]
        if kind in SHAPES and at == len(known) + 1:
            return self.whole[kind]
        return self.constant(kind, len(known))

    def constant(self, kind: str, number: int) -> torch.Tensor:
        """A tensor that the instance brings."""
        if kind == "i":
            return torch.tensor(number % 5)
        if kind == "b":
            return torch.tensor([number % 2 == 0, number % 3 == 0, True])
        shape = SHAPES.get(kind, (3,))
        dtype = self.other if kind == "o" else self.leaf.weight.dtype  # its float64 twin has another
        return torch.full(shape, 0.25 + number / 8, dtype=dtype)


def _float_kind(detail: int) -> str:
    return list(SHAPES)[detail % len(SHAPES)]


def _add(model, a, b, c, detail):
    kind = _float_kind(detail)
    return kind, a(kind) + b(kind)


def _sum(model, a, b, c, detail):
    kind = _float_kind(detail)
    return kind, sum([a(kind), b(kind), c(kind), a(kind)][: 1 + detail // 4 % 4])


def _multiply(model, a, b, c, detail):
    kind = _float_kind(detail)
    return kind, a(kind) * b(kind)


def _tanh(model, a, b, c, detail):
    kind = _float_kind(detail)
    return kind, torch.tanh(a(kind))


def _stacked(model, a, b, c, detail):
    children = torch.stack([a("v"), b("v"), c("v")][: 1 + detail % 3])
    return "v", (children.sum(0), children.mean(0))[detail // 3 % 2]


def _window(model, a, b, c, detail):
    return "w", torch.cat([a("v"), b("w")])[1:6]


def _linear(model, a, b, c, detail):
    return "w", model.leaf(a("v"))


def _row(model, a, b, c, detail):
    return "v", a("m")[detail % 3]


def _column(model, a, b, c, detail):
    return "v", a("m")[:, detail % 3]


def _softmax(model, a, b, c, detail):
    return "w", torch.log_softmax(a("w"), 0)


def _attended(model, a, b, c, detail):
    items = torch.stack([a("v"), b("v"), c("v")][: 2 + detail % 2])
    return "v", (torch.softmax(items @ model.whole["v"], 0).unsqueeze(-1) * items).sum(0)


def _normed(model, a, b, c, detail):
    return "w", nn.functional.layer_norm(a("w"), (5,), b("w"))


def _where(model, a, b, c, detail):
    return "v", torch.where(a("b"), b("v"), c("v"))


def _cast(model, a, b, c, detail):
    return "o", a("v").to(model.other)


FUNCTIONS = (_add, _sum, _multiply, _tanh, _stacked, _window, _linear, _row, _column, _softmax, _attended, _normed,
             _where, _cast)  # fmt: skip
"""Torch functions between cells: `function(model, a, b, c, detail)` gives a kind and a value; a, b, c pick operands."""
