"""Memory by address for native code: arenas, parameters and workspaces are numbers in tables, not arrays.

A mini-batch touches memory that different owners allocated (arenas, embedding tables, packed weights). Addresses in one
int64 table let one compiled function serve them all, without an array object, and its reference count, per access.
Whoever builds a table keeps the owners alive while it is used.
"""

# numba infers the types of what stands for a function, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated"

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array

from edbc.native.kernelcache import njit

_INLINE: dict[str, Any] = {"jit_options": {"error_model": "numpy"}}
WORDS = 3
"""Of a record for each array: its address, and its rows and columns, or its length and 0."""
_HEAD = object.__basicsize__
"""Bytes before what is NumPy's own in an array: its data's address, then its dimensions, and the address of sizes."""
_INT, _LONG = np.int32(0), np.int64(0)


def record_of(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """A *record*: where some arrays are, which stay, and their sizes. Native code takes one record in the place of them
    all: numba takes a call's arguments apart anew each time, 0.5 microseconds an array (by hand), which for those of a
    walk over a small batch was as long as running it. Whoever has a record keeps its arrays."""
    told = (*arrays,)
    record = _told_of(np.array([*map(id, told)], np.int64))
    if len(record) < WORDS * len(told):
        raise ValueError("a record: expected vectors and matrices in order")
    return record


@njit(cache=True)
def _told_of(objects):
    """Those of arrays, by the addresses of NumPy's objects, which say where data, sizes and flags are; nothing where
    one is not in order. A call with arrays for each took ten times as long (by hand, nine arrays), and one with all is
    compiled for seconds."""
    record = np.empty(WORDS * len(objects), np.int64)
    for i in range(len(objects)):
        at = objects[i] + _HEAD
        ndim, sizes, flags = load(at + 8, 0, _INT), load(at + 16, 0, _LONG), load(at + 48, 0, _INT)
        if not 0 < ndim <= 2 or not flags & 1:
            return record[:0]
        record[WORDS * i] = load(at, 0, _LONG)
        record[WORDS * i + 1] = load(sizes, 0, _LONG)
        record[WORDS * i + 2] = load(sizes, 1, _LONG) if ndim == 2 else 0
    return record


@intrinsic
def vector_of(typingctx: Any, record: Any, i: Any, like: Any) -> Any:
    """Array i of the record at an address, which is a vector of elements of `like`'s type."""
    return types.Array(like, 1, "C")(types.int64, types.int64, like), _array_of


@intrinsic
def matrix_of(typingctx: Any, record: Any, i: Any, like: Any) -> Any:
    """Array i of the record at an address, which is a matrix of elements of `like`'s type."""
    return types.Array(like, 2, "C")(types.int64, types.int64, like), _array_of


def _array_of(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    long, ndim = ir.IntType(64), signature.return_type.ndim
    words, first = builder.inttoptr(args[0], long.as_pointer()), builder.mul(args[1], ir.Constant(long, WORDS))
    address, *sizes = [
        builder.load(builder.gep(words, [builder.add(first, ir.Constant(long, k))])) for k in range(1 + ndim)
    ]
    return _array(context, builder, signature.return_type, address, sizes)


@intrinsic
def vector_at(typingctx: Any, address: Any, length: Any, like: Any) -> Any:
    """A vector of elements of `like`'s type at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _array(context, builder, signature.return_type, args[0], [args[1]])

    return types.Array(like, 1, "C")(types.int64, types.int64, like), generate


def _array(context: Any, builder: Any, kind: Any, address: Any, sizes: list[Any]) -> Any:
    """An array that belongs to nobody: no references to it are counted."""
    array = context.make_array(kind)(context, builder)
    data = builder.inttoptr(address, array.data.type)
    width = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [width] if kind.ndim == 1 else [builder.mul(sizes[1], width), width]
    populate_array(array, data=data, shape=sizes, strides=strides, itemsize=width, meminfo=None)
    return array._getvalue()


@intrinsic
def _read_only(typingctx: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array.copy(readonly=True)(array), generate


def read_only(array: Any) -> Any:
    """The array, which Python may not write to from now on."""
    array.setflags(write=False)
    return array


@overload(read_only, **_INLINE)
def _native_read_only(array):
    return lambda array: _read_only(array)


@intrinsic
def load(typingctx: Any, address: Any, index: Any, like: Any) -> Any:
    """Element `index` of the elements of `like`'s type at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_data_type(like).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return like(types.int64, types.int64, like), generate


@intrinsic
def store(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """Write `value` to element `index` of the elements of its type at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _use_wide_registers(builder)
        pointer = builder.inttoptr(args[0], context.get_data_type(value).as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


def _use_wide_registers(builder: Any) -> None:
    """Let loops of the function that is being built use the widest vector registers that there are. LLVM prefers halves
    of them on processors with AVX-512, for the sake of old ones that slow down; products use all of them anyway."""
    set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite's own `add` knows no such names


@intrinsic
def load_shared(typingctx: Any, address: Any) -> Any:
    """An integer that another thread may write, with all that it wrote before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def store_shared(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an integer for other threads, and before it all that was written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def add_shared(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to an integer as one step; what it was before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def float_of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float(typingctx: Any, number: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def load_number(address: Any, index: Any, like: Any) -> Any:
    """As `load`; of bfloat16, which numba has no type for and whose bits are uint16 here, as float32."""


def store_number(address: Any, index: Any, value: Any, like: Any) -> Any:
    """As `store`; of bfloat16, a float32 rounded to the nearest, ties to even."""


def widened(like: Any) -> Any:
    """What numbers of `like`'s type are summed in: float32 for bfloat16."""


@overload(widened, **_INLINE)
def _widened(like):
    return (lambda like: np.float32(0)) if like == types.uint16 else (lambda like: like)


@overload(load_number, **_INLINE)
def _load_number(address, index, like):
    if like == types.uint16:
        return lambda address, index, like: float_of_bits(np.int32(load(address, index, like)) << np.int32(16))
    return lambda address, index, like: load(address, index, like)


@overload(store_number, **_INLINE)
def _store_number(address, index, value, like):
    if like != types.uint16:
        return lambda address, index, value, like: store(address, index, value)

    def rounded(address, index, value, like):
        bits = bits_of_float(value)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        raised = np.uint32(bits + half) >> np.uint32(16)
        store(address, index, np.uint16(raised if value == value else 0x7FC0))

    return rounded


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy: `size` bytes from address `source` to address `target`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        target, source = (builder.inttoptr(a, pointer) for a in args[:2])
        builder.call(memcpy, [target, source, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def call_at(typingctx: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    """Call the function of seven integers at an address, which returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 7)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate
