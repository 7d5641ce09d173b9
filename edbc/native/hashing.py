"""Hash tables of native loops: how integers are hashed, and how many slots a table has."""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from edbc.native.kernelcache import INNER, U, njit

_MIX, _HALF = U(0x9E3779B97F4A7C15), U(32)


@njit(inline="always")
def mixed(hashed, item):
    """The hash of what was hashed so far and one more integer."""
    hashed = (hashed ^ U(item)) * _MIX
    return hashed ^ (hashed >> _HALF)


@njit(**INNER)
def slots_for(count):
    """Slots of a table with at most `count` entries: a power of two, at most half of them taken."""
    slots = 4
    while slots < 2 * count:
        slots *= 2
    return slots
