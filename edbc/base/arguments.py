"""Arguments of callers: counts, numbers and names, held against what is known before anything runs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from difflib import get_close_matches

from edbc.errors import EdbcError, printable

MOST = 2**31 - 1
"""Of every count; larger ones overflow somewhere."""
LARGEST, LONGEST_TEXT = 2**53, 2_000
"""Of the values of a model's config, as `edbc.plan` has them."""
DTYPES = ("float32", "float64", "bfloat16")
DEVICES = ("cpu", "cuda")
LAYOUTS = ("plan", "variable-order")
FRONT_ENDS = ("record", "vertex")
OBJECTIVES = ("batches", "steps")
POLICIES = ("fsm", "agenda", "depth", "sufficient", "critical")


def require_count(name: str, value: object, least: int = 1, most: int = MOST) -> None:
    """Raise EdbcError unless `value` is an integer from `least` to `most`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise EdbcError(f"{name}: expected an integer from {least:,} to {most:,}, got {printable(repr(value))}")


def require_rate(name: str, value: object) -> None:
    """Raise EdbcError unless `value` is a positive finite number."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise EdbcError(f"{name}: expected a positive number, got {printable(repr(value))}")


def require_setting(name: str, value: object) -> None:
    """Raise EdbcError unless `value` is what a plan can record of a model's config."""
    is_plain = (
        (isinstance(value, str) and len(value) <= LONGEST_TEXT)
        or (isinstance(value, int) and abs(value) <= LARGEST)
        or (isinstance(value, float) and math.isfinite(value))
    )
    if not is_plain:
        raise EdbcError(
            f"{name}: expected a finite number, true, false or a text of at most {LONGEST_TEXT:,} characters, which a "
            f"plan can record, got {printable(repr(value))}"
        )


def require_name(name: str, value: object, known: Iterable[str]) -> None:
    """Raise EdbcError unless `value` is one of the known names, with the closest of them."""
    known = list(known)
    if value not in known:
        close = get_close_matches(str(value), known, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise EdbcError(f"{name}: expected one of {', '.join(known)}, got {printable(repr(value))}{meant}")
