"""Machine code of the step kernels of the zoo's plans, made without a GPU: what each takes of a card.

    python benchmarks/gpu_code.py [MODEL ...] [--dtypes f32,f64,bf16] [--hidden 128] [--passes forward,backward]
                                  [--whole] [--jobs 2] [--seconds 120] [--kept build/gpu_code.json] [--json F]

Every plan has two step kernels, of its forward and of its backward pass; Triton compiles them ahead for compute
capability 8.0 and 9.0. Printed are, of a thread, registers and bytes of stack (what does not stand in registers:
numbers that were put off, and what libraries' functions keep), and shared memory of a program.

A step kernel runs one branch after the other. So every branch is compiled as a step kernel of its own, once for all
plans that have it, and what the largest takes is printed; `--whole` compiles step kernels as chains launch them (4 to
30 s each). What a text takes is kept in `--kept` by text and Triton's version, so that
a run that was stopped goes on where it was; one that the compiler has not done after `--seconds`, or that it refuses,
is named with the reason, and the exit code is 1. All plans in three types, both passes, are some 1,700 texts and 25
minutes of processor time.

Without names all plans of the folder `plans`; the name TABLE stands for every element-wise operation, every reduction,
and every kind of value wherever one may be read, at --hidden elements.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from edbc.run.cuda.tritonsource import (
    Branch,
    branches_of,
    copy_branch,
    extreme_branch,
    reduction_branches,
    step_kernel,
)
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.train.backward.devicegradient import step_gradient

CAPABILITIES = (80, 90)
TABLE = "TABLE"
PASSES = ("forward", "backward")
ELEMENTS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
Kernels = Iterator[tuple[str, Library]]
"""Names of step kernels, and their branches."""


@dataclass(frozen=True)
class Code:
    """What one text takes on one kind of card; a reason where there is no code. Seconds of processor time."""

    registers: int = 0
    stack: int = 0
    shared: int = 0
    seconds: float = 0.0
    failed: str = ""


@dataclass(frozen=True)
class Row:
    """One step kernel on one kind of card: the most that any of its texts takes."""

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
    failed: list[str]
    """Branches that were not compiled, and why."""

    def __str__(self) -> str:
        card = f"{self.capability / 10:.1f}"
        taken = f"{self.registers:>9} {self.stack:>6} {self.shared:>7} {self.seconds:>8.1f}"
        line = f"{self.model:24} {self.kernel:10} {self.dtype:5} {self.branches:>8} {card:>5} {taken}"
        return "\n".join([line, *(f"    {reason}" for reason in self.failed)])


HEADER = f"{'model':24} {'kernel':10} {'dtype':5} branches  card registers  stack  shared  seconds"


def library_of(kernels: Sequence[TritonKernel]) -> Library:
    """The step kernel of some types."""
    library = Library()
    library.numbers(kernels)
    return library


def kernels(name: str, dtype: str, hidden: int) -> Kernels:
    """The step kernels of a plan: of all types that a mini-batch of the model's own samples has."""
    file = import_model_file(REPOSITORY / "models" / f"{name}.py")
    known = file.config({})
    config = file.config(
        {key: value for key, value in {"hidden_size": hidden, "vocab_size": 256}.items() if key in known}
    )
    plan = edbc.load(REPOSITORY / "plans" / f"{name}.yaml").plan
    model = file.build(config, 0).to(ELEMENTS[dtype]).eval()
    net = Net(plan, model, backend="reference", rebind=True, force=True)
    forward, backward = [TritonKernel((((copy_branch(hidden, dtype, "fill"),),),), dtype)], list[TritonKernel]()
    with torch.no_grad():
        types = net.prepare(file.sample(6, 3, config)).capture.graph.types
    for kind, node_type in enumerate(types):
        if node_type.op in OPS:
            sizes = [c.size for c in node_type.outputs]
            forward.append(TritonKernel((reduction_branches(node_type.op, sizes, dtype),), dtype))
            if node_type.op in ("max", "min"):
                backward += [TritonKernel((((extreme_branch(n, dtype, node_type.op),),),), dtype) for n in sizes]
        elif kind in net.table.operation_of_type and node_type.has_program:
            program = net.program(kind)
            stages = stages_of(program, lambda ref: net.view.shared(ref).shape) if program.dtype in ELEMENTS else None
            if stages is None:
                continue
            forward.append(TritonKernel(branches_of(stages), dtype, None, stages))
            gradient = step_gradient(program, net.view, net.device)
            if gradient is not None:
                backward.append(gradient.kernel)
    yield "forward", library_of(forward)
    if backward:
        yield "backward", library_of(backward)


# --- what a plan may have ------------------------------------------------------------------------------------------


def table(dtype: str, size: int) -> Kernels:
    """A map of every operation of the table, and every reduction."""
    known = Values()
    sources = [known.load(0, 0, size), known.load(1, 0, size)]
    for name, ops in (("maps", OPERATIONS[::2]), ("others", OPERATIONS[1::2])):
        maps = [known.map(op, [*sources, *sources][: len(FORMULAS[op].names)]) for op in ops]
        stages = stages_of_values(maps, (size, size), dtype)
        yield name, library_of([TritonKernel(branches_of(stages), dtype)])
    yield "values", library_of([TritonKernel(branches_of(values(dtype, size)), dtype)])
    reductions = [TritonKernel((reduction_branches(op, [size, 1], dtype),), dtype) for op in OPS]
    reductions += [TritonKernel((((extreme_branch(size, dtype, op),),),), dtype) for op in ("max", "min")]
    yield "reductions", library_of(reductions)


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

    function = function_of(text)
    given = {"PROGRAMS": 264, "PRECISION": "ieee", "PDL": capability >= 90}
    types = {name: "constexpr" if name in given else "*i64" if name == "cursor" else "i32"
             for name in function.arg_names}  # fmt: skip
    constants = {(number,): given[name] for number, name in enumerate(function.arg_names) if name in given}
    source = ASTSource(function, types, constants, {(0,): [["tt.divisibility", 16]]})
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


def code_of(text: str, capability: int) -> Code:
    """What a text takes; in a process of its own, as the compiler cannot be stopped otherwise."""
    try:
        made = compiled(text, capability)
        registers, stack = resources(made.asm["cubin"])
    except Exception as error:  # whatever the compiler says is what there is to tell
        return Code(failed=(str(error) or repr(error)).splitlines()[0][:200])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Code(registers, stack, made.metadata.shared, round(sum(u.ru_utime + u.ru_stime for u in used), 1))


def within(seconds: float, text: str, capability: int) -> Code:
    """The same, if it takes no more than so many seconds of the clock."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send(code_of(text, capability)))
    child.start()
    theirs.close()
    try:
        found: Code = ours.recv() if ours.poll(seconds) else Code(failed=f"not compiled within {seconds:.0f} s")
    except EOFError:
        found = Code(failed="the compiler ended its process")
    child.kill()
    child.join()
    return found


class Known:
    """What texts take, by what they and Triton are, in a file."""

    def __init__(self, path: str, seconds: float, jobs: int):
        import triton

        self.path, self.seconds, self.version = Path(path), seconds, triton.__version__
        told = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.codes = {key: Code(**code) for key, code in told.items()}
        self._pool = ThreadPoolExecutor(jobs)

    def _key(self, text: str, capability: int) -> str:
        return f"{self.version} {capability} {hashlib.sha256(text.encode()).hexdigest()}"

    def of(self, texts: Sequence[str], capability: int) -> list[Code]:
        """Each, compiled where it is not known; what failed is tried again."""
        keys = [self._key(text, capability) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True)
               if key not in self.codes or self.codes[key].failed}  # fmt: skip
        made = self._pool.map(lambda text: within(self.seconds, text, capability), new.values())
        self.codes |= dict(zip(new, made, strict=True))
        if new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({key: asdict(code) for key, code in self.codes.items()}, indent=0) + "\n")
        return [self.codes[key] for key in keys]


def texts_of(library: Library, options: argparse.Namespace) -> list[str]:
    """The step kernel; or one for each of its branches."""
    if options.whole:
        return [step_kernel(library.branches, library.width)]
    return [step_kernel([branch], width_of(branch)) for branch in library.branches]


def width_of(branch: Branch) -> int:
    """Of the records of a branch that is alone."""
    library = Library()
    library.numbers([TritonKernel((((branch,),),), "f32")])
    return library.width


def row_of(told: tuple[str, str, str, int], library: Library, capability: int, codes: Sequence[Code]) -> Row:
    """The most of everything, and all the time."""
    failed = [f"branch {number}: {code.failed}" for number, code in enumerate(codes) if code.failed]
    most = (max(getattr(code, field) for code in codes) for field in ("registers", "stack", "shared"))
    return Row(*told, len(library.branches), capability, *most, round(sum(code.seconds for code in codes), 1), failed)


def measured(model: str, dtype: str, options: argparse.Namespace, known: Known) -> Iterator[Row]:
    """A row per step kernel and capability."""
    made = table(dtype, options.hidden) if model == TABLE else kernels(model, dtype, options.hidden)
    for name, library in made:
        if name in PASSES and name not in options.passes.split(","):
            continue
        texts = texts_of(library, options)
        for capability in CAPABILITIES:
            yield row_of((model, name, dtype, options.hidden), library, capability, known.of(texts, capability))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of plans, or TABLE; all plans without any")
    parser.add_argument("--dtypes", default="f32", help=f"of elements: {', '.join(ELEMENTS)}")
    parser.add_argument("--hidden", type=int, default=128, help="the models' hidden size")
    parser.add_argument("--passes", default=",".join(PASSES), help="which step kernels")
    parser.add_argument("--whole", action="store_true", help="compile step kernels as they are launched")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the clock for each text")
    parser.add_argument("--kept", default="build/gpu_code.json", help="what texts take")
    parser.add_argument("--json", default=None, help="where the rows go")
    options = parser.parse_args(arguments)
    options.models = options.models or sorted(path.stem for path in (REPOSITORY / "plans").glob("*.yaml"))
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("expected Triton's compiler, got its interpreter; leave TRITON_INTERPRET out")
    if importlib.util.find_spec("triton") is None:
        parser.error("expected Triton's compiler, but triton is not installed ('make triton')")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as it is without; some versions warn
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """All models; 1 where a text was not compiled."""
    options, rows = parse(arguments), list[Row]()
    known = Known(options.kept, options.seconds, options.jobs)
    print(HEADER)
    for dtype in options.dtypes.split(","):
        for model in options.models:
            for row in measured(model, dtype, options, known):
                print(row, flush=True)
                rows.append(row)
                if options.json:
                    Path(options.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    print(f"{len(rows)} step kernels, {sum(bool(row.failed) for row in rows)} of them with branches that failed")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
