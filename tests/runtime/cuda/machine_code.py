"""Compile every kernel of a model for compute capability 9.0, without a GPU: `machine_code.py MODEL DTYPE` prints how
many there are. Triton must not be in its interpreter's mode."""

from __future__ import annotations

import sys

import torch
from bound import plan_for
from devices import opened

from edbc.cells.split import splittable
from edbc.runtime.cuda.compiled import FUNCTIONS, multiply_type
from edbc.runtime.cuda.launches import launches_of
from edbc.runtime.cuda.source import CONSTANTS, Kernel, kernels_of, reduction_kernel, row_tile
from edbc.runtime.session import Net

SHARED_MEMORY = 227 << 10
"""Bytes that a block may have on compute capability 9.0."""
ELEMENTS = {"f32": ("*fp32", torch.float32), "f64": ("*fp64", torch.float64), "bf16": ("*bf16", torch.bfloat16)}


def signature(kernel: Kernel, dtype: str) -> dict[str, str]:
    """Triton's types of a kernel's arguments."""
    types = {"ix": "*i32", "work": "*fp64" if dtype == "f64" else "*fp32", "count": "i32", "seg": "i32"}
    types |= {name: "i32" for name in kernel.names if name.startswith(("at", "row"))}
    return {name: types.get(name, ELEMENTS[dtype][0]) for name in kernel.names}


def kernels(name: str, dtype: str) -> list[Kernel]:
    """Every kernel of a mini-batch at hidden size 128."""
    file, config = opened(name, hidden_size=128)
    instances = file.sample(6, 3, config)
    model = file.build(config, 0)
    plan = plan_for(model, instances, split=splittable)
    net = Net(plan, model.to(ELEMENTS[dtype][1]), backend="reference", rebind=dtype != "f32" or None)
    found: list[Kernel] = []
    for kind, node_type in enumerate(net.capture(instances).graph.types):
        if node_type.variadic:
            found.append(reduction_kernel(node_type.op, [c.size for c in node_type.outputs], dtype))
        elif (program := net.program(kind)) is not None and (launches := launches_of(program)) is not None:
            found += kernels_of(launches)
    return found


def compile_for_device(kernel: Kernel, dtype: str) -> None:
    """Raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [*kernel.names, *CONSTANTS]
    constants = {"BM": row_tile(100, dtype), "D": multiply_type(dtype), "PRECISION": "ieee"}
    types = {**signature(kernel, dtype), **dict.fromkeys(CONSTANTS, "constexpr")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(FUNCTIONS.of(kernel.text), types, values)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.metadata.shared <= SHARED_MEMORY


if __name__ == "__main__":
    wanted = kernels(sys.argv[1], sys.argv[2])
    for one in wanted:
        compile_for_device(one, sys.argv[2])
    print(len(wanted))
