"""How torch multiplies float32 on a GPU: in IEEE float32, or in tf32, which rounds operands to 10 bits of mantissa.

torch has a setting for matrix products (off by default) and one for convolutions (on by default), and two names for
each: the older ones raise when they are read after the newer ones were set to something that they cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch

TF32, IEEE = "tf32", "ieee"


def product_precision() -> str:
    """torch's own setting for float32 products of matrices on the device."""
    return _told(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def convolution_precision() -> str:
    """torch's own setting for float32 convolutions on the device."""
    return _told(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None))


def _told(older: Any, newer: Any) -> str:
    told = getattr(newer, "fp32_precision", None)
    return TF32 if told == TF32 or (told is None and older.allow_tf32) else IEEE


def multiplies_in_tf32(device: torch.device) -> bool:
    """Whether torch may multiply float32 in tf32 there."""
    return device.type == "cuda" and TF32 in (product_precision(), convolution_precision())


@contextmanager
def in_ieee() -> Iterator[None]:
    """Both settings off."""
    with ExitStack() as stack:
        for older, newer in ((torch.backends.cudnn, "conv"), (torch.backends.cuda.matmul, "")):
            stack.enter_context(_off(older, getattr(older, newer) if newer and hasattr(older, newer) else older))
        yield


@contextmanager
def _off(older: Any, newer: Any) -> Iterator[None]:
    """One setting, by whichever name can be read."""
    owner, name, off = older, "allow_tf32", cast(Any, False)
    try:
        before = older.allow_tf32
    except RuntimeError:
        owner, name, off = newer, "fp32_precision", IEEE
        before = newer.fp32_precision
    setattr(owner, name, off)
    try:
        yield
    finally:
        setattr(owner, name, before)
