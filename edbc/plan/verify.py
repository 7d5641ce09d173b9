"""What must hold between the fields of a plan, checked before anything uses it.

(1) Model: its path is relative, `/`-separated, in normal form (`..` only at the start), and a Python file; or
    `module:Class` of a model that was compiled in memory, exactly when the training's `source` is `memory`.
(2) Training: data files are named exactly when `source` is `file`, each by a plain name, each once.
(3) Types: names are unique. Requirements are too.
(4) Policy: an `fsm` has an encoding and a table, nothing else has; every action is a type. Names of encodings and
    rules, and what a state means, are the policy's own to judge (`edbc.schedule.policy`).
(5) Cells: one entry per type and no other.
(6) Cell: every operation parses and is in the table of `edbc.plan.oplines`; every name is defined once, before its
    use. All operations together are at most MAX_OPERATION_TEXT characters, which bounds the time of this check.
(7) Batches: every operation that is no source is in exactly one; a batch holds one operation's nodes only; its
    operands were computed by earlier batches or are sources.
(8) Layout: every variable exactly once, no shared value. Weights: no name twice.
(9) Outputs, where lines name them: numbers 0 to k - 1, each once.
(10) Split: what may be eager is an operand of the cell, each once.
(11) Costs, where there are any: one entry per type and no other, some batch not free.
(12) Weights, where a file holds them: a plain name that ends in `.safetensors`.
(13) Patterns: each is one (`edbc.base.pattern`), of types of the plan that are none themselves.

The checks read nothing but the plan; none imports torch. Errors name the place: `plan.yaml:41:7: ...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeAlias

from edbc.base.pattern import parse_pattern
from edbc.errors import PlanError
from edbc.plan.events import REMEDY
from edbc.plan.oplines import OPERATIONS, Line, parse_line
from edbc.plan.plan import Plan, PlanCell
from edbc.plan.scalars import shorten

Place: TypeAlias = Callable[..., str]
"""From keys and positions, `place("cells", "leaf", "batches", 3)`, to where that is, for an error."""

IN_MEMORY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,500}:[A-Za-z_][A-Za-z0-9_]{0,200}")
"""The model of a plan that was compiled in memory: `module:Class`. No name of it is ever imported."""
MAX_OPERATION_TEXT = 1_000_000
SAFETENSORS = ".safetensors"


def in_memory(*path: str | int) -> str:
    """The Place of a plan that is in no file: `plan: cells.leaf.batches.3`."""
    return f"plan: {'.'.join(map(str, path))}"


def verify_plan(plan: Plan, place: Place = in_memory) -> Plan:
    """Check (1) to (13) and return the plan. O(size of the plan). Raises PlanError that names the place."""
    verify_model_path(plan.model.path, plan.is_of_object, place)
    _verify_weights(plan, place)
    _verify_training(plan, place)
    _verify_unique((kind.name for kind in plan.types), "type", place, "types")
    _verify_unique(plan.requirements, "requirement", place, "requirements")
    _verify_policy(plan, place)
    _verify_costs(plan, place)
    _verify_cells(plan, place)
    _verify_patterns(plan, place)
    return plan


def _fail(place: str, expected: str, got: str, remedy: str = REMEDY) -> NoReturn:
    raise PlanError(f"{place}: expected {expected}, got {got}; {remedy}")


def _verify_unique(names: Iterable[str], noun: str, place: Place, *path: str) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            _fail(place(*path, position), f"each {noun} once", f"{shorten(name)} again")
        seen.add(name)


def verify_model_path(path: str, is_of_object: bool, place: Place) -> None:
    """Check (1)."""
    if is_of_object:
        if not IN_MEMORY.fullmatch(path):
            _fail(place("model", "path"), "module:Class, as the source is 'memory'", shorten(path))
        return
    segments = path.split("/")
    below = segments[next((i for i, s in enumerate(segments) if s != ".."), len(segments)) :]
    is_plain = all(s not in ("", ".", "..") for s in below) and not set(path) & set(':\\<>|"?*')
    if not is_plain or not path.endswith(".py") or below[-1] == ".py" or not path.isprintable():
        _fail(
            place("model", "path"),
            "a relative path to a Python file, '/' between its parts and '..' only at its start",
            shorten(path),
        )


def is_plain_name(name: str) -> bool:
    """True for the name of a file, in whatever folder."""
    return not set(name) & set("/\\:") and name not in (".", "..")


def is_weights_name(name: str) -> bool:
    """True for what check (12) allows."""
    return is_plain_name(name) and name.isprintable() and name.endswith(SAFETENSORS) and name != SAFETENSORS


def _verify_weights(plan: Plan, place: Place) -> None:
    """Check (12)."""
    weights = plan.model.weights
    if weights is not None and not is_weights_name(weights.name):
        expected = "a file name without a folder that ends in .safetensors"
        _fail(place("model", "weights", "name"), expected, shorten(weights.name))


def _verify_training(plan: Plan, place: Place) -> None:
    """Check (2)."""
    trained_on = plan.trained_on
    if bool(trained_on.files) != (trained_on.source == "file"):
        expected = "no files" if trained_on.files else "at least one file"
        got = f"{len(trained_on.files)}"
        _fail(place("trained_on", "files"), f"{expected} with source {trained_on.source!r}", got)
    for position, file in enumerate(trained_on.files):
        if not is_plain_name(file.name):
            _fail(place("trained_on", "files", position, "name"), "a file name without a folder", shorten(file.name))
    _verify_unique((file.name for file in trained_on.files), "file", place, "trained_on", "files")


def _verify_policy(plan: Plan, place: Place) -> None:
    """Check (4)."""
    policy = plan.policy
    is_fsm = policy.kind == "fsm"
    _verify_by_policy(plan, place, {})
    if policy.encoding is not None and not is_fsm:
        _fail(place("policy", "encoding"), f"null for a policy of kind {policy.kind!r}", repr(policy.encoding))
    if is_fsm != bool(policy.table):
        expected = "at least one state" if is_fsm else "no state"
        _fail(place("policy", "table"), f"{expected} for a policy of kind {policy.kind!r}", f"{len(policy.table):,}")
    types = {kind.name for kind in plan.types}
    for state, action in policy.table.items():
        if action not in types:
            _fail(place("policy", "table", state), f"a type of the plan for state {shorten(state)}", shorten(action))
    _verify_by_policy(plan, place, policy.table)
    if plan.waves is not None:
        _verify_waves(plan.waves.table, [kind.name for kind in plan.types], place)


def _verify_waves(table: dict[str, str], names: list[str], place: Place) -> None:
    """Of check (4), for the table of waves."""
    from edbc.schedule.waves.wavetable import Waves

    try:
        Waves.from_text(table, names)
    except PlanError as error:
        raise PlanError(f"{place('waves')}: {str(error)[:500]}; {REMEDY}") from None


def _verify_by_policy(plan: Plan, place: Place, table: dict[str, str]) -> None:
    """The half of check (4) that belongs to the policy. The import is light: neither torch nor numpy."""
    from edbc.schedule.policy import Policy

    policy = plan.policy
    try:
        Policy(policy.kind, policy.encoding, policy.fallback, beside=policy.beside)
        if table:
            Policy.from_text(policy.encoding or "", policy.fallback, table, [kind.name for kind in plan.types])
    except PlanError as error:
        reason = str(error).removeprefix("policy: ")
        raise PlanError(f"{place('policy')}: {reason[:500]}; {REMEDY}") from None


def _verify_costs(plan: Plan, place: Place) -> None:
    """Check (11)."""
    if not plan.costs:
        return
    types = {kind.name for kind in plan.types}
    for name in plan.costs:
        if name not in types:
            _fail(place("costs", name), "an entry for a type of the plan", shorten(name))
    for name in sorted(types.difference(plan.costs)):
        _fail(place("costs"), f"an entry for the type {shorten(name)}", "none")
    if not any(cost.fixed_us > 0 for cost in plan.costs.values()):
        _fail(place("costs"), "a fixed cost above 0 for some type", "none")


def _verify_patterns(plan: Plan, place: Place) -> None:
    """Check (13)."""
    types = {kind.name for kind in plan.types}
    for name, lines in plan.fused.items():
        if name not in types:
            _fail(place("fused", name), "the name of a type of the plan", shorten(name))
        try:
            pattern = parse_pattern(lines)
        except ValueError as error:
            _fail(place("fused", name), "the members of a pattern", str(error))
        for position, member in enumerate(pattern.members):
            if member.kind not in types or member.kind in plan.fused:
                _fail(place("fused", name, position), "a type that is no pattern", shorten(member.kind))


def _verify_cells(plan: Plan, place: Place) -> None:
    """Check (5), then the others cell by cell."""
    for kind in plan.types:
        if kind.name not in plan.cells:
            _fail(place("cells"), f"an entry for the type {shorten(kind.name)}", "none")
    length = sum(len(line) for cell in plan.cells.values() for line in cell.operations)
    if length > MAX_OPERATION_TEXT:
        _fail(place("cells"), f"operations of at most {MAX_OPERATION_TEXT:,} characters in all", f"{length:,}")
    types = {kind.name for kind in plan.types}
    for name, cell in plan.cells.items():
        if name not in types:
            _fail(place("cells", name), "an entry for a type of the plan", shorten(name))
        verify_cell(cell, lambda *path, name=name: place("cells", name, *path))


def verify_cell(cell: PlanCell, place: Place = in_memory) -> None:
    """Check (6) to (10) for one cell. Raises PlanError."""
    lines = _verify_operations(cell, place)
    _verify_batches(cell, lines, place)
    _verify_layout(cell, lines, place)
    _verify_unique(cell.weights, "weight", place, "weights")
    outputs = sorted(k for line in lines.values() for k in line.outputs)
    if outputs != list(range(len(outputs))):
        _fail(place("operations"), "outputs numbered from 0, each once", f"{outputs}"[:60])
    _verify_split(cell, lines, place)


def _verify_operations(cell: PlanCell, place: Place) -> dict[str, Line]:
    """Check (6); the lines by name."""
    lines: dict[str, Line] = {}
    for position, text in enumerate(cell.operations):
        try:
            line = parse_line(text)
        except ValueError as error:
            _fail(place("operations", position), "'name = operation(...)'", f"{shorten(text)}: {error}")
        if line.name in lines:
            _fail(place("operations", position), "each name defined once", f"{shorten(line.name)} again")
        for operand in line.variables:
            if operand not in lines:
                _fail(
                    place("operations", position),
                    f"operands of {shorten(line.name)} defined on earlier lines",
                    shorten(operand),
                )
        lines[line.name] = line
    return lines


def _verify_batches(cell: PlanCell, lines: dict[str, Line], place: Place) -> None:
    """Check (7)."""
    computed = {name for name, line in lines.items() if OPERATIONS[line.operation].is_source}
    for position, batch in enumerate(cell.batches):
        for name in batch:
            if name not in lines:
                _fail(place("batches", position), "variables that the operations define", shorten(name))
            if name in computed:
                _fail(place("batches", position), "each operation in one batch", f"{shorten(name)} again, or a source")
            late = next((operand for operand in lines[name].variables if operand not in computed), None)
            if late is not None:
                _fail(place("batches", position), f"{shorten(late)} before {shorten(name)}", "it later")
        operations = {lines[name].operation for name in batch}
        if len(set(batch)) < len(batch) or len(operations) > 1:
            _fail(place("batches", position), "distinct variables of one operation", shorten(", ".join(batch)))
        computed.update(batch)
    for name in lines:
        if name not in computed:
            _fail(place("batches"), f"a batch for {shorten(name)}", "none")


def _verify_split(cell: PlanCell, lines: dict[str, Line], place: Place) -> None:
    """Check (10)."""
    operands = {name for name, line in lines.items() if line.operation == "input"}
    _verify_unique(cell.eager, "operand", place, "eager")
    for position, name in enumerate(cell.eager):
        if name not in operands:
            _fail(place("eager", position), "operands of the cell", shorten(name))


def _verify_layout(cell: PlanCell, lines: dict[str, Line], place: Place) -> None:
    """The first half of check (8)."""
    _verify_unique(cell.layout, "variable", place, "layout")
    variables = {name for name, line in lines.items() if not OPERATIONS[line.operation].is_shared}
    for position, name in enumerate(cell.layout):
        if name not in variables:
            _fail(place("layout", position), "variables that the operations define", shorten(name))
    for name in sorted(variables.difference(cell.layout)):
        _fail(place("layout"), f"every variable, {shorten(name)} too", f"{len(cell.layout)} of {len(variables)}")
