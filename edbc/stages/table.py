"""Cost tables: what stages take on one device, as a file that people can read and plans name by hash.

(1) A table is of one device, element type, batch size, number of threads and version of edbc. Another one's figures say
    nothing here, so compiling refuses them.
(2) Stages are kept in canonical form: by the text of their block (`stages.graph.Block.text`, no names in it) and the
    numbers of their units within it, group by group. Equal blocks share their entries.
(3) An entry has a median and a spread (half of what lies between the quartiles) in whole nanoseconds per strategy, so
    that plans made of it are the same bytes everywhere. `overhead_ns` is what a stage takes that does nothing.

The file is YAML of plain data, written in one order, and read as strictly as plans are (`edbc.plan.reader`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from edbc._version import __version__
from edbc.base.files import found_at, replace_file
from edbc.errors import PlanError, StaleError
from edbc.plan.plan import FORMAT_VERSION
from edbc.plan.reader import parse_as, read_bytes
from edbc.plan.schema import VERSION, Choice, Integer, ListOf, Record, Text
from edbc.plan.static import FORM_COSTS, KERNEL_COSTS, STRATEGIES, FormCost, KernelCost, require_once, verify_forms
from edbc.plan.writer import document_text
from edbc.stages.endings import MOST_UNITS, Dag, members, set_of

SPLIT, MERGE, CONCURRENT = STRATEGIES
MOST_NANOSECONDS = 10**12
"""A quarter of an hour: no stage takes as long."""
SUFFIX = ".costs.yaml"
Groups = tuple[tuple[int, ...], ...]
Schedule = Sequence[tuple[Groups, str]]
"""Stages of a whole graph: groups of units, and the strategy."""


class Cost(NamedTuple):
    """What a stage takes by one strategy, in nanoseconds."""

    median: int
    spread: int


@dataclass(frozen=True)
class Entry:
    """One line of a table."""

    groups: Groups
    run: str
    median_ns: int
    spread_ns: int


@dataclass(frozen=True)
class BlockCosts:
    """What is known of blocks of one kind."""

    units: tuple[str, ...]
    """The lines of the block's text."""
    stages: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table as it stands in a file."""

    format_version: int = FORMAT_VERSION
    edbc: str = __version__
    device: str
    threads: int
    dtype: str
    batch_size: int
    overhead_ns: int
    forms: tuple[FormCost, ...] = ()
    """What the whole network takes by every form of schedule; empty where it was not measured."""
    kernels: tuple[KernelCost, ...] = ()
    """What it takes by every choice of a GPU's kernels, of which the fastest were measured from then on."""
    blocks: tuple[BlockCosts, ...] = ()


STAGE_GROUPS = ListOf(ListOf(Integer(high=MOST_UNITS), MOST_UNITS, least=1), MOST_UNITS, least=1)
ENTRY = Record(
    Entry,
    {
        "groups": STAGE_GROUPS,
        "run": Choice(STRATEGIES),
        "median_ns": Integer(low=1, high=MOST_NANOSECONDS),
        "spread_ns": Integer(high=MOST_NANOSECONDS),
    },
    flow=True,
)
UNIT_LINE = Text("a unit", r"u[0-9]{1,2} = [ -~]+ of (?:nothing|[ux][0-9]{1,3}(?:, [ux][0-9]{1,3})*)", 20_000)
TABLE = Record(
    CostTable,
    {
        "format_version": Integer(low=1),
        "edbc": VERSION,
        "device": Text("the name of a device", r"[ -~]+", 200),
        "threads": Integer(low=1, high=1024),
        "dtype": Choice(("float32", "float64", "bfloat16", "float16")),
        "batch_size": Integer(low=1, high=1_000_000),
        "overhead_ns": Integer(high=MOST_NANOSECONDS),
        "forms": FORM_COSTS,
        "kernels": KERNEL_COSTS,
        "blocks": ListOf(
            Record(
                BlockCosts,
                {"units": ListOf(UNIT_LINE, MOST_UNITS, least=1, block=True), "stages": ListOf(ENTRY, 100_000)},
            ),
            1_000,
        ),
    },
    optional=("kernels",),
)


@dataclass(eq=False)
class Costs:
    """A table to look up in and to add to."""

    head: CostTable
    found: dict[str, dict[Groups, dict[str, Cost]]] = field(default_factory=dict)
    """By the text of a block, the groups of a stage and the strategy."""

    @classmethod
    def of(cls, table: CostTable) -> Costs:
        """What a table holds."""
        costs = cls(replace(table, blocks=()))
        for block in table.blocks:
            stages = costs.of_block("\n".join(block.units))
            for entry in block.stages:
                stages.setdefault(entry.groups, {})[entry.run] = Cost(entry.median_ns, entry.spread_ns)
        return costs

    def of_block(self, text: str) -> dict[Groups, dict[str, Cost]]:
        """What is known of blocks of a text; to be added to."""
        return self.found.setdefault(text, {})

    def table(self) -> CostTable:
        """As it stands in a file: blocks in order of their texts, stages by their units."""
        blocks = (
            BlockCosts(
                tuple(text.split("\n")),
                tuple(
                    Entry(groups, run, cost.median, cost.spread)
                    for groups, by_strategy in sorted(stages.items())
                    for run, cost in sorted(by_strategy.items())
                ),
            )
            for text, stages in sorted(self.found.items())
            if stages
        )
        return replace(self.head, blocks=tuple(blocks))


def dag_of_lines(lines: tuple[str, ...]) -> Dag:
    """The edges that the lines of a block's text state. Raises ValueError where line i does not define u_i, or reads
    what is defined later."""
    reads = []
    for number, line in enumerate(lines):
        if not line.startswith(f"u{number} = "):
            raise ValueError(f"unit {number} is called {line.split(' ', 1)[0]}")
        read = [int(name) for name in re.findall(r"\bu([0-9]+)\b", line.rpartition(" of ")[2])]
        if any(other >= number for other in read):
            raise ValueError(f"unit {number} reads a later one")
        reads.append(set_of(set(read)))
    return Dag(tuple(reads))


def table_text(table: CostTable) -> str:
    """The text of a table; `parse_table` gives an equal one back."""
    return document_text(TABLE, table)


def parse_table(text: bytes | str, where: str) -> CostTable:
    """The table that a text states, verified. Raises PlanError, or StaleError for a later format."""
    table: CostTable = parse_as(text, where, TABLE, "a cost table")
    return verify_table(table, where)


def verify_table(table: CostTable, where: str) -> CostTable:
    """Check what must hold between fields: each form of schedule and choice of kernels once; blocks are DAGs, each
    once; groups are the connected components of a stage, each strategy of a stage once. Raises PlanError."""
    verify_forms(table.forms, lambda: f"{where}: forms")
    require_once([cost.kernels for cost in table.kernels], "choice of kernels", lambda: f"{where}: kernels")
    seen = set()
    for number, block in enumerate(table.blocks):
        place = f"{where}: block {number}"
        try:
            dag = dag_of_lines(block.units)
        except ValueError as error:
            raise PlanError(f"{place}: expected units in order, got an error: {error}; {_REMEDY}") from None
        if block.units in seen:
            raise PlanError(f"{place}: expected each block once, got one again; {_REMEDY}")
        seen.add(block.units)
        _verify_entries(block, dag, place)
    return table


_REMEDY = "measure again with 'edbc compile --profile'"


def _verify_entries(block: BlockCosts, dag: Dag, place: str) -> None:
    seen = set()
    for entry in block.stages:
        told = " | ".join(" ".join(map(str, group)) for group in entry.groups)
        if (entry.groups, entry.run) in seen:
            raise PlanError(
                f"{place}: expected each stage and strategy once, got '{told}' {entry.run} again; {_REMEDY}"
            )
        seen.add((entry.groups, entry.run))
        units = [unit for group in entry.groups for unit in group]
        if len(set(units)) < len(units) or max(units) >= dag.size:
            raise PlanError(f"{place}: expected units of the block, each once, got '{told}'; {_REMEDY}")
        if groups_of(dag, set_of(units)) != entry.groups:
            raise PlanError(f"{place}: expected the connected groups of a stage, got '{told}'; {_REMEDY}")


def groups_of(dag: Dag, stage: int) -> Groups:
    """A stage in canonical form: its groups, each in order, by their first units."""
    return tuple(tuple(members(group)) for group in dag.groups_of(stage))


def read_table(path: str | os.PathLike[str]) -> CostTable:
    """The table in a file. Raises PlanError, or StaleError."""
    return parse_table(read_bytes(path, os.fspath(path), "cost table"), os.fspath(path))


def write_table(table: CostTable, path: str | os.PathLike[str]) -> str:
    """Write a table whole or not at all; its sha256."""
    data = table_text(table).encode("ascii")
    parse_table(data, f"{os.fspath(path)} (not written)")
    replace_file(path, lambda temporary: temporary.write_bytes(data))
    return hashlib.sha256(data).hexdigest()


def table_path(plan: str | os.PathLike[str]) -> Path:
    """Where the table of a plan stands: `x.costs.yaml` beside `x.yaml`. Paths without a name (`.`) have one too."""
    return Path(plan).parent / f"{Path(plan).stem}{SUFFIX}"


def table_for(plan: str | os.PathLike[str], costs: str | os.PathLike[str] | None) -> Path | None:
    """The table to compile a plan with: the one that `costs` names, if it is one, else the one beside the plan."""
    if costs is not None:
        return Path(costs) if os.fspath(costs).endswith(SUFFIX) else None
    return table_path(plan) if found_at(table_path(plan)) == "a file" else None


def require_table(table: CostTable, where: str, **expected: object) -> None:
    """Raise StaleError unless the table is of the device, threads, element type, batch size and edbc that are asked
    for."""
    expected = {"edbc": __version__, **expected}
    for name, value in expected.items():
        if getattr(table, name) != value:
            raise StaleError(
                f"{where}: expected costs of {name.replace('_', ' ')} {value}, got {getattr(table, name)}; measure "
                "again with 'edbc compile --profile'"
            )


Known = Mapping[Groups, Mapping[str, Cost]]
