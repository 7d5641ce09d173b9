"""Figures for people: counts with their noun, shares, bytes and times."""

from __future__ import annotations


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "batch", "batches"), count(2400, "node")
    ('1 batch', '2,400 nodes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def share(part: float, whole: float) -> str:
    """Per cent of a whole, `-` of nothing.

    >>> share(1, 3), share(1, 0), share(1, 1000)
    ('33 %', '-', '<1 %')
    """
    if not whole:
        return "-"
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def size_text(size: float) -> str:
    """Bytes in a unit that gives one to four digits.

    >>> size_text(900), size_text(2_500_000)
    ('900 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def time_text(seconds: float) -> str:
    """Seconds in a unit that gives one to three digits.

    >>> time_text(0.00213), time_text(3.5)
    ('2.13 ms', '3.5 s')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def figure(value: float) -> str:
    """A loss or a share to four places, what those would not show in digits that count.

    >>> figure(0.53961), figure(0.0), figure(3.2e-5), figure(1.7e31)
    ('0.5396', '0.0000', '3.200e-05', '1.700e+31')
    """
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"
