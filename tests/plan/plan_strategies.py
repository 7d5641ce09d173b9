"""Random valid plans for property tests."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from edbc.plan import BatchCost, FileRef, Guard, ModelRef, Plan, PlanCell, PlanPolicy, PlanType, RunAs, TrainedOn
from edbc.plan.oplines import LARGEST_INTEGER

WORDS = st.sampled_from(["y", "n", "no", "Yes", "true", "null", "on", "leaf", "out", "x", "_", "e1", "nan", "inf"])
NAMES = st.one_of(WORDS, st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True))
TYPE_NAMES = st.one_of(NAMES, st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True))
PRINTABLE = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" :#,[]{}&*!|>'\"%@`-?~\\="),
    max_size=20,
).filter(str.isprintable)
TEXTS = PRINTABLE.filter(bool)
SHA256 = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
COUNTS = st.integers(0, LARGEST_INTEGER)
FLOATS = st.floats(-1e300, 1e300, allow_nan=False)
SCALARS = st.one_of(st.integers(-LARGEST_INTEGER, LARGEST_INTEGER), FLOATS, st.booleans(), PRINTABLE, WORDS)
RECORDS = st.dictionaries(
    NAMES,
    st.one_of(
        SCALARS, st.lists(SCALARS, max_size=30), st.dictionaries(NAMES, st.lists(SCALARS, max_size=3), max_size=3)
    ),
    max_size=4,
)
PATHS = st.builds(
    lambda up, parts: "../" * up + "/".join(parts) + ".py",
    st.integers(0, 3),
    st.lists(NAMES, min_size=1, max_size=3),
)
WEIGHTS = st.builds(FileRef, NAMES.map(lambda name: f"{name}.safetensors"), SHA256)
MODELS = st.builds(
    ModelRef, PATHS, SHA256, st.dictionaries(NAMES, SCALARS, max_size=4), COUNTS, weights=st.none() | WEIGHTS
)
FILES = st.lists(st.builds(FileRef, NAMES, SHA256), min_size=1, max_size=3, unique_by=lambda file: file.name)
GUARDS = st.builds(Guard, st.one_of(COUNTS, FLOATS), st.floats(0, 1e300), st.sampled_from(("lower", "higher")))
UNARY = ("sigmoid", "tanh", "neg")


@st.composite
def trained_on(draw: Any) -> TrainedOn:
    """Files exactly when the source is a file."""
    files = tuple(draw(st.one_of(st.just([]), FILES)))
    return TrainedOn("file" if files else "sample", files, draw(COUNTS), draw(COUNTS), draw(COUNTS))


@st.composite
def cells(draw: Any) -> PlanCell:
    """A random SSA graph; a batch holds as many of the following operations of one kind as are ready together."""
    names = draw(st.lists(NAMES, min_size=2, max_size=8, unique=True))
    num_inputs = draw(st.integers(1, len(names)))
    lines = [f"{name} = input(index={i})" for i, name in enumerate(names[:num_inputs])]
    kinds, operands = {}, {}
    for position, name in enumerate(names[num_inputs:], num_inputs):
        kinds[name] = draw(st.sampled_from((*UNARY, "add")))
        count = 1 if kinds[name] in UNARY else 2
        operands[name] = [draw(st.sampled_from(names[:position])) for _ in range(count)]
        lines.append(f"{name} = {kinds[name]}({', '.join(operands[name])})")
    batches: list[list[str]] = []
    for name in kinds:
        last = batches[-1] if batches else []
        fits = last and kinds[last[0]] == kinds[name] and not set(last) & set(operands[name])
        if fits:
            last.append(name)
        else:
            batches.append([name])
    weights = draw(st.lists(TYPE_NAMES, max_size=3, unique=True))
    eager = tuple(draw(st.lists(st.sampled_from(names[:num_inputs]), max_size=2, unique=True)))
    return PlanCell(
        tuple(lines), tuple(map(tuple, batches)), tuple(draw(st.permutations(names))), tuple(weights), draw(COUNTS),
        eager,
    )  # fmt: skip


@st.composite
def policies(draw: Any, types: list[str]) -> PlanPolicy:
    """A rule, or a table over E_base, whose states are the ready types in the plan's order."""
    fallback = draw(st.sampled_from(("agenda", "critical")))
    if draw(st.booleans()):
        return PlanPolicy(draw(st.sampled_from(("agenda", "critical"))), None, fallback, {}, draw(RECORDS))
    subsets = draw(st.lists(st.lists(st.sampled_from(types), min_size=1, unique=True), min_size=1, max_size=5))
    table = {" ".join(sorted(ready, key=types.index)): ready[0] for ready in subsets}
    beside = draw(st.sampled_from((None, "chains", "depth")))
    return PlanPolicy("fsm", "base", fallback, table, draw(RECORDS), beside=beside)


@st.composite
def costs(draw: Any, types: list[str]) -> dict[str, BatchCost]:
    """None, or a cost per type, one above 0."""
    figures = st.floats(0, 1e6, allow_subnormal=False) | st.integers(0, 1000)
    measured = {name: BatchCost(draw(figures), draw(figures)) for name in types}
    return measured if draw(st.booleans()) and any(cost.fixed_us > 0 for cost in measured.values()) else {}


@st.composite
def patterns(draw: Any, types: list[str]) -> dict[str, tuple[str, ...]]:
    """None, or one of a chain of the other types."""
    if len(types) < 2 or draw(st.booleans()):
        return {}
    chain = draw(st.lists(st.sampled_from(types[1:]), min_size=2, max_size=5))
    return {types[0]: tuple(f"v{i} = {kind}({f'v{i - 1}' if i else 'x0'})" for i, kind in enumerate(chain))}


@st.composite
def plans(draw: Any) -> Plan:
    """Any valid plan."""
    names = draw(st.lists(TYPE_NAMES, min_size=1, max_size=4, unique=True))
    return Plan(
        edbc=draw(st.sampled_from(("0.1.0", "1", "2.0.0rc1+local"))),
        model=draw(MODELS),
        trained_on=draw(trained_on()),
        requirements=tuple(draw(st.lists(st.sampled_from(("torch>=2.8", "numpy==1.26.*")), unique=True))),
        types=tuple(PlanType(name, draw(TEXTS), draw(PRINTABLE)) for name in names),
        policy=draw(policies(names)),
        run=draw(st.none() | st.builds(RunAs, TEXTS, st.sampled_from((None, "batched")))),
        alone=draw(st.sampled_from((None, "eager"))),
        ragged=draw(st.sampled_from([(), ("f32[n]",), ("bf16[n,3]", "f32[n,64]")])),
        reads=draw(st.sampled_from([(), ("m.py:3",), ("m.py:3", "n.py:12")])),
        automatic=draw(st.dictionaries(NAMES, st.just("m.py:1"), max_size=2)),
        fused=draw(patterns(names)),
        costs=draw(costs(names)),
        cells={name: draw(cells()) for name in draw(st.permutations(names))},
        guards=draw(st.dictionaries(NAMES, GUARDS, min_size=1, max_size=3)),
    )


def is_same(a: object, b: object) -> bool:
    """Equal with equal types inside: 1, 1.0 and True are three values. Order of keys is of no account."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and is_same(vars(a), vars(b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and a == b
