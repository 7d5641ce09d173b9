"""Plain scalars: which unquoted words a plan may hold, and what they mean.

YAML's versions and libraries disagree on unquoted words: `no`, `012`, `1_000`, `12:30`, `2001-01-01`, `1e5`, `~`. A
plan holds none that is read in two ways. An unquoted word is

(1) `true`, `false` or `null`;
(2) a decimal integer, or a float with a digit on both sides of its point: `-3`, `0.25`, `1.0e-12`;
(3) text that begins with an ASCII letter or `_` and is none of the words that some reader takes for a boolean or null.

Everything else is an error that asks for quotes. The writer quotes by the same rule.
"""

from __future__ import annotations

import math
import re

from edbc.plan.plan import Scalar

_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null"})
_STARTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,30})\.[0-9]{1,30}(?:e[+-]?[0-9]{1,4})?")

_SAFE_IN_FLOW = re.compile(r"[A-Za-z_][A-Za-z0-9_./()<>=|*+^%-]*")
_INSIDE = r"(?:[!-\"$-9;-~]|:(?=[!-~]))"  # all that can be seen but `#`, and `:` where it ends no key
_SAFE_IN_BLOCK = re.compile(rf"[A-Za-z_]{_INSIDE}*(?: {_INSIDE}+)*")

SHORTEN = 60
"""Characters of a value that an error shows."""


def plain_value(text: str) -> Scalar | None:
    """The meaning of an unquoted word, definitions (1) to (3).

    Raises ValueError with what is wrong, fit to follow "got".

    >>> plain_value("0.5"), plain_value("leaf"), plain_value("null")
    (0.5, 'leaf', None)
    """
    if text[:1] in _STARTS and text.lower() not in _WORDS:
        return text
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if _INTEGER.fullmatch(text) and text != "-0":
        return int(text)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    if not text:
        raise ValueError("nothing")
    raise ValueError(f"{shorten(text)}, which YAML readers understand in different ways unless it is in quotes")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text}, which is not finite")
    return value


def scalar_text(value: Scalar | None, *, in_flow: bool = False) -> str:
    """The shortest scalar, in printable ASCII on one line, that reads back as `value`.

    `in_flow` is true between brackets, where commas and brackets end a word. Raises ValueError for a float that is not
    finite, and TypeError for what is no scalar.

    >>> scalar_text("no"), scalar_text(1e-12), scalar_text(True)
    ('"no"', '1.0e-12', 'true')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, str):
        return value if _is_safe(value, in_flow) else f'"{"".join(map(_escape, value))}"'
    raise TypeError(f"a {type(value).__name__}")


def _is_safe(text: str, in_flow: bool) -> bool:
    safe = _SAFE_IN_FLOW if in_flow else _SAFE_IN_BLOCK
    return safe.fullmatch(text) is not None and text.lower() not in _WORDS


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value}, which is not finite")
    mantissa, _, exponent = float.__repr__(value).partition("e")
    point = "" if "." in mantissa else ".0"
    return mantissa + point + (f"e{exponent}" if exponent else "")


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shorten(text: str) -> str:
    """`text` as errors show it: quoted, in ASCII, on one line, at most about SHORTEN characters."""
    return ascii(text) if len(text) <= SHORTEN else ascii(text[:SHORTEN]) + "..."
