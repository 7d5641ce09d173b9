"""A rewritten code computes what the user's computes, calls something else, and keeps every other instruction."""

from __future__ import annotations

import builtins
import dis
import math
import os.path
import statistics
import sys
import textwrap
import traceback
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest

from edbc.capture.code.rewrite import VERSIONS, LookUp, Scope, rewritten

pytestmark = pytest.mark.skipif(sys.version_info >= VERSIONS[1], reason="code is left as it is in this Python")


def callee(x: Any, *rest: Any, **named: Any) -> Any:
    return "called", x, rest, named


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs), function is callee

    return wrapper


def every_kind(x: Any) -> list[Any]:
    kept = callee
    return [
        kept is callee, callee(x), callee(x, 1, key=2), callee(*[x, 1], key=2), [callee(i) for i in range(2)],
        (lambda y: callee(y))(x), math.floor(x), math.floor(*[x]), os.path.join("a", "b"), type(x), kept(x),
        (callee if x else kept)(x),
    ]  # fmt: skip


def failing(x: Any) -> Any:
    y = callee(x)
    return callee(
        math.sqrt("no number"),
        y,
    )


def many_constants() -> Callable[[Any], Any]:
    names = "".join(f"    v{i} = {i}.25 + n{i}\n" for i in range(300))
    scope = {"callee": callee, "math": math, **{f"n{i}": i for i in range(300)}}
    exec(f"def long(x):\n{names}    return callee(x), math.floor(x), callee(*[x]), v299\n", scope)
    return scope["long"]


def again(function: Any, instead: dict[Any, Any]) -> tuple[Any, list[LookUp]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = Scope(function.__globals__, vars(builtins), {name: cell.cell_contents for name, cell in cells})
    code, look_ups = rewritten(function.__code__, scope, lambda f: instead.get(f) if f.__hash__ else None)
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy, look_ups


@pytest.mark.parametrize("function", [every_kind, around(callee), many_constants()], ids=["kinds", "closure", "long"])
def test_the_same_callables_give_the_same(function: Any) -> None:
    """Every call site may be rewritten without a change."""
    same = {f: (lambda *args, _f=f, **named: _f(*args, **named)) for f in (callee, math.floor, os.path.join, type)}
    copy, look_ups = again(function, same)

    assert look_ups
    assert copy(2.5) == function(2.5)


def test_other_callables_are_called() -> None:
    """At call sites, and nowhere else."""
    copy, look_ups = again(every_kind, {callee: lambda *args, **named: "other", math.floor: lambda x: "floor"})
    other = ["other"]

    assert {look_up.name for look_up in look_ups} == {"callee", "math", "floor"}
    assert copy(2.5)[:8] == [True, *other * 3, other * 2, "other", "floor", "floor"]
    assert copy(2.5)[8:] == every_kind(2.5)[8:]


def of_names_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (function(x), [(function(x), lambda: function)[0] for function in (type, repr)])  # noqa: B023


def test_a_variable_of_the_name_of_an_enclosing_one_is_not_it() -> None:
    """A comprehension's variable, which is the code's own from Python 3.12 on."""
    copy, _ = again(of_names_twice(callee), {callee: lambda *args: "other"})

    assert copy(2.5)[1] == [float, "2.5"]


class Lower:
    def told(self, *rest: Any) -> tuple[Any, ...]:
        return self, *rest

    @property
    def kind(self) -> type:
        return UPPER


class Upper(Lower):
    def by_super(self, x: Any) -> list[Any]:
        kept = super
        return [
            kept is super, super().told(x), super(UPPER, self).told(x, 1), super().kind, super().told(*[x]),
            super(super().kind, self).told(x), [super(UPPER, self).told(i) for i in range(2)],
            super(UPPER if x else Lower, self).told(x),
        ]  # fmt: skip


UPPER = Upper


def test_super_is_called_where_methods_are_looked_up_by_it() -> None:
    """With what was written. Where the choice of its arguments jumps, it may be the user's."""
    given: list[tuple[Any, ...]] = []

    def other(*args: Any) -> Any:
        given.append(args)
        return super(*(args or (Upper, upper)))

    upper = Upper()
    copy, look_ups = again(Upper.by_super, {super: other})

    assert {look_up.name for look_up in look_ups} == {"super"}
    assert copy(upper, 2.5) == upper.by_super(2.5)
    pair = Upper, upper
    assert given[:8] == [(), pair, (), (), (), pair, pair, pair]


def test_lines_of_errors_stay() -> None:
    """Tracebacks name the lines that the user wrote, and mark the same columns."""
    copy, _ = again(failing, {callee: lambda *args: args, math.sqrt: lambda x: math.sqrt(x)})
    found = []
    for function in (failing, copy):
        with pytest.raises(TypeError) as error:
            function(1)
        found.append(traceback.extract_tb(error.value.__traceback__)[1])

    assert found[0].line == found[1].line
    assert found[0].lineno == found[1].lineno


@pytest.mark.parametrize("module", [textwrap, statistics, traceback, dis], ids=lambda module: module.__name__)
def test_code_of_others(module: Any) -> None:
    """All functions of a module: instructions are where they were, but for loads of what is called."""
    functions = [f for f in vars(module).values() if type(f) is FunctionType and f.__module__ == module.__name__]
    kinds = (FunctionType, BuiltinFunctionType, type)
    num_rewritten = 0
    for function in functions:
        scope = Scope(function.__globals__, vars(builtins), {})
        code, look_ups = rewritten(function.__code__, scope, lambda f: f if isinstance(f, kinds) else None)
        num_rewritten += len(look_ups)
        before, after = ({i.offset: i for i in dis.get_instructions(c)} for c in (function.__code__, code))
        changed = [offset for offset in before if offset in after and before[offset].opcode != after[offset].opcode]
        assert len(code.co_code) == len(function.__code__.co_code)
        assert code.co_stacksize >= function.__code__.co_stacksize
        assert all(before[offset].opname.startswith(("LOAD_", "EXTENDED_ARG")) for offset in changed)
        assert list(code.co_lines()) == list(function.__code__.co_lines())
    assert num_rewritten > 5


def test_a_look_up_tells_when_it_no_longer_holds() -> None:
    """Another object under the name, or none."""
    namespace = {"name": callee}
    look_up = LookUp(namespace, "name", callee)
    assert look_up.still_holds()
    namespace["name"] = print
    assert not look_up.still_holds()
    del namespace["name"]
    assert not look_up.still_holds()


def test_nothing_to_replace_is_the_same_code() -> None:
    """No copy is made of what would be equal."""
    assert rewritten(callee.__code__, Scope({}, {}, {}), lambda f: None) == (callee.__code__, [])


def test_real_work_is_the_same() -> None:
    """A module's own results, with every function of its globals behind another."""
    text = " ".join(f"word{i} and-more" for i in range(60))
    behind = {f: (lambda *a, _f=f, **k: _f(*a, **k)) for f in (len, min, max, sum, sorted, isinstance, math.sqrt)}
    data = [1.0, 2.5, 2.5, 2.75, 3.25, 4.75]

    for function in (statistics.stdev, statistics.median, statistics.quantiles, statistics.multimode):
        assert again(function, behind)[0](data) == function(data)
    assert again(textwrap.fill, behind)[0](text, 40) == textwrap.fill(text, 40)
