"""Readers of the shared data sets that build each workload's dataflow graph directly, without a model.

A workload is a function from instances to a Graph with one node per cell, segment sum and output projection; look-ups
are operands (externals) and count as no node. Positions and nodes carry one `out` each.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edbc.base.graph import Graph

Node = tuple[str, list[int]]


def read_trees(path: Path) -> list[Any]:
    """Binary trees as nested pairs with words at the leaves."""
    return [_parse_tree(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _parse_tree(line: str) -> Any:
    stack: list[list[Any]] = [[]]
    for token in line.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            _, *children = stack.pop()
            stack[-1].append(children[0] if len(children) == 1 else tuple(children))
        else:
            stack[-1].append(token)
    return stack[0][0]


def read_lattices(path: Path) -> list[list[list[int]]]:
    """Per lattice, per position, the positions where its incoming arcs start."""
    numbers: Iterator[int] = map(int, path.read_text(encoding="utf-8").split())
    lattices = []
    for _ in range(next(numbers)):
        size = next(numbers)
        for _ in range(size):
            next(numbers)
        lattices.append([[(next(numbers), next(numbers))[0] for _ in range(next(numbers))] for _ in range(size)])
    return lattices


def read_sentences(path: Path) -> list[list[str]]:
    """The words of `word|TAG` lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[pair.rsplit("|", 1)[0] for pair in line.split()] for line in lines if line.split()]


def read_pairs(folder: Path) -> list[tuple[list[str], list[str]]]:
    """Translated sentence pairs."""
    sides = [(folder / f"tst2012.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "vi")]
    return [(en.split(), vi.split()) for en, vi in zip(*sides, strict=True)]


def _build(types: Sequence[str], nodes: list[Node]) -> Graph:
    return Graph.build(types, nodes)


def tree_graph(trees: Sequence[Any], *, two_types: bool = False) -> Graph:
    """TreeLSTM or TreeGRU; with two types the lowest bit of the words' checksum chooses between them."""
    nodes: list[Node] = []

    def visit(tree: Any) -> tuple[int, str]:
        if isinstance(tree, str):
            nodes.append(("leaf", []))
            words = tree
        else:
            parts = [visit(child) for child in tree]
            words = " ".join(part for _, part in parts)
            name = "ab"[zlib.crc32(words.encode()) & 1] if two_types else "internal"
            nodes.append((name, [node for node, _ in parts]))
        node = len(nodes) - 1
        nodes.append(("out", [node]))
        return node, words

    for tree in trees:
        visit(tree)
    return _build(["leaf", "a", "b", "out"] if two_types else ["leaf", "internal", "out"], nodes)


def lattice_graph(lattices: Sequence[list[list[int]]], *, by_arity: bool) -> Graph:
    """Lattice LSTM or GRU; sums of different arity are one type or one each."""
    nodes: list[Node] = []
    for lattice in lattices:
        state: list[list[int]] = []
        for position, starts in enumerate(lattice):
            arcs = []
            for start in starts:
                arcs.append(len(nodes))
                nodes.append(("char" if start == position - 1 else "word", state[start]))
            if len(arcs) >= 2:
                nodes.append((f"sum.{len(arcs)}" if by_arity else "sum", arcs))
                arcs = [len(nodes) - 1]
            state.append(arcs)
            nodes.append(("out", arcs))
    arity = max((len(starts) for lattice in lattices for starts in lattice), default=0)
    sums = [f"sum.{k}" for k in range(2, arity + 1)] if by_arity else ["sum"]
    return _build(["char", "word", "out", *sums], nodes)


def tagger_graph(sentences: Sequence[list[str]]) -> Graph:
    """Two forward and two backward layers of different weights, one output per token."""
    nodes: list[Node] = []
    for words in sentences:
        tops = []
        for side in ("f", "b"):
            below: list[list[int]] = [[] for _ in words]
            for layer in "01":
                before: list[int] = []
                order = range(len(words)) if side == "f" else range(len(words) - 1, -1, -1)
                for position in order:
                    nodes.append((f"lstm.{side}{layer}", before + below[position]))
                    before = [len(nodes) - 1]
                    below[position] = before
            tops.append(below)
        nodes.extend(("out", tops[0][i] + tops[1][i]) for i in range(len(words)))
    return _build(["lstm.f0", "lstm.f1", "lstm.b0", "lstm.b1", "out"], nodes)


def char_tagger_graph(sentences: Sequence[list[str]], rare: set[str]) -> Graph:
    """As `tagger_graph`, a rare word read by a forward and a backward character LSTM first."""
    nodes: list[Node] = []
    for words in sentences:
        inputs: list[list[int]] = []
        for word in words:
            ends = []
            for side in ("f", "b") if word in rare else ():
                before: list[int] = []
                for _ in word:
                    nodes.append((f"char.{side}", before))
                    before = [len(nodes) - 1]
                ends += before
            inputs.append(ends)
        tops = []
        for side in ("f", "b"):
            below = [list(entry) for entry in inputs]
            for layer in "01":
                before = []
                order = range(len(words)) if side == "f" else range(len(words) - 1, -1, -1)
                for position in order:
                    nodes.append((f"lstm.{side}{layer}", before + below[position]))
                    before = [len(nodes) - 1]
                    below[position] = before
            tops.append(below)
        nodes.extend(("out", tops[0][i] + tops[1][i]) for i in range(len(words)))
    return _build(["char.f", "char.b", "lstm.f0", "lstm.f1", "lstm.b0", "lstm.b1", "out"], nodes)


def nmt_graph(pairs: Sequence[tuple[list[str], list[str]]]) -> Graph:
    """An encoder LSTM, a decoder LSTM from its last state, one output per step."""
    nodes: list[Node] = []
    for source, target in pairs:
        before: list[int] = []
        for _ in source:
            nodes.append(("encoder", before))
            before = [len(nodes) - 1]
        for _ in target:
            nodes.append(("decoder", before))
            before = [len(nodes) - 1]
            nodes.append(("out", before))
    return _build(["encoder", "decoder", "out"], nodes)


def rare_words(sentences: Sequence[list[str]], *, below: int = 5) -> set[str]:
    """Words seen fewer than `below` times."""
    counts: dict[str, int] = {}
    for words in sentences:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return {word for word, count in counts.items() if count < below}


@dataclass(frozen=True)
class Workload:
    """Instances and what makes their graph."""

    instances: Sequence[Any]
    graph: Callable[[Sequence[Any]], Graph]

    def batch(self, size: int, number: int = 0) -> Graph:
        """Mini-batch `number` of consecutive instances in file order."""
        return self.graph(self.instances[number * size : (number + 1) * size])


def workloads(data: Path) -> dict[str, Workload]:
    """Every workload whose files are under `data`."""
    lattices = read_lattices(data / "zh_lattice_edbatch" / "train.txt")
    trees = read_trees(data / "sst_trees" / "train-first4000.txt")
    sentences = read_sentences(data / "wikiner_tags" / "first1200.txt")
    rare = rare_words(sentences)
    return {
        "lattice by arity": Workload(lattices, lambda part: lattice_graph(part, by_arity=True)),
        "lattice one sum": Workload(lattices, lambda part: lattice_graph(part, by_arity=False)),
        "tree 2type": Workload(trees, lambda part: tree_graph(part, two_types=True)),
        "tree": Workload(trees, tree_graph),
        "tagger": Workload(sentences, tagger_graph),
        "tagger char": Workload(sentences, lambda part: char_tagger_graph(part, rare)),
        "nmt": Workload(read_pairs(data / "iwslt15_envi"), nmt_graph),
    }
