"""Machine code of the step kernels of the zoo's plans, made without a GPU: what each takes of a card.

    python benchmarks/gpu_code.py [MODEL ...] [--dtype f32] [--hidden 128] [--passes forward,backward] [--json F]

Every plan has two step kernels, of its forward and of its backward pass; Triton compiles them ahead for compute
capability 8.0 and 9.0 as a launch would. Printed are, of a thread, registers and bytes of stack (what does not stand in
registers: numbers that were put off, and what libraries' functions keep), and shared memory of a program. Without names
all plans of the folder `plans`; the name TABLE stands for every element-wise operation, every reduction, and every kind
of value wherever one may be read, at --hidden elements. A kernel takes Triton 5 to 30 s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from end_to_end import REPOSITORY

import edbc
from edbc.base.operations import FORMULAS
from edbc.capture.record.table import SharedRef
from edbc.cells.rows.reduction import OPS
from edbc.cells.values.value import REDUCTIONS, V, Values
from edbc.run.cuda.compiled import function_of
from edbc.run.cuda.library import Library, TritonKernel
from edbc.run.cuda.stages import Stages, stages_of, stages_of_values
from edbc.run.cuda.tritonops import OPERATIONS
from edbc.run.cuda.tritonsource import CONSTANTS, branches_of, copy_branch, extreme_branch, reduction_branches
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.train.backward.devicegradient import step_gradient

CAPABILITIES = (80, 90)
TABLE = "TABLE"
PASSES = ("forward", "backward")
ELEMENTS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
Texts = Iterator[tuple[str, str, int]]
"""Names of step kernels, their texts, and how many branches each has."""


@dataclass(frozen=True)
class Row:
    """One step kernel on one kind of card."""

    model: str
    kernel: str
    dtype: str
    hidden: int
    branches: int
    capability: int
    registers: int
    stack: int
    shared: int
    seconds: float

    def __str__(self) -> str:
        card = f"{self.capability / 10:.1f}"
        taken = f"{self.registers:>9} {self.stack:>6} {self.shared:>7}"
        return (
            f"{self.model:24} {self.kernel:10} {self.dtype:5} {self.branches:>8} {card:>5} {taken} {self.seconds:>8.1f}"
        )


HEADER = f"{'model':24} {'kernel':10} {'dtype':5} branches  card registers  stack  shared  seconds"


def text_of(kernels: Sequence[TritonKernel]) -> tuple[str, int]:
    """The step kernel of some types."""
    library = Library()
    library.numbers(kernels)
    return library.text, library.num_branches


def kernels(name: str, dtype: str, hidden: int) -> Texts:
    """The step kernels of a plan: of all types that a mini-batch of the model's own samples has."""
    file = import_model_file(REPOSITORY / "models" / f"{name}.py")
    known = file.config({})
    config = file.config(
        {key: value for key, value in {"hidden_size": hidden, "vocab_size": 256}.items() if key in known}
    )
    plan = edbc.load(REPOSITORY / "plans" / f"{name}.yaml").plan
    model = file.build(config, 0).to(ELEMENTS[dtype])
    net = Net(plan, model, backend="reference", rebind=True, force=True)
    forward, backward = [TritonKernel((((copy_branch(hidden, dtype, "fill"),),),), dtype)], list[TritonKernel]()
    with torch.no_grad():
        types = net.mini_batch(file.sample(6, 3, config)).graph.types
    for kind, node_type in enumerate(types):
        if node_type.variadic:
            sizes = [c.size for c in node_type.outputs]
            forward.append(TritonKernel((reduction_branches(node_type.op, sizes, dtype),), dtype))
            if node_type.op in ("max", "min"):
                backward += [TritonKernel((((extreme_branch(n, dtype, node_type.op),),),), dtype) for n in sizes]
        elif kind in net.table.operation_of_type:  # recorded, and no reduction or excerpt
            program = net.program(kind)
            stages = stages_of(program, lambda ref: net.view.shared(ref).shape) if program.dtype in ELEMENTS else None
            if stages is None:
                continue
            forward.append(TritonKernel(branches_of(stages), dtype, None, stages))
            gradient = step_gradient(program, net.view, net.device)
            if gradient is not None:
                backward.append(gradient.kernel)
    yield ("forward", *text_of(forward))
    if backward:
        yield ("backward", *text_of(backward))


# --- what a plan may have ------------------------------------------------------------------------------------------


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
    reductions += [TritonKernel((((extreme_branch(size, dtype, op),),),), dtype) for op in ("max", "min")]
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


# --- machine code --------------------------------------------------------------------------------------------------


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


def resources(code: bytes) -> tuple[int, int]:
    """What the assembler says of machine code: registers of a thread, and bytes of its stack."""
    import triton

    reader = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        told = subprocess.run([reader, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", told.stdout)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def measured(model: str, dtype: str, hidden: int, passes: Sequence[str] = PASSES) -> Iterator[Row]:
    """A row per step kernel and capability."""
    for name, text, branches in table(dtype, hidden) if model == TABLE else kernels(model, dtype, hidden):
        if name in PASSES and name not in passes:
            continue
        for capability in CAPABILITIES:
            started = time.process_time()
            made = compiled(text, capability)
            yield Row(model, name, dtype, hidden, branches, capability, *resources(made.asm["cubin"]),
                      made.metadata.shared, round(time.process_time() - started, 1))  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of plans, or TABLE; all plans without any")
    parser.add_argument("--dtype", choices=list(ELEMENTS), default="f32", help="of elements")
    parser.add_argument("--hidden", type=int, default=128, help="the models' hidden size")
    parser.add_argument("--passes", default=",".join(PASSES), help="which step kernels")
    parser.add_argument("--json", default=None, help="where the rows go")
    options = parser.parse_args(arguments)
    options.models = options.models or sorted(path.stem for path in (REPOSITORY / "plans").glob("*.yaml"))
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("expected Triton's compiler, got its interpreter; leave TRITON_INTERPRET out")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """All models."""
    options, rows = parse(arguments), list[Row]()
    print(HEADER)
    for model in options.models:
        for row in measured(model, options.dtype, options.hidden, options.passes.split(",")):
            print(row, flush=True)
            rows.append(row)
            if options.json:
                Path(options.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
