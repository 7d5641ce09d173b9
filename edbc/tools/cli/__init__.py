"""The command line: parse, call, print. No algorithm lives here, and importing it imports no torch."""

from __future__ import annotations

from edbc.tools.cli.main import main

__all__ = ["main"]
