"""Imports follow the data flow (docs/architecture.md): what runs per mini-batch never needs what compiles."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE_TIME = (
    "edbc.layout",
    "edbc.schedule.train",
    "edbc.schedule.search",
    "edbc.schedule.beam",
    "edbc.schedule.qlearn",
    "edbc.cells.batching",
    "edbc.compiler",
    "edbc.check",
    "edbc.report",
    "edbc.cli",
)
FORBIDDEN = {
    "edbc/graph.py": ("edbc.trace", "edbc.schedule", "edbc.cells", "edbc.runtime", "edbc.plan", *COMPILE_TIME),
    "edbc/trace": ("edbc.schedule", "edbc.cells", "edbc.runtime", "edbc.plan", *COMPILE_TIME),
    "edbc/captured": ("edbc.schedule", "edbc.cells", "edbc.plan", *COMPILE_TIME),
    "edbc/vertex": ("edbc.schedule", "edbc.cells", "edbc.runtime", "edbc.plan", *COMPILE_TIME),
    "edbc/schedule": ("edbc.trace", "edbc.cells", "edbc.runtime", "edbc.plan", "edbc.layout", "edbc.cli", "torch"),
    "edbc/layout": ("edbc.trace", "edbc.schedule", "edbc.cells", "edbc.runtime", "edbc.plan", "edbc.cli", "torch"),
    "edbc/plan": ("edbc.trace", "edbc.cells", "edbc.runtime", "torch", "numba", *COMPILE_TIME),
    "edbc/runtime": COMPILE_TIME,
    "edbc/training": COMPILE_TIME,
}


def imported_modules(file: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_point_with_the_data_flow(part: str, repository: Path) -> None:
    """No file of a part imports a part that comes after it, or one that only compiling needs."""
    path = repository / part
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        bad = {
            name for name in imported_modules(file) for no in FORBIDDEN[part] if name == no or name.startswith(f"{no}.")
        }

        assert not bad, f"{file.relative_to(repository)} imports {sorted(bad)}"


def test_nothing_imports_reach_but_the_command_line(repository: Path) -> None:
    """What `edbc.reach` adapts edbc to, edbc does without."""
    files = {
        str(file.relative_to(repository))
        for file in sorted((repository / "edbc").rglob("*.py"))
        if file.parent.name != "reach" and any(n.startswith("edbc.reach") for n in imported_modules(file))
    }

    assert files <= {"edbc/cli/run.py", "edbc/cli/train.py"}


def loaded_after(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_help_needs_no_torch() -> None:
    """`edbc --help` imports neither torch nor numba nor networkx, which is what makes it answer at once."""
    modules = loaded_after(
        "from click.testing import CliRunner\nfrom edbc.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0"
    )

    assert not modules & {"torch", "numba", "networkx", "numpy"}


def test_running_loads_nothing_of_the_compiler() -> None:
    """Importing the runtime loads no layout planner, no training and no search."""
    modules = loaded_after("import edbc.runtime.session")

    assert not [name for name in modules for no in COMPILE_TIME if name == no or name.startswith(f"{no}.")]
