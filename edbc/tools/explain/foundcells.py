"""What became a cell though nobody marked it, what did not, and what that costs: `edbc.capture.code.automatic`, for
people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeVar

from torch import nn

from edbc.base.families import family, grouped, name_of
from edbc.capture.code.automatic import candidates, located, module_at
from edbc.capture.code.closed import Closed, methods_of
from edbc.capture.code.regions import Regions
from edbc.plan.plan import Plan
from edbc.tools.explain.observe import Observation

T = TypeVar("T", int, float)
MOST = 3
"""Methods and regions told that are no cells."""


def cells_text(automatic: dict[str, str]) -> str:
    """Names and lines of a plan's automatic cells."""
    return ", ".join(f"{name} ({line})" for name, line in sorted(automatic.items()))


def fused_families(plan: Plan) -> list[list[str]]:
    """Names of the types that are patterns, those of one family together (`edbc.base.families`)."""
    signatures = {kind.name: kind.signature for kind in plan.types}
    return grouped(plan.fused, lambda name: family(signatures[name]))


def fused_text(plan: Plan, name: str) -> str:
    """What a type that is a pattern consists of, and the lines of code that its operations come from."""
    source = next(kind.source for kind in plan.types if kind.name == name)
    return f"{'; '.join(plan.fused[name])} ({source})"


def cell_notes(plan: Plan, model: nn.Module, observed: Observation) -> Iterator[str]:
    """The automatic cells, and the methods and regions in which most nodes are recorded one by one, with the reason and
    what recording and running them takes of a mini-batch, a clock's figure."""
    with_nodes = {n: line for n, line in plan.automatic.items() if any(_is_of(t.signature, n) for t in plan.types)}
    if with_nodes:
        yield f"cells that nobody marked: {cells_text(with_nodes)}"
    if len(with_nodes) < len(plan.automatic):
        rest = {name: line for name, line in plan.automatic.items() if name not in with_nodes}
        yield (
            f"cells by their code, which are given as many rows as an instance brings, so that their operations are "
            f"nodes, one for each row: {cells_text(rest)}"
        )
    for names in fused_families(plan):
        yield f"{name_of(names)} is mined: {fused_text(plan, names[0])}"
    counts: Counter[tuple[str, int]] = Counter()
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    recording = observed.construction_seconds / max(observed.num_nodes, 1)
    for step in observed.steps:
        file, _, line = observed.types[step.kind].source.partition(",")[0].rpartition(":")
        if line.isdigit() and not observed.types[step.kind].signature.startswith(("cell ", "module ")):
            counts[file, int(line)] += step.size
            seconds[file, int(line)] += step.seconds + step.size * recording
    closed = Closed(model)
    regions = Regions(model, closed)
    is_dear = "on the sample that costs less"
    if not plan.automatic:
        is_dear = "compiled with '--cells marked', or on the sample that costs less, as no cell is automatic"
    of_regions, obstacles = candidates(model, closed, regions)
    found = []
    for name, obstacle in obstacles.items():
        path, method = located(model, name)
        code = methods_of(module_at(model, path))[method].__code__
        lines = range(code.co_firstlineno, 1 + max((line for *_, line in code.co_lines() if line), default=0))
        file = obstacle.location.rpartition(":")[0]
        found.append((_within(counts, file, lines), _within(seconds, file, lines), name,
                      f"{obstacle.location}: {obstacle.reason}"))  # fmt: skip
    for candidate in of_regions:
        region = regions.find(candidate.kind, candidate.method)
        own = candidate.name.partition(":")[0].removesuffix(".forward")
        if own in plan.automatic:  # whose calls that are no nodes are told with what prevents it
            continue
        if region is not None and region.is_whole and candidate.name not in plan.automatic:
            file = candidate.location.rpartition(":")[0]
            found.append((_within(counts, file, region.lines), _within(seconds, file, region.lines), candidate.name,
                          f"{candidate.location}: {is_dear}"))  # fmt: skip
    for nodes, took, name, reason in sorted((x for x in found if x[0]), key=lambda x: (-x[0], x[2]))[:MOST]:
        yield (
            f"{name} is no cell, so that {nodes:,} nodes in it are recorded one by one, which with running them takes "
            f"{1e6 * took:,.0f} us of the mini-batch: {reason}"
        )


def _is_of(signature: str, cell: str) -> bool:
    return signature.startswith(f"cell {cell}(")


def _within(of_lines: Mapping[tuple[str, int], T], file: str, lines: range) -> T | int:
    """The sum of what lines of a file have."""
    return sum(number for (where, line), number in of_lines.items() if where == file and line in lines)
