"""Parse trees of any arity, one per line, as in the Penn Treebank: `(ROOT (NP (DT the) (NN cat)))`.

A pre-terminal `(TAG word)` holds one word and is a leaf here; any other node has a label and one child or more. Blank
lines are skipped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from _brackets import describe, expected, read_brackets
from _samples import Quartet, sample_sizes
from _text import word_id

LEAVES: Quartet = (1, 19, 46, 101)
"""Words per tree of GUM's training trees."""
ARITIES = ((2, 0.58), (3, 0.22), (4, 0.10), (5, 0.06), (6, 0.02), (7, 0.01), (9, 0.01))
"""Shares of GUM's branching nodes by number of children."""


@dataclass(slots=True)
class Node:
    """A phrase, or a pre-terminal with its word."""

    label: str
    word: int = 0
    """Word id of a pre-terminal."""
    children: list[Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        """Every node, children before their parent and left before right."""
        stack, reverse = [self], []
        while stack:
            node = stack.pop()
            reverse.append(node)
            stack += node.children
        return reversed(reverse)


def read_treebank(path: str, vocab_size: int) -> Iterator[Node]:
    """Every tree of a file, in order. Raises InputError at the first line that is no tree."""

    def close(parts: list, where: str) -> Node:
        match parts:
            case [str(label), str(word)]:
                return Node(label, word_id(word, vocab_size))
            case [str(label), Node(), *_] if all(isinstance(part, Node) for part in parts[1:]):
                return Node(label, 0, parts[1:])
        raise expected(
            where, "a label and one word, or a label and children", describe(parts), "see models/_treebank.py"
        )

    return read_brackets(path, close)


def sample_treebank(count: int, seed: int, vocab_size: int) -> list[Node]:
    """Made-up trees with GUM's numbers of words, arities and depths."""
    rng = random.Random(seed)
    return [Node("ROOT", 0, [_grow(leaves, rng, vocab_size)]) for leaves in sample_sizes(count, LEAVES, rng)]


def _grow(leaves: int, rng: random.Random, vocab_size: int) -> Node:
    if leaves == 1:
        leaf = Node("NN", rng.randrange(vocab_size))
        return Node("NP", 0, [leaf]) if rng.random() < 0.15 else leaf
    if rng.random() < min(0.3, 0.01 * leaves):
        return Node("S", 0, [_branch(leaves, rng, vocab_size)])
    return _branch(leaves, rng, vocab_size)


def _branch(leaves: int, rng: random.Random, vocab_size: int) -> Node:
    arities, shares = zip(*ARITIES, strict=True)
    arity = min(leaves, rng.choices(arities, shares)[0])
    return Node("NP", 0, [_grow(size, rng, vocab_size) for size in _split(leaves, arity, rng)])


def _split(leaves: int, arity: int, rng: random.Random) -> list[int]:
    """Leaves of each child: one child, half of the time the last, takes most of what is above one leaf each."""
    spare = leaves - arity
    largest = round(spare * (1 - 0.6 * rng.random() ** 2.5))
    cuts = sorted(rng.randint(0, spare - largest) for _ in range(arity - 2))
    sizes = [1 + high - low for low, high in zip([0, *cuts], [*cuts, spare - largest], strict=True)]
    sizes.insert(arity - 1 if rng.random() < 0.5 else rng.randrange(arity), 1 + largest)
    return sizes
