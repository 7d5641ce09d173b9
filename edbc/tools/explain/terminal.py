"""An explanation as text for terminals: sections of tables and small pictures, at most `width` columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from edbc.tools.explain.explanation import FIGURES, STATES_SAY, Explanation
from edbc.tools.explain.layouts import CellBatch, CellLayout, Operand
from edbc.tools.report.figures import count, share

STATES = 16
"""States shown; the rest is counted."""
BLOCKS = " ▁▂▃▄▅▆▇█"
"""Heights of a cell of the schedule's picture."""
MARKS = "Rabcdefgh"
"""Mark of the result and of the operands in a strip of memory; `i` marks a product's inputs."""


def explanation_text(explanation: Explanation, width: int = 80) -> str:
    """All sections; ends with a line break."""
    sections = [_head, _types, _apart, _schedule, _comparison, _states, _layouts, _times]
    blocks = ["\n".join(section(explanation, max(40, width))) for section in sections]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(e: Explanation, width: int) -> Iterator[str]:
    policy = e.plan.policy
    yield from _wrapped(f"{e.name}: {e.model_text}" if e.model_text else e.name, width)
    if e.observed is not None:
        observed = e.observed
        batches, nodes = len(observed.steps), observed.num_nodes
        yield from _wrapped(f"on {observed.source}, back end {observed.backend}", width, "  ")
        each = nodes / batches if batches else 0
        yield from _wrapped(
            f"{count(nodes, 'node')} run in {count(batches, 'batch', 'batches')}, {each:.1f} per batch; no schedule "
            f"needs fewer than {observed.lower_bound:,}",
            width,
            "  ",
        )
        yield from _wrapped(observed.on_device.text, width, "  ")
        if policy.kind == "fsm":
            yield from _wrapped(_deciders(observed.table_steps, observed.unseen_states, batches), width, "  ")
    for note in e.notes:
        yield from _wrapped(f"note: {note}", width, "  ")


def _deciders(table_steps: int, unseen_states: int, batches: int) -> str:
    if table_steps == batches:
        return "the table chose every batch"
    rest = batches - table_steps - unseen_states
    if rest:
        return "the rule beside the table chose every batch: its schedule is the cheaper"
    return f"the table chose {share(table_steps, batches)} of the batches, its fallback the rest"


def _types(e: Explanation, width: int) -> Iterator[str]:
    yield from _wrapped("WHAT BATCHES TOGETHER: nodes of one type, whatever instance they come from", width)
    if e.observed is not None:
        rows = [[t.name, *e.figures(t)] for t in e.types]
        yield from _table([["type", *FIGURES], *rows], width, right=range(1, len(FIGURES)))
        yield from _wrapped(
            "least: the longest chain of nodes that wait for each other; no schedule needs fewer", width, "  "
        )
        yield ""
    for facts in e.types:
        source = f", from {facts.source}" if facts.source else ""
        yield from _wrapped(f"{facts.name}{source}: {facts.signature}", width, "  ")
        if facts.generic:
            yield from _wrapped(facts.generic_text, width, "    ")


def _apart(e: Explanation, width: int) -> Iterator[str]:
    yield "WHAT DOES NOT, although it is close"
    if not e.apart:
        yield "  nothing: no two types are nearly equal"
    for difference in e.apart:
        yield from _wrapped(f"{difference.names}: {difference.reason}", width, "  ")


def _schedule(e: Explanation, width: int) -> Iterator[str]:
    if e.observed is None or not e.observed.steps:
        return
    steps = [(step.kind, step.size) for step in e.observed.steps]
    names = [t.name for t in e.types]
    label = min(max(map(len, names)), 16)
    columns = width - label - 4
    per_column = -(-len(steps) // columns)
    unit = "one column is a batch" if per_column == 1 else f"one column is {per_column} batches"
    yield from _wrapped(f"SCHEDULE: batches from left to right, {unit}, the height its nodes", width)
    for kind, name in enumerate(names):
        yield f"  {name[:label]:{label}} {_row(steps, kind, per_column)}".rstrip()
    yield from _wrapped(_pattern([names[kind] for kind, _ in steps]), width, "  ")


def _row(steps: Sequence[tuple[int, int]], kind: int, per_column: int) -> str:
    most = max(size for k, size in steps if k == kind) if any(k == kind for k, _ in steps) else 1
    sizes = [
        max((size for k, size in steps[i : i + per_column] if k == kind), default=0)
        for i in range(0, len(steps), per_column)
    ]
    return "".join(BLOCKS[-(-size * (len(BLOCKS) - 1) // most)] for size in sizes)


def _pattern(names: Sequence[str]) -> str:
    """The batching sequence, repeats of one or two types counted: `leaf (internal out) x8`."""
    words: list[str] = []
    i = 0
    while i < len(names):
        period = 2 if tuple(names[i : i + 2]) == tuple(names[i + 2 : i + 4]) and len(set(names[i : i + 2])) == 2 else 1
        unit = list(names[i : i + period])
        repeats = 1
        while list(names[i + repeats * period : i + (repeats + 1) * period]) == unit:
            repeats += 1
        word = unit[0] if period == 1 else f"({' '.join(unit)})"
        words.append(word if repeats == 1 else f"{word} x{repeats}")
        i += repeats * period
    return "in order: " + (" ".join(words) if len(words) <= 24 else " ".join(words[:24]) + " ...")


def _comparison(e: Explanation, width: int) -> Iterator[str]:
    figures = e.comparison
    if not figures:
        return
    where = "on the same mini-batch" if e.observed is not None else "when it was compiled"
    yield from _wrapped(f"POLICIES: batches {where}", width)
    most, label = max(*figures.values(), 1), max(map(len, figures))
    room = max(10, width - label - 14)
    for name, value in figures.items():
        yield f"  {name:{label}} {value:7,} {'█' * max(1, round(room * value / most))}"


def _states(e: Explanation, width: int) -> Iterator[str]:
    policy = e.plan.policy
    if not e.states:
        yield from _wrapped(f"POLICY: the fixed rule {policy.kind} chooses every batch", width)
        return
    known = count(len(e.states), "state")
    yield from _wrapped(
        f"STATE MACHINE: {known} over {policy.encoding}; in a state that it lacks, {policy.fallback} chooses", width
    )
    yield from _wrapped(STATES_SAY.get(policy.encoding or "", ""), width, "  ")
    visits = e.observed is not None
    header = ["", "state", "runs", "visits"] if visits else ["", "state", "runs"]
    rows = [[str(s.number), s.state, s.action, *([f"{s.visits:,}"] if visits else [])] for s in e.states[:STATES]]
    yield from _table([header, *rows], width, right=[0, 3])
    if len(e.states) > STATES:
        yield f"  ... {len(e.states) - STATES:,} more states"
    if e.observed is not None:
        numbers = {s.state: str(s.number) for s in e.states}
        moves = e.observed.transitions.most_common(12)
        text = ", ".join(f"{numbers.get(a, 'rule')}->{numbers.get(b, 'rule')} x{n}" for (a, b), n in moves)
        if text:
            yield from _wrapped(f"moves: {text}", width, "  ")


def _layouts(e: Explanation, width: int) -> Iterator[str]:
    yield from _wrapped(
        "MEMORY of each cell, in the order of its code and in the plan's: one column is a variable; R results of a "
        "batch, a b c its operands, i the inputs of its product",
        width,
    )
    for names, layout in e.distinct_layouts:
        yield from _layout(names, layout, width)


def _layout(names: str, layout: CellLayout, width: int) -> Iterator[str]:
    batches = [batch for batch in layout.batches if batch.operands]
    yield from _wrapped(
        f"{names}: {count(layout.num_operations, 'operation')} in "
        f"{count(len(layout.batches), 'batch', 'batches')}; operands out of place {layout.misplaced_before} before, "
        f"{layout.misplaced_after} after; {count(layout.copies, 'copy', 'copies')} left",
        width,
        "  ",
    )
    if layout.split_text:
        yield from _wrapped(f"split: {layout.split_text}, where that pays", width, "    ")
    if not batches:
        return
    for title, order in (("before", layout.before), ("after", layout.after)):
        yield from _wrapped(f"{title}: {' '.join(order)}", width, "    ")
        for batch in batches:
            strip, misplaced = _strip(batch, order, title)
            label = f"{batch.operation} x{batch.width}"
            yield from _beside(f"      {label:14} {strip}", misplaced, width)


def _beside(strip: str, remark: str, width: int) -> Iterator[str]:
    """A remark after a strip, or under it where the terminal is too narrow for both."""
    whole = f"{strip}  {remark}".rstrip()
    yield from [whole] if len(whole) <= width else [strip, f"        {remark}"]


def _strip(batch: CellBatch, order: Sequence[str], title: str) -> tuple[str, str]:
    """One character per variable, and the marks of operands that are out of place."""
    marks = dict.fromkeys(order, "·")
    misplaced = []
    for operand in batch.operands:
        mark = _mark(operand)
        marks.update(dict.fromkeys(operand.variables, mark))
        if not (operand.in_place_before if title == "before" else operand.in_place_after):
            misplaced.append(mark)
    return "".join(marks.values()), "".join(misplaced) and "out of place: " + " ".join(misplaced)


def _mark(operand: Operand) -> str:
    if operand.role in ("result", "inputs"):
        return operand.role[0].upper() if operand.role == "result" else "i"
    return MARKS[min(int(operand.role.split()[1]), len(MARKS) - 1)]


def _times(e: Explanation, width: int) -> Iterator[str]:
    if e.observed is None:
        return
    yield from _wrapped("TIME of this mini-batch, every batch timed alone", width)
    yield from _table(e.times, width, right=[1, 2])
    for line in (*e.observed.remarks, e.moved):
        yield from _wrapped(line, width, "  ")


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    ) or [indent]


def _table(rows: Sequence[Sequence[str]], width: int, right: Sequence[int] = ()) -> Iterator[str]:
    """Columns side by side, numbers to the right. On a narrow terminal the widest columns shrink, then the last go."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    room = width - 2 - 2 * (len(widths) - 1)
    excess = sum(widths) - room
    while excess > 0 and max(widths) > 8:
        widest = widths.index(max(widths))
        cut = min(excess, widths[widest] - 8)
        widths[widest] -= cut
        excess -= cut
    while len(widths) > 2 and sum(widths) + 2 * len(widths) > width:
        widths.pop()
    for row in rows:
        cells = [_cell(text, w, c in right) for c, (text, w) in enumerate(zip(row, widths, strict=False))]
        yield ("  " + "  ".join(cells)).rstrip()
    if len(widths) < len(rows[0]):
        yield f"  ({count(len(rows[0]) - len(widths), 'column')} more on a wider terminal)"


def _cell(text: str, width: int, is_right: bool) -> str:
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.rjust(width) if is_right else text.ljust(width)
