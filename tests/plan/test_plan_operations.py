"""Claims about the one-line grammar of operations and its table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.base.operations import ELEMENTWISE
from edbc.plan.oplines import ANY_NUMBER, LARGEST_INTEGER, OPERATIONS, Line, parse_line

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
NUMBERS = st.one_of(
    st.integers(-LARGEST_INTEGER, LARGEST_INTEGER), st.floats(-1e300, 1e300, allow_nan=False, allow_subnormal=False)
)
STRINGS = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), max_size=8)
ITEMS = st.one_of(NUMBERS, STRINGS)
VALUES = st.one_of(ITEMS, st.booleans(), st.lists(ITEMS, max_size=3).map(tuple))


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Any line that the grammar and the table allow."""
    operation = draw(st.sampled_from(sorted(OPERATIONS.values(), key=lambda row: row.name)))
    count = draw(st.integers(operation.least, min(operation.most, 4)))
    operands = draw(st.lists(st.one_of(NAMES, NUMBERS), min_size=count, max_size=count))
    keys = draw(st.lists(st.sampled_from(operation.attributes), unique=True)) if operation.attributes else []
    attributes = [(key, draw(VALUES)) for key in keys]
    if draw(st.booleans()):
        attributes.append(("output", draw(st.one_of(st.integers(0, 9), st.just((0, 1))))))
    return Line(draw(NAMES), operation.name, tuple(operands), tuple(attributes))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(lines())
def test_parsing_inverts_printing(line: Line) -> None:
    """Every line is parsed from its text, values and their types included."""
    again = parse_line(str(line))
    assert again == line
    assert repr(again) == repr(line)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.text(st.sampled_from(list("xy_=(),. \"'1-e@[]+")), max_size=30))
def test_text_is_refused_or_canonical(text: str) -> None:
    """What is accepted prints as itself: no line has two spellings."""
    for candidate in (text, f"y = add({text})", f"y = sum(x, dim={text})"):
        try:
            line = parse_line(candidate)
        except ValueError:
            continue
        assert str(line) == candidate


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not begin"),
        ("y=tanh(x)", "does not begin"),
        ("y = tanh", "does not begin"),
        ("y = tanh (x)", "does not begin"),
        ("2 = tanh(x)", "does not begin"),
        ("a.b = tanh(x)", "does not begin"),
        ("y = torch.tanh(x)", "does not begin"),
        ("y = tanh(x", "column 10"),
        ("y = tanh(x))", "follows the closing"),
        ("y = tanh(x) ", "follows the closing"),
        ("y = tanh( x)", "neither"),
        ("y = add(x,y)", "neither"),
        ("y = add(x, )", "neither"),
        ("y = add(x, y, )", "neither"),
        ("y = add(tanh(x), y)", "neither"),
        ("y = add(x, 01)", "neither"),
        ("y = add(x, +1)", "neither"),
        ("y = add(x, .5)", "neither"),
        ("y = add(x, 1_0)", "neither"),
        ("y = add(x, 1.50)", "shortest form"),
        ("y = add(x, 1e5)", "shortest form"),
        ("y = add(x, 1e999)", "too large"),
        ("y = add(x, 9007199254740993)", "too large"),
        ("y = add(x, 'a')", "neither"),
        ('y = sum(x, dim="a\\"b")', "neither"),
        ("y = sum(x, dim=(1))", "neither"),
        ("y = sum(x, dim=(1,2))", "neither"),
        ("y = sum(x, dim=((1,),))", "neither"),
        ("y = sum(x, dim=[1])", "neither"),
        ("y = sum(x, dim=None)", "neither"),
        ("y = sum(x, dim=z)", "neither"),
        ("y = sum(dim=0, x)", "follows an attribute"),
        ("y = tanh()", "takes 1 operands, not 0"),
        ("y = cat()", "takes 1 or more operands"),
        ("y = linear(a, b, c, d)", "takes 1 to 3 operands"),
        ("y = tahn(x)", "did you mean 'tanh'"),
        ("y = eval(x)", "'eval' is no operation"),
        ("y = __class__(x)", "'__class__' is no operation"),
        ("y = cat(x, dmi=0)", "did you mean 'dim'"),
        ("y = cat(x, dim=0, dim=0)", "given twice"),
        ("y = cat(x, output=())", "an output's number"),
        ("y = cat(x, output=true)", "an output's number"),
        ("y = cat(x, output=1.0)", "an output's number"),
    ],
)
def test_what_the_grammar_does_not_say_is_refused(text: str, words: str) -> None:
    """Each departure from the grammar is a ValueError that says which."""
    with pytest.raises(ValueError, match=words):
        parse_line(text)


@pytest.mark.parametrize("text", ["y = {}(x)", "y = cat(x, {}=0)", "{} = sum(1.50)", "y = add({}, 1.50)"])
def test_reasons_are_short(text: str) -> None:
    """However long the names in a line are, the reason for refusing it fits into an error's line."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_line(text.format("a" * 3_000))
    assert len(str(caught.value)) < 200


def test_table_is_consistent() -> None:
    """Rows are filed under their names, arities are ranges, shared values are sources, `output` is nobody's own."""
    for name, row in OPERATIONS.items():
        assert name == row.name
        assert 0 <= row.least <= row.most <= ANY_NUMBER
        assert row.is_source or not row.is_shared
        assert "output" not in row.attributes


def test_cells_of_the_compiler_use_only_the_table() -> None:
    """Every operation that a cell may hold has a row."""
    assert OPERATIONS.keys() >= ELEMENTWISE
    assert {"affine", "slice", "cat", "sum", "generic"} <= OPERATIONS.keys()


def test_long_lines_are_parsed_in_linear_time() -> None:
    """A line with thousands of operands, and one that fails at its very end, need no backtracking to speak of."""
    many = ", ".join(["x"] * 20_000)
    assert len(parse_line(f"y = sum({many})").operands) == 20_000
    values = ", ".join(["1"] * 20_000)
    with pytest.raises(ValueError, match="neither"):
        parse_line(f"y = sum(x, dim=({values}!))")
