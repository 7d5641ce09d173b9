"""Machine code of graph loops that comes with edbc, so that a first run compiles none of them.

numba takes 14 s of processor time for what a first mini-batch calls and 10 s more for what learning calls, of which
LLVM is a third. Its bitcode would load in 1.0 s for any processor; object code loads at once, and these loops hold
nothing that wide vectors make faster. So what is shipped is object code for an old level of the processor: files as
`edbc.native.kernelcache` names them, for `TARGETS` in the place of the processor. A file's name is a function of the
source's text, of Python's version, of numba's and of the system, so where one of them differs no file is found, and
`edbc.native.ahead` compiles; it also makes the files.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("loops")
TARGETS = {
    "x86_64": ("x86-64-v3", "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt sse4.2 xsave"),
    "aarch64": ("generic", ""),
    "arm64": ("generic", ""),
}
"""By machine: the level, as LLVM names it, and what a processor must have for it."""


def target(processor: tuple[str, str, str]) -> tuple[str, str, str] | None:
    """What stands in the place of a processor, as numba tells of it, in the names of shipped files that run on it; None
    where there are none."""
    triple, _name, features = processor
    known = level(platform.machine())
    if known is None or not FOLDER.is_dir():
        return None
    name, needed = known
    has = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    return (triple, name, "") if has.issuperset(needed) else None


@cache
def level(machine: str) -> tuple[str, frozenset[str]] | None:
    """The entry of `TARGETS` of a machine."""
    name, needed = TARGETS.get(machine, ("", ""))
    return (name, frozenset(needed.split())) if name else None


def settings() -> dict[str, str] | None:
    """numba's settings for making what is shipped for this machine; None where nothing is."""
    known = level(platform.machine())
    return None if known is None else {"NUMBA_CPU_NAME": known[0], "NUMBA_CPU_FEATURES": ""}


def count() -> int:
    """Shipped files, for whatever they are."""
    return sum(1 for _ in FOLDER.glob("*.nbc"))
