"""Imports follow the data flow (docs/architecture.md): rooms know those before them, and no folder holds too much."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOMS = "base native schedule layout plan capture cells run train stages tools reach".split()
"""Rooms in the order of the data flow: a file imports its own room and those before it."""

COMPILE_TIME = (
    "edbc.layout",
    "edbc.schedule.learn",
    "edbc.cells.batching",
    "edbc.tools",
)
"""What only compiling needs; `run` and what stands before it never import it."""

BACKWARDS = {
    ("edbc/capture/captured/vocabulary.py", "edbc.run.session"): "the type of an argument",
    ("edbc/run/session.py", "edbc.train.trainer"): "a mini-batch with gradients, imported when one comes",
    ("edbc/tools/cli/train.py", "edbc.reach.ranks"): "torchrun's processes, imported where they are asked for",
    ("edbc/tools/cli/run.py", "edbc.reach.jobs"): "jobs on engines, imported where they are asked for",
    ("edbc/tools/cli/run.py", "edbc.reach.processes"): "the same",
    ("edbc/tools/cli/run.py", "edbc.reach.ray_engine"): "the same",
}
"""Imports against the order, each with its reason."""

DEFERRED = {
    r"edbc\.(errors|refusals)\b": "an error looks its code up when somebody asks for it",
    r"edbc\.schedule\.(policy|scheduler)$": "a policy's text form asks how its rules walk",
    r"edbc\.plan\.": "a Plan saves itself, its writer reads what it wrote",
    r"edbc\.capture\.(record\.(lookup|table)|standins\.(standin|told|made|lazy)|ragged\.symbols|patterns\.fusions)$": (
        "a stand-in asks how a look-up is recorded, a pattern is an operation of a table"
    ),
    r"edbc\.capture\.(forward|record\.recorder$|standins\.ended$)": "a recorder waits in a fiber, a fiber builds",
    r"edbc\.cells\.(celltext|opgraph)$": "a cell's graph prints itself",
    r"edbc\.run\.(backend$|reference$|cpu\.|cuda\.|passes\.excerptrows$)": "a back end is chosen by name",
    r"edbc\.(api$|tools\.)": "explaining compiles, compiling in memory is explained",
}
"""Circles that imports inside functions may make, each with its reason; the list gets shorter."""

FREE_OF = {
    "base": ("torch", "numba"),
    "schedule": ("torch",),
    "layout": ("torch",),
    "plan": ("torch", "numba"),
    **dict.fromkeys(("capture", "run", "train"), COMPILE_TIME),
}
"""What no file of a room imports, whatever its place in the order."""

MOST_FILES = 14


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """The code of a file, read once for all tests."""
    return ast.parse(file.read_text())


def modules_of(room: str, repository: Path) -> Iterator[tuple[str, set[str]]]:
    """Every file of a room, with every module that it imports, inside functions too."""
    for file in sorted((repository / "edbc" / room).rglob("*.py")):
        names: set[str] = set()
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        yield file.relative_to(repository).as_posix(), names


def is_in(name: str, package: str) -> bool:
    """Is this module, or what it holds, a part of the package?"""
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_with_the_data_flow(room: str, repository: Path) -> None:
    """No file of a room imports a room that comes after it."""
    later = [f"edbc.{other}" for other in ROOMS[ROOMS.index(room) + 1 :]]
    for file, names in modules_of(room, repository):
        allowed = [module for (who, module) in BACKWARDS if who == file]
        bad = {name for name in names for no in later if is_in(name, no) and not any(is_in(name, a) for a in allowed)}

        assert not bad, f"{file} imports {sorted(bad)}"


@pytest.mark.parametrize("room", FREE_OF)
def test_rooms_are_free_of_what_they_must_not_know(room: str, repository: Path) -> None:
    """No file of a room imports what it must not know: torch in schedules, the compiler in what runs."""
    for file, names in modules_of(room, repository):
        bad = {name for name in names for no in FREE_OF[room] if is_in(name, no)}

        assert not bad, f"{file} imports {sorted(bad)}"


def test_a_folder_holds_few_files(repository: Path) -> None:
    """At most fourteen files stand in a folder of the package, and every folder says what it is for."""
    folders = {file.parent for file in (repository / "edbc").rglob("*.py")}
    for folder in sorted(folders):
        files = sorted(file.name for file in folder.glob("*.py"))

        assert len(files) <= MOST_FILES, f"{folder.relative_to(repository)}: {len(files)} files"
        assert len((ast.get_docstring(tree_of(folder / "__init__.py")) or "").split()) > 3, folder


def runtime_imports(node: ast.AST, deferred: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run: none under TYPE_CHECKING, and those inside functions only where `deferred`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not deferred:
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from runtime_imports(child, deferred)


def circles(repository: Path, deferred: bool) -> set[frozenset[str]]:
    """Sets of modules of the package that import one another, by the imports that run."""
    files = {
        file.relative_to(repository).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", "."): file
        for file in (repository / "edbc").rglob("*.py")
    }
    graph: nx.DiGraph = nx.DiGraph()
    for module, file in files.items():
        for node in runtime_imports(tree_of(file), deferred):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in found:
                graph.add_edge(module, name if name in files else name.rpartition(".")[0])
    return {frozenset(c) for c in nx.strongly_connected_components(graph) if len(c) > 1}


def test_circles_are_found(tmp_path: Path) -> None:
    """Two modules that import each other are one, at once or when called; what only annotations need makes none."""
    package = tmp_path / "edbc"
    package.mkdir()
    (package / "a.py").write_text("from edbc.b import x\nif TYPE_CHECKING:\n    import edbc.c\n")
    (package / "b.py").write_text("def f():\n    import edbc.a\n")
    (package / "c.py").write_text("from edbc import a\n")

    assert not circles(tmp_path, deferred=False)
    assert circles(tmp_path, deferred=True) == {frozenset({"edbc.a", "edbc.b"})}


def test_no_modules_import_one_another_when_loaded(repository: Path) -> None:
    """Imports at the head of files make no circle."""
    assert not circles(repository, deferred=False)


def test_circles_of_imports_inside_functions_are_those_known(repository: Path) -> None:
    """Imports inside functions make no circles but inside the groups of DEFERRED."""
    groups = [re.compile(group) for group in DEFERRED]
    unknown = [
        sorted(circle)
        for circle in circles(repository, deferred=True)
        if not any(all(group.match(module) for module in circle) for group in groups)
    ]

    assert not unknown


def loaded_after(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_help_needs_no_torch() -> None:
    """`edbc --help` imports neither torch nor numba nor networkx, which is what makes it answer at once."""
    modules = loaded_after(
        "from click.testing import CliRunner\nfrom edbc.tools.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0"
    )

    assert not modules & {"torch", "numba", "networkx", "numpy"}


def test_running_loads_nothing_of_the_compiler() -> None:
    """Importing the runtime loads no layout planner, no training and no search."""
    modules = loaded_after("import edbc.run.session")

    assert not [name for name in modules for no in COMPILE_TIME if is_in(name, no)]
