"""Machine code of every kernel of models, made without a GPU: `machine_code.py DTYPE HIDDEN MODEL...` prints, as JSON,
what each takes of a card. Triton must not be in its interpreter's mode. The name TABLE stands for every element-wise
operation and every reduction, at HIDDEN elements.

A model has two step kernels, of its forward and of its backward pass; each is compiled as a launch compiles it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
from edbc.run.cuda.compiled import function_of
from edbc.run.cuda.library import Library, TritonKernel
from edbc.run.cuda.stages import Stages, stages_of, stages_of_values
from edbc.run.cuda.tritonops import OPERATIONS
from edbc.run.cuda.tritonsource import CONSTANTS, branches_of, copy_branch, reduction_branches
from edbc.run.session import Net
from edbc.train.backward.devicegradient import step_gradient

CAPABILITIES = (80, 90)
TABLE = "TABLE"
ELEMENTS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


Texts = Iterator[tuple[str, str, int]]
"""Names of step kernels, their texts, and how many branches each has."""


def text_of(kernels: Sequence[TritonKernel]) -> tuple[str, int]:
    """The step kernel of some types."""
    library = Library()
    library.numbers(kernels)
    return library.text, library.num_branches


def kernels(name: str, dtype: str, hidden: int) -> Texts:
    """The step kernels of a mini-batch's forward and backward pass."""
    file, config = opened(name, hidden_size=hidden)
    instances = file.sample(6, 3, config)
    model = file.build(config, 0)
    plan = plan_for(model, instances, split=splittable)
    net = Net(plan, model.to(ELEMENTS[dtype]), backend="reference", rebind=dtype != "f32" or None)
    forward, backward = [TritonKernel((((copy_branch(hidden, dtype, "fill"),),),), dtype)], list[TritonKernel]()
    for kind, node_type in enumerate(net.mini_batch(instances).graph.types):
        if node_type.variadic:
            sizes = [c.size for c in node_type.outputs]
            forward.append(TritonKernel((reduction_branches(node_type.op, sizes, dtype),), dtype))
        elif (stages := stages_of(net.program(kind), lambda ref: net.view.shared(ref).shape)) is not None:
            forward.append(TritonKernel(branches_of(stages), dtype, None, stages))
            gradient = step_gradient(net.program(kind), net.view, net.device)
            assert gradient is not None
            backward.append(gradient.kernel)
    yield ("forward", *text_of(forward))
    yield ("backward", *text_of(backward))


def table(dtype: str, size: int) -> Texts:
    """A map of every operation of the table, and every reduction."""
    known = Values()
    sources = [known.load(0, 0, size), known.load(1, 0, size)]
    for name, ops in (("maps", OPERATIONS[::2]), ("others", OPERATIONS[1::2])):
        maps = [known.map(op, [*sources, *sources][: len(FORMULAS[op].names)]) for op in ops]
        stages = stages_of_values(maps, (size, size), dtype)
        yield (name, *text_of([TritonKernel(branches_of(stages), dtype)]))
    yield ("values", *text_of([TritonKernel(branches_of(values(dtype, size)), dtype)]))
    reductions = [TritonKernel((reduction_branches(op, [size, 1], dtype),), dtype) for op in OPS]
    yield ("reductions", *text_of(reductions))


def values(dtype: str, size: int) -> Stages:
    """Every kind of value where a product, a product of rows' own matrices, a reduction and a map may read it, shared
    by all rows or not; results of one stage are read by the next."""
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
    return stages_of_values([*outputs, after], (size, size), dtype)


def compiled(text: str, capability: int) -> Any:
    """What Triton makes of a step kernel; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = ["cursor", "parity", *CONSTANTS]
    types = {"cursor": "*i64", "parity": "i32", **dict.fromkeys(CONSTANTS, "constexpr")}
    constants = {(names.index(name),): value
                 for name, value in (("PROGRAMS", 264), ("PRECISION", "ieee"), ("PDL", capability >= 90))}  # fmt: skip
    source = ASTSource(function_of(text), types, constants, {(0,): [["tt.divisibility", 16]]})
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
    """A row per step kernel and capability."""
    for model in models:
        for name, text, branches in table(dtype, hidden) if model == TABLE else kernels(model, dtype, hidden):
            for capability in CAPABILITIES:
                started = time.process_time()
                made = compiled(text, capability)
                yield {"model": model, "kernel": name, "branches": branches, "capability": capability,
                       "shared": made.metadata.shared, "seconds": round(time.process_time() - started, 1),
                       **resources(made.asm["cubin"])}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(list(measured(sys.argv[1], int(sys.argv[2]), sys.argv[3:])), indent=1))
