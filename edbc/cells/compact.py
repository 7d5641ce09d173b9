"""Offsets of a program, with the memory of dead variables used again.

Lowering gives every variable columns of its own, in the order of the layout. Here spans move: what steps read or write
as one stays together (a group), a variable whose last reader has run makes room, and the row gets shorter, so that more
rows stay in cache. Loads write before all steps, stores read after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from edbc.cells.offsets import plan_offsets
from edbc.cells.program import Call, Copy, Map, Product, Program, Span, Step


def compact(program: Program) -> Program:
    """The same program in a row that is no longer; of one dtype, others stay. O(v^2) in the number of spans."""
    if program.widths:
        return program
    atoms = _atoms(program)
    sizes = {name: stop - start for name, (start, stop) in atoms.items()}
    order = tuple(sorted(atoms, key=lambda name: atoms[name]))
    offsets, width = plan_offsets(order, sizes, _lives(program, atoms), _groups(program, atoms, order))
    if width >= program.width:
        return program
    shift = {atoms[name][0]: offsets[name] for name in order}

    def moved(span: Span) -> Span:
        return Span(shift[span.offset], span.size) if span.size else Span(0, 0)

    return replace(
        program,
        width=width,
        loads=tuple(replace(load, span=moved(load.span)) for load in program.loads),
        steps=tuple(_with_spans(step, moved) for step in program.steps),
        stores=tuple(replace(store, span=moved(store.span)) for store in program.stores),
    )


def _spans_of(step: Step) -> tuple[list[Span], Span]:
    """The spans that a step reads, and the one that it writes."""
    if isinstance(step, Product):
        return [step.source, *([] if step.addend is None else [step.addend])], step.result
    if isinstance(step, Copy):
        return [step.source], step.result
    if isinstance(step, Map):
        return [s for s in step.sources if isinstance(s, Span)], step.result
    return [span for span, _ in step.sources], step.result


def _with_spans(step: Step, moved: Callable[[Span], Span]) -> Step:
    if isinstance(step, Product):
        addend = None if step.addend is None else moved(step.addend)
        return replace(step, source=moved(step.source), result=moved(step.result), addend=addend)
    if isinstance(step, Copy):
        return replace(step, source=moved(step.source), result=moved(step.result))
    if isinstance(step, Map):
        sources = tuple(moved(s) if isinstance(s, Span) else s for s in step.sources)
        return replace(step, sources=sources, result=moved(step.result))
    return Call(step.op, tuple((moved(span), c) for span, c in step.sources), moved(step.result))


def _every_span(program: Program) -> Iterator[Span]:
    yield from (load.span for load in program.loads)
    for step in program.steps:
        reads, writes = _spans_of(step)
        yield from reads
        yield writes
    yield from (store.span for store in program.stores)


def _atoms(program: Program) -> dict[str, tuple[int, int]]:
    """The smallest pieces between borders of spans; each is wholly inside or outside of every span."""
    borders = sorted({b for span in _every_span(program) if span.size for b in (span.offset, span.stop)})
    used = [(s.offset, s.stop) for s in _every_span(program) if s.size]
    pieces = zip(borders, borders[1:], strict=False)
    return {f"{a:09d}": (a, b) for a, b in pieces if any(start <= a and b <= stop for start, stop in used)}


def _lives(program: Program, atoms: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """First and last step of every piece; loads are step 0, stores come after the last step."""
    end = len(program.steps) + 1
    events = [(0, load.span) for load in program.loads] + [(end, store.span) for store in program.stores]
    for number, step in enumerate(program.steps, 1):
        reads, writes = _spans_of(step)
        events += [(number, span) for span in (*reads, writes)]
    lives: dict[str, tuple[int, int]] = {}
    for number, span in events:
        for name, (start, stop) in atoms.items():
            if span.offset <= start and stop <= span.stop:
                first, last = lives.get(name, (number, number))
                lives[name] = (min(first, number), max(last, number))
    return lives


def _groups(program: Program, atoms: dict[str, tuple[int, int]], order: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Pieces that some span holds together, united where spans overlap."""
    joined: list[list[int]] = []
    for start, stop in sorted({(s.offset, s.stop) for s in _every_span(program) if s.size}):
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    groups = [tuple(n for n in order if start <= atoms[n][0] < stop) for start, stop in joined]
    return [group for group in groups if len(group) > 1]
