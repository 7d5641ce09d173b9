"""Waves: schedules for a device whose steps hold batches of several types; fewest steps first, then fewest batches.

Definitions.

(1) A *wave* is a set of batches of different types that run in one step; none reads another. A schedule's number of
    *steps* is that of its waves. The *height* of a node is the number of nodes on the longest path that starts at it,
    itself counted, so no schedule has fewer steps than the largest height L: the bound, which waves reach.
(2) At step s, from 0 on, a node is *due* when its height is L - s: a later step would lengthen the schedule. A type is
    due when a ready node of it is. Due types run, each with all nodes of it that were ready when the step began.
(3) Of the other ready types each may run or wait for more nodes. Waiting for ever is the rule `due`: nothing runs
    before it must. A *table* says otherwise, state by state: its action is one more type to run in this step, or WAIT,
    which closes it. So every table reaches the bound, and tables differ in their batches alone.
(4) A *state* names the ready types in index order. `!` runs in this step. Of those that do not yet, `*`: all unexecuted
    nodes of the type are ready, so that waiting brings it nothing; `~`: it is due in two steps at most; a bare name
    waits longer. In a state that the table lacks, WAIT.

The problem is that of loading time scheduling with unit steps (Bhatia, Khuller and Naor, J. Algorithms 36, 2000), with
as many machines as there are types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from edbc.errors import PlanError
from edbc.schedule.policy import quote

if TYPE_CHECKING:
    from edbc.base.graph import Ints
    from edbc.schedule.statetable import Table

State = tuple[int, ...]
"""`type * 4 + mark` of every ready type."""
WAIT = -1
MARKS = ("", "!", "*", "~")


@dataclass(frozen=True)
class Waves:
    """Definition (3): a table, empty for the rule `due`."""

    table: Mapping[State, int] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def compiled(self) -> tuple[Table, Ints]:
        """The table as native code reads it; made once."""
        from edbc.schedule.statetable import compile_table

        return compile_table(self.table)

    def to_text(self, names: Sequence[str]) -> dict[str, str]:
        """State to action, as a plan has them, in the order of the states; states that wait need no entry."""
        return {_state_text(s, names): names[action] for s, action in sorted(self.table.items()) if action != WAIT}

    @classmethod
    def from_text(cls, table: Mapping[str, str], names: Sequence[str]) -> Waves:
        """The inverse of `to_text`. Raises PlanError that names the state."""
        index = {quote(name): number for number, name in enumerate(names)}
        return cls({(state := _state_of(text, index)): _action_of(text, action, state, index)
                    for text, action in table.items()})  # fmt: skip


def _state_text(state: State, names: Sequence[str]) -> str:
    return " ".join(quote(names[word // 4]) + MARKS[word % 4] for word in state)


def _state_of(text: str, index: Mapping[str, int]) -> State:
    words = []
    for part in text.split(" "):
        mark = next((m for m in (1, 2, 3) if part.endswith(MARKS[m])), 0)
        name = part.removesuffix(MARKS[mark])
        if name not in index:
            raise PlanError(f"state '{text}': expected types of the plan, got '{name}'")
        words.append(4 * index[name] + mark)
    if any(b // 4 <= a // 4 for a, b in zip(words, words[1:], strict=False)):
        raise PlanError(f"state '{text}': expected each ready type once, in the plan's order")
    return tuple(words)


def _action_of(text: str, action: str, state: State, index: Mapping[str, int]) -> int:
    waiting = {word // 4 for word in state if word % 4 != 1}
    if index.get(quote(action), WAIT) not in waiting:
        raise PlanError(f"state '{text}': expected a ready type that does not run yet as the action, got '{action}'")
    return index[quote(action)]
