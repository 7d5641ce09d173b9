"""Every file of edbc in one sentence, room by room: the first line of its docstring, which is where it is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "edbc"


def sentences(folder: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every file below a folder with the first line of its docstring, files of a folder before those of its rooms."""
    for file in sorted(folder.glob("*.py")):
        told = ast.get_docstring(ast.parse(file.read_text())) or ""
        name = file.relative_to(ROOT).as_posix()
        yield name.removesuffix("__init__.py"), told.partition("\n")[0]
    for room in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        yield from sentences(room)


if __name__ == "__main__":
    for name, sentence in sentences():
        print(f"{name:40} {sentence}")
