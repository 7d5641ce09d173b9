"""What authors of models over trees and graphs do by hand to run a mini-batch, for the ports of docs/examples/ports.

`prepare` makes index tensors of a mini-batch's structure, as their data loaders do; `run` computes what the model's
forward returns for each instance, with the model's own weights. Four go level by level: nodes of one height (or depth)
together, messages by `index_add`, padding where children are read in order. Loop nests are grouped by equal structure,
as the published code does, and each group is one recursion over tensors with a batch dimension.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Prepared = Any


class Forest:
    """All nodes of a mini-batch: children before parents, with heights."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.children: list[list[int]] = []
        self.height: list[int] = []

    def add(self, facts: Any, children: Sequence[int]) -> int:
        """A node; its number."""
        self.facts.append(facts)
        self.children.append(list(children))
        self.height.append(1 + max((self.height[c] for c in children), default=-1))
        return len(self.facts) - 1

    def levels(self) -> Iterator[list[int]]:
        """Nodes by height."""
        found: dict[int, list[int]] = defaultdict(list)
        for node, height in enumerate(self.height):
            found[height].append(node)
        return iter(found[h] for h in sorted(found))

    def edges(self, nodes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Children of some nodes, and the position of each one's parent among them."""
        pairs = [(child, place) for place, node in enumerate(nodes) for child in self.children[node]]
        return torch.tensor([c for c, _ in pairs], dtype=torch.long), torch.tensor(
            [p for _, p in pairs], dtype=torch.long
        )


class ZeroShotCost:
    """Levels, and in each the kinds of nodes apart."""

    def prepare(self, module: Any, batch: Sequence[Any]) -> Prepared:
        """Levels of nodes by kind, features of each kind in one tensor."""
        forest = Forest()

        def add(node: Any) -> int:
            kind, features, children = node
            return forest.add((kind, features), [add(child) for child in children])

        roots = torch.tensor([add(module.node_of(plan)) for plan in batch])
        of_kind: dict[str, list[int]] = defaultdict(list)
        for node, (kind, _) in enumerate(forest.facts):
            of_kind[kind].append(node)
        features = {k: (torch.tensor(v), torch.tensor([forest.facts[n][1] for n in v])) for k, v in of_kind.items()}
        levels = []
        for nodes in forest.levels():
            kinds: dict[str, list[int]] = defaultdict(list)
            for node in nodes:
                kinds[forest.facts[node][0]].append(node)
            levels.append([(kind, torch.tensor(of), *forest.edges(of)) for kind, of in kinds.items()])
        return roots, len(forest.facts), features, levels

    def run(self, model: Any, prepared: Prepared) -> list[Tensor]:
        """Cost of each plan."""
        roots, count, features, levels = prepared
        own, h = torch.empty(count, model.size), torch.empty(count, model.size)
        for kind, (nodes, numbers) in features.items():
            own[nodes] = model.encode[kind](numbers)
        for level in levels:
            for kind, nodes, children, parents in level:
                below = torch.zeros(len(nodes), model.size).index_add_(0, parents, h[children])
                h[nodes] = model.update[kind](torch.cat([own[nodes], below], 1))
        return list(model.cost(h[roots]))


class LoopNests:
    """Programs of equal structure together."""

    def prepare(self, _module: Any, batch: Sequence[Any]) -> Prepared:
        """Numbers of the programs of each structure, one of them, and the features of all by computation."""
        groups: dict[str, list[int]] = defaultdict(list)
        for number, program in enumerate(batch):
            loops = program["iterators"].items()
            groups[
                repr([(n, i["parent_iterator"], i["child_iterators"], i["computations_list"]) for n, i in loops])
            ].append(number)
        made = []
        for numbers in groups.values():
            first = batch[numbers[0]]
            stacked = {
                name: torch.tensor([batch[n]["computations"][name] for n in numbers]) for name in first["computations"]
            }
            made.append((numbers, first["iterators"], stacked))
        return len(batch), made

    def run(self, model: Any, prepared: Prepared) -> list[Tensor]:
        """Speed-up of each program."""
        count, groups = prepared
        results: list[Any] = [None] * count
        for numbers, loops, computations in groups:

            def read(cell: Any, items: list[Tensor], size: int = len(numbers)) -> Tensor:
                h = c = torch.zeros(size, model.size)
                for item in items:
                    h, c = cell(item, (h, c))
                return h

            def loop(name: str, loops: Any = loops, computations: Any = computations, read: Any = read) -> Tensor:
                inside = [loop(child, loops, computations, read) for child in loops[name]["child_iterators"]]
                embedded = [model.embed(computations[c]) for c in loops[name]["computations_list"]]
                return model.merge(torch.cat([read(model.of_computations, embedded), read(model.of_loops, inside)], 1))

            roots = [name for name, facts in loops.items() if facts["parent_iterator"] is None]
            found = model.speedup(read(model.of_loops, [loop(name) for name in roots]))
            for number, value in zip(numbers, found, strict=True):
                results[number] = value
        return results


class DAGNN:
    """Depths of nodes, with a softmax over the edges into each."""

    def prepare(self, _module: Any, batch: Sequence[Any]) -> Prepared:
        """Kinds of all nodes, the last of each graph, levels with their edges."""
        forest, last = Forest(), []
        for graph in batch:
            base = len(forest.facts)
            before: list[list[int]] = [[] for _ in graph["node_feat"]]
            for source, target in zip(*graph["edge_index"], strict=True):
                before[target].append(base + source)
            for facts, sources in zip(graph["node_feat"], before, strict=True):
                forest.add(facts, sources)
            last.append(len(forest.facts) - 1)
        levels = [(torch.tensor(nodes), *forest.edges(nodes)) for nodes in forest.levels()]
        return torch.tensor(forest.facts), torch.tensor(last), levels

    def run(self, model: Any, prepared: Prepared) -> list[Tensor]:
        """Result of each graph."""
        kinds, last, levels = prepared
        below = model.types(kinds[:, 0]) + model.attributes(kinds[:, 1])
        found = []
        for layer, step in enumerate(model.step):
            query, h = model.query[layer](below).squeeze(1), torch.empty_like(below)
            for nodes, sources, places in levels:
                states = h[sources]
                scores = query[nodes][places] + model.key[layer](states).squeeze(1)
                top = torch.full((len(nodes),), -torch.inf).scatter_reduce_(0, places, scores, "amax")
                weights = (scores - top[places]).exp()
                total = torch.zeros(len(nodes)).index_add_(0, places, weights)
                message = torch.zeros(len(nodes), model.size)
                message.index_add_(0, places, (weights / total[places]).unsqueeze(1) * states)
                h[nodes] = step(below[nodes], message)
            below = h
            found.append(h[last])
        return list(model.out(torch.cat(found, 1)))


class TreeEncoder:
    """Heights of constituents, children padded to the longest of a height."""

    def prepare(self, module: Any, batch: Sequence[Any]) -> Prepared:
        """Words, roots, and per height labels, padded children and lengths, forth and back."""
        forest = Forest()

        def add(tree: Any) -> int:
            return forest.add(tree, []) if isinstance(tree, int) else forest.add(tree[0], [add(c) for c in tree[1]])

        roots = torch.tensor([add(module.parsed(line)) for line in batch])
        _, *heights = forest.levels()
        leaves = [node for node, children in enumerate(forest.children) if not children]
        words = torch.tensor(leaves), torch.tensor([forest.facts[node] for node in leaves])
        levels = []
        for nodes in heights:
            longest = max(len(forest.children[n]) for n in nodes)
            padded = torch.zeros(2, len(nodes), longest, dtype=torch.long)
            lengths = torch.tensor([len(forest.children[n]) for n in nodes])
            for place, node in enumerate(nodes):
                children = torch.tensor(forest.children[node])
                padded[0, place, : len(children)], padded[1, place, : len(children)] = children, children.flip(0)
            levels.append((torch.tensor(nodes), torch.tensor([forest.facts[n] for n in nodes]), padded, lengths))
        return roots, len(forest.facts), words, levels

    def run(self, model: Any, prepared: Prepared) -> list[Tensor]:
        """State of each root."""
        roots, count, (leaves, words), levels = prepared
        h = torch.empty(count, model.size)
        h[leaves] = model.words(words)
        for nodes, labels, padded, lengths in levels:
            first, read = model.labels(labels), []
            for cell, children in zip((model.forth, model.back), padded, strict=True):
                state = cell(first)
                for place in range(children.shape[1]):
                    new = cell(h[children[:, place]], state)
                    is_there = (lengths > place).unsqueeze(1)
                    state = tuple(torch.where(is_there, a, b) for a, b in zip(new, state, strict=True))
                read.append(state[0])
            h[nodes] = torch.tanh(model.merge(torch.cat(read, 1)))
        return list(h[roots])


class TermEncoder:
    """Heights of terms, children summed by index."""

    def prepare(self, module: Any, batch: Sequence[Any]) -> Prepared:
        """Kinds of all nodes, roots by goal, levels with their edges."""
        forest = Forest()

        def add(term: Any) -> int:
            return forest.add(module.NONTERMINALS.index(term["data"]), [add(c) for c in term["children"]])

        roots = [torch.tensor([add(term) for term in goal]) for goal in batch]
        levels = [(torch.tensor(nodes), *forest.edges(nodes)) for nodes in forest.levels()]
        return torch.tensor(forest.facts), roots, levels

    def run(self, model: Any, prepared: Prepared) -> list[Tensor]:
        """States of each goal's terms."""
        kinds, roots, levels = prepared
        own, of_forget = model.kinds(kinds), model.kinds_of_forget(kinds)
        h, c = torch.empty(len(kinds), model.size), torch.empty(len(kinds), model.size)
        for nodes, children, places in levels:
            total = torch.zeros(len(nodes), model.size).index_add_(0, places, h[children])
            i, o, u = (own[nodes] + model.gates(total)).chunk(3, 1)
            forget = torch.sigmoid(of_forget[nodes][places] + model.forget(h[children]))
            kept = torch.sigmoid(i) * torch.tanh(u)
            c[nodes] = kept.index_add_(0, places, forget * c[children])
            h[nodes] = torch.sigmoid(o) * torch.tanh(c[nodes])
        return [h[goal] for goal in roots]


BY_HAND = {"zero_shot_cost": ZeroShotCost(), "loop_nests": LoopNests(), "dagnn": DAGNN(), "constituency": TreeEncoder(),
           "proof_terms": TermEncoder()}  # fmt: skip
"""By the port's file; the class is named as the model's."""
