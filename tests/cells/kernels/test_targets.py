"""Kernels for processors that are not here: their text is well formed, and LLVM makes machine code of it."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
from helpers import bound
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.cells.kernels import microkernel
from edbc.cells.kernels.loops import text_of
from edbc.cells.kernels.steps import Pass
from edbc.run.cpu.walktables import NativeKernel

TARGETS = {
    "x86-64": ("x86_64-unknown-linux-gnu", "x86-64", "+sse2", ((4, 4, 3), (8, 2, 3))),
    "sandybridge": ("x86_64-unknown-linux-gnu", "sandybridge", "+avx", ((4, 8, 2), (8, 4, 2))),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma", ((4, 8, 2), (8, 4, 2))),
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f,+avx512vl,+avx2,+fma", ((4, 16, 4), (8, 8, 4))),
    "sapphirerapids": ("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f,+avx512vl,+avx512bf16", ((2, 16, 4),)),
    "neoverse-n1": ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", ((4, 4, 4), (8, 2, 4))),
    "apple-m1": ("arm64-apple-macosx", "apple-m1", "+neon", ((4, 4, 4), (8, 2, 4))),
}
"""Triple, processor, features; width of elements, lanes and registers of a row of the tiles for it."""
CASES = [pytest.param(*of[:3], *shape, id=f"{name}-{shape[0]}") for name, of in TARGETS.items() for shape in of[3]]


def object_code(text: str, triple: str, processor: str, features: str) -> bytes:
    """Of a module that LLVM verifies."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        pytest.skip(f"this LLVM makes no code for {triple}: {error}")
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    return bytes(target.create_target_machine(cpu=processor, features=features, opt=3).emit_object(module))


@pytest.fixture(scope="module")
def passes() -> list[Pass]:
    """Of cells with every kind of loop: maps, reductions, turned elements, products of rows, comparisons."""
    torch.manual_seed(1)
    net = bound(Around().eval(), [[1, 2], [3]])
    net([[1, 2], [3]])
    kernels = [k for k in map(net.kernel, range(net.table.num_known)) if isinstance(k, NativeKernel)]
    return [step for kernel in kernels for step in kernel.rendered.steps.passes()]


@edbc.cell
class Loops(nn.Module):
    """See `passes`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x: Any) -> Any:
        rows = self.norm(self.linear(x)).view(3, 4)
        scores = torch.softmax(rows @ rows.t(), 1)
        return torch.where(rows > 0, F.gelu(scores @ rows), torch.exp(rows)).t().reshape(12) + rows.amax(1).sum()


class Around(nn.Module):
    """A chain of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(5, 12), Loops()

    def forward(self, words: list[int]) -> Any:
        h = self.table.weight[0]
        for word in words:
            h = self.cell(h + self.table.weight[word])
        return h


@pytest.mark.parametrize(("triple", "processor", "features", "width", "lanes", "vectors"), CASES)
def test_products_become_machine_code(monkeypatch: pytest.MonkeyPatch, triple: str, processor: str, features: str,
                                      width: int, lanes: int, vectors: int) -> None:  # fmt: skip
    """The tiles that the processor's features ask for, and what measures its peak."""
    monkeypatch.setattr(microkernel, "processor", lambda: (processor, features))
    shape = microkernel.shape_of.__wrapped__(width)
    if shape is None and width == 2:
        pytest.skip("this LLVM does not know products of bfloat16")
    assert shape is not None
    assert (shape.lanes, shape.vectors) == (lanes, vectors)
    for text in (microkernel.text_of(shape), microkernel.text_of_peak(shape)[0]):
        assert len(object_code(text, triple, processor, features)) > 500


@pytest.mark.parametrize(("triple", "processor", "features", "width", "lanes", "vectors"), CASES)
def test_loops_become_machine_code(passes: list[Pass], triple: str, processor: str, features: str, width: int,
                                   lanes: int, vectors: int) -> None:  # fmt: skip
    """Passes between products, in vectors of that processor."""
    assert passes
    for step in passes:
        _, text = text_of(step, width, lanes)
        assert object_code(text, triple, processor, features)


def test_a_module_that_is_wrong_is_no_machine_code() -> None:
    """Verification is not empty: a value of another type than is returned."""
    with pytest.raises(RuntimeError):
        object_code("define float @f(i64 %x) {\n  ret float %x\n}", *TARGETS["x86-64-v3"][:3])
