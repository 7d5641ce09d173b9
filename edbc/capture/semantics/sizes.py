"""Types at other sizes: which type of a plan a node is, when the model has other sizes or another float dtype.

Given the signature of a node and those of a plan's types. Definitions:

1. A plan's signature is *like* a node's when both are the same text once float widths and numbers are left out, equal
   numbers of one signature standing where equal numbers stand in the other.
2. The *ratios* of two signatures that are alike: what their numbers differ by, place by place, 1 left out. Between
   sizes in the brackets of a dtype any ratio is possible. A whole number elsewhere (`narrow(_, 1, 0, 48)`) may have
   grown as a size has, and by no other ratio: a division by 3 is not one by 2 at another size. A number with a point
   (`/ 6.928`, the root of a size) may be any.
3. The type *meant* is the one with the fewest ratios, among these with the fewest numbers that differ, and among those
   with the fewest of 1 on one side: scores of one number stay that at other sizes. With none or several of these the
   node is of no type of the plan, or of one that cannot be told.

Cost: O(plan's types x length of a signature) per signature that is not the plan's, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from edbc.capture.semantics.autocast import without_state

_WIDTH = re.compile(r"\b(?:bf16|f16|f32|f64)\b")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_CONTENT = re.compile(r"(?<=\bconstant )[0-9a-f]{16}\b")
_SHAPE = re.compile(r"\b(?:f|[iu]\d+|bool|c\d+)\[[\d,]*\]")


def meant(signature: str, planned: Iterable[str]) -> list[str]:
    """The plan's signatures that one could stand for: none, one, or several that cannot be told apart.

    >>> meant("torch.div(f64[9]) {_, 3} -> f64[9]", [f"torch.div(f32[4]) {{_, {n}}} -> f32[4]" for n in (2, 3)])
    ['torch.div(f32[4]) {_, 3} -> f32[4]']
    >>> meant("sum(f32[64]...) -> f32[64]", [f"sum(f32[{n}]...) -> f32[{n}]" for n in (1, 128)])
    ['sum(f32[128]...) -> f32[128]']
    """
    text, numbers, in_shape = _read(signature)
    found: dict[tuple[int, int, int], list[str]] = {}
    for candidate in planned:
        theirs, old, _ = _read(candidate)
        if theirs == text and (changes := _changes(old, numbers, in_shape)) is not None:
            found.setdefault(changes, []).append(candidate)
    return found[min(found)] if found else []


def without_numbers(text: str) -> str:
    """The text with `#` in place of numbers and of what constants hold, whose bytes differ with size and dtype; digits
    of names stay."""
    return _NUMBER.sub("#", _CONTENT.sub("#", text))


def without_dtypes(signature: str) -> str:
    """A signature with one word in place of all floating dtypes, and without a state of torch.autocast."""
    return _WIDTH.sub("f", without_state(signature))


def sizes_read(value_class: str) -> str:
    """A value class without dtype and numbers, equal where equal numbers stand at equal places."""
    return _read(value_class)[0]


def _read(signature: str) -> tuple[str, list[str], list[bool]]:
    """Definition (1)'s text, the numbers that it leaves out, and which of them are sizes in a shape."""
    plain = _WIDTH.sub("f", signature)
    shapes = [match.span() for match in _SHAPE.finditer(plain)]
    names: dict[str, str] = {}
    text = _NUMBER.sub(lambda m: names.setdefault(m.group(), f"#{len(names)}"), plain)
    matches = list(_NUMBER.finditer(plain))
    in_shape = [any(start <= match.start() < end for start, end in shapes) for match in matches]
    return text, [match.group() for match in matches], in_shape


def _changes(old: list[str], new: list[str], in_shape: list[bool]) -> tuple[int, int, int] | None:
    """Numbers of ratios, of differing numbers, and of those of 1; None when a whole number differs by another ratio."""
    changed = [(a, b, size) for a, b, size in zip(old, new, in_shape, strict=True) if a != b]
    ratios = {_ratio(a, b) for a, b, size in changed if size}
    whole = {_ratio(a, b) for a, b, size in changed if not size and a.isdigit() and b.isdigit()}
    ones = sum("1" in (a, b) for a, b, _ in changed)
    return (len(ratios), len(changed), ones) if whole <= ratios else None


def _ratio(old: str, new: str) -> Fraction | None:
    """What a number grew by; None for one that was 0 before."""
    return Fraction(new) / Fraction(old) if Fraction(old) else None
