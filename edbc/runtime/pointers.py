"""Memory by address for native code: arenas, parameters and workspaces are numbers in tables, not arrays.

A mini-batch touches memory that different owners allocated (arenas, embedding tables, packed weights). Addresses in one
int64 table let one compiled function serve them all, without an array object, and its reference count, per access.
Whoever builds a table keeps the owners alive while it is used.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edbc.runtime.blas import SYMBOLS


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


_GEMM = types.void(*[types.int64] * 13)
sgemm = types.ExternalFunction(SYMBOLS["f32"], _GEMM)
dgemm = types.ExternalFunction(SYMBOLS["f64"], _GEMM)
