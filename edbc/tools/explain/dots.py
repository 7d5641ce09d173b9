"""An explanation in Graphviz's language (`dot -Tsvg FILE`): state machine, one instance's graph, cells.

(1) `states.dot`: the states of the policy's table with the type that each runs; an edge for each step of the mini-batch
    from state to state, with how often it was taken. Visited states only, where a mini-batch ran.
(2) `graph.dot`: the dataflow graph of the mini-batch's first instance, a colour per type.
(3) `cell-NAME.dot`: the operations of a cell; those that run as one batch stand in one box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from edbc.errors import EdbcError
from edbc.plan.oplines import OPERATIONS, parse_line
from edbc.plan.plan import PlanCell
from edbc.tools.explain.explanation import Explanation
from edbc.tools.explain.observe import RULE


def write_dots(explanation: Explanation, folder: str | Path) -> list[Path]:
    """Write the explanation's files into a folder, made if it does not exist; their names."""
    target, written = Path(folder), []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in dots(explanation).items():
            written.append(target / name)
            written[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        raise EdbcError(
            f"{folder}: expected to write graphs there, got: {error.strerror}; name another folder"
        ) from None
    return written


def dots(explanation: Explanation) -> dict[str, str]:
    """File name -> text."""
    found = {"states.dot": machine_dot(explanation)} if explanation.states else {}
    if explanation.observed is not None and explanation.observed.first is not None:
        found["graph.dot"] = explanation.observed.first.dot() + "\n"
    return found | {f"cell-{_plain(name)}.dot": cell_dot(cell) for name, cell in explanation.plan.cells.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def machine_dot(explanation: Explanation) -> str:
    """Definition (1)."""
    shown = [s for s in explanation.states if s.visits is None or s.visits]
    node = {s.state: f"s{s.number}" for s in shown} | {RULE: "rule"}
    lines = [f"  s{s.number} [label={_quoted(s.state, 'runs ' + s.action)}];" for s in shown]
    moves = explanation.observed.transitions if explanation.observed is not None else {}
    if any(RULE in pair for pair in moves):
        lines.append(f"  rule [label={_quoted('any other state', explanation.plan.policy.fallback)}, style=dashed];")
    lines += [f'  {node[a]} -> {node[b]} [label="{n}"];' for (a, b), n in moves.items()]
    return "\n".join(["digraph states {", "  node [shape=box];", *lines, "}"]) + "\n"


def cell_dot(cell: PlanCell) -> str:
    """Definition (3)."""
    return "\n".join(["digraph cell {", "  rankdir=LR; node [shape=box];", *_cell_lines(cell), "}"]) + "\n"


def _cell_lines(cell: PlanCell) -> Iterator[str]:
    lines = {line.name: line for line in map(parse_line, cell.operations)}
    for name, line in lines.items():
        if OPERATIONS[line.operation].is_source:
            yield f"  {_quoted(name)} [style=rounded];"
    for number, batch in enumerate(cell.batches):
        yield f"  subgraph cluster_{number} {{ label={_quoted(lines[batch[0]].operation)};"
        yield from (f"    {_quoted(name)};" for name in batch)
        yield "  }"
    for name, line in lines.items():
        yield from (f"  {_quoted(operand)} -> {_quoted(name)};" for operand in line.variables)


def _quoted(*lines: str) -> str:
    """A string of Graphviz's language, one row per line."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
