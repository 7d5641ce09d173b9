"""Formulas of the table of operations as LLVM's text, on vectors of any number of elements.

float32 uses a rational tanh and a polynomial exp (a few units in the last place at most), float64 the C library's
functions, which keep parity at 1e-12. What the polynomials multiply and add has one rounding, written as such; what a
formula says has one per operation. So an element's bits depend on nothing beside it, neither on the width of its vector
nor on what else a loop computes. Not-a-number and infinity behave as in torch.

NOTE: [Coefficients] tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9.02, exp(r) = 1 + r + r^2 E(r) on |r| <= ln(2) / 2,
erfc(z) = exp(-z^2) t C(t) with t = 1 / (1 + 0.51 z) on 0 <= z <= 10, and log(1 + z) = z - z^2 / 2 + z^3 L(z) from
sqrt(1/2) - 1 to sqrt(2) - 1, with the least largest relative error (7.4e-9, 3.1e-9, 8.6e-7 and 6.4e-9) that reweighted
least squares finds.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from struct import pack, unpack

from edbc.base.operations import FORMULAS, parse
from edbc.native.llvm import Body, Index
from edbc.native.machinecode import pointer

_TANH_LIMIT = 9.02
"""Where tanh is 1 to the last bit, and the quotient is too: where it is less, 1 - tanh(x) ** 2 is not zero."""
_P = (0.999999993, 0.130797274, 0.00309916564, 1.11039624e-05, -2.00192736e-08, 5.17774575e-11, -8.22859544e-14)
_Q = (1.0, 0.464130538, 0.0244761203, 0.000253915595)
_E = (0.499999934, 0.166665201, 0.0416683942, 0.00836878044, 0.0013814467)
_C = (0.287917486, 0.284152468, 0.279065227, 0.0550554013, 0.35844183, -0.359131937, 0.0944990872)
_L = (0.333333313, -0.250008196, 0.200012267, -0.166233569, 0.142017573, -0.131601825, 0.127615765, -0.0763449669)
_ROOT_HALF = 0x3F3504F3
"""The bits of sqrt(1/2)."""
_LEAST_NORMAL, _TO_NORMAL = 2.0**-126, 23
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504, 0.693145752, 1.42860677e-06
_COMBINE = {"total": "x + y", "largest": FORMULAS["maximum"].text, "smallest": FORMULAS["minimum"].text}
_SHORT_ONE = 0x3F80
"""The bits of 1 in bfloat16."""
_EXP_HIGHEST, _EXP_LOWEST, _SIGMOID_LOWEST = 89.0, -104.0, -86.0
_COMPARISONS: dict[type, str] = {
    ast.Lt: "olt", ast.LtE: "ole", ast.Gt: "ogt", ast.GtE: "oge", ast.Eq: "oeq", ast.NotEq: "une",
}  # fmt: skip
_SIGNS: dict[type, str] = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}


class Vectors:
    """Operations on vectors of `lanes` elements of `width` bytes; `declared` gathers what the module has to declare.

    Elements of two bytes are bfloat16: float32 in registers, rounded to the nearest when they are written.
    """

    def __init__(self, body: Body, width: int, lanes: int, declared: set[str]):
        self.body, self.width, self.lanes, self.declared = body, width, lanes, declared
        self.element = "double" if width == 8 else "float"
        self.kind = f"<{lanes} x {self.element}>"
        self._suffix = f"v{lanes}f{64 if width == 8 else 32}"
        self.bytes = lanes * (8 if width == 8 else 4)
        """Of a register."""
        self._is_short = width == 2

    # --- one operation ---------------------------------------------------------------------------------------------

    def number(self, x: float) -> str:
        """A constant, as often as there are lanes."""
        return f"<{', '.join([self._number(x)] * self.lanes)}>"

    def _numbers(self, each: Sequence[float]) -> str:
        return f"<{', '.join(map(self._number, each))}>"

    def _number(self, x: float) -> str:
        (bits,) = unpack("<Q", pack("<d", x if self.width == 8 else unpack("f", pack("f", x))[0]))
        return f"{self.element} 0x{bits:016X}"

    def two(self, operation: str, x: str, y: str) -> str:
        """`fadd` and the like."""
        return self.body.new(f"{operation} {self.kind} {x}, {y}")

    def negated(self, x: str) -> str:
        """-x."""
        return self.body.new(f"fneg {self.kind} {x}")

    def compared(self, test: str, x: str, y: str) -> str:
        """A vector of truth values."""
        return self.body.new(f"fcmp {test} {self.kind} {x}, {y}")

    def chosen(self, test: str, x: str, y: str) -> str:
        """Elements of x where the test holds, of y elsewhere."""
        return self.body.new(f"select <{self.lanes} x i1> {test}, {self.kind} {x}, {self.kind} {y}")

    def intrinsic(self, name: str, *operands: str) -> str:
        """LLVM's own functions: `fma`, `floor`, `sqrt`, `fabs`."""
        called = f"{self.kind} @llvm.{name}.{self._suffix}"
        self.declared.add(f"declare {called}({', '.join([self.kind] * len(operands))})")
        return self.body.new(f"call {called}({', '.join(f'{self.kind} {x}' for x in operands)})")

    def fma(self, x: str, y: str, z: str) -> str:
        """x y + z with one rounding."""
        return self.intrinsic("fma", x, y, z)

    def product_added(self, x: str, y: str, z: str) -> str:
        """x y + z with one rounding where the processor has that, with two where it would have to be computed."""
        return self.intrinsic("fmuladd", x, y, z)

    def of_library(self, name: str, *operands: str) -> str:
        """A function of the C library, element by element."""
        called = f"{self.element} @{name}{'' if self.width == 8 else 'f'}"
        self.declared.add(f"declare {called}({', '.join([self.element] * len(operands))})")
        result = "undef"
        for lane in range(self.lanes):
            given = [self.body.new(f"extractelement {self.kind} {x}, i32 {lane}") for x in operands]
            one = self.body.new(f"call {called}({', '.join(f'{self.element} {x}' for x in given)})")
            result = self.body.new(f"insertelement {self.kind} {result}, {self.element} {one}, i32 {lane}")
        return result

    def splat(self, one: str) -> str:
        """One element in every lane."""
        return self._every(self.element, one)

    def _every(self, element: str, one: Index) -> str:
        kind = f"<{self.lanes} x {element}>"
        first = self.body.new(f"insertelement {kind} undef, {element} {one}, i32 0")
        return self.body.new(f"shufflevector {kind} {first}, {kind} undef, <{self.lanes} x i32> zeroinitializer")

    def of_integer(self, i: Index) -> str:
        """An integer as a number, in every lane."""
        if isinstance(i, int):
            return self.number(float(i))
        return self.splat(self.body.new(f"sitofp i64 {i} to {self.element}"))

    def counting(self, i: Index) -> str:
        """i, i + 1, ... as numbers."""
        return self.two("fadd", self.of_integer(i), self._numbers([*map(float, range(self.lanes))]))

    def converted(self, how: str, x: str, to: Vectors) -> str:
        """`fpext` or `fptrunc` of elements to those of other vectors of as many lanes."""
        return x if self.kind == to.kind else self.body.new(f"{how} {self.kind} {x} to {to.kind}")

    def folded(self, x: str, combine: Callable[[Vectors, str, str], str]) -> str:
        """All lanes combined into one: the halves of the vector, then of what is left."""
        vectors = self
        while vectors.lanes > 1:
            half = vectors.lanes // 2
            halves = [vectors._part(x, range(first, first + half)) for first in (0, half)]
            vectors = Vectors(self.body, self.width, half, self.declared)
            x = combine(vectors, *halves)
        return x

    def _part(self, x: str, which: range) -> str:
        mask = ", ".join(f"i32 {i}" for i in which)
        return self.body.new(f"shufflevector {self.kind} {x}, {self.kind} undef, <{len(which)} x i32> <{mask}>")

    # --- memory ----------------------------------------------------------------------------------------------------

    def first(self, count: Index) -> str:
        """The mask of the first lanes."""
        kind, numbers = f"<{self.lanes} x i32>", ", ".join(f"i32 {lane}" for lane in range(self.lanes))
        if isinstance(count, int):
            return f"<{self.lanes} x i1> <{', '.join(f'i1 {lane < count:d}' for lane in range(self.lanes))}>"
        narrow = self.body.new(f"trunc i64 {count} to i32")
        every = self._every("i32", narrow)
        return f"<{self.lanes} x i1> {self.body.new(f'icmp slt {kind} <{numbers}>, {every}')}"

    def mask(self, valid: int) -> str:
        """The same; none where all are among them."""
        return "" if valid == self.lanes else self.first(valid)

    def only(self, mask: str, x: str, other: str) -> str:
        """x in the lanes of a mask."""
        return self.chosen(mask.partition("> ")[2], x, other) if mask else x

    def read(self, address: str, mask: str = "") -> str:
        """A vector; where a mask leaves elements out they are 1, so that none is divided by 0."""
        if self._is_short:
            return self._widened(self._read(address, mask, f"<{self.lanes} x i16>", f"v{self.lanes}i16", _SHORT_ONE))
        return self._read(address, mask, self.kind, self._suffix, 1.0)

    def _read(self, address: str, mask: str, kind: str, suffix: str, other: float | int) -> str:
        if not mask:
            return self.body.load(address, kind, self.width)
        at, called = self._pointer(address, kind), f"{kind} @llvm.masked.load.{suffix}.p0"
        self.declared.add(f"declare {called}({pointer(kind)}, i32, <{self.lanes} x i1>, {kind})")
        others = _integers(self.lanes, other, "i16") if isinstance(other, int) else self.number(other)
        return self.body.new(f"call {called}({at}, i32 {self.width}, {mask}, {kind} {others})")

    def _widened(self, short: str) -> str:
        """bfloat16's bits are the upper half of float32's."""
        long = f"<{self.lanes} x i32>"
        bits = self.body.new(f"zext <{self.lanes} x i16> {short} to {long}")
        upper = self.body.new(f"shl {long} {bits}, {_integers(self.lanes, 16)}")
        return self.body.new(f"bitcast {long} {upper} to {self.kind}")

    def write(self, address: str, value: str, mask: str = "") -> None:
        """A vector, or the elements that a mask lets through."""
        kind, suffix = self.kind, self._suffix
        if self._is_short:
            kind, suffix = f"<{self.lanes} x bfloat>", f"v{self.lanes}bf16"
            value = self.body.new(f"fptrunc {self.kind} {value} to {kind}")
        if not mask:
            self.body.store(address, kind, value, self.width)
            return
        at, called = self._pointer(address, kind), f"void @llvm.masked.store.{suffix}.p0"
        self.declared.add(f"declare {called}({kind}, {pointer(kind)}, i32, <{self.lanes} x i1>)")
        self.body.add(f"call {called}({kind} {value}, {at}, i32 {self.width}, {mask})")

    def gathered(self, address: str, stride: Index, mask: str = "") -> str:
        """Elements so many bytes apart; 1 where a mask leaves them out. One by one where it is known which: a vector's
        own gathering took up to twice as long on an AMD EPYC, and there is none of bfloat16."""
        if isinstance(stride, int) and "%" not in mask:
            found = self.number(1.0)
            for lane in range(mask.count("i1 1") if mask else self.lanes):
                one = self.element_at(self.body.sum(address, lane * stride))
                found = self.body.new(f"insertelement {self.kind} {found}, {self.element} {one}, i32 {lane}")
            return found
        at, whole = self._apart(address, stride), mask or self.first(self.lanes)
        called = f"{self.kind} @llvm.masked.gather.{self._suffix}.v{self.lanes}p0"
        self.declared.add(f"declare {called}(<{self.lanes} x ptr>, i32, <{self.lanes} x i1>, {self.kind})")
        return self.body.new(f"call {called}({at}, i32 {self.width}, {whole}, {self.kind} {self.number(1.0)})")

    def scattered(self, address: str, stride: Index, value: str, mask: str = "") -> None:
        """The same, written."""
        at, whole = self._apart(address, stride), mask or self.first(self.lanes)
        called = f"void @llvm.masked.scatter.{self._suffix}.v{self.lanes}p0"
        self.declared.add(f"declare {called}({self.kind}, <{self.lanes} x ptr>, i32, <{self.lanes} x i1>)")
        self.body.add(f"call {called}({self.kind} {value}, {at}, i32 {self.width}, {whole})")

    def _apart(self, address: str, stride: Index) -> str:
        kind = f"<{self.lanes} x i64>"
        numbers = ", ".join(f"i64 {lane}" for lane in range(self.lanes))
        by = self.body.new(f"mul {kind} <{numbers}>, {self._every('i64', stride)}")
        sum_of = self.body.new(f"add {kind} {self._every('i64', address)}, {by}")
        return f"<{self.lanes} x ptr> {self.body.new(f'inttoptr {kind} {sum_of} to <{self.lanes} x ptr>')}"

    def _pointer(self, address: str, kind: str) -> str:
        to = pointer(kind)
        return f"{to} {self.body.new(f'inttoptr i64 {address} to {to}')}"

    def element_at(self, address: str) -> str:
        """One element."""
        if self._is_short:
            bits = self.body.new(f"zext i16 {self.body.load(address, 'i16', 2)} to i32")
            return self.body.new(f"bitcast i32 {self.body.new(f'shl i32 {bits}, 16')} to float")
        return self.body.load(address, self.element, self.width)

    def pair_at(self, address: str) -> str:
        """Two elements of bfloat16, in every pair of lanes."""
        every = self._every("i32", self.body.load(address, "i32", 2))
        return self.body.new(f"bitcast <{self.lanes} x i32> {every} to <{2 * self.lanes} x bfloat>")

    def pairs(self, address: str) -> str:
        """A pair of elements of bfloat16 for every lane."""
        return self.body.load(address, f"<{2 * self.lanes} x bfloat>", 2)

    def dot(self, x: str, y: str, z: str) -> str:
        """z plus the products of both elements of the pairs x and y."""
        called = f"{self.kind} @llvm.x86.avx512bf16.dpbf16ps.512"
        pair = f"<{2 * self.lanes} x bfloat>"
        self.declared.add(f"declare {called}({self.kind}, {pair}, {pair})")
        return self.body.new(f"call {called}({self.kind} {z}, {pair} {x}, {pair} {y})")

    # --- primitives ------------------------------------------------------------------------------------------------

    def _polynomial(self, coefficients: Sequence[float], x: str) -> str:
        *rest, total = map(self.number, coefficients)
        for coefficient in reversed(rest):
            total = self.fma(total, x, coefficient)
        return total

    def _between(self, x: str, low: float, high: float) -> str:
        x = self.chosen(self.compared("ogt", x, self.number(high)), self.number(high), x)
        return self.chosen(self.compared("olt", x, self.number(low)), self.number(low), x)

    def _reduced(self, x: str, lowest: float) -> tuple[str, str]:
        """k, as integers, and exp(r) where exp(x) is 2**k exp(r), for x no larger than _EXP_HIGHEST and no smaller
        than `lowest`, or the nearer of them."""
        x = self._between(x, lowest, _EXP_HIGHEST)
        k = self.intrinsic("floor", self.fma(x, self.number(_LOG2_E), self.number(0.5)))
        less = self.negated(k)
        r = self.fma(less, self.number(_LN2_LOW), self.fma(less, self.number(_LN2_HIGH), x))
        e = self._polynomial(_E, r)
        y = self.two("fadd", self.fma(self.two("fmul", e, r), r, r), self.number(1.0))
        return self.body.new(f"fptosi {self.kind} {k} to <{self.lanes} x i32>"), y

    def _power_of_two(self, k: str, bias: int) -> str:
        kind = f"<{self.lanes} x i32>"
        biased = self.body.new(f"add {kind} {k}, {_integers(self.lanes, bias)}")
        bits = self.body.new(f"shl {kind} {biased}, {_integers(self.lanes, 23)}")
        return self.body.new(f"bitcast {kind} {bits} to {self.kind}")

    def exp(self, x: str) -> str:
        """In float32 2**k goes in two factors, so that the ends of the range are right."""
        if self.width == 8:
            return self.of_library("exp", x)
        k, y = self._reduced(x, _EXP_LOWEST)
        kind = f"<{self.lanes} x i32>"
        half = self.body.new(f"ashr {kind} {k}, {_integers(self.lanes, 1)}")
        rest = self.body.new(f"sub {kind} {k}, {half}")
        return self.two("fmul", self.two("fmul", y, self._power_of_two(half, 127)), self._power_of_two(rest, 127))

    def log(self, x: str) -> str:
        """In float32 by exponent and mantissa, a polynomial of the latter."""
        if self.width == 8:
            return self.of_library("log", x)
        is_small = self.compared("olt", x, self.number(_LEAST_NORMAL))
        raised = self.chosen(is_small, self.two("fmul", x, self.number(2.0**_TO_NORMAL)), x)
        shift = self.chosen(is_small, self.number(-float(_TO_NORMAL)), self.number(0.0))
        return self._logarithm(x, raised, shift)

    def log1p(self, x: str) -> str:
        """In float32 the logarithm of 1 + x, whose rounding is added to what its mantissa is beyond 1."""
        if self.width == 8:
            return self.of_library("log1p", x)
        one = self.number(1.0)
        u = self.two("fadd", one, x)
        return self._logarithm(u, u, self.number(0.0), self.two("fsub", x, self.two("fsub", u, one)))

    def _logarithm(self, x: str, normal: str, shift: str, lost: str | None = None) -> str:
        """log(normal + lost) + shift ln(2), where `lost` is less than a unit in the last place; of x as it is at the
        ends: less than 0, 0, infinity, not a number."""
        kind, body = f"<{self.lanes} x i32>", self.body
        bits = body.new(f"bitcast {self.kind} {normal} to {kind}")
        above = body.new(f"sub {kind} {bits}, {_integers(self.lanes, _ROOT_HALF)}")
        k = body.new(f"ashr {kind} {above}, {_integers(self.lanes, 23)}")
        scaled = body.new(f"sub {kind} {bits}, {body.new(f'shl {kind} {k}, {_integers(self.lanes, 23)}')}")
        z = self.two("fsub", body.new(f"bitcast {kind} {scaled} to {self.kind}"), self.number(1.0))
        if lost is not None:  # of the largest numbers nothing is, and 2**-k is no normal one
            most = _integers(self.lanes, 126)
            below = body.new(
                f"select <{self.lanes} x i1> {body.new(f'icmp slt {kind} {k}, {most}')}, {kind} {k}, {kind} {most}"
            )
            z = self.fma(lost, self._power_of_two(body.new(f"sub {kind} {_integers(self.lanes, 0)}, {below}"), 127), z)
        e = self.two("fadd", body.new(f"sitofp {kind} {k} to {self.kind}"), shift)
        square = self.two("fmul", z, z)
        y = self.two("fmul", self.two("fmul", z, square), self._polynomial(_L, z))
        y = self.fma(self.number(-0.5), square, self.fma(e, self.number(_LN2_LOW), y))
        y = self.fma(e, self.number(_LN2_HIGH), self.two("fadd", z, y))
        y = self.chosen(self.compared("oeq", x, self.number(0.0)), self.number(-math.inf), y)
        y = self.chosen(self.compared("olt", x, self.number(0.0)), self.number(math.nan), y)
        return self.chosen(self.compared("olt", x, self.number(math.inf)), y, x)  # infinity, and not a number

    def sigmoid(self, x: str) -> str:
        """1 / (1 + exp(-x)) to the last bit (over all float32), in fewer instructions: 2**k need not go in two factors.
        Where it is too small for one, what is added to 1 is lost anyway; where it is too large, 2**(k - 1) is not."""
        one = self.number(1.0)
        if self.width == 8:
            return self.two("fdiv", one, self.two("fadd", one, self.exp(self.negated(x))))
        k, y = self._reduced(self.negated(x), _SIGMOID_LOWEST)
        raised = self.two("fmul", y, self._power_of_two(k, 126))
        return self.two("fdiv", one, self.fma(raised, self.number(2.0), one))

    def tanh(self, x: str) -> str:
        """By a quotient of polynomials in float32."""
        if self.width == 8:
            return self.of_library("tanh", x)
        c = self._between(x, -_TANH_LIMIT, _TANH_LIMIT)
        u = self.two("fmul", c, c)
        p, q = self._polynomial(_P, u), self._polynomial(_Q, u)
        return self._between(self.two("fdiv", self.two("fmul", c, p), q), -1.0, 1.0)

    def cdf(self, x: str) -> str:
        """The standard normal distribution's Phi, of which x Phi(x) is gelu."""
        root, half, one = self.number(math.sqrt(0.5)), self.number(0.5), self.number(1.0)
        if self.width == 8:
            return self.two("fmul", half, self.two("fadd", self.of_library("erf", self.two("fmul", x, root)), one))
        z = self.two("fmul", self.intrinsic("fabs", x), root)
        t = self.two("fdiv", one, self.fma(self.number(0.51), z, one))
        raised = self.exp(self.two("fmul", self.negated(z), z))
        tail = self.two("fmul", self.two("fmul", self.two("fmul", self._polynomial(_C, t), t), raised), half)
        return self.chosen(self.compared("olt", x, self.number(0.0)), tail, self.two("fsub", one, tail))

    def density(self, x: str) -> str:
        """The standard normal distribution's phi, the derivative of Phi."""
        raised = self.exp(self.two("fmul", self.two("fmul", self.number(-0.5), x), x))
        return self.two("fmul", self.number(1 / math.sqrt(2 * math.pi)), raised)

    def primitive(self, name: str, x: str) -> str:
        """A primitive of formulas, by its name."""
        if name in ("sqrt", "abs"):
            return self.intrinsic(name.replace("abs", "fabs"), x)
        own: dict[str, Callable[[str], str]] = {
            "exp": self.exp, "log": self.log, "log1p": self.log1p, "sigmoid": self.sigmoid, "tanh": self.tanh,
            "cdf": self.cdf, "density": self.density,
        }  # fmt: skip
        return own[name](x) if name in own else self.of_library(name, x)

    def neutral(self, reduction: str) -> str:
        """What a reduction begins with."""
        return self.number({"total": 0.0, "largest": -math.inf, "smallest": math.inf}[reduction])

    def reduced(self, reduction: str, x: str, y: str) -> str:
        """One more element of a reduction."""
        return self.formula(_COMBINE[reduction], x=x, y=y)

    # --- formulas --------------------------------------------------------------------------------------------------

    def formula(self, text: str, **operands: str) -> str:
        """What a formula computes of its operands; what stands in it twice is computed once."""
        tree, keys = _parsed(text)
        return _Rendering(self, operands, keys).value(tree)


def _integers(lanes: int, x: int, kind: str = "i32") -> str:
    return f"<{', '.join([f'{kind} {x}'] * lanes)}>"


class OfVectors:
    """A function's lines, for elements of `width` bytes in vectors of up to `lanes`, and what its module declares."""

    def __init__(self, width: int, lanes: int):
        self.width, self.lanes, self.body = width, lanes, Body()
        self.declared: set[str] = set()

    def vectors(self, lanes: int) -> Vectors:
        """Of so many lanes."""
        return Vectors(self.body, self.width, lanes, self.declared)

    def some(self, count: int) -> tuple[Vectors, str]:
        """Vectors of the least power of two lanes that hold so many elements, and the mask of these."""
        vectors = self.vectors(1 << (count - 1).bit_length())
        return vectors, vectors.mask(count)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[ast.expr, dict[int, str]]:
    """A formula, and of each node what tells equal ones, by the node's address; who reads it changes nothing."""
    tree = parse(text)
    return tree, {id(node): ast.dump(node) for node in ast.walk(tree)}


class _Rendering:
    def __init__(self, vectors: Vectors, operands: dict[str, str], keys: dict[int, str]):
        self.vectors, self.operands, self.keys = vectors, operands, keys
        self.known: dict[str, str] = {}

    def value(self, node: ast.expr) -> str:
        key = self.keys[id(node)]
        if key not in self.known:
            self.known[key] = self._new(node)
        return self.known[key]

    def _new(self, node: ast.expr) -> str:
        vectors = self.vectors
        match node:
            case ast.Name(name):
                return self.operands[name]
            case ast.Constant(value):
                return vectors.number(float(value))  # type: ignore[arg-type]
            case ast.UnaryOp(_, operand):
                return vectors.negated(self.value(operand))
            case ast.Call(ast.Name(name), [argument]):
                return vectors.primitive(name, self.value(argument))
            case ast.IfExp(test, body, orelse):
                return vectors.chosen(*map(self.value, (test, body, orelse)))
            case ast.Compare(left, [sign], [right]):
                return vectors.compared(_COMPARISONS[type(sign)], self.value(left), self.value(right))
            case ast.BoolOp(sign, tests):
                name, kind = "and" if isinstance(sign, ast.And) else "or", f"<{vectors.lanes} x i1>"
                return reduce(lambda x, y: vectors.body.new(f"{name} {kind} {x}, {y}"), map(self.value, tests))
            case ast.BinOp(left, ast.Pow(), right):
                return vectors.of_library("pow", self.value(left), self.value(right))
            case ast.BinOp(left, sign, right):
                return vectors.two(_SIGNS[type(sign)], self.value(left), self.value(right))
        raise AssertionError(f"{ast.unparse(node)} is in the language of formulas")
