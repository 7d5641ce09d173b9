"""Bracketed text, one expression per line: `(label child child)`, children being words or brackets again.

Folding goes from the innermost bracket outwards without recursion, so depth is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from _text import read_lines

from edbc.errors import InputError

T = TypeVar("T")

_TOKEN = re.compile(r"[()]|[^ \t()]+")


def read_brackets(path: str, close: Callable[[list, str], T]) -> Iterator[T]:
    """What `close` makes of the outer bracket of each line that is not blank.

    `close(parts, where)` gets a bracket's parts in order, a string per word and its own earlier result per bracket, and
    `file:line` for its errors. Raises InputError for a line that is not one closed bracket.
    """
    for number, line in read_lines(path):
        if line.strip(" \t"):
            yield fold_brackets(line, f"{path}:{number}", close)


def fold_brackets(line: str, where: str, close: Callable[[list, str], T]) -> T:
    """The same for one line.

    >>> fold_brackets("(a (b c) d)", "example:1", lambda parts, where: "-".join(parts))
    'a-b-c-d'
    """
    tokens = _TOKEN.findall(line)
    opened: list[list] = []
    for position, token in enumerate(tokens):
        if token == "(":
            opened.append([])
        elif not opened:
            raise expected(where, "'('", f"'{token[:40]}'", "a line holds one bracket")
        elif token != ")":
            opened[-1].append(token)
        else:
            result = close(opened.pop(), where)
            if opened:
                opened[-1].append(result)
            elif position == len(tokens) - 1:
                return result
            else:
                got = f"'{tokens[position + 1][:40]}'"
                raise expected(where, "the end of the line after one bracket", got, "split the line")
    raise expected(where, f"{len(opened)} more ')'", "the end of the line", "close every bracket")


def expected(where: str, what: str, got: str, remedy: str) -> InputError:
    """The error of a bracket that holds something else."""
    return InputError(f"{where}: expected {what}, got {got}; {remedy}")


def describe(parts: list) -> str:
    """Parts as an error message shows them: `word, bracket`."""
    return ", ".join("word" if isinstance(part, str) else "bracket" for part in parts) or "nothing"
