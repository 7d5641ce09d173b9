"""Equal nodes of a mini-batch of vertices are one: the same results from the same rows, whatever makes them equal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from both_ways import BothWays, model_file, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from vertex_strategies import everything, random_instance

from edbc.capture.forward.build import Capture
from edbc.errors import InputError
from edbc.run.passes import share as rule
from edbc.run.passes.share import share
from edbc.vertex import Vertex, VertexFunction, VertexInstance

WAYS = BothWays(everything())
MODELS = ["tree_lstm", "tree_lstm_2type", "lattice_lstm", "lattice_gru", "bilstm_tagger", "bilstm_tagger_char",
          "lstm_nmt"]  # fmt: skip
Known = dict[Any, int]


def without_limits(patch: pytest.MonkeyPatch) -> None:
    """Equal nodes are looked for however few there may be."""
    for name, value in (("FEWEST", 1), ("WORTHWHILE", 0), ("MOST", 0)):
        patch.setattr(rule, name, value)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `without_limits`."""
    without_limits(monkeypatch)


def computed(captured: Capture, known: Known) -> list[Any]:
    """What every result is: equal for equal nests of types, outputs and rows, whatever nodes make them."""
    graph = captured.graph
    nodes: list[int] = []

    def value(node: int, output: int) -> Any:
        if node >= 0:
            return nodes[node], output
        number, row = int(captured.external_source[-1 - node]), int(captured.external_index[-1 - node])
        is_constant = captured.sources[number].kind == "constant"
        return "row", number, captured.constants[number][row].numpy().tobytes() if is_constant else row

    for v, kind in enumerate(graph.node_type.tolist()):
        key = kind, tuple(value(*operand) for operand in graph.operands_of(v))
        nodes.append(known.setdefault(key, len(known)))
    return [value(*r) for r in zip(captured.result_node.tolist(), captured.result_output.tolist(), strict=True)]


def require_same_results(ways: BothWays, instances: list[VertexInstance]) -> tuple[Capture, Capture]:
    """The mini-batch as it is, and with equal nodes as one: every result is computed from the same rows."""
    whole = ways.program.join(instances)
    shared = share(whole)
    known: Known = {}
    assert computed(shared, known) == computed(whole, known)
    assert shared.graph.lint().num_nodes + shared.num_shared == whole.graph.num_nodes
    return whole, shared


def repeated(name: str, count: int, words: int, seed: int) -> list[VertexInstance]:
    """Samples of a model with few words, some of them several times, in any order."""
    file = model_file(name)
    samples = [file.vertex_instance(x) for x in file.sample(count, seed, vocab_size=words)]
    rng = random.Random(seed)
    samples += rng.choices(samples, k=count)
    rng.shuffle(samples)
    return samples


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6), st.booleans())
@settings(derandomize=True, max_examples=100, deadline=None)
def test_any_vertex_functions_keep_their_results(seeds: list[tuple[int, int]], limited: bool) -> None:
    """Random mini-batches in which instances repeat, with the rule as it is and without its limits."""
    with pytest.MonkeyPatch.context() as patch:
        if not limited:
            without_limits(patch)
        require_same_results(WAYS, [random_instance(*seed) for seed in seeds])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("always")
def test_repeated_instances_share(name: str) -> None:
    """Few words, and instances several times: fewer nodes, and every result from the same rows."""
    ways = BothWays(small(name, vocab_size=6))

    assert sum(require_same_results(ways, repeated(name, 4, 6, seed))[1].num_shared for seed in range(4)) > 0


def test_where_looking_does_not_pay_nothing_is_shared() -> None:
    """First vertices that nearly all differ are the whole look."""
    ways = BothWays(small("tree_lstm", vocab_size=1000))
    file = model_file("tree_lstm")
    instances = [file.vertex_instance(x) for x in file.sample(4, 1, vocab_size=1000)]
    whole, shared = require_same_results(ways, instances)

    assert shared.num_shared == 0
    assert np.array_equal(shared.graph.operands, whole.graph.operands)


class Partial(nn.Module):
    """A vertex with a node that does not depend on all that the vertex differs in."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))
        self.read, self.join = nn.Linear(3, 3), nn.Linear(6, 3)

    def forward(self, instance: Any) -> Tensor:
        raise NotImplementedError

    def vertices(self) -> dict[str, VertexFunction]:
        return {"word": self.word}

    def word(self, v: Vertex) -> None:
        x = self.read(v.pull("id", self.table))
        h = v.gather(0, default=torch.zeros(3))
        h = self.join(torch.cat([x, h]))
        v.push("h", h)
        v.scatter(h)


@pytest.mark.usefixtures("always")
def test_nodes_that_are_equal_in_part_are_shared() -> None:
    """Of vertices that differ, those nodes that depend on nothing they differ in."""
    ways = BothWays(Partial().eval())
    chains = [VertexInstance.build([(0, []), (0, [0]), (0, [1])], {"id": ids}) for ids in ([1, 2, 3], [2, 2, 3])]
    _, shared = require_same_results(ways, chains * 2)

    assert shared.has_shared
    assert sorted(shared.graph.counts().tolist()) == [3, 6, 6]  # words that differ; positions of two sentences


def two_words(ids: list[int], **others: list[int]) -> VertexInstance:
    """A chain of two words; `others` are inputs that stand before their ids."""
    return VertexInstance.build([(0, []), (0, [0])], {**others, **({"id": ids} if ids else {})})


def test_inputs_in_other_places_are_read_all_the_same() -> None:
    """Instances that hold other inputs beside the one that is pulled."""
    joined = BothWays(Partial().eval()).program.join([two_words([1, 4]), two_words([3, 2], other=[9, 9])])
    pairs = zip(joined.external_source.tolist(), joined.external_index.tolist(), strict=True)

    assert [row for source, row in pairs if joined.sources[source].kind == "row"] == [1, 4, 3, 2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (two_words([3, 2**40]), "instance 1, vertex 1: input 'id': expected a row of its table, got 1099511627776;"),
        (two_words([], other=[1, 2]), "instance 1: .*'id'"),
    ],
    ids=["far", "missing"],
)
def test_inputs_that_cannot_be_packed_are_refused_as_others(bad: VertexInstance, message: str) -> None:
    """A number of more than 32 bits, and an input that one instance lacks."""
    with pytest.raises(InputError, match=message):
        BothWays(Partial().eval()).program.join([two_words([1, 4]), bad])
