"""torch's settings for float32 products on a GPU, which stand on any machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from edbc.run import precision
from edbc.run.precision import convolution_precision, in_ieee, multiplies_in_tf32

CONV = getattr(torch.backends.cudnn, "conv", None)
MATMUL = torch.backends.cuda.matmul
SETTINGS = [
    ("nothing", None, "", None),
    ("older", torch.backends.cudnn, "allow_tf32", True),
    ("older, off", torch.backends.cudnn, "allow_tf32", False),
    ("older, products", MATMUL, "allow_tf32", True),
    *([("newer", CONV, "fp32_precision", "tf32"), ("newer, off", CONV, "fp32_precision", "ieee")] if CONV else []),
    *([("newer, products", MATMUL, "fp32_precision", "tf32")] if hasattr(MATMUL, "fp32_precision") else []),
]


@pytest.fixture(params=SETTINGS, ids=[name for name, *_ in SETTINGS])
def _setting(request: pytest.FixtureRequest) -> Iterator[None]:
    """A user's, by either name."""
    _, owner, name, value = request.param
    if owner is None:
        yield
        return
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


@pytest.mark.usefixtures("_setting")
def test_ieee_is_for_a_while() -> None:
    """Inside nothing is in tf32, by whichever name it was set; behind it, all is as it was, an exception or not."""
    before = precision.product_precision(), convolution_precision()
    for fails in (False, True):
        with pytest.raises(KeyError) if fails else in_ieee(), in_ieee():
            assert (precision.product_precision(), convolution_precision()) == ("ieee", "ieee")
            if fails:
                raise KeyError
        assert (precision.product_precision(), convolution_precision()) == before


def test_only_gpus_have_tf32() -> None:
    """torch's setting for convolutions is on by default, and says nothing of a CPU."""
    assert convolution_precision() == "tf32"
    assert not multiplies_in_tf32(torch.device("cpu"))
    assert multiplies_in_tf32(torch.device("cuda"))
    with in_ieee():
        assert not multiplies_in_tf32(torch.device("cuda"))
