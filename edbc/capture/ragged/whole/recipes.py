"""Recipes: tensors that follow from sizes alone (relative positions, pairs i < j), worked out for each instance.

A kept call (`ragged.kept`) has them as arguments of its own: indices, or rows. They are the same in all instances of
the same sizes, so each is worked out once. One whose sizes are not those that code was told fits no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from edbc.base.kept import Kept
from edbc.capture.ragged.program import CannotKeep, Count, Ints, Numbers, Triple, size_of
from edbc.capture.ragged.whole.function import Apply, evaluated, packed

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

MOST_KNOWN, MOST_ELEMENTS = 64, 1 << 16
"""Of one recipe, tensors of different sizes that are kept, and elements of those."""
VECTOR, PACKED = -1, -2
"""Ways to read a tensor beside its rows along a dimension: all its numbers as indices, and packed in rows."""


class Recipe(NamedTuple):
    """An expression of lengths, and the way in which its tensor is read."""

    root: Apply
    likes: tuple[Triple, ...]
    """The registers whose lengths its holes are."""
    dims: tuple[Any, ...]
    """Of the tensor: a size, a hole or two whose product it is, None for any size."""
    way: int

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The indices or rows of the tensor."""
        if self.way == VECTOR:
            return tensor.reshape(-1)
        return packed(tensor) if self.way == PACKED else tensor.movedim(self.way, 0).contiguous()

    def at(self, lengths: Sequence[int]) -> torch.Tensor:
        """The same of the tensor at these lengths. Raises CannotKeep where there is none of its dimensions."""
        try:
            found = evaluated(self.root, lengths)
        except Exception as error:  # whatever it is: the code as it is written says so
            raise CannotKeep from error
        sizes = [np.prod([lengths[hole.index] for hole in size]) if type(size) is tuple else size for size in self.dims]
        if not found.numel() or any(a not in (b, None) for a, b in zip(sizes, found.shape, strict=True)):
            raise CannotKeep
        return self.read(found)


class Found(NamedTuple):
    """What a recipe is at some lengths, with the least and the largest index; nothing where no instance fits."""

    tensor: torch.Tensor | None
    size: int = 0
    lowest: int = 0
    highest: int = 0


class WorkedOut(NamedTuple):
    """A recipe as an argument of a kept call, of sizes that follow from those of its other arguments."""

    recipe: Recipe
    counts: tuple[Count, ...]
    known: dict[torch.dtype, Kept[Sequence[int], Found]]
    """By the default dtype and lengths."""

    def at(self, lengths: Sequence[int], known: Kept[Sequence[int], Found]) -> Found:
        """The indices or rows at these lengths."""
        found = known.get(lengths)
        if found is None:
            try:
                tensor = self.recipe.at(lengths)
                bounds = map(int, torch.aminmax(tensor)) if self.recipe.way == VECTOR else ()
                found = Found(tensor, len(tensor), *bounds)
            except CannotKeep:
                found = Found(None)
            if found.tensor is None or found.tensor.numel() <= MOST_ELEMENTS:
                known.add(lengths, found)
        return found

    def now(self) -> Kept[Sequence[int], Found]:
        """Those that are known, by lengths."""
        dtype = torch.get_default_dtype()
        return self.known.get(dtype) or self.known.setdefault(dtype, Kept(MOST_KNOWN))

    def alone(self, sizes: Sequence[int]) -> Found:
        """Of one instance. Raises CannotKeep where it does not fit."""
        found = self.at(tuple([size_of(count, sizes) for count in self.counts]), self.now())
        if found.tensor is None:
            raise CannotKeep
        return found

    def triple(self, rec: Recorder, given: Any, sizes: Sequence[int]) -> Triple:
        """As an argument of a run. Raises CannotKeep."""
        tensor: Any = self.alone(sizes).tensor
        if self.recipe.way != VECTOR:
            refs = rec.constant_rows(tensor)
            return refs.start, refs.step, len(refs)
        given.indices.append(rec.hold(tensor.numpy(), False))
        return given.indices[-1].triple

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> int:
        """How many rows or indices one instance has. Raises CannotKeep."""
        return self.alone(sizes).size

    def of_instances(self, count: int, sizes: Sequence[Any]) -> tuple[list[Found], torch.Tensor, Ints]:
        """Of so many instances, whose sizes are arrays, or the same for all: of each; all one behind the other; and how
        many each has, none where one does not fit."""
        lengths, known = [np.broadcast_to(size_of(of, sizes), count).tolist() for of in self.counts], self.now()
        found = [known.get(of) or self.at(of, known) for of in zip(*lengths, strict=True)]
        tensors = [of.tensor for of in found if of.tensor is not None]
        joined = torch.cat(tensors) if tensors else torch.zeros(0, dtype=torch.int64)
        return found, joined, np.array([of.size for of in found], np.int64)

    def numbers(self, found: Sequence[Found], joined: torch.Tensor, size: Ints) -> list[Numbers]:
        """The same as indices; none of rows."""
        if self.recipe.way != VECTOR:
            return []
        lowest, highest = np.array([of[2:] for of in found], np.int64).T
        return [Numbers(np.cumsum(size) - size, size, lowest, highest, joined.numpy())]  # type: ignore[arg-type]


class Claim(NamedTuple):
    """What an expression of lengths was told to be, another one, of the same registers' lengths."""

    root: Any
    told: Any
    likes: tuple[Triple, ...]


class Claims(NamedTuple):
    """All that is told for a kept call, of lengths that follow from its arguments' sizes."""

    roots: tuple[Any, ...]
    """What was told, behind what it was told of, for each."""
    counts: tuple[Count, ...]
    known: Kept[Any, bool]

    def hold(self, lengths: tuple[int, ...]) -> bool:
        """Whether all are right at these lengths."""
        key = lengths, torch.get_default_dtype()
        found = self.known.get(key)
        if found is None:
            try:
                made = [evaluated(root, lengths) for root in self.roots]
            except Exception:  # whatever it is: the code as it is written says so
                made = [0, 1]
            found = self.known.add(key, all(map(are_equal, made[::2], made[1::2])))
        return found

    def fit(self, sizes: Sequence[Any]) -> Any:
        """The same of arguments of these sizes; of arrays, one item per call, of which."""
        lengths = [size_of(count, sizes) for count in self.counts]
        if not any(isinstance(of, np.ndarray) for of in lengths):
            return self.hold(tuple(lengths))
        every = zip(*[of.tolist() for of in np.broadcast_arrays(*lengths)], strict=True)
        return np.array([*map(self.hold, every)], np.bool_)


def sizes_of(tensor: torch.Tensor, places: Sequence[int]) -> tuple[int, ...]:
    """Of some dimensions."""
    return tuple([tensor.shape[place] for place in places])


def are_equal(one: Any, other: Any) -> bool:
    """Whether two results are the same, of the same kind, where they have numbers to compare."""
    if type(one) is not torch.Tensor or type(other) is not torch.Tensor:
        return type(one) is type(other) and bool(one == other)
    is_like = one.dtype is other.dtype and one.shape == other.shape and one.device == other.device
    return is_like and not one.is_meta and torch.equal(one, other)


def worked_out(recipe: Recipe, counts: Sequence[Count]) -> WorkedOut:
    """A recipe as an argument."""
    return WorkedOut(recipe, tuple(counts), {})
