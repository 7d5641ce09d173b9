"""Cells of notebooks as files: names that people see, and text.

IPython compiles every cell under a file name of its own (`/tmp/ipykernel_7/123.py`, `<ipython-input-3-ab>`), which
nobody has seen. Messages and plans name the cell as the screen does: `In [3]:5` is line 5 of that cell. IPython keeps
which execution a name belongs to in the `_filename_map` of its caching compiler; a cell that ran again has another.
What Python's own prompt reads (`<stdin>`, `<python-input-3>`) is the user's code as well.
"""

from __future__ import annotations

import linecache
import sys
from typing import Any

PROMPTS = ("<ipython-input", "<python-input", "<stdin>")
"""What names begin with that stand for lines of a prompt; other names in angle brackets are made by libraries."""


def _cells() -> dict[str, Any]:
    """Numbers of executions by file name, in this process's notebook; empty where there is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    known = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return known if isinstance(known, dict) else {}


def shown_name(filename: str) -> str:
    """What people know a source file by: `model.py` of a path, `In [3]` of a cell."""
    number = _cells().get(filename) if "ipy" in filename else None
    return filename.replace("\\", "/").rpartition("/")[2] if number is None else f"In [{number}]"


def cell_texts() -> list[str] | None:
    """The text of every cell that ran; None outside of a notebook."""
    return ["".join(linecache.getlines(name)) for name in _cells()] or None
