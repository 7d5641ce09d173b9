"""Frozen records that are written at once: what a frozen dataclass does, but for how it is made."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from edbc.base.frozen import frozen


@frozen
class Base:
    """Fields of each kind."""

    a: int
    late: int = field(default=7, kw_only=True)
    b: str = "b"


@frozen
class Derived(Base):
    """One more, behind those that have to come first."""

    c: float = 0.5


@dataclass(frozen=True, eq=False)
class Plain:
    """`Base` as `dataclasses` makes it."""

    a: int
    late: int = field(default=7, kw_only=True)
    b: str = "b"


def test_a_record_is_made_as_a_dataclass_is() -> None:
    """Same parameters in the same order, with the same defaults, by position and by keyword."""
    assert inspect.signature(Base) == inspect.signature(Plain)
    assert vars(Base(1)) == vars(Plain(1)) == {"a": 1, "late": 7, "b": "b"}
    assert vars(Derived(1, "x", 2.0, late=3)) == {"a": 1, "late": 3, "b": "x", "c": 2.0}
    assert [each.name for each in fields(Derived)] == ["a", "late", "b", "c"]


def test_a_record_refuses_what_a_dataclass_refuses() -> None:
    """Unknown, missing and repeated arguments, and every assignment."""
    record = Base(1)
    for wrong in (lambda: Base(), lambda: Base(1, "b", 7), lambda: Base(1, a=2), lambda: Base(1, d=2)):
        with pytest.raises(TypeError, match=r"Base\.__init__"):
            wrong()
    with pytest.raises(FrozenInstanceError):
        record.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del record.a


def test_records_are_replaced_pickled_and_told_apart() -> None:
    """They are equal to themselves alone, as they hold arrays."""
    record = Derived(1, late=2)

    assert vars(replace(record, b="x")) == {"a": 1, "late": 2, "b": "x", "c": 0.5}
    assert vars(pickle.loads(pickle.dumps(record))) == vars(record)
    assert record != Derived(1, late=2)
    assert "Derived(a=1, late=2, b='b', c=0.5)" in repr(record)


def test_default_factories_are_refused() -> None:
    """An `__init__` that calls nothing cannot make them."""
    with pytest.raises(AssertionError):

        @frozen
        class _WithFactory:
            items: list[int] = field(default_factory=list)
