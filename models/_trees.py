r"""Binary parse trees: one per line, `(label child child)` or, at a leaf, `(label word)`, as in the Stanford Sentiment
Treebank (Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013).

Blank lines are skipped. Labels are integers. Words hold no blank and no bracket (the treebank writes `-LRB-`).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from _samples import Quartet, sample_sizes
from _text import read_lines, word_id

from edbc.errors import InputError

LEAVES: Quartet = (2, 19, 36, 52)
"""Leaves per tree of SST's training trees."""
NUM_LABELS = 5

_TOKEN = re.compile(r"[()]|[^ \t()]+")


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
    for number, line in read_lines(path):
        if line.strip(" \t"):
            yield _Parser(line, f"{path}:{number}", vocab_size).parse()


class _Parser:
    """One line of brackets to one Tree, without recursion: a chain of ten thousand nodes is read like any other."""

    def __init__(self, line: str, where: str, vocab_size: int):
        self.tokens = _TOKEN.findall(line)
        self.where = where
        self.vocab_size = vocab_size

    def parse(self) -> Tree:
        """The tree, or InputError."""
        open_nodes: list[list] = []
        last = len(self.tokens) - 1
        for position, token in enumerate(self.tokens):
            if token == "(":
                open_nodes.append([])
                continue
            if not open_nodes:
                raise self._error("'('", token, "a line holds one tree")
            if token != ")":
                open_nodes[-1].append(token)
                continue
            tree, text = self._close(open_nodes.pop())
            if not open_nodes:
                if position != last:
                    raise self._error("the end of the line after one tree", self.tokens[position + 1], "split the line")
                return tree
            open_nodes[-1].append((tree, text))
        raise self._error(f"{len(open_nodes)} more ')'", "the end of the line", "close every bracket")

    def _close(self, parts: list) -> tuple[Tree, str]:
        """A bracket's node and its words."""
        label = self._label(parts)
        match parts[1:]:
            case [str(word)]:
                return Tree(label, _kind(word), word_id(word, self.vocab_size)), word
            case [(left, left_text), (right, right_text)]:
                text = f"{left_text} {right_text}"
                return Tree(label, _kind(text), 0, left, right), text
        got = ", ".join("word" if isinstance(part, str) else "child" for part in parts[1:]) or "nothing"
        raise self._error("one word or two children after a label", got, "trees are binary")

    def _label(self, parts: list) -> int:
        label = parts[0] if parts else ")"
        if isinstance(label, str) and label.isascii() and label.isdigit() and int(label) < NUM_LABELS:
            return int(label)
        got = label if isinstance(label, str) else "("
        raise self._error(f"a label 0 to {NUM_LABELS - 1} after '('", got, "write (label word) or (label child child)")

    def _error(self, expected: str, got: str, remedy: str) -> InputError:
        shown = got if got.startswith("the end") else f"'{got[:40]}'"
        return InputError(f"{self.where}: expected {expected}, got {shown}; {remedy}")


def _kind(text: str) -> int:
    return zlib.crc32(text.encode()) & 1


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
