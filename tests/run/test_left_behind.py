"""What forward keeps on the caller's objects: real tensors once a call is over, as eager execution leaves them."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from helpers import bound, seeded
from torch import nn

import edbc
from edbc.capture.captured.structurecache import StructureCache
from edbc.capture.code.mark import cell
from edbc.capture.forward import left
from edbc.capture.standins.objects import Holding, Sought, unchanged, walked
from edbc.capture.standins.standin import Symbol
from edbc.errors import EdbcError, UnsupportedError
from edbc.plan.writer import plan_text
from edbc.run.session import Net
from edbc.tools.compile.compiler import compile_model
from edbc.tools.explain.observe import observe
from edbc.tools.running import Setting, run_plan

SIZE = 4


class Node:
    """A tree."""

    def __init__(self, word: int, *children: Node):
        self.word, self.children = word, list(children)
        self.parent: Node | None = None
        self.kept: dict[str, Any] = {}
        self.seen: list[Any] = []
        for child in children:
            child.parent = self


class Slotted:
    """An object without a dict of attributes."""

    __slots__ = ("state", "unset")


class Pair(NamedTuple):
    """A named tuple."""

    state: Any
    others: Any


def tree(seed: int, depth: int = 3) -> Node:
    """A tree of words."""
    rng = random.Random(seed)

    def grow(levels: int) -> Node:
        count = rng.randrange(1, 3) if levels else 0
        return Node(rng.randrange(20), *(grow(levels - 1) for _ in range(count)))

    return grow(depth)


def trees(count: int = 4) -> list[Node]:
    """Some, always the same."""
    return [tree(seed) for seed in range(count)]


@cell
class Join(nn.Module):
    """Of a word and the sum of its children's states."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.cat([x, h])))


class Model(nn.Module):
    """A recursive network that keeps states where `keep` says."""

    def __init__(self, keep: Callable[..., Any]):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, SIZE)
        self.start = nn.Parameter(torch.randn(SIZE))
        self.join, self.out = Join(), nn.Linear(SIZE, 3)
        self.keep = keep
        self.memo: dict[int, Any] = {}
        self.path: list[Any] = []

    def forward(self, node: Node) -> torch.Tensor:
        self.path = []
        return self.out(self.encode(node))

    def encode(self, node: Node) -> torch.Tensor:
        children = [self.encode(child) for child in node.children]
        x = self.words(torch.tensor(node.word))
        h = self.join(x, sum(children) if children else self.start)
        self.keep(self, node, h, children)
        return h


def attribute(net: Any, node: Any, h: Any, children: Any) -> None:
    node.state = h


def of_a_dict(net: Any, node: Any, h: Any, children: Any) -> None:
    node.kept["h"] = h
    node.counts = defaultdict(list, {"h": [h]})
    node.ordered = OrderedDict(h=h)


def of_a_list(net: Any, node: Any, h: Any, children: Any) -> None:
    node.seen.append(h)
    node.seen.append([h * 2.0])
    node.last = deque([h], maxlen=1)


def of_a_tuple(net: Any, node: Any, h: Any, children: Any) -> None:
    node.state = (h, (node.word, (h + 1.0,)), "text")
    node.pair = Pair(h, others=children)


def of_a_set(net: Any, node: Any, h: Any, children: Any) -> None:
    node.found = {h}
    node.fixed = frozenset([h])


def of_slots(net: Any, node: Any, h: Any, children: Any) -> None:
    node.slotted = Slotted()
    node.slotted.state = h


def nested(net: Any, node: Any, h: Any, children: Any) -> None:
    node.extra = SimpleNamespace(deep={"a": [({"b": h},)]})


def circle(net: Any, node: Any, h: Any, children: Any) -> None:
    node.kept["me"] = node
    node.kept["h"] = h
    if node.parent is not None:
        node.parent.seen.append((node.parent, h))


def views(net: Any, node: Any, h: Any, children: Any) -> None:
    node.first, node.rest = h[0], h[1:]
    node.turned = h.view(2, 2).t()
    node.parts = h.chunk(2)


def stacks(net: Any, node: Any, h: Any, children: Any) -> None:
    node.stack = torch.stack([h, *children])
    node.rows = net.words(torch.tensor([node.word, 1]))
    node.row = node.rows[0]


def parameters(net: Any, node: Any, h: Any, children: Any) -> None:
    node.start = net.start
    node.shifted = net.start + 1.0
    node.words = net.words(torch.tensor(node.word))


def changed(net: Any, node: Any, h: Any, children: Any) -> None:
    state = torch.zeros(SIZE)
    state[:2] = h[:2]
    node.state = state
    other = h * 2.0
    node.seen.append(other)
    other.add_(1.0)


def memo(net: Any, node: Any, h: Any, children: Any) -> None:
    net.memo[node.word] = h
    net.path.append((node.word, h))
    net.last = h
    net.join.last = h


KEEPS = [attribute, of_a_dict, of_a_list, of_a_tuple, of_slots, nested, circle, views, stacks, parameters, changed]
BACKENDS = [None, "reference"]


def tensors_on(*roots: Any) -> Iterator[torch.Tensor]:
    """All that objects hold, in the order of a walk; stand-ins are an error."""
    met: list[tuple[Holding, Any]] = []
    walked(roots, set(), Sought(lambda kind: False), met)
    for holding, of in met:
        for _, item in holding.pairs(of):
            assert not issubclass(type(item), Symbol), f"a stand-in was left: {item!r}"
            yield from flat(item)


def flat(item: Any) -> Iterator[torch.Tensor]:
    """Tensors in tuples."""
    if type(item) in (torch.Tensor, nn.Parameter):
        yield item
    elif isinstance(item, tuple | frozenset):
        for part in item:
            assert not issubclass(type(part), Symbol), f"a stand-in was left: {part!r}"
            yield from flat(part)


def require_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """The same tensors in the same order."""
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.requires_grad == other.requires_grad
        torch.testing.assert_close(mine.detach(), other.detach())


def net_of(keep: Callable[..., Any], **options: Any) -> Net:
    """A model bound to a plan that was made of other trees."""
    return bound(Model(keep), trees(6), **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("keep", KEEPS)
def test_objects_hold_what_eager_leaves(keep: Callable[..., Any], gradients: bool, backend: str | None) -> None:
    """After a call the caller's objects hold real tensors, the same as eager's, and no stand-in."""
    net = net_of(keep, backend=backend)
    mine, theirs = trees(), trees()
    with torch.set_grad_enabled(gradients):
        results = net(mine)
        expected = [net.model(node) for node in theirs]
    require_same(list(tensors_on(*mine)), list(tensors_on(*theirs)))
    require_same(results, expected)


def test_members_of_sets_are_real() -> None:
    """Sets, frozen ones too, hold tensors afterwards."""
    net = net_of(of_a_set)
    mine, theirs = trees(), trees()
    net(mine)
    for node in theirs:
        net.model(node)
    for a, b in zip(nodes(mine), nodes(theirs), strict=True):
        for ours, other in ((a.found, b.found), (a.fixed, b.fixed)):
            assert type(ours) is type(other)
            torch.testing.assert_close(*(next(iter(members)) for members in (ours, other)))


def nodes(roots: list[Node]) -> list[Node]:
    """All nodes of trees."""
    return [node for root in roots for node in [root, *nodes(root.children)]]


def test_a_result_that_is_kept_is_one_tensor() -> None:
    """What forward returns and keeps is the same tensor at both places, as in eager."""

    def keep(net: Any, node: Any, h: Any, children: Any) -> None:
        node.state, node.again, node.pair = h, h, (h, h)

    net = net_of(keep)
    net.model.__class__ = type("Bare", (Model,), {"forward": lambda self, node: self.encode(node)})
    net = bound(net.model, trees(6))
    mine = trees()
    for node, result in zip(mine, net(mine), strict=True):
        assert node.state is result is node.again is node.pair[0] is node.pair[1]


def test_losses_on_what_was_left_train() -> None:
    """Gradients of a loss on states that forward kept are eager's."""
    net = net_of(attribute)
    mine, theirs = trees(), trees()
    net(mine)
    sum(node.state.square().sum() for node in nodes(mine)).backward()
    ours = {name: p.grad for name, p in net.model.named_parameters()}
    net.model.zero_grad(set_to_none=True)
    for node in theirs:
        net.model(node)
    sum(node.state.square().sum() for node in nodes(theirs)).backward()
    for name, p in net.model.named_parameters():
        assert (p.grad is None) == (ours[name] is None), name
        if p.grad is not None:
            torch.testing.assert_close(ours[name], p.grad)


def test_an_object_of_two_instances() -> None:
    """What two instances share holds what the last one left, as in eager; the same instance may come twice."""
    net = net_of(attribute)
    mine, theirs = ([Node(1, a := tree(5)), Node(2, a), a, a] for _ in range(2))
    net(mine)
    for node in theirs:
        net.model(node)
    require_same(list(tensors_on(*mine)), list(tensors_on(*theirs)))


@pytest.mark.parametrize("gradients", [False, True])
def test_attributes_of_the_model(gradients: bool) -> None:
    """What forward keeps on the model is on the user's model afterwards, and the net goes on."""
    net = net_of(memo)
    other = copy.deepcopy(net.model)
    for _ in range(3):
        with torch.set_grad_enabled(gradients):
            net(trees())
            for node in trees():
                other(node)
        for ours, theirs in ((net.model, other), (net.model.join, other.join)):
            require_same([ours.last], [theirs.last])
        require_same(list(tensors_on(net.model.memo)), list(tensors_on(other.memo)))
        require_same(list(tensors_on(net.model.path)), list(tensors_on(other.path)))


class Copies(nn.Module):
    """Copies of a parameter and of a result, and what shows their memory, kept on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.step = nn.Parameter(torch.ones(SIZE)), nn.Linear(SIZE, SIZE)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.step(x) + self.start)
        self.kept = [self.start.clone() for _ in range(2)] + [h, h.clone(), h.clone()]
        self.kept += [self.start.detach().clone(), self.start.to(self.start.dtype, copy=True), self.start.view(2, 2)]
        self.kept += [copy.deepcopy(self.start).detach()]
        return torch.tanh(self.step(h))


class Told(nn.Module):
    """Keeps plain values that say what it was given, beside a tensor or alone, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(SIZE, SIZE)
        self.length, self.calls = 0, 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.length, self.shape = len(rows), tuple(rows.shape)
        self.before, self.whole = self.length - 1, rows.shape; self.double = 2 * self.before  # fmt: skip  # noqa: E702
        self.ends = [bool(i % 2) for i in range(self.length)]
        self.texts = {"length": self.length, "of": {"last": str(self.length - 1)}}
        self.given = {"rows": rows, "first": [rows[0]]}
        if self.length > 4:
            self.longest = "long"
        return torch.tanh(self.step(rows)).sum(0)


class ToldOneByOne(Told):
    """The same with a loop of its own, and a counter, which is the copies'."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.size, h = len(rows), rows[0]
        for row in rows:
            h = torch.tanh(self.step(h + row))
        return h


@pytest.mark.parametrize("kind", [Told, ToldOneByOne])
@pytest.mark.parametrize("rows", [False, True], ids=["", "rows"])
def test_plain_attributes_of_the_model(kind: type[Told], rows: bool) -> None:
    """The user's model has what its last instance left, recorded, of a forward that is kept, or captured; and instances
    that were captured before are this model's as well."""
    instances = [torch.randn(n, SIZE, generator=torch.Generator().manual_seed(n)) for n in (3, 7, 4, 5, 2, 6)]
    model = seeded(kind)
    eager, net = copy.deepcopy(model), bound(model, instances, "auto", rows=rows)
    captured = [net.capture(rows) for rows in instances]

    def told(of: Told) -> dict[str, Any]:
        names = [name for name in vars(of) if name[0] != "_" and name not in ("calls", "training", "given")]
        given = [getattr(of, "given", {})[key] for key in ("rows", "first") if hasattr(of, "given")]
        return {name: (type(vars(of)[name]), vars(of)[name]) for name in names} | {"given": repr(given)}

    with torch.no_grad():
        for batch in (slice(0, 2), slice(0, 3), slice(1, 6), slice(0, 5), slice(2, 4)):
            for way in (instances, captured):
                net(way[batch])
                [eager(rows) for rows in instances[batch]]
                assert told(model) == told(eager)
                assert model.calls == 0
    other = bound(model, instances, "auto", rows=rows)
    other.capture(instances[0])
    assert other([captured[0]])


class KeepsViews(nn.Module):
    """Views of a parameter that forward makes once, or each time, and keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.table = nn.Linear(SIZE, SIZE), nn.Parameter(torch.randn(3, SIZE))
        self.row: Any = None
        self.turned: Any = None
        self.last: Any = None

    def forward(self, words: list[int]) -> torch.Tensor:
        if self.row is None:
            self.row, self.turned = self.table[0], self.step.weight.t()
        h = self.row
        for word in words:
            self.last = self.table[word]
            h = torch.tanh(self.step(h) + self.last @ self.turned)
        return h


@pytest.mark.parametrize("are_made", [False, True])
def test_views_of_parameters_that_are_kept_are_views(are_made: bool) -> None:
    """They follow an optimiser's steps, and gradients flow through them, as in eager execution, before which or after
    which the model is compiled."""
    torch.manual_seed(0)
    model, instances = KeepsViews(), [[0, 1], [2], [1, 2, 0], [0]]
    if are_made:
        model([1])
    net = edbc.compile(model, instances, stages=False, force=True)
    for _ in range(3):
        found = torch.autograd.grad(torch.stack(net(instances)).sum(), [*model.parameters()])
        expected = torch.autograd.grad(sum(model(words).sum() for words in instances), [*model.parameters()])
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.25


def test_copies_have_memory_of_their_own() -> None:
    """Each is changed in place after a call, and all are what they are in eager, the parameter among them."""
    net = bound(seeded(Copies), [torch.zeros(SIZE)])
    other, x = copy.deepcopy(net.model), torch.linspace(-1, 1, SIZE)
    net([x])
    other(x)
    for place in range(len(other.kept)):
        for model in (net.model, other):
            with torch.no_grad():
                model.kept[place] += place + 1
    require_same([*net.model.kept, net.model.start], [*other.kept, other.start])


def memoised(net: Any, node: Any) -> Any:
    if not hasattr(node, "h"):
        children = [memoised(net, child) for child in node.children]
        node.h = net.join(net.words(torch.tensor(node.word)), sum(children) if children else net.start)
    return node.h


def test_a_memo_on_the_instances_is_read_by_the_next_call() -> None:
    """A second call over the same objects finds what the first left, as in eager."""
    model = Model(attribute)
    model.__class__ = type("Memoised", (Model,), {"forward": lambda self, node: self.out(memoised(self, node))})
    net = bound(model, trees(6))
    mine, theirs = trees(), trees()
    for _ in range(3):
        require_same(net(mine), [model(node) for node in theirs])
    require_same([node.h for node in nodes(mine)], [node.h for node in nodes(theirs)])


def test_steps_over_the_same_objects() -> None:
    """Training steps over the same instances equal eager's: what an earlier step left is replaced."""
    net, other = net_of(of_a_tuple), Model(of_a_tuple)
    mine, theirs = trees(), trees()
    for model, call, given in ((net.model, net, mine), (other, lambda all_: [other(x) for x in all_], theirs)):
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss = sum(y.sum() for y in call(given)) + sum(node.state[0].square().sum() for node in nodes(given))
            loss.backward()
            optimiser.step()
    for p, q in zip(net.model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_streams_leave_real_tensors() -> None:
    """A mini-batch of a stream is written when its results are given."""
    net = net_of(attribute)
    mine, theirs = trees(10), trees(10)
    results = list(net.stream(iter(mine), batch_size=3))
    require_same(results, [net.model(node).detach() for node in theirs])
    assert [node.state.item for node in nodes(mine)]
    require_same([n.state for n in nodes(mine)], [n.state.detach() for n in nodes(theirs)])


@pytest.mark.long
def test_the_structure_cache_skips_no_forward_that_leaves_tensors() -> None:
    """Where forward keeps tensors on the instance it runs for every instance, whatever the structure's key says."""
    net = net_of(attribute)
    net.cache = StructureCache(lambda node: repr([n.word for n in nodes([node])]))
    for _ in range(2):
        mine, theirs = [*trees(), *trees()], [*trees(), *trees()]
        with torch.no_grad():
            require_same(net(mine), [net.model(node) for node in theirs])
        require_same([n.state for n in nodes(mine)], [n.state.detach() for n in nodes(theirs)])
    assert net.cache.hits == 0


def test_deep_recursion_leaves_real_tensors() -> None:
    """Also where an instance runs a second time on a large stack."""
    net = net_of(attribute)
    deep = Node(1)
    for word in range(1200):
        deep = Node(word % 20, deep)
    net([Node(1), deep, Node(2)])
    assert all(type(n.state) is torch.Tensor for n in chain(deep))


def chain(node: Node) -> Iterator[Node]:
    """The nodes of a chain."""
    while True:
        yield node
        if not node.children:
            return
        (node,) = node.children


# --- stand-ins that cannot be found ----------------------------------------------------------------------------------

HIDDEN: dict[str, Any] = {}


def hide(net: Any, node: Any, h: Any, children: Any) -> None:
    HIDDEN["value"], HIDDEN["view"], HIDDEN["stack"] = h, h[1:], torch.stack([h, h])
    HIDDEN["rows"], HIDDEN["weight"] = net.words(torch.tensor([1, 2])), net.start
    node.state = h


USES: dict[str, Callable[[Any], Any]] = {
    "add": lambda h: h + 1.0, "radd": lambda h: 1.0 + h, "sum": lambda h: sum([h]), "both": lambda h: h + h,
    "multiply": lambda h: h * 2.0, "negate": operator.neg, "compare": lambda h: h == 0,
    "torch": torch.sigmoid, "first of two": lambda h: torch.add(h, torch.ones(SIZE)),
    "second of two": lambda h: torch.add(torch.ones(SIZE), h), "in a list": lambda h: torch.cat([h, h]),
    "index": lambda h: h[0], "slice": lambda h: h[:1], "iterate": list, "item": lambda h: h.item(),
    "method": lambda h: h.tanh(), "reduce": lambda h: h.sum(0), "property": lambda h: h.T, "data": lambda h: h.data,
    "float": float, "truth": bool, "list": lambda h: h.tolist(), "numpy": lambda h: h.numpy(),
    "pickle": pickle.dumps, "copy": copy.copy, "deep copy": copy.deepcopy, "in place": lambda h: h.add_(1),
    "linear": nn.Linear(SIZE, 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def past() -> dict[str, Any]:
    """What a recording that has ended left in a global variable."""
    HIDDEN.clear()
    net_of(hide)(trees())
    return dict(HIDDEN)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("what", ["value", "view", "stack", "rows", "weight"])
def test_a_stand_in_of_the_past_says_so(what: str, use: str, past: dict[str, Any]) -> None:
    """Whoever uses a stand-in whose recording has ended is told."""
    with pytest.raises(UnsupportedError, match=r"^\w+\.py:\d+: .* of a recording that has ended"):
        USES[use](past[what])
    assert "has ended" in repr(past[what])


@pytest.mark.parametrize("what", ["value", "view", "stack", "rows"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("anew", [False, True], ids=["same net", "other net"])
def test_what_an_earlier_recording_made_does_not_flow_into_a_later_one(what: str, turned: bool, anew: bool) -> None:
    """A value of the past is an error wherever forward uses it, never a number."""
    HIDDEN.clear()
    hides = True

    def keep(net: Any, node: Any, h: Any, children: Any) -> None:
        if hides:
            hide(net, node, h, children)
        else:
            state = h[:1]
            node.other = torch.mul(state, HIDDEN[what]) if turned else torch.mul(HIDDEN[what], state)

    net = net_of(keep)
    net(trees())
    hides = False
    with pytest.raises(EdbcError, match=r"recording that has ended|earlier mini-batch"):
        (net_of(keep) if anew else net)(trees())


def test_survivors_that_nobody_finds_hide_no_others() -> None:
    """A global list that shrinks while instances get states does not keep these from being found."""
    kept: list[Any] = []

    def keep(net: Any, node: Any, h: Any, children: Any) -> None:
        if node.parent is None:
            kept.clear()
        kept.extend([h, h + 1.0] * (5 if node.word == 19 else 1))
        if node.word != 19:
            node.state = h

    net = net_of(keep)
    net([Node(19, Node(19), Node(19))])
    mine = [Node(1)]
    net(mine)
    assert type(mine[0].state) is torch.Tensor


@pytest.mark.parametrize("collects", [False, True])
def test_an_error_leaves_stand_ins_that_say_so(collects: bool) -> None:
    """What forward kept before it failed is of no use, and the next call over the same objects is right; also where the
    garbage collector has seen it."""

    def keep(net: Any, node: Any, h: Any, children: Any) -> None:
        node.state = h
        if node.word == 7 and fails:
            if collects:
                gc.collect()
            raise KeyError("seven")

    fails, keep_now = False, [keep]
    net = net_of(lambda *args: keep_now[0](*args))
    mine, theirs = [Node(1, Node(2)), Node(7, Node(3))], [Node(1, Node(2)), Node(7, Node(3))]
    fails = True
    with pytest.raises(KeyError):
        net(mine)
    old = mine[0].state
    with pytest.raises(UnsupportedError, match="has ended"):
        old + 1
    fails = False

    def use(net: Any, node: Any, h: Any, children: Any) -> None:
        old + 1

    keep_now[0] = use
    with pytest.raises(UnsupportedError, match="has ended"):
        net(trees())
    keep_now[0] = keep
    require_same(net(mine), [net.model(node) for node in theirs])
    require_same(list(tensors_on(*mine)), list(tensors_on(*theirs)))


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients", [False, True])
def test_nobody_walks_where_nothing_is_left(gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that keeps nothing has its instances walked by nobody, once its calls are known."""
    net = net_of(lambda *_: None)
    with torch.set_grad_enabled(gradients):
        net(trees())
        monkeypatch.setattr(left, "walked", None)
        monkeypatch.setattr(left, "end_stand_ins", None)
        net(trees())


class InACircle(nn.Module):
    """Forward has a local function that calls itself, and functions of several results: circles of garbage with
    stand-ins in their variables."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.join = nn.Embedding(20, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, node: Node) -> torch.Tensor:
        states = []

        def visit(node: Node) -> torch.Tensor:
            below = [visit(child) for child in node.children]
            states.append(torch.relu(self.join(sum(below, self.words.weight[node.word]))))
            return states[-1]

        best = torch.topk(visit(node), 2)
        first, second = states[0].chunk(2)
        with torch.no_grad():
            seen = states[0] * 2
        return torch.cat([best.values, first + second, seen])


def test_garbage_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only garbage has stand-ins, nobody walks instances or asks all objects of the process."""
    net = bound(InACircle(), trees(6))
    net(trees())
    monkeypatch.setattr(left, "walked", None)
    monkeypatch.setattr(left, "end_stand_ins", None)
    require_same(net(trees()), [net.model(node) for node in trees()])


@pytest.mark.long
def test_young_stand_ins_end_without_asking_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in kept where nobody looks is found among young objects; an older one by asking all of them."""
    kept: list[torch.Tensor] = []
    is_collected = False

    def keep(model: nn.Module, node: Node, state: torch.Tensor, children: list[torch.Tensor]) -> None:
        kept.append(state)
        if is_collected and node.parent is None:
            gc.collect()

    net = net_of(keep)
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_referrers", None)
        net(trees())
    is_collected = True
    net(trees())
    for state in kept:
        with pytest.raises(UnsupportedError, match="has ended"):
            state + 1


def test_objects_are_as_before() -> None:
    """`unchanged` takes away what forward leaves, and gives back what it overwrote."""
    net = net_of(of_a_list)
    mine = trees()
    mine[0].seen = ["before"]
    with unchanged(mine):
        net(mine)
        assert len(mine[0].seen) == 3
    assert mine[0].seen == ["before"]
    assert not hasattr(mine[0], "last")
    assert not list(tensors_on(*mine))


# --- the commands ----------------------------------------------------------------------------------------------------

MEMO = """
import random

import torch
from torch import nn

import edbc


class Node:
    def __init__(self, word, children):
        self.word, self.children = word, children


def grow(rng, levels):
    return Node(rng.randrange(20), [grow(rng, levels - 1) for _ in range(rng.randrange(1, 3))] if levels else [])


@edbc.cell
class Join(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(2 * size, size)

    def forward(self, x, h):
        return torch.tanh(self.linear(torch.cat([x, h])))


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.join, self.out = nn.Embedding(20, size), Join(size), nn.Linear(size, 3)

    def forward(self, node):
        return self.out(self.encode(node))

    def encode(self, node):
        if not hasattr(node, "h"):
            below = [self.encode(child) for child in node.children]
            x = self.words.weight[node.word]
            node.h = self.join(x, sum(below) if below else x)
        return node.h


def build(size=8):
    return Model(size)


def load(*paths, **config):
    return []


def sample(count, seed, **config):
    rng = random.Random(seed)
    return [grow(rng, 3) for _ in range(count)]
"""


@pytest.mark.long
def test_commands_run_over_objects_that_hold_nothing_yet(tmp_path: Path) -> None:
    """Compiling, `run --verify`, `bench` and `explain` run over the same instances many times; a memo on these is
    filled anew each time, so that every run computes."""
    path, plan = tmp_path / "memo.py", tmp_path / "memo.yaml"
    path.write_text(MEMO)
    compiled = compile_model(path, plan_folder=tmp_path, time_limit=1.0)
    assert not any(hasattr(node, "h") for node in nodes(compiled.captured.instances))
    plan.write_text(plan_text(compiled.plan))

    report = run_plan(plan, Setting(verify=True, limit=12, batch_size=4), print)
    assert report.parity is not None
    assert report.parity.holds
    assert report.stats.nodes > 12 * 8

    net = Net(compiled.plan, compiled.captured.model)
    observed = [observe(net, compiled.captured.instances[:4], "").types for _ in range(2)]
    assert observed[0] == observed[1]
    assert not any(hasattr(node, "h") for node in nodes(compiled.captured.instances))


class Branch:
    """A node of a soft decision tree: an object, no module, with parameters that the model lists, and with states."""

    def __init__(self, depth: int):
        self.linear, self.sharpness, self.p = nn.Linear(4, 1), nn.Parameter(torch.ones(1)), None
        self.below = [Branch(depth - 1), Branch(depth - 1)] if depth else []

    def visit(self, x: torch.Tensor, path: torch.Tensor) -> list[torch.Tensor]:
        self.p = torch.sigmoid(self.sharpness * self.linear(x))
        parts = zip(self.below, (path * self.p, path * (1 - self.p)), strict=bool(self.below))
        return [leaf for below, part in parts for leaf in below.visit(x, part)] or [path * self.p]


class SoftTree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.root = Branch(1)
        nodes = [self.root, *self.root.below]
        self.linears = nn.ModuleList(node.linear for node in nodes)
        self.sharpnesses = nn.ParameterList(node.sharpness for node in nodes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.root.visit(x, torch.ones(1)))


def test_an_object_with_parameters_and_states_stays_the_models_own() -> None:
    """What records works on a copy, whose parameters stand for values: the model must not be left with that."""
    model, instances = seeded(SoftTree), [torch.ones(4), torch.zeros(4)]
    expected = [model(x) for x in instances]
    root, sharpness = model.root, model.root.sharpness
    torch.testing.assert_close(bound(model, instances)(instances), expected)

    assert model.root is root
    assert root.sharpness is sharpness
    assert root.linear is model.linears[0]
    torch.testing.assert_close([model(x) for x in instances], expected)
