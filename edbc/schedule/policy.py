"""Policies: which type runs next, as data, and their text form in a plan.

(1) A *state* is the encoded frontier (ED-Batch, Chen et al., ICML 2023, section 2.3), here a tuple of integers, the
    *words* of choice.py. An *action* is the type of the next batch; it must be ready in its state.
(2) A *table* maps states to actions: the learned finite state machine. A state that it lacks is *unseen*, and so is
    every state with a type that the plan does not know; there the *fallback*, a fixed rule, chooses.
(3) A table may run *beside* a fixed rule: both are simulated on the mini-batch, and the cheaper schedule runs.
(4) The *cost* of a type is what one of its batches takes beside its rows, relative to the dearest type's; the cost of
    rows is the same in every schedule. Where none is given every batch costs 1, and cheapest means shortest.

Text of a state, with type names for `a`, `b`, `c` (an action is a bare type name):

========  ============  =======================================================================================
base      `a b`         the ready types, in the plan's order
max       `a b^`        the same, `^` after the one with most ready nodes
sort      `b<a`         the ready types, ascending by the number of ready nodes
phase     `3/8 a b`     after the eighth of the graph's nodes that runs now, from 0/8
critical  `a!pg b!b c`  after `!`: p productive, g holds another type's term of the lower bound (gates it), b blocks
                        another type
rank      `a!p>b`       the two ready types of largest critical score, best first; p productive
========  ============  =======================================================================================

In names inside states, `%`, `!`, `<`, `>`, `^` and white space are written `%25` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edbc.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edbc.base.graph import Ints
    from edbc.schedule.statetable import Table

State = tuple[int, ...]

RULES = ("most", "agenda", "sufficient", "random", "chains", "critical")
"""Fixed rules in the order of their codes in choice.py."""
KINDS = ("fsm", "depth", *RULES)
ENCODINGS = ("base", "max", "sort", "phase", "critical", "rank")
"""State encodings in the order of their codes in choice.py."""
LETTERS = {"critical": "pgb", "rank": "p"}
"""Letters of the bits of a word, lowest bit first."""
SEPARATOR = {"sort": "<", "rank": ">"}
LEAST_COST = 0.01
"""No batch counts as free, however little it takes."""
BITS = 8
"""A word of an encoding with letters is `type * BITS + bits`."""
PHASES = 8
FALLBACK = {"critical": "critical", "rank": "critical"}
"""Rule for unseen states: the best one for encodings that know chains anyway; `chains`, cheaper, for the others."""


@dataclass(frozen=True)
class Policy:
    """A rule, or a table over one encoding with a rule for unseen states. Compared by content."""

    kind: str
    encoding: str | None = None
    fallback: str = "critical"
    table: Mapping[State, int] = field(default_factory=lambda: MappingProxyType({}))
    beside: str | None = None
    """The rule of (3), if any."""
    cost: tuple[float, ...] = ()
    """(4), in the order of the types."""

    def __post_init__(self) -> None:
        """Refuse names that are not in the fixed lists."""
        if self.kind not in KINDS:
            raise PlanError(f"policy: expected a kind of {', '.join(KINDS)}, got '{self.kind}'")
        if self.fallback not in RULES:
            raise PlanError(f"policy: expected a fallback of {', '.join(RULES)}, got '{self.fallback}'")
        if self.beside is not None and (self.kind != "fsm" or self.beside not in KINDS[1:]):
            expected = f"a rule of {', '.join(KINDS[1:])}" if self.kind == "fsm" else f"no rule beside '{self.kind}'"
            raise PlanError(f"policy: expected {expected}, got '{self.beside}'")
        if self.kind == "fsm" and self.encoding not in ENCODINGS:
            raise PlanError(f"policy: expected an encoding of {', '.join(ENCODINGS)}, got '{self.encoding}'")

    @property
    def rule(self) -> str:
        """The fixed rule that chooses where no table does."""
        return self.fallback if self.kind == "fsm" else self.kind

    def states_to_text(self, type_names: Sequence[str]) -> dict[str, str]:
        """The table as readable lines, state -> action, ordered by the states' words."""
        encoding = self.encoding or ""
        return {
            state_to_text(encoding, state, type_names): type_names[action]
            for state, action in sorted(self.table.items())
        }

    @classmethod
    def from_text(
        cls,
        encoding: str,
        fallback: str,
        mapping: Mapping[str, str],
        type_names: Sequence[str],
        beside: str | None = None,
        cost: tuple[float, ...] = (),
    ) -> Policy:
        """The inverse of `states_to_text`, for kind `fsm`; `beside` and `cost` are the policy's.

        Raises PlanError that names the state when it is malformed, repeated, names an unknown type, or takes an
        action that is not ready in it.
        """
        cls("fsm", encoding, fallback, beside=beside)
        index_of_name = {quote(name): index for index, name in enumerate(type_names)}
        table: dict[State, int] = {}
        for text, name in mapping.items():
            state = state_from_text(encoding, text, index_of_name)
            action = _index(text, quote(name), index_of_name)
            if action not in ready_types(encoding, state):
                raise PlanError(f"state '{text}': expected an action that is ready in it, got '{name}'")
            table[state] = action
        return cls("fsm", encoding, fallback, table, beside, cost)

    def costs_of(self, num_types: int) -> NDArray[np.float64]:
        """(4) for graphs of so many types, `(num_types,)`; made once for each number."""
        costs = self._costs.get(num_types)
        if costs is None:
            from edbc.schedule.scheduler import costs_of

            costs = self._costs[num_types] = costs_of(self.cost, num_types)
        return costs

    @cached_property
    def _costs(self) -> dict[int, NDArray[np.float64]]:
        return {}

    @cached_property
    def num_types(self) -> int:
        """Up to which number it tells types apart."""
        ready = (ready_types(self.encoding or "", state) for state in self.table)
        return max((len(self.cost), *(a + 1 for kinds in ready for a in kinds)))

    @cached_property
    def asked(self) -> dict[bool, Any]:
        """What this policy asks of the engine, by whether the rule beside it may run; `edbc.schedule.scheduler` fills
        it."""
        return {}

    @cached_property
    def compiled(self) -> tuple[Table, Ints]:
        """The table as the engine reads it; made once."""
        from edbc.schedule.statetable import compile_table

        return compile_table(self.table)


def relative_costs(fixed: Sequence[float]) -> tuple[float, ...]:
    """(4), rounded, from what a batch of each type takes in any unit; empty gives empty."""
    dearest = max(fixed, default=0.0)
    return tuple(max(LEAST_COST, round(cost / (dearest or 1), 4)) for cost in fixed)


def quote(name: str) -> str:
    """A type name without the characters that states use."""
    return re.sub(r"[%!<>^\s]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def ready_types(encoding: str, state: State) -> list[int]:
    """The ready types that a state names."""
    if encoding in LETTERS:
        return [word // BITS for word in state]
    if encoding == "max":
        return list(state[:-1])
    return list(state[1:]) if encoding == "phase" else list(state)


def state_to_text(encoding: str, state: State, type_names: Sequence[str]) -> str:
    """One state as text."""
    ready = ready_types(encoding, state)
    names = [quote(type_names[a]) for a in ready]
    if encoding in LETTERS:
        names = [name + _letters(encoding, word % BITS) for name, word in zip(names, state, strict=True)]
    elif encoding == "max":
        names = [name + "^" * (a == state[-1]) for a, name in zip(ready, names, strict=True)]
    elif encoding == "phase":
        names = [f"{state[0]}/{PHASES}", *names]
    return SEPARATOR.get(encoding, " ").join(names)


def _letters(encoding: str, bits: int) -> str:
    letters = "".join(letter for i, letter in enumerate(LETTERS[encoding]) if bits >> i & 1)
    return "!" + letters if letters else ""


def state_from_text(encoding: str, text: str, index_of_name: Mapping[str, int]) -> State:
    """The inverse of `state_to_text`. There is one text per state, so equal states have equal texts.

    Raises PlanError that names the state and the fault.
    """
    parts = text.split(SEPARATOR.get(encoding, " "))
    return _PARSERS[encoding](encoding, text, parts, index_of_name)


def _index(text: str, name: str, index_of_name: Mapping[str, int]) -> int:
    if name not in index_of_name:
        raise PlanError(f"state '{text}': unknown type '{name}'; expected one of {', '.join(index_of_name)}")
    return index_of_name[name]


def _parse_types(encoding: str, text: str, parts: list[str], index_of_name: Mapping[str, int]) -> State:
    ready = [_index(text, part, index_of_name) for part in parts]
    return tuple(_once(text, ready, in_order=encoding == "base"))


def _parse_max(encoding: str, text: str, parts: list[str], index_of_name: Mapping[str, int]) -> State:
    marked = [part for part in parts if part.endswith("^")]
    if len(marked) != 1:
        raise PlanError(f"state '{text}': expected '^' after one type, got it after {len(marked)}")
    names = [part.removesuffix("^") for part in parts]
    ready = _once(text, [_index(text, name, index_of_name) for name in names], in_order=True)
    return (*ready, ready[parts.index(marked[0])])


def _parse_phase(encoding: str, text: str, parts: list[str], index_of_name: Mapping[str, int]) -> State:
    if not re.fullmatch(rf"[0-{PHASES - 1}]/{PHASES}", parts[0]) or len(parts) < 2:
        raise PlanError(f"state '{text}': expected a phase from 0/{PHASES} to {PHASES - 1}/{PHASES}, then ready types")
    ready = [_index(text, part, index_of_name) for part in parts[1:]]
    return (int(parts[0][0]), *_once(text, ready, in_order=True))


def _parse_letters(encoding: str, text: str, parts: list[str], index_of_name: Mapping[str, int]) -> State:
    words = []
    for part in parts:
        name, bang, letters = part.partition("!")
        bits = sum(1 << i for i, letter in enumerate(LETTERS[encoding]) if letter in letters)
        if bang + letters != _letters(encoding, bits):
            raise PlanError(
                f"state '{text}': expected '!' and letters of '{LETTERS[encoding]}' in order, got '{bang + letters}'"
            )
        words.append(_index(text, name, index_of_name) * BITS + bits)
    _once(text, [word // BITS for word in words], in_order=encoding == "critical")
    if encoding == "rank" and len(words) > 2:
        raise PlanError(f"state '{text}': expected one or two types, got {len(words)}")
    return tuple(words)


def _once(text: str, ready: list[int], *, in_order: bool) -> list[int]:
    if len(set(ready)) < len(ready) or (in_order and ready != sorted(ready)):
        order = ", in the plan's order" if in_order else ""
        raise PlanError(f"state '{text}': expected each ready type once{order}")
    return ready


_PARSERS: Mapping[str, Callable[[str, str, list[str], Mapping[str, int]], State]] = {
    "base": _parse_types,
    "max": _parse_max,
    "sort": _parse_types,
    "phase": _parse_phase,
    "critical": _parse_letters,
    "rank": _parse_letters,
}
