"""Policies: which type runs next, as data, and their text form in a plan.

(1) A *state* is the encoded frontier (ED-Batch, Chen et al., ICML 2023, section 2.3), here a tuple of integers, the
    *words* of choice.py. An *action* is the type of the next batch; it must be ready in its state.
(2) A *table* maps states to actions: the learned finite state machine. A state that it lacks is *unseen*, and so is
    every state with a type that the plan does not know; there the *fallback*, a fixed rule, chooses.

Text of a state, `a`, `b` type names in the plan's order:

===========  ===================  =======================================================
E_base       `a b`                the ready types
E_max        `a b^`               the same, `^` after the most common
E_sort       `b<a`                ascending by the number of ready nodes
phase        `3/8 a b`            after how many eighths of the nodes have run
critical     `a!pg b!g c`         after `!`: p productive, g gates another type's longest chain
sufficient   `a!ps b!g c`         further s: all of Frontier(G^a) is ready (Lemma 2.1)
===========  ===================  =======================================================

In names, `%`, `!`, `<`, `^` and white space are written `%25` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edbc.errors import PlanError

State = tuple[int, ...]

KINDS = ("fsm", "agenda", "depth", "sufficient", "critical")
ENCODINGS = ("base", "max", "sort", "phase", "critical", "sufficient")
"""In the order of the codes in choice.py."""
FALLBACKS = ("most", "agenda", "sufficient", "critical")
"""In the order of the codes in choice.py."""
LETTERS = {"critical": "pg", "sufficient": "pgs"}
"""Letters of the bits of a word, lowest bit first."""
BITS = 8
"""A word of a bit encoding is `type * BITS + bits`."""
PHASES = 8


@dataclass(frozen=True)
class Policy:
    """A rule, or a table over one encoding with a rule for unseen states. Compared by content."""

    kind: str
    encoding: str | None = None
    fallback: str = "critical"
    table: Mapping[State, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names that are not in the fixed lists."""
        if self.kind not in KINDS:
            raise PlanError(f"policy: expected a kind of {', '.join(KINDS)}, got '{self.kind}'")
        if self.fallback not in FALLBACKS:
            raise PlanError(f"policy: expected a fallback of {', '.join(FALLBACKS)}, got '{self.fallback}'")
        if self.kind == "fsm" and self.encoding not in ENCODINGS:
            raise PlanError(f"policy: expected an encoding of {', '.join(ENCODINGS)}, got '{self.encoding}'")

    def states_to_text(self, type_names: Sequence[str]) -> dict[str, str]:
        """The table as readable lines, state -> action, ordered by the states' words."""
        encoding = self.encoding or ""
        return {
            state_to_text(encoding, state, type_names): quote(type_names[action])
            for state, action in sorted(self.table.items())
        }

    @classmethod
    def from_text(cls, encoding: str, fallback: str, mapping: Mapping[str, str], type_names: Sequence[str]) -> Policy:
        """The inverse of `states_to_text`, for kind `fsm`.

        Raises PlanError that names the state when it is malformed, repeated, names an unknown type, or takes an
        action that is not ready in it.
        """
        policy = cls("fsm", encoding, fallback)
        index_of_name = {quote(name): index for index, name in enumerate(type_names)}
        table: dict[State, int] = {}
        for text, name in mapping.items():
            state = state_from_text(encoding, text, index_of_name)
            if state in table:
                raise PlanError(f"state '{text}': expected each state once, got it again in another order")
            if name not in index_of_name:
                raise PlanError(f"state '{text}': unknown type '{name}'; expected one of {', '.join(index_of_name)}")
            if index_of_name[name] not in ready_types(encoding, state):
                raise PlanError(f"state '{text}': expected an action that is ready in it, got '{name}'")
            table[state] = index_of_name[name]
        return cls("fsm", policy.encoding, policy.fallback, table)

    @cached_property
    def compiled(self) -> tuple[Any, Any]:
        """The table as the engine's hash arrays; made once."""
        from edbc.schedule.tables import compile_table

        return compile_table(self.table)


def quote(name: str) -> str:
    """A type name without the characters that states use."""
    return re.sub(r"[%!<^\s]", lambda match: f"%{ord(match[0]):02X}", name)


def ready_types(encoding: str, state: State) -> list[int]:
    """The types on the frontier that a state describes."""
    if encoding in LETTERS:
        return [word // BITS for word in state]
    if encoding == "max":
        return list(state[:-1])
    return list(state[1:]) if encoding == "phase" else list(state)


def state_to_text(encoding: str, state: State, type_names: Sequence[str]) -> str:
    """One state as text."""
    names = [quote(type_names[a]) for a in ready_types(encoding, state)]
    if encoding == "sort":
        return "<".join(names)
    if encoding == "max":
        return " ".join(
            name + "^" * (a == state[-1]) for a, name in zip(ready_types(encoding, state), names, strict=True)
        )
    if encoding == "phase":
        return " ".join([f"{state[0]}/{PHASES}", *names])
    if encoding in LETTERS:
        return " ".join(name + _letters(encoding, word % BITS) for name, word in zip(names, state, strict=True))
    return " ".join(names)


def _letters(encoding: str, bits: int) -> str:
    letters = "".join(letter for i, letter in enumerate(LETTERS[encoding]) if bits >> i & 1)
    return "!" + letters if letters else ""


def state_from_text(encoding: str, text: str, index_of_name: Mapping[str, int]) -> State:
    """The inverse of `state_to_text`; raises PlanError that names the state and the fault."""
    parts = text.split("<") if encoding == "sort" else text.split(" ")
    head: list[int] = []
    if encoding == "phase":
        head = [_parse_phase(text, parts.pop(0))]
    words, marked = [], []
    for part in parts:
        name, mark = part, ""
        if encoding == "max" and part.endswith("^"):
            name, mark = part[:-1], "^"
        elif encoding in LETTERS:
            name, bang, letters = part.partition("!")
            mark = bang + letters
        if name not in index_of_name:
            raise PlanError(f"state '{text}': unknown type '{name}'; expected one of {', '.join(index_of_name)}")
        index = index_of_name[name]
        if encoding in LETTERS:
            words.append(index * BITS + _parse_letters(encoding, text, mark))
        else:
            words.append(index)
            marked += [index] if mark else []
    ready = [word // BITS for word in words] if encoding in LETTERS else words
    if len(set(ready)) < len(ready) or (encoding != "sort" and ready != sorted(ready)):
        raise PlanError(
            f"state '{text}': expected each ready type once" + ", in the plan's order" * (encoding != "sort")
        )
    if encoding == "max" and len(marked) != 1:
        raise PlanError(f"state '{text}': expected '^' after one type, got it after {len(marked)}")
    return tuple(head + words + marked)


def _parse_phase(text: str, part: str) -> int:
    if not re.fullmatch(rf"[0-{PHASES - 1}]/{PHASES}", part):
        raise PlanError(f"state '{text}': expected a phase from 0/{PHASES} to {PHASES - 1}/{PHASES}, got '{part}'")
    return int(part[0])


def _parse_letters(encoding: str, text: str, mark: str) -> int:
    bits = sum(1 << i for i, letter in enumerate(LETTERS[encoding]) if letter in mark)
    if mark != _letters(encoding, bits):
        raise PlanError(f"state '{text}': expected '!' and letters of '{LETTERS[encoding]}' in order, got '{mark}'")
    return bits
