"""Claims about unquoted words: one meaning, in this reader and in others."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.plan.scalars import plain_value, scalar_text, shorten

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(SCALARS, st.booleans())
def test_written_scalars_are_read_back_by_any_yaml(value: object, in_flow: bool) -> None:
    """yaml's own loader reads every written scalar as what it was, in a list and in a mapping."""
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return
    text = scalar_text(value, in_flow=in_flow)  # type: ignore[arg-type]
    document = f"[{text}, 1]" if in_flow else f"- {text}\n- 1\n"
    read = yaml.safe_load(document)[0]
    assert read == value
    assert type(read) is type(value)
    assert text.isascii()
    assert text.isprintable()


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.text(st.sampled_from(list("yesnoYNtrufal01239.+-eE_:xX~ian<=")), min_size=1, max_size=6))
def test_words_have_one_meaning(text: str) -> None:
    """Every unquoted word that is accepted means the same to yaml's own loader, which follows YAML 1.1."""
    try:
        value = plain_value(text)
    except ValueError:
        return
    if ": " in f"{text} ":
        return
    read = yaml.safe_load(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text", "012 0x1F 0o17 1_000 1:30 2001-01-01 1e5 .5 5. +1 -0 .inf .NaN ~ Null TRUE Yes off <<".split()
)
def test_words_that_readers_disagree_on_are_refused(text: str) -> None:
    """Each of YAML's well-known surprises asks for quotes."""
    with pytest.raises(ValueError, match="in quotes"):
        plain_value(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_infinities_are_not_written(value: float) -> None:
    """What is not finite has no text."""
    with pytest.raises(ValueError, match="not finite"):
        scalar_text(value)


def test_other_values_are_not_written() -> None:
    """Neither has an object."""
    with pytest.raises(TypeError, match="a bytes"):
        scalar_text(b"x")  # type: ignore[arg-type]


def test_shortened_values_are_printable() -> None:
    """Errors show the beginning of a long value, control characters escaped."""
    assert shorten("a\n\u202e") == "'a\\n\\u202e'"
    assert len(shorten("\0" * 10_000)) < 300
