"""Templates: what the programs of a mini-batch tell of its graph, whatever its instances bring.

Definitions.

(1) A kept forward is a program, and all instances of it are one run, whose steps are taken for all of them in turn
    (`ragged.expandloops`). So the nodes of a step stand one behind the other, and those of all steps are the graph.
(2) The *template* of a mini-batch is a graph with one node for each step that makes nodes: it reads the steps that its
    registers come of. A schedule of the template is one of the graph, with the nodes of a step in the place of its
    node: where a node reads another, their steps do too. Sizes, indices and how many instances there are do not matter.
(3) A program *with patterns* is one in which chains of additions are sums, and patterns of the plan steps of their own,
    where all their steps have a node for the same rows and nothing else reads these. A forward that is kept records its
    program with patterns wherever it runs, and among its nodes nobody looks for others: what by chance is one for some
    rows (a row that one instance sends to one other) would make an instance's bits depend on how it was recorded, as
    products in patterns begin with what is added to them.

So neither patterns nor an order are looked for among the nodes of a mini-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edbc.base.frozen import frozen
from edbc.base.graph import Graph, ints
from edbc.capture.ragged.expand import add_missing
from edbc.capture.ragged.program import EACH, GROUP, REDUCE, RUN, SCAN, Count, Draft, Ints, Program, Reduction

if TYPE_CHECKING:
    from edbc.capture.ragged.kept import KeptCall
    from edbc.capture.record.table import Entry, TypeTable


@frozen
class Template:
    """Definition (2)."""

    graph: Graph
    step: Ints
    """Of each node, the number of the step among those of all programs."""


class OfSteps(NamedTuple):
    """A graph whose nodes are those of steps: its template, and where the nodes of each step begin."""

    template: Template
    step_ptr: Ints


def template_of(table: TypeTable, programs: Sequence[Program]) -> Template | None:
    """The template of a mini-batch with a run of each program, in this order; None where the steps of one are taken for
    one row after the other."""
    key, known = tuple([program.index for program in programs]), table.programs.templates
    found = known.get(key)
    if found is None or found[0] is not table.graph_types():
        made = _new_template(table, programs)
        found = known.add(key, (table.graph_types(), made))
    return found[1]


def _new_template(table: TypeTable, programs: Sequence[Program]) -> Template | None:
    nodes: list[tuple[int, list[int]]] = []
    numbers: list[int] = []
    before = 0
    for program in programs:
        made: list[list[int]] = []
        """What each register comes of."""
        for number, (op, parameters, registers) in enumerate(program.steps):
            if op == SCAN:
                return None
            read = sorted({node for register in registers if register >= 0 for node in made[register]})
            if op in (EACH, REDUCE, GROUP, RUN):
                nodes.append((_type_of(table, op, parameters[0]), read))
                numbers.append(before + number)
                own = [len(nodes) - 1]
                made += [[*read, *own] if op == GROUP else own] * (parameters[1] if op == EACH else 1)
            else:
                made.append(read)
        before += len(program.steps)
    return Template(Graph.build(table.graph_types(), nodes), np.array(numbers, np.int64))


def _type_of(table: TypeTable, op: int, number: int) -> int:
    """The type of a step's nodes, of an entry or of what is variadic."""
    if op != EACH:
        entries = table.programs.entries_of(number)
        if not entries:
            add_missing(table, [number, 2])
        number = next(iter(entries.values()))
    return table.entries[number].type_index


def with_patterns(table: TypeTable, call: KeptCall) -> Program:
    """Definition (3)."""
    matchers, known, key = table.fusions.matchers(), table.programs.with_patterns, (call.program.index, call.equal)
    found = known.get(key)
    if found is None or found[0] is not matchers:
        found = known[key] = matchers, _fused(table, call.program, _Sizes(call.equal), matchers)
    return found[1]


class _Sizes:
    """Sizes of registers, of which some pairs are equal."""

    def __init__(self, equal: Sequence[tuple[Count, Count]]):
        self._first: dict[Count, Count] = {}
        for a, b in equal:
            a, b = self(a), self(b)
            if a != b:
                self._first = {k: a if v == b else v for k, v in self._first.items()} | {b: a}

    def __call__(self, count: Count) -> Count:
        """One for all that equal it."""
        return self._first.get(count, count)


class _Step(NamedTuple):
    """A step of a program that is rewritten; what it reads are arguments, or numbers of registers as they were."""

    op: int
    parameters: tuple[int, ...]
    reads: list[int]
    made: list[int]
    """The registers that it makes, as they were."""


def _fused(table: TypeTable, program: Program, sizes: _Sizes, matchers: Any) -> Program:
    steps, made = list[_Step](), 0
    counts = program.counts_of_steps()
    for (op, parameters, registers), own in zip(program.steps, counts, strict=True):
        steps.append(_Step(op, parameters, list(registers), list(range(made, made + len(own)))))
        made += len(own)
    count_of = [sizes(count) for of_step in counts for count in of_step]
    read_apart = _read_apart(steps, count_of, program.results)
    steps = _with_sums(table, steps, read_apart)
    if matchers is not None:
        steps = _of_patterns(table, steps, read_apart, matchers)
    return _written(table, program, steps, count_of, sizes)


def _with_sums(table: TypeTable, steps: Sequence[_Step], read_apart: Sequence[int]) -> list[_Step]:
    """Chains of additions as sums, the terms in the order in which they are added (`forward.buildloops.fuse_sums`)."""
    uses = Counter([r for step in steps for r in step.reads] + list(read_apart))
    sums: dict[int, int] = {}
    """By register, where the addition that makes it stands."""
    found = list[_Step | None]()
    for step in steps:
        if step.op == EACH and table.entries[step.parameters[0]].is_sum:
            first, *others = step.reads
            at = sums.get(first) if uses[first] == 1 else None
            before = None if at is None else found[at]
            if at is not None and before is not None:
                found[at], reads = None, [*before.reads, *others]
                number = _sum_of(table, table.entries[step.parameters[0]], len(reads))
                step = _Step(EACH, (number, 1, 0), reads, step.made)
            sums[step.made[0]] = len(found)
        found.append(step)
    return [step for step in found if step is not None]


def _read_apart(steps: Sequence[_Step], count_of: Sequence[Count], results: Sequence[int]) -> list[int]:
    """Registers that are results, or that a step reads with a node for other rows than these: no inner ones."""
    found = [register for register in results if register >= 0]
    for step in steps:
        if step.op == EACH:
            found += [r for r in step.reads if r >= 0 and count_of[r] != count_of[step.made[0]]]
    return found


def _sum_of(table: TypeTable, entry: Entry, count: int) -> int:
    """The entry of a sum of so many terms like those of an addition."""
    number = table.programs.variadic(Reduction("sum", entry.output_slots[0], entry.operation.autocast))
    entries = table.programs.entries_of(number)
    if count not in entries:
        add_missing(table, [number, count])
    return entries[count]


def _of_patterns(table: TypeTable, steps: list[_Step], read_apart: Sequence[int], matchers: Any) -> list[_Step]:
    from edbc.capture.patterns import fuseloops

    step_of = {register: (v, k) for v, step in enumerate(steps) for k, register in enumerate(step.made)}
    ptr, refs = _flat([step.reads for step in steps])
    places = [step_of[r] if r >= 0 else (r, 0) for r in refs.tolist()]
    kinds = [table.entries[step.parameters[0]].type_index if step.op == EACH else -1 for step in steps]
    nodes = [ints(of) for of in (kinds, ptr, [v for v, _ in places], [k for _, k in places])]
    apart = np.array([step_of[r][0] for r in read_apart for _ in range(2)], np.int64)
    kept, new_kinds, new_ptr, operands, outputs, _ = fuseloops.fuse(
        *nodes, apart, np.zeros(len(steps), np.bool_), matchers
    )
    if len(kept) == len(steps):
        return steps
    found = []
    for i, v in enumerate(kept.tolist()):
        step = steps[v]
        read = zip(operands[new_ptr[i] : new_ptr[i + 1]].tolist(), outputs[new_ptr[i] : new_ptr[i + 1]].tolist(),
                   strict=True)  # fmt: skip
        reads = [steps[kept[w]].made[k] if w >= 0 else w for w, k in read]
        parameters = step.parameters
        if step.op == EACH and new_kinds[i] != kinds[v]:
            parameters = (table.operation_of_type[int(new_kinds[i])].index, *parameters[1:])
        found.append(_Step(step.op, parameters, reads, step.made))
    return found


def _written(table: TypeTable, program: Program, steps: Sequence[_Step], count_of: Sequence[Count],
             sizes: _Sizes) -> Program:  # fmt: skip
    """The program of these steps, with registers in their order."""
    draft = Draft(program.num_args)
    new: dict[int, int] = {}
    for step in steps:
        registers = [new[r] if r >= 0 else r for r in step.reads]
        if step.op == EACH:
            count = count_of[step.made[0]]
            leader = -1 if count is None else [sizes(draft.count_of(r)) for r in registers].index(count)
            first = draft.each(step.parameters[0], step.parameters[1], registers, leader)
        else:
            first = draft.add(step.op, step.parameters, registers, count_of[step.made[0]])
        new.update({register: first + k for k, register in enumerate(step.made)})
    return table.programs.made_of(draft, [new[r] if r >= 0 else r for r in program.results])


def _flat(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Parts as CSR."""
    ptr = np.cumsum([0, *map(len, parts)])
    return ptr, np.array([number for part in parts for number in part], np.int64)
