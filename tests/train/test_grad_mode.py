"""`torch.no_grad()` and its like inside forward: what is computed there passes no gradient, as in eager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import gradients, random_loss, require_equal, require_equal_gradients
from helpers import bound, counts
from torch import Tensor, nn

import edbc
from edbc.capture.captured.structurecache import StructureCache
from edbc.errors import UnsupportedError
from edbc.run.session import Net, Stats
from edbc.vertex import Vertex, VertexFunction, VertexInstance

SIZE = 4
WORDS = [[1, 2, 3], [4], [5, 5, 6, 1], [7, 8]]


@edbc.cell
class Cell(nn.Module):
    """Half of a gate passes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(SIZE, SIZE)
        self.b = nn.Linear(SIZE, SIZE)
        self.blocked = False

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        left = torch.tanh(self.a(x))
        with torch.set_grad_enabled(not self.blocked):
            right = torch.sigmoid(self.b(h)) + left
        return left * right + h


class Model(nn.Module):
    """Whatever `rule` does with a table, a cell and a layer."""

    def __init__(self, rule: Callable[[Any, Any], Any], blocked: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.rule = rule
        self.table = nn.Embedding(12, SIZE)
        self.cell = Cell()
        self.cell.blocked = blocked
        self.out = nn.Linear(SIZE, 3)
        self.h0 = nn.Parameter(torch.randn(SIZE))
        self.double()

    def forward(self, instance: Any) -> Any:
        return self.rule(self, instance)


def word(m: Model, index: int) -> Tensor:
    return m.table(torch.tensor([index]))[0]


def chain(m: Model, words: list[int]) -> Tensor:
    h = m.h0
    for w in words:
        h = m.cell(word(m, w), h)
    return m.out(h)


def truncated(m: Model, words: list[int]) -> Tensor:
    """Backpropagation through the last step only."""
    h = m.h0
    with torch.no_grad():
        for w in words[:-1]:
            h = m.cell(word(m, w), h)
    return m.out(m.cell(word(m, words[-1]), h))


def every_other(m: Model, words: list[int]) -> Tensor:
    h = m.h0
    for i, w in enumerate(words):
        with torch.set_grad_enabled(i % 2 == 0):
            h = m.cell(word(m, w), h)
    return m.out(h)


def nested(m: Model, words: list[int]) -> Tensor:
    with torch.no_grad():
        first = m.cell(word(m, words[0]), m.h0)
        with torch.enable_grad():
            second = m.cell(first, m.h0)
        third = second * 2
    return m.out(second + third)


def decorated(m: Model, words: list[int]) -> Tensor:
    @torch.no_grad()
    def target(x: Tensor) -> Tensor:
        return 2 * m.out(x)  # else every gradient is zero but for rounding

    h = m.cell(word(m, words[0]), m.h0)
    return (m.out(h) - target(h)).square()


def views_and_lookups(m: Model, words: list[int]) -> Tensor:
    h = m.cell(word(m, words[0]), m.h0)
    with torch.no_grad():
        part, same, start = h[:2], h.view(SIZE), m.h0.view(SIZE)
        row, looked_up, rows = m.table.weight[words[0]], word(m, words[-1]), m.table(torch.tensor(words))
        nothing = sum([h])
    rest = torch.cat([part, h[2:]]) * start + same * m.h0 + nothing * row
    return m.out(rest + rows[0] + looked_up * m.table.weight[words[-1]])


def sums(m: Model, words: list[int]) -> Tensor:
    """A sum whose middle is detached is no one sum of all terms."""
    a, b = (m.cell(word(m, w), m.h0) for w in (words[0], words[-1]))
    with torch.no_grad():
        c = a + b
    return m.out(a + (c + b) + m.h0)


def stacks(m: Model, words: list[int]) -> Tensor:
    states = torch.stack([m.cell(word(m, w), m.h0) for w in words])
    with torch.no_grad():
        mean, first, inner = states.mean(0), states[0], torch.stack([m.cell(word(m, w), m.h0) for w in words])
    return m.out(states.sum(0) * mean + first + inner.sum(0) * m.h0)


def asked_for_first(m: Model, words: list[int]) -> Tensor:
    """Stacks and rows that are whole tensors first where gradients are off."""
    states, rows = torch.stack([m.cell(word(m, w), m.h0) for w in words]), m.table(torch.tensor(words))
    with torch.no_grad():
        scale, part, seen = (states * m.h0).sum(0), states[:2], states.unsqueeze(0)
        of_rows, by_item = (rows * m.h0).sum(0), states.sum(1)
    result = (states * m.h0).sum(0) * scale + (part * m.h0).sum(0) + seen[0, 0] + (by_item * 2).sum()
    return m.out(result + of_rows + (rows * 2).sum(0))


def parameters(m: Model, words: list[int]) -> Tensor:
    with torch.no_grad():
        scale, frozen = m.h0 * 2, m.out.weight
        doubled = frozen * 2
    return (m.cell(word(m, words[0]), m.h0) * scale) @ doubled.t() + m.out(scale)


def by_function(m: Model, words: list[int]) -> Tensor:
    previous = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    h = m.cell(word(m, words[0]), m.h0)
    torch.set_grad_enabled(previous)
    return m.out(h)


RULES = [truncated, every_other, nested, decorated, views_and_lookups, sums, stacks, asked_for_first, parameters,
         by_function]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_gradients_equal_eager(rule: Any, backend: str) -> None:
    """None in the same places, the same numbers elsewhere; without gradients, the same outputs and types."""
    net = bound(Model(rule), WORDS, backend=backend)
    require_equal_gradients(net, WORDS)
    stats = Stats()
    with torch.no_grad():
        torch.testing.assert_close(net.run(WORDS, stats)[0], [net.model(words) for words in WORDS])
    assert not stats.unseen_types


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_inside_a_cell(backend: str) -> None:
    """A cell's own operations pass no gradient where eager's do not."""
    ours = require_equal_gradients(bound(Model(chain, blocked=True), WORDS, backend=backend), WORDS)

    assert ours["cell.b.weight"] is None


def test_what_has_no_gradient_says_so() -> None:
    """A result computed without gradients requires none, and its neighbours do; inference mode is the same."""
    for context in (torch.no_grad, torch.inference_mode):

        def rule(m: Model, words: list[int], context: Any = context) -> tuple[Tensor, Tensor]:
            with context():
                plain = m.cell(word(m, words[0]), m.h0)
            return plain, m.cell(word(m, words[0]), m.h0)

        net = bound(Model(rule), WORDS)
        results = net(WORDS)
        assert [[t.requires_grad for t in result] for result in results] == [[False, True]] * 4


def test_types_do_not_depend_on_the_mode() -> None:
    """Nodes with and without gradients are of one type and run in one batch."""
    net = bound(Model(truncated), WORDS)
    graph = net.mini_batch(WORDS)

    assert counts(graph.graph)["cell"] == sum(map(len, WORDS))
    assert graph.detached is not None
    assert graph.detached.sum() == sum(len(words) - 1 for words in WORDS)
    assert net.mini_batch([[1]]).detached is None


def test_structures_captured_once() -> None:
    """The structure cache remembers which nodes are detached."""
    net = bound(Model(truncated), WORDS)
    net.cache = StructureCache(tuple, verify=True)
    for _ in range(2):
        require_equal_gradients(net, WORDS[::-1])
    assert net.cache.hits


def test_deep_recursion() -> None:
    """An instance that recurses too deep for Python's stack starts again with gradients on."""

    def deep(m: Model, count: list[int]) -> Tensor:
        def descend(left: int) -> Tensor:
            if not left:
                return m.table.weight[count[0] % 12]
            with torch.no_grad():
                below = descend(left - 1)
            return below + m.cell(m.h0, m.h0) if left == count[0] else below * 0.999

        return descend(count[0])

    instances = [[3], [1200], [2]]
    net = bound(Model(deep), [[3]])
    ours = gradients(net.model, random_loss(net(instances)))
    theirs = gradients(
        net.model, random_loss([edbc.capture.forward.deep.run_deep(lambda x=x: net.model(x)) for x in instances])
    )
    require_equal(ours, theirs)
    assert net._idle[0][1].needs_deep_stack


def test_other_threads_are_not_heard() -> None:
    """A context that another thread enters while this one records changes nothing here."""
    entered, recorded = threading.Event(), threading.Event()

    def other() -> None:
        with torch.no_grad():
            entered.set()
            recorded.wait(10)

    def rule(m: Model, words: list[int]) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        result = chain(m, words)
        recorded.set()
        thread.join()
        return result

    require_equal_gradients(bound(Model(rule), WORDS), WORDS[:1])


class Vertices(nn.Module):
    """A vertex function that switches gradients off."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, SIZE))

    def vertices(self) -> dict[str, VertexFunction]:
        return {"one": self.one}

    def one(self, v: Vertex) -> None:
        with torch.no_grad():
            v.push("row", v.pull("id", self.table) * 2)


def test_vertex_functions_refuse() -> None:
    """With the line: fragments stand for vertices with gradients and without."""
    net = Net(bound(Model(chain), WORDS).plan, Vertices().eval())
    line = Vertices.one.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=rf"test_grad_mode\.py:{line}: a vertex function switches gradients"):
        net([VertexInstance.build([(0, [])], {"id": [1]})])
    assert torch.is_grad_enabled()
