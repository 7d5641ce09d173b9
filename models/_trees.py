r"""Binary parse trees: one per line, `(label child child)` or, at a leaf, `(label word)`, as in the Stanford Sentiment
Treebank (Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013).

Blank lines are skipped. Labels are integers. Words hold no blank and no bracket (the treebank writes `-LRB-`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from _brackets import describe, expected, read_brackets
from _samples import Quartet, sample_sizes
from _text import word_id

from edbc.vertex import VertexInstance

LEAVES: Quartet = (2, 19, 36, 52)
"""Leaves per tree of SST's training trees."""
NUM_LABELS = 5


@dataclass(slots=True)
class Tree:
    """A node with its subtree; a leaf has a word and no children, any other node has both children."""

    label: int
    """Sentiment, 0 (very negative) to 4."""
    kind: int
    """Lowest bit of the CRC-32 of the words below, joined by one space; read by the model of two node types only."""
    word: int = 0
    """Word id of a leaf."""
    left: Tree | None = None
    right: Tree | None = None

    def __iter__(self) -> Iterator[Tree]:
        """Every node, children before their parent, left before right: the order of a model's outputs."""
        stack, reverse = [self], []
        while stack:
            tree = stack.pop()
            reverse.append(tree)
            if tree.left is not None and tree.right is not None:
                stack += (tree.left, tree.right)
        return reversed(reverse)


def read_trees(path: str, vocab_size: int) -> Iterator[Tree]:
    """Every tree of a file, in order. Raises InputError at the first line that is no binary tree."""

    def close(parts: list, where: str) -> tuple[Tree, str]:
        label = _label(parts, where)
        match parts[1:]:
            case [str(word)]:
                return Tree(label, _kind(word), word_id(word, vocab_size)), word
            case [(left, left_text), (right, right_text)]:
                text = f"{left_text} {right_text}"
                return Tree(label, _kind(text), 0, left, right), text
        got = describe(parts[1:])
        raise expected(where, "one word or two children after a label", got, "trees are binary")

    return (tree for tree, _ in read_brackets(path, close))


def _label(parts: list, where: str) -> int:
    label = parts[0] if parts else ")"
    if isinstance(label, str) and label.isascii() and label.isdigit() and int(label) < NUM_LABELS:
        return int(label)
    got = f"'{label[:40]}'" if isinstance(label, str) else "a bracket"
    remedy = "write (label word) or (label child child)"
    raise expected(where, f"a label 0 to {NUM_LABELS - 1} after '('", got, remedy)


def _kind(text: str) -> int:
    return zlib.crc32(text.encode()) & 1


def tree_vertices(tree: Tree, by_kind: bool = False) -> VertexInstance:
    """The vertices of a tree, children before their parent: type 0 is a leaf, 1 any other node (1 plus its kind with
    `by_kind`); input `word`."""
    number: dict[int, int] = {}
    vertices = []
    for node in tree:
        number[id(node)] = len(vertices)
        if node.left is None or node.right is None:
            vertices.append((0, ()))
        else:
            vertices.append((1 + (node.kind if by_kind else 0), (number[id(node.left)], number[id(node.right)])))
    return VertexInstance.build(vertices, {"word": [node.word for node in tree]})


def sample_trees(count: int, seed: int, vocab_size: int) -> list[Tree]:
    """Made-up trees with SST's numbers of leaves and the depths that its splits give."""
    rng = random.Random(seed)
    return [_grow(leaves, rng, vocab_size) for leaves in sample_sizes(count, LEAVES, rng)]


def _grow(leaves: int, rng: random.Random, vocab_size: int) -> Tree:
    if leaves == 1:
        return Tree(rng.randrange(NUM_LABELS), rng.getrandbits(1), rng.randrange(vocab_size))
    left = _split(leaves, rng)
    return Tree(
        rng.randrange(NUM_LABELS),
        rng.getrandbits(1),
        0,
        _grow(left, rng, vocab_size),
        _grow(leaves - left, rng, vocab_size),
    )


def _split(leaves: int, rng: random.Random) -> int:
    """Leaves of the left child, as SST splits its phrases.

    One leaf on the right (a full stop) in 20 per cent; one leaf on the left (a determiner, a preposition) more often
    the smaller the phrase; else anything between, small shares on the left more often than large ones.
    """
    draw = rng.random()
    if leaves <= 3 or draw < 0.2:
        return leaves - 1 if draw < 0.2 else 1
    if draw < 0.2 + 1.25 / leaves**0.4:
        return 1
    return 2 + int((leaves - 3) * rng.random() ** 1.5)
