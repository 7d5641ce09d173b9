"""edbc with one more entry in its table of operations: `one_entry.py FOLDER` runs and trains a cell that uses it, and
prints, as JSON, what each part of edbc makes of the entry."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ENTRY = 'Operation("softsign", "x / (1 + abs(x))", ("d / ((1 + abs(x)) * (1 + abs(x)))",)),'


def add_to_table(folder: str) -> None:
    """Import `edbc.base.operations` with the entry in it, from a copy, which is what caches of machine code look at."""
    name, copy = "edbc.base.operations", Path(folder) / "operations.py"
    text = (Path(__file__).resolve().parents[2] / "edbc" / "base" / "operations.py").read_text()
    assert text.count("\n_TABLE = (\n") == 1
    copy.write_text(text.replace("\n_TABLE = (\n", f"\n_TABLE = (\n{ENTRY}\n"))
    spec = spec_from_file_location(name, copy)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


def chain() -> Any:
    """A model whose cell calls the function, in float64."""
    import torch
    from torch import nn

    import edbc

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return nn.functional.softsign(self.linear(torch.cat([x, h]))) * h

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.start, self.cell = nn.Embedding(9, 4), nn.Parameter(torch.randn(4)), edbc.cell(Cell())

        def forward(self, words: list[int]) -> torch.Tensor:
            h = self.start
            for word in words:
                h = self.cell(self.words.weight[word], h)
            return h

    torch.manual_seed(0)
    return Chain().double()


def main() -> dict[str, Any]:
    """What each part of edbc makes of the entry."""
    import copy

    import test_operations
    import torch
    from bound import plan_for

    from edbc.cells.kernels.loops import text_of
    from edbc.cells.kernels.steps import steps_of
    from edbc.cells.values.read import values_of
    from edbc.plan.oplines import parse_line
    from edbc.run.cuda.stages import stages_of
    from edbc.run.cuda.tritonsource import branches_of
    from edbc.run.session import Net

    model, lists = chain(), [[1, 2, 3], [4, 5], [6]]
    plan, eager = plan_for(model, lists), copy.deepcopy(model)
    net = Net(plan, model, backend="reference", rebind=True)
    ours, theirs = torch.stack(net.trainer.run(lists)), torch.stack([eager(words) for words in lists])
    for results in (ours, theirs):
        results.square().sum().backward()
    gradients = zip(model.parameters(), eager.parameters(), strict=True)
    program, shapes = net.program(0), lambda ref: net.view.shared(ref).shape
    values, stages = values_of(program, shapes), stages_of(program, shapes)
    assert values is not None
    assert stages is not None
    test_operations.test_a_formula_is_torchs_function("softsign")
    test_operations.test_derivatives_are_autograds("softsign", 0)
    for dtype in (torch.float32, torch.float64):
        test_operations.test_native_loops_are_the_formula("softsign", dtype)
        test_operations.test_native_gradient_loops_are_the_derivatives("softsign", 0, dtype)
    return {
        "line": str(parse_line("y = softsign(x)")),
        "plan": [line for planned in plan.cells.values() for line in planned.operations],
        "steps": [step.op for step in program.steps if hasattr(step, "op")],
        "native": [text_of(step, 8, 4)[1] for step in steps_of(values, len(program.loads)).passes()],
        "triton": [job[0].text for jobs in branches_of(stages) for job in jobs],
        "forward": float((ours - theirs).detach().abs().max()),
        "backward": max(float((p.grad - q.grad).abs().max()) for p, q in gradients),
    }


if __name__ == "__main__":
    add_to_table(sys.argv[1])
    print(json.dumps(main()))
