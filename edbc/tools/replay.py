"""Eager execution with edbc's decisions: how outputs of a model that reads values are compared.

Definitions.

(1) A *replay* runs the model eagerly on one instance, and each read of a value that edbc had to compute gives what edbc
    read. So both do the same work, and outputs compare by the parity rule. Reads are paired in their order, by line,
    shape and kind of number; what forward reads of tensors that nothing of the model went into (that the instance
    brings, that forward makes) is its own, though the same line reads others the next time.
(2) A read of integers or booleans is a *decision*. It *differs* where eager would have read another one. That is no
    fault where eager itself was undecided: the *margin*, by which its largest score is ahead of the one that edbc took
    (of `a > b`, the distance of a and b), is within the parity rule's tolerance for those scores. In float64 that is
    next to nothing. Where the scores are not known (an integer that no arg-max and no comparison made), it is a fault.
(3) Other reads are compared as if they were outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from edbc.capture.forward.fibers import Read
from edbc.capture.semantics import rules
from edbc.capture.standins.source import user_location

_BEST = {"argmax": 1, "max": 1, "topk": 1, "argmin": -1, "min": -1}
"""Functions that choose, and whether the largest or the smallest."""
_COMPARES = frozenset("gt lt ge le eq ne greater less greater_equal less_equal".split())
_JOINS = {"and": False, "bitwise_and": False, "logical_and": False, "or": True, "bitwise_or": True, "logical_or": True}
"""Functions of two decisions, and what either of them has to be to decide alone."""
_SIZED = frozenset("narrow expand repeat view reshape tile pad new_zeros new_ones new_full new_empty roll".split())
_SAME = frozenset("item view reshape squeeze unsqueeze flatten detach cpu clone to long int".split())
"""A decision passes through them."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What a decision was made from: scores, or the difference of two sides; and which way."""

    scores: torch.Tensor
    sign: int
    """1 and -1 of scores, 0 of a difference."""

    def margin(self, taken: torch.Tensor) -> float:
        """Definition (2)."""
        if self.sign == 0:
            return float(self.scores.abs().min()) if self.scores.numel() else 0.0
        scores = self.scores.reshape(-1) * self.sign
        index = taken.reshape(-1)
        if not index.numel() or not 0 <= int(index.min()) <= int(index.max()) < len(scores):
            return float("inf")
        best = scores.topk(min(len(index), len(scores))).values
        return float((best - scores[index]).abs().max())

    @property
    def closest(self) -> float:
        """By how much this choice was not another one."""
        if self.sign == 0:
            return self.margin(self.scores)
        best = (self.scores.reshape(-1) * self.sign).topk(min(2, self.scores.numel())).values
        return float(best[0] - best[-1]) if len(best) > 1 else float("inf")


@dataclass(frozen=True, eq=False)
class Replayed:
    """A read in a replay: eager's own numbers, and what they were chosen from where that is known."""

    own: torch.Tensor
    choice: Choice | None


class Replay(TorchFunctionMode):
    """Definition (1), of one instance: a context for the call of the model. Without the model, reads of any tensor are
    paired."""

    def __init__(self, reads: Sequence[Read], model: nn.Module | None = None):
        super().__init__()
        self.reads = reads
        self.model = model
        self.seen: list[Replayed] = []
        self._choices: dict[int, tuple[Any, Choice]] = {}
        self._computed: dict[int, Any] = {}
        """The memory that something of the model went into, kept so that its identity is nobody else's."""

    def anew(self) -> Replay:
        """The same with nothing read yet: what recurses deeply runs twice."""
        self.seen.clear()
        return self

    def __enter__(self) -> Replay:
        if self.model is not None:
            tensors = itertools.chain(self.model.parameters(), self.model.buffers())
            self._computed = {memory: tensor for tensor in tensors for memory in _memory(tensor)}
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._choices.clear()
        self._computed.clear()

    @property
    def fault(self) -> str:
        """Where eager did not read what edbc did, if so."""
        if len(self.seen) == len(self.reads):
            return ""
        count = len(self.seen)
        return f"{self.reads[count].site}: eager did not get to this read, number {count} of the instance"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = rules.name_of(func)
        is_read = name in rules.READS and rules.looks_at_values(func, name)
        if is_read or name in rules.SHAPED_BY_VALUES or rules.is_mask(name, args):
            args = self._all_given(args)
        elif name in rules.MAKES_OF_NUMBERS:
            args = tuple([self._size_given(x, True) for x in args])
            kwargs = {key: self._size_given(x, True) for key, x in (kwargs or {}).items()}
        elif name in ("getitem", "setitem") or name in _SIZED:
            args = args[0], *[self._size_given(x, name in _SIZED) for x in args[1:]]
        elif name == "_pack_padded_sequence":
            args = args[0], self._given(args[1]), *args[2:]
        result = func(*args, **(kwargs or {}))
        if self.model is not None and name not in rules.FILLS and self._is_computed((args, kwargs)):
            made = result if result is not None else args[:1]
            self._computed.update((memory, made) for memory in _memory(made))
        if name in _BEST or name in _COMPARES or name in _JOINS or name in _SAME or name == "getitem":
            self._note(name, args, result)
        return result

    def _is_computed(self, operands: Any) -> bool:
        return not self._computed.keys().isdisjoint(_memory(operands))

    def _all_given(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments, and indices among them, as they are read."""
        given: dict[type, Any] = {torch.Tensor: self._given, nn.Parameter: self._given, tuple: self._all_given}
        return tuple(given[type(item)](item) if type(item) in given else item for item in items)

    def _size_given(self, item: Any, is_size: bool) -> Any:
        """Bounds of slices, and tensors of one number where torch takes a size: they are read where they stand."""
        if type(item) is tuple or type(item) is list:
            return type(item)([self._size_given(x, is_size) for x in item])
        if type(item) is slice:
            return slice(*[self._size_given(x, True) for x in (item.start, item.stop, item.step)])
        return self._given(item) if is_size and isinstance(item, torch.Tensor) and not item.ndim else item

    def _given(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a read gives."""
        if len(self.seen) == len(self.reads) or not (self.model is None or self._is_computed(tensor)):
            return tensor
        site, ours = self.reads[len(self.seen)]
        if ours is None and user_location() == site:
            self.seen.append(Replayed(tensor, None))
        if ours is None:
            return tensor
        is_alike = ours.shape == tensor.shape and (_kind(ours) == _kind(tensor) or _is_condition(ours, tensor))
        if not is_alike or user_location() != site:
            return tensor
        known = self._choices.get(id(tensor))
        self.seen.append(Replayed(tensor.detach().clone(), None if known is None else known[1]))
        return ours.to(tensor.dtype)

    def _note(self, name: str, args: Any, result: Any) -> None:
        """Remember what a decision is made from. The result is kept, so that its identity is nobody else's."""
        first = args[0]
        if name in _COMPARES:
            other = args[1]
            if first.is_floating_point() or (isinstance(other, torch.Tensor) and other.is_floating_point()):
                self._choices[id(result)] = result, Choice((first - other).detach(), 0)
        elif name in _JOINS:
            sides = [(self._choices.get(id(side)), side) for side in args[:2]]
            known = [(found[1].margin(side), bool(side)) for found, side in sides if found and side.numel() == 1]
            if len(known) == 2:
                decide = [margin for margin, value in known if value is _JOINS[name]]
                scores = torch.tensor(max(decide) if decide else min(margin for margin, _ in known))
                self._choices[id(result)] = result, Choice(scores, 0)
        elif name in _BEST:
            indices = result if isinstance(result, torch.Tensor) else result[1]
            if not indices.is_floating_point() and first.numel() == max(first.shape, default=1):
                self._choices[id(indices)] = indices, Choice(first.detach(), _BEST[name])
        elif isinstance(result, torch.Tensor) and id(first) in self._choices and result.numel() == first.numel():
            self._choices[id(result)] = result, self._choices[id(first)][1]


def _memory(item: Any) -> set[int]:
    """The identities of the memory of all tensors in a nest."""
    tensors = [t for t in pytree.tree_leaves(item) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    return {t.untyped_storage()._cdata for t in tensors}


def _kind(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether it has floating numbers, or truth values, and no integers."""
    return tensor.is_floating_point(), tensor.dtype is torch.bool


def _is_condition(ours: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether eager's truth values may be numbers here, which integers are not: those may be indices."""
    is_pair = eager.dtype is torch.bool and ours.is_floating_point()
    return is_pair and bool(((ours == 0) | (ours == 1)).all())


@dataclass
class Decisions:
    """The comparison of the decisions of many mini-batches."""

    reads: int = 0
    different: int = 0
    closest: float = float("inf")
    """The smallest margin by which eager decided."""
    fault: str = ""

    def add(self, reads: Sequence[Read], eager: Replay, reference: Replay, slack: float) -> None:
        """Take in one instance. `slack` is the parity rule's for the model's dtype, as a share of the scale."""
        self.fault = self.fault or eager.fault or reference.fault
        for read, ours, exact in zip(reads, eager.seen, reference.seen, strict=False):
            if read.tensor is None or ours.own.is_floating_point():
                continue
            self.reads += 1
            if ours.choice is not None:
                self.closest = min(self.closest, ours.choice.closest)
            if not torch.equal(ours.own, read.tensor.to(ours.own)):
                self.different += 1
                self.fault = self.fault or _fault(read.site, read.tensor, ours, exact, slack)

    def as_json(self) -> dict[str, float | None]:
        """As JSON's types; `closest` is None where no margin is known."""
        closest = None if self.closest == float("inf") else self.closest
        return {"reads": self.reads, "different": self.different, "closest": closest}

    def __str__(self) -> str:
        closest = "unknown" if self.closest == float("inf") else f"{self.closest:.2e}"
        return f"{self.reads:,}, {self.different:,} of them not eager's own; the closest by a margin of {closest}"


def _fault(site: str, taken: torch.Tensor, ours: Replayed, exact: Replayed, slack: float) -> str:
    """Why a decision may not differ, if so."""
    if ours.choice is None or exact.choice is None:
        return f"{site}: edbc read {taken.tolist()}, eager {ours.own.tolist()}"
    scores, reference = ours.choice.scores.double(), exact.choice.scores.double()
    allowed = slack * float(reference.abs().max()) + 4 * float((scores - reference).abs().max())
    margin = ours.choice.margin(taken)
    if margin <= allowed:
        return ""
    return (
        f"{site}: edbc read {taken.tolist()}, eager {ours.own.tolist()} by a margin of {margin:.3g}, "
        f"at most {allowed:.3g} allowed"
    )


def floating(reads: Sequence[Read], eager: Replay, reference: Replay) -> list[tuple[torch.Tensor, ...]]:
    """Definition (3): the numbers that edbc read, those of a replay and of one in float64."""
    paired = zip(reads, eager.seen, reference.seen, strict=False)
    found = [(read.tensor, ours.own, exact.own) for read, ours, exact in paired
             if read.tensor is not None and ours.own.is_floating_point()]  # fmt: skip
    return [*zip(*found, strict=True)]
