"""Machine code of every kernel of models, made without a GPU: `machine_code.py DTYPE HIDDEN MODEL...` prints, as JSON,
what each takes of a card. Triton must not be in its interpreter's mode. The name TABLE stands for every element-wise
operation and every reduction, at HIDDEN elements.

Kernels are compiled as a launch compiles them (addresses that 16 divides, whole numbers not specialised), for every
row tile that a batch may ask for. Equal texts are compiled once.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bound import plan_for
from devices import opened

from edbc.base.operations import FORMULAS
from edbc.capture.record.table import SharedRef
from edbc.cells.parts import splittable
from edbc.cells.rows.reduction import OPS
from edbc.cells.values.value import REDUCTIONS, V, Values
from edbc.run.cuda.compiled import FUNCTIONS
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.cuda.launches import Launches, launches_of, launches_of_values
from edbc.run.cuda.tritonops import OPERATIONS
from edbc.run.cuda.tritonsource import CONSTANTS, ROW_TILES, Kernel, kernels_of, reduction_kernel, row_tile
from edbc.run.session import Net
from edbc.train.backward.devicegradient import launch_gradient

CAPABILITIES = (80, 90)
TABLE = "TABLE"
ELEMENTS = {"f32": ("*fp32", torch.float32), "f64": ("*fp64", torch.float64), "bf16": ("*bf16", torch.bfloat16)}


def signature(kernel: Kernel, dtype: str) -> dict[str, str]:
    """Triton's types of a kernel's arguments."""
    types = {"ix": "*i32", "work": "*fp64" if dtype == "f64" else "*fp32", "count": "i32", "seg": "i32"}
    types |= {name: "i32" for name in kernel.names if name.startswith(("at", "row"))}
    return {name: types.get(name, ELEMENTS[dtype][0]) for name in kernel.names}


def kernels(name: str, dtype: str, hidden: int) -> Iterator[tuple[str, Kernel]]:
    """Every kernel of a mini-batch's forward and backward pass, with the name of its type."""
    file, config = opened(name, hidden_size=hidden)
    instances = file.sample(6, 3, config)
    model = file.build(config, 0)
    plan = plan_for(model, instances, split=splittable)
    net = Net(plan, model.to(ELEMENTS[dtype][1]), backend="reference", rebind=dtype != "f32" or None)
    for kind, node_type in enumerate(net.mini_batch(instances).graph.types):
        if node_type.variadic:
            yield node_type.name, reduction_kernel(node_type.op, [c.size for c in node_type.outputs], dtype)
        elif (launches := launches_of(net.program(kind), lambda ref: net.view.shared(ref).shape)) is not None:
            yield from ((node_type.name, kernel) for kernel in kernels_of(launches))
            gradient = launch_gradient(CudaBackend(net.device, False), net.program(kind), net.view, net.device)
            assert gradient is not None
            yield from ((f"{node_type.name}, gradients", kernel) for kernel in gradient.kernel.kernels)


def table(dtype: str, size: int) -> Iterator[tuple[str, Kernel]]:
    """A map of every operation of the table, and every reduction."""
    known = Values()
    sources = [known.load(0, 0, size), known.load(1, 0, size)]
    for name, ops in (("maps", OPERATIONS[::2]), ("others", OPERATIONS[1::2])):
        maps = [known.map(op, [*sources, *sources][: len(FORMULAS[op].names)]) for op in ops]
        yield from ((name, kernel) for kernel in kernels_of(launches_of_values(maps, (size, size), dtype)))
    yield from (("values", kernel) for kernel in kernels_of(values(dtype, size)))
    yield from ((op, reduction_kernel(op, [size, 1], dtype)) for op in OPS)


def values(dtype: str, size: int) -> Launches:
    """Every kind of value where a product, a product of rows' own matrices, a reduction and a map may read it, shared
    by all rows or not; results of one launch are read by the next."""
    known, parameter, half = Values(), SharedRef("p"), size // 4 * 2

    def part(size: int) -> list[V]:
        x, y, p = known.load(0, 0, size), known.load(1, 0, size), known.parameter(parameter, 1, size)
        number = known.number(0.5, size)
        return [x, p, number, known.map("exp", [y]), known.map("tanh", [p]), known.map("add", [number, x])]

    kinds, wide = part(half), part(2 * half)
    product = known.product(known.cat(kinds), 0, 3 * size, True)
    matrix = known.matmul(wide[3], known.cat([kinds[4], kinds[2]]), 2, half, 2)
    vectors = [known.matmul(wide[1], kinds[5], 2, half, 1), known.matmul(known.cat(kinds[2:4]), wide[0], 2, half, 2)]
    reduced = [known.reduce(op, known.map("mul", wide[3:5]), (half, 2, 1)) for op in REDUCTIONS]
    spread = known.spread(known.map("exp", [known.cat([kinds[4], reduced[1]])]), (2, 3, half))
    after = known.product(known.part(product, 1, half), 1, half, False)
    outputs = [*kinds, known.part(product, 3, half), matrix, *vectors, *reduced, spread, known.part(spread, 5, half)]
    return launches_of_values([*outputs, after], (size, size), dtype)


def row_tiles(kernel: Kernel, dtype: str) -> list[int]:
    """The constants BM that batches of any size lead to."""
    body = kernel.text.partition("):\n")[2]
    return sorted({row_tile(count, dtype) for count in (1, *ROW_TILES, 1000)})[: None if "BM" in body else 1]


def compiled(kernel: Kernel, dtype: str, rows: int, capability: int) -> Any:
    """What Triton makes of a kernel; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [*kernel.names, *CONSTANTS]
    types = {**signature(kernel, dtype), **dict.fromkeys(CONSTANTS, "constexpr")}
    constants = {(names.index(name),): value for name, value in (("BM", rows), ("PRECISION", "ieee"))}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in kernel.names if types[n].startswith("*")}
    source = ASTSource(FUNCTIONS.of(kernel.text), types, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


def resources(code: bytes) -> dict[str, int]:
    """What the assembler says of machine code: registers of a thread, and bytes that do not fit in them."""
    import triton

    reader = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        told = subprocess.run([reader, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", told.stdout)}
    return {"registers": found["REG"], "spilled": found["STACK"] + found["LOCAL"]}


def measured(dtype: str, hidden: int, models: list[str]) -> Iterator[dict[str, Any]]:
    """A row per kernel, row tile and capability."""
    seen: set[str] = set()
    for model in models:
        for name, kernel in table(dtype, hidden) if model == TABLE else kernels(model, dtype, hidden):
            if kernel.text in seen:
                continue
            seen.add(kernel.text)
            for rows in row_tiles(kernel, dtype):
                for capability in CAPABILITIES:
                    made = compiled(kernel, dtype, rows, capability)
                    yield {"model": model, "type": name, "rows": rows, "capability": capability,
                           "shared": made.metadata.shared, **resources(made.asm["cubin"])}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(list(measured(sys.argv[1], int(sys.argv[2]), sys.argv[3:])), indent=1))
