"""Rows of one number per type, four numbers at a time.

numba leaves a loop over a handful of types as it is: its compiler unrolls it before it looks for vectors, and cannot
rule out that one row overlaps another. Passing rows along the edges of a graph is most of what analysing it takes. So
rows are padded to whole groups of `LANES` numbers, and the functions here name the vector instructions. In plain Python
they are numpy's. One text for both, which reads a group's numbers before it writes one, took 1.3 to 2.5 times as long
per node of a graph.

A row is given by its array, of 32-bit numbers, C-contiguous and with two dimensions, and its number, unsigned. All rows
of a call are equally long.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="call-arg"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, types

from edbc.base.graph import Ints
from edbc.native.kinds import inner_uncounted

LANES = 4


@inner_uncounted
def padded(num_types: int) -> int:
    """Numbers in a row of so many types: at least one group."""
    return max(1, (num_types + LANES - 1) // LANES) * LANES


if config.DISABLE_JIT:  # type: ignore[attr-defined]

    def copy_row(target: Ints, i: int, source: Ints, j: int) -> None:
        """Row i of `target` becomes row j of `source`."""
        target[i] = source[j]

    def raise_row(target: Ints, i: int, source: Ints, j: int) -> None:
        """Row i of `target` becomes the larger of itself and row j of `source`, number by number."""
        np.maximum(target[i], source[j], out=target[i])

    def lower_row(target: Ints, i: int, source: Ints, j: int) -> None:
        """Row i of `target` becomes the smaller of itself and row j of `source`; negative numbers count as larger than
        all others."""
        into, other = target[i].view(np.uint32), source[j].view(np.uint32)
        np.minimum(into, other, out=into)

    def add_row(target: Ints, i: int, source: Ints, j: int) -> None:
        """Add row j of `source` to row i of `target`."""
        target[i] += source[j]

    def put_row(target: Ints, i: int, source: Ints, j: int, value: int) -> None:
        """Row i of `target` becomes `value` where row j of `source` is not 0."""
        target[i, source[j] != 0] = value

    def tally_row(target: Ints, i: int, source: Ints, j: int, other: Ints, k: int, value: int) -> None:
        """Add `value` to row i of `target` where row j of `source` equals row k of `other`."""
        target[i, source[j] == other[k]] += np.int32(value)

    def differing_lanes(target: Ints, i: int, source: Ints, j: int) -> int:
        """Of the numbers i to i + LANES of `target` and j to j + LANES of `source`, in whatever rows: a bit for
        each that differs, the first number's lowest."""
        differs = target.reshape(-1)[i : i + LANES] != source.reshape(-1)[j : j + LANES]
        return sum(1 << k for k in range(LANES) if differs[k])

else:
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic

    _GROUP = ir.VectorType(ir.IntType(32), LANES)
    _NONE = ir.Constant(_GROUP, [0] * LANES)

    def _array(context: Any, builder: Any, signature: Any, args: Any, at: int) -> Any:
        return context.make_array(signature.args[at])(context, builder, value=args[at])

    def _group(builder: Any, array: Any, at: Any) -> Any:
        """Where the numbers from an array's number `at` on are."""
        return builder.bitcast(builder.gep(array.data, [at]), _GROUP.as_pointer())

    def _every(builder: Any, number: Any) -> Any:
        """A group of one number."""
        one = builder.insert_element(_NONE, builder.trunc(number, _GROUP.element), ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, one, _NONE)

    def _by_group(combine: Callable[..., Any]) -> Any:
        """Code that gives the first row what `combine` makes of the rows' numbers and of the value behind them.

        Rows of one or two groups, which most graphs have, take no loop.
        """

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = [_array(context, builder, signature, args, at) for at in range(0, len(args) - 1, 2)]
            width = builder.extract_value(arrays[0].shape, 1)
            begins = [builder.mul(args[2 * at + 1], width) for at in range(len(arrays))]
            value = [_every(builder, args[-1])] if len(args) % 2 else []

            def one(k: Any) -> None:
                groups = [_group(builder, a, builder.add(b, k)) for a, b in zip(arrays, begins, strict=True)]
                combined = combine(builder, *(builder.load(group, align=4) for group in groups), *value)
                builder.store(combined, groups[0], align=4)

            first, second, third = (ir.Constant(ir.IntType(64), group * LANES) for group in range(3))
            one(first)
            with builder.if_then(builder.icmp_signed(">", width, second)):
                one(second)
                with cgutils.for_range_slice(builder, third, width, second) as (k, _):
                    one(k)
            return context.get_dummy_value()

        return generate

    @intrinsic
    def copy_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        """Row i of `target` becomes row j of `source`."""
        return types.void(target, i, source, j), _by_group(lambda builder, into, other: other)

    @intrinsic
    def raise_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        """Row i of `target` becomes the larger of itself and row j of `source`, number by number."""
        return types.void(target, i, source, j), _by_group(
            lambda builder, into, other: builder.select(builder.icmp_signed(">", into, other), into, other)
        )

    @intrinsic
    def lower_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        """Row i of `target` becomes the smaller of itself and row j of `source`; negative numbers count as larger than
        all others."""
        return types.void(target, i, source, j), _by_group(
            lambda builder, into, other: builder.select(builder.icmp_unsigned("<", into, other), into, other)
        )

    @intrinsic
    def add_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        """Add row j of `source` to row i of `target`."""
        return types.void(target, i, source, j), _by_group(lambda builder, into, other: builder.add(into, other))

    @intrinsic
    def put_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any, value: Any) -> Any:
        """Row i of `target` becomes `value` where row j of `source` is not 0."""
        return types.void(target, i, source, j, types.uint64), _by_group(
            lambda builder, into, other, value: builder.select(builder.icmp_signed("!=", other, _NONE), value, into)
        )

    @intrinsic
    def tally_row(typingctx: Any, target: Any, i: Any, source: Any, j: Any, other: Any, k: Any, value: Any) -> Any:
        """Add `value` to row i of `target` where row j of `source` equals row k of `other`."""

        def combine(builder: Any, into: Any, first: Any, second: Any, value: Any) -> Any:
            return builder.add(into, builder.select(builder.icmp_signed("==", first, second), value, _NONE))

        return types.void(target, i, source, j, other, k, types.uint64), _by_group(combine)

    @intrinsic
    def differing_lanes(typingctx: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        """Of the numbers i to i + LANES of `target` and j to j + LANES of `source`, in whatever rows: a bit for
        each that differs, the first number's lowest."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            groups = [_group(builder, _array(context, builder, signature, args, at), args[at + 1]) for at in (0, 2)]
            first, second = (builder.load(group, align=4) for group in groups)
            differ = builder.icmp_signed("!=", first, second)
            return builder.zext(builder.bitcast(differ, ir.IntType(LANES)), ir.IntType(64))

        return types.uint64(target, i, source, j), generate
