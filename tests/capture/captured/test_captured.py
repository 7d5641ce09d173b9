"""Captured instances: the bits of recording, in any company; bytes that are what they say or are refused."""

from __future__ import annotations

import json
import pickle
import pickletools
from random import Random
from typing import Any

import pytest
import torch
from every_kind import EveryKind, Sentence, gradients, sentences, told
from helpers import bound, model_file, recorded, seeded
from hypothesis import given
from hypothesis import strategies as st
from ordinary.registry import PROGRAMS, load_all
from test_structures import Base, chain, words

from edbc import Captured, collate
from edbc.capture.captured.instance import DIGEST, FORMAT, MAGIC, _written
from edbc.capture.captured.joining import as_one
from edbc.errors import EdbcError, InputError, StaleError, UnsupportedError
from edbc.vertex import VertexInstance

load_all()


def net_of(model: Any = None, instances: Any = None) -> Any:
    return bound(model or seeded(EveryKind), instances or sentences(40))


@pytest.fixture(scope="module")
def shared() -> Any:
    """Bound once for all examples."""
    return net_of()


@given(seed=st.integers(0, 10**6), is_captured=st.lists(st.booleans(), max_size=12))
def test_any_mixture_gives_the_bits_of_recording_together(shared: Any, seed: int, is_captured: list[bool]) -> None:
    """Captured and plain instances in any order and number: outputs, classes of results and gradients are the same."""
    net, plain = shared, sentences(len(is_captured), seed)
    mixed = [net.capture(item) if chosen else item for item, chosen in zip(plain, is_captured, strict=True)]

    with torch.no_grad():
        assert told(net(mixed)) == told(net(plain))
    if any(item.words or item.kind for item in plain):
        assert gradients(net, mixed) == gradients(net, plain)


class OfChildren(Base):
    """The sum of the children's states is a constant where there are none; features may be one object in many trees."""

    def forward(self, tree: Any) -> Any:
        return self.out(self.state(tree))

    def state(self, tree: Any) -> Any:
        word, feature, children = tree
        below = torch.zeros(6)
        for child in children:
            below = below + self.state(child)
        return self.join(self.join(self.table(torch.tensor(word)), below), feature)


def trees_of_children(count: int, seed: int, features: list[torch.Tensor]) -> list[Any]:
    rng = Random(seed)

    def tree(depth: int) -> Any:
        children = [tree(depth + 1) for _ in range(rng.randrange(4) if depth < 2 else 0)]
        return rng.randrange(3), rng.choice(features), children

    return [tree(0) for _ in range(count)]


def test_equal_constants_are_one_whoever_brought_them() -> None:
    """Zeros that forward makes, and one tensor in many instances: what was captured alone runs as few nodes as what is
    recorded together, and has the same gradients. Tensors that want a gradient each get their own."""
    features = [torch.randn(6) for _ in range(2)]
    net = bound(seeded(OfChildren), trees_of_children(24, 0, features))
    plain = trees_of_children(16, 1, features)
    captured = net.capture_all(plain)
    of_plain, of_captured = (net.shared(net.mini_batch(batch)) for batch in (plain, captured))

    assert of_plain.num_shared == of_captured.num_shared > len(of_plain.graph.node_type) / 4
    assert gradients(net, captured) == gradients(net, plain) == gradients(net, [*captured[:8], *plain[8:]])

    leaves = [torch.zeros(6, requires_grad=True) for _ in range(2)]
    twins = [(1, leaf, []) for leaf in leaves] * 10
    sum((number % 2 + 1) * y.sum() for number, y in enumerate(net(twins))).backward()
    torch.testing.assert_close(leaves[1].grad, 2 * leaves[0].grad)


def test_training_mode_draws_as_recording_does() -> None:
    """With dropout on, a seed gives the same masks and gradients; the mode is part of what a capture is of."""
    net, plain = net_of(), sentences(9)
    in_evaluation = net.capture_all(plain)
    net.model.train()
    captured = net.capture_all(plain)

    assert gradients(net, captured, 5) == gradients(net, plain, 5) != gradients(net, plain, 6)
    with pytest.raises(StaleError, match=r"instance 0.*expected training 'training'.*got 'evaluation'"):
        net(in_evaluation)


def test_company_while_capturing_leaves_no_trace() -> None:
    """Captured alone and among others, in another order, an instance has the same bytes."""
    net, plain = net_of(), sentences(20)
    together = net.capture_all(plain)

    assert [net.capture(item) for item in plain] == together
    assert net.capture_all(plain[::-1]) == together[::-1]
    assert len({hash(captured) for captured in together}) == len({bytes(captured) for captured in together})


BY_TORCH = {"KalmanFilter", "PlainRNN"}
"""Small matrices that are solved and recurrent networks over whole sequences, whose last bits in torch depend on how
many rows it runs at once, and where these stand."""
REFUSED = {"AttributesOfData": "an object of class Size", "DictsOnNodes": "a tensor that requires a gradient"}
"""Programs whose instances cannot be captured, and why."""
COMPUTED_ALONE = ["ExternalMemory", "FourierFeatures", "MixtureDensity", "NestedLists", "ResidualBlocks", "Windows"]
"""Programs that compute with what an instance brings alone, or take rows of it."""


@pytest.mark.parametrize("name", sorted({*sorted(PROGRAMS)[::9], *COMPUTED_ALONE, "FreshLeaves"}))
def test_programs_of_the_corpus(name: str) -> None:
    """Ordinary code: captured, mixed, and told from instances that were alike, with the bits of recording together, of
    outputs and gradients."""
    program = PROGRAMS[name]
    try:
        net = bound(program.build(), program.instances(3, 12))
    except EdbcError:
        pytest.skip("not supported")
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            net.capture_all(program.instances(1, 5))
        return
    captured = net.capture_all(program.instances(1, 5))
    if name in BY_TORCH:
        torch.testing.assert_close(net(captured), net(program.instances(1, 5)))
        return
    net(program.instances(3, 12))
    expected = gradients(net, program.instances(1, 5), run=recorded)
    for number in range(len(captured) + 1):
        assert gradients(net, [*captured[:number], *program.instances(1, 5)[number:]]) == expected


def test_bytes_are_read_in_another_net() -> None:
    """Pickled and read by a net that has recorded nothing: it learns from exemplars, and gives the same bits."""
    net, plain = net_of(), sentences(12)
    again = pickle.loads(pickle.dumps(net.capture_all(plain)))
    other = bound(net.model, sentences(40))
    other.exemplars = lambda: sentences(60, 3)

    assert again == net.capture_all(plain)
    with torch.no_grad():
        assert told(other(again)) == told(net(plain))
        assert told(other([*again[:3], *plain[3:]])) == told(net(plain))


def test_pickles_name_nothing_but_the_reader(shared: Any) -> None:
    """A pickle holds bytes and the name of the function that reads them."""
    data = pickle.dumps(shared.capture(sentences(1)[0]), protocol=4)
    named = {argument for opcode, argument, _ in pickletools.genops(data) if "UNICODE" in opcode.name}

    assert named == {"edbc.capture.captured.instance", "Captured.from_bytes"}


@pytest.mark.parametrize("number", range(6))
def test_every_altered_byte_is_refused(shared: Any, number: int) -> None:
    """Altered, cut off or longer by a byte: an error, at every place."""
    data = bytes(shared.capture(sentences(6)[number]))
    rng = Random(number)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << rng.randrange(8)
        with pytest.raises(EdbcError):
            Captured.from_bytes(bytes(altered))
    for end in range(0, len(data), 7):
        with pytest.raises(EdbcError):
            Captured.from_bytes(data[:end])
    with pytest.raises(EdbcError):
        Captured.from_bytes(data + b"\0")


def forged(captured: Captured, rng: Random, by_hand: bool) -> Captured:
    """A captured instance in which one word says something else: behind a digest that is right, or made of the net's
    own."""
    read = captured if by_hand else Captured.from_bytes(bytes(captured))
    altered = bytearray(read.words)
    at = 4 * rng.randrange(len(altered) // 4)
    word = int.from_bytes(altered[at : at + 4], "little", signed=True)
    other = rng.choice([word + 1, word - 1, -word, 1 << 20, -(1 << 30), rng.randrange(-9, 9)])
    altered[at : at + 4] = other.to_bytes(4, "little", signed=True)
    return Captured(read.of, bytes(altered), read.nest_text, read.constants)


def outcome(shared: Any, captured: Captured) -> Any:
    """The result of an instance, or the error."""
    try:
        with torch.no_grad():
            return shared([captured])[0]
    except EdbcError as error:
        return error


@pytest.mark.parametrize("by_hand", [False, True])
def test_forged_words_do_not_reach_memory(shared: Any, by_hand: bool) -> None:
    """Numbers that mean nothing here are refused with the instance's number, before anything runs; those that mean
    something else run, and give results of the classes that are promised."""
    captured, rng, refused = shared.capture_all(sentences(30)), Random(0), 0
    for number in range(600):
        one = forged(captured[number % 30], rng, by_hand)
        found = outcome(shared, one)
        refused += isinstance(found, EdbcError)
        if isinstance(found, EdbcError):
            assert "instance 0: a captured instance: expected" in str(found)
        else:
            assert type(found) is type(outcome(shared, captured[number % 30]))

    assert refused > 300


def test_what_is_made_by_hand_is_checked(shared: Any) -> None:
    """Words, nest and constants of a net's own captured instance that somebody put together anew: run where they mean
    something, refused with the instance's number where they do not."""
    captured = shared.capture(Sentence([1, 2], torch.ones(6), 0))
    of, words, nest, constants = captured.of, captured.words, captured.nest_text, captured.constants
    (source, pool), *others = constants
    strided = torch.stack([pool, pool + 1], -1)[..., 0]

    with torch.no_grad():
        assert told(shared([Captured(of, words, nest, ((source, strided), *others))])) == told(shared([captured]))
    for one in (
        (of, words, nest, ((source, pool[..., :-1]), *others)), (of, words, nest, ((source, pool.double()), *others)),
        (of, words, nest, others), (of, words, nest, ((1 << 20, pool), *others)), (of, words, nest, None),
        (of, words, nest, ((source, None), *others)), (of, words[:-3], nest, constants),
        (of, words, nest, ((source, pool.clone().requires_grad_()), *others)),
        (of, words[:8], nest, constants), (of, b"", nest, constants), (of, None, nest, constants),
        (of, words, '["r", 9]', constants), (of, words, "", constants), (of, words, None, constants),
    ):  # fmt: skip
        with pytest.raises(InputError, match="instance 1: a captured instance: expected"):
            shared([captured, Captured(*one)])
    with pytest.raises(InputError, match="a captured instance: expected"):
        bytes(Captured(of, bytes(24) + words[24:-4] + b"\0\0\0\x7f", nest, constants))


def header_of(data: bytes) -> tuple[dict[str, Any], int]:
    at = len(MAGIC) + 1
    length = int.from_bytes(data[at : at + 4], "little")
    return json.loads(data[at + 4 : at + 4 + length]), at + 4 + length


def test_the_format_is_what_it_says(shared: Any) -> None:
    """Magic, version, header, words and constants stand where the format says, and nothing else does."""
    captured = shared.capture(Sentence([1, 2], torch.ones(6), 0))
    data = bytes(captured)
    header, at = header_of(data)
    sizes = [4 * torch.Size(shape).numel() for _, dtype, shape in header["constants"] if dtype == "f32"]

    assert data[: len(MAGIC) + 1] == MAGIC + bytes([FORMAT])
    assert len(data) == at + 4 * header["words"] + sum(sizes) + DIGEST
    assert data == _written(Captured.from_bytes(data))


def test_it_is_refused_where_it_does_not_belong(shared: Any) -> None:
    """Another model, other sizes, another dtype: refused with what differs and what to do."""
    captured = shared.capture(sentences(1)[0])
    others = {
        "expected types": bound(seeded(Base, chain), words(8)),
        "expected dtype 'f64'": net_of(seeded(EveryKind).double(), [
            Sentence(x.words, x.features.double(), x.kind) for x in sentences(40)
        ]),
    }  # fmt: skip

    for message, other in others.items():
        with pytest.raises(StaleError, match=f"instance 0: .*{message}|expected types") as error:
            other([captured])
        assert "capture again" in str(error.value)


def test_models_of_one_class_may_differ() -> None:
    """The same class and types with another number in an attribute, or another layer: another home."""
    net = net_of()
    captured = Captured.from_bytes(bytes(net.capture(sentences(1)[0])))
    for change in (lambda m: setattr(m, "depth", 3), lambda m: m.add_module("more", torch.nn.Linear(2, 2))):
        model = seeded(EveryKind)
        change(model)
        with pytest.raises(StaleError, match=r"expected structure .*capture again"):
            net_of(model)([captured])


def test_a_type_that_nobody_recorded_is_asked_for() -> None:
    """A net that cannot learn a type says which, and how to let it."""
    net = net_of()
    captured = Captured.from_bytes(bytes(net.capture(sentences(1)[0])))
    blank = bound(net.model, sentences(40))

    with pytest.raises(StaleError, match=r"instance 0: .*got type cell join.*net\.capture\(instance\)"):
        blank([captured])
    blank.capture_all(sentences(60, 3))
    with torch.no_grad():
        assert told(blank([captured])) == told(net([captured]))


def test_a_smaller_table_is_another_home() -> None:
    """The types of a plan do not say how many rows a table has; the model's structure does, and rows are checked."""
    net = bound(seeded(Base, chain), words(8))
    captured = Captured.from_bytes(bytes(net.capture([19])))
    smaller = seeded(Base, chain)
    smaller.table = torch.nn.Embedding(10, 6)
    other = bound(smaller, [[1, 2], [3]])
    other.capture([1])

    with pytest.raises(StaleError, match="expected structure"):
        other([captured])
    same = captured.of._replace(home=other.lexicon.home)
    with pytest.raises(InputError, match="instance 0: a captured instance: expected a row of its table"):
        other([Captured(same, captured.words, captured.nest_text)])


@pytest.mark.parametrize("make", [
    lambda: torch.empty(6).fill_(0.5).requires_grad_(), lambda: torch.zeros(6, requires_grad=True),
    lambda: torch.zeros(6).requires_grad_(),
])  # fmt: skip
@pytest.mark.parametrize("use", [lambda leaf: leaf, lambda leaf: torch.cat([leaf[:3], leaf.view(2, 3)[1]])])
def test_leaves_that_forward_makes(make: Any, use: Any) -> None:
    """Nobody asks for the gradient of a leaf that nobody has: it is a constant, and what is computed of it. One that is
    kept has its gradient."""

    def forward(net: Any, item: dict[str, Any]) -> Any:
        leaf = make()
        if "keeps" in item:
            item["leaf"] = leaf
        return net.out(net.join(use(leaf), net.table(torch.tensor(item["word"]))))

    net = bound(seeded(Base, forward), [{"word": 1}, {"word": 2, "keeps": True}])
    captured, kept, eager = net.capture({"word": 3}), {"word": 4, "keeps": True}, {"word": 4, "keeps": True}
    sum(y.sum() for y in net([captured, kept])).backward()
    net.model(eager).sum().backward()

    torch.testing.assert_close(kept["leaf"].grad, eager["leaf"].grad)
    with pytest.raises(UnsupportedError, match="requires a gradient"):
        net.capture(kept)


def test_what_no_captured_instance_holds_is_refused() -> None:
    """Tensors that require gradients, results that are on the instance alone, objects in results: in words."""
    leaf = torch.ones(6, requires_grad=True)

    def only_keeps(net: Any, tree: dict[str, Any]) -> Any:
        tree["h"] = net.join(net.start, net.start)

    def keeps_object(net: Any, item: Any) -> Any:
        net.last = [net.out(net.start), object()]
        return net.last[0]

    def keeps_parameter(net: Any, item: Any) -> Any:
        net.last = [net.out(net.start), net.start]
        return net.last[0]

    def returns_object(net: Any, item: Any) -> Any:
        return net.out(net.start), object()

    for forward, item, message in (
        (lambda net, x: net.out(net.join(x, net.start)), leaf, "requires a gradient"),
        (only_keeps, {}, "returns no tensor"),
        (keeps_parameter, 0, "keeps on the model a parameter"),
        (keeps_object, 0, "keeps on the model an object of class object"),
        (returns_object, 0, "class object"),
    ):
        net = bound(seeded(Base, forward), [item])
        with pytest.raises(UnsupportedError, match=f"instance 0: .*{message}"):
            net.capture(item)
        assert net([item])


class Remembering(Base):
    """Keeps its state on itself, as models of recurrent networks do, and on the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Any = None

    def forward(self, item: dict[str, Any]) -> Any:
        self.hidden, self.seen = (torch.zeros(6), torch.zeros(6)), []
        for word in item["words"]:
            self.hidden = (self.join(self.hidden[0], self.table(torch.tensor(word))), self.hidden[0])
            self.seen.append(self.hidden[0])
        item["h"] = self.hidden[0]
        self.parts = {"h": item["h"], "of model": [self.start[2:], self.start * 2], "made": torch.ones(2).log()}
        return self.out(self.hidden[0]) if item["words"] else torch.zeros(6)


def test_what_forward_keeps_on_itself_comes_with_a_captured_instance() -> None:
    """The model has what the last instance left, captured or not; instances hold what they held before. Attributes
    that forward was never seen to assign to are refused."""
    net = bound(seeded(Remembering), [{"words": words} for words in ([1, 2], [], [3])])
    eager = seeded(Remembering)
    plain: list[dict[str, Any]] = [{"words": words} for words in ([4, 5, 6], [7], [])]
    captured = net.capture_all(plain)
    assert [list(item) for item in plain] == [["words"]] * 3

    copies = pickle.loads(pickle.dumps(captured))
    arrived = pickle.loads(pickle.dumps(collate(net)(plain)))
    for batch, last in (
        (captured[::-1], 0), (copies[:2], 1), ([captured[0], plain[1]], 1), ([plain[0], captured[2]], 2), (arrived, 2)
    ):  # fmt: skip
        net.model.hidden = net.model.seen = net.model.parts = None
        with torch.no_grad():
            results, expected = net(batch), eager(dict(plain[last]))
        torch.testing.assert_close(results[-1], expected)
        torch.testing.assert_close(list(net.model.hidden), list(eager.hidden))
        torch.testing.assert_close((net.model.seen, net.model.parts), (eager.seen, eager.parts))

    one = captured[0]
    forged = Captured(one.of, one.words, one.nest_text.replace('"hidden"', '"forward"'), one.constants)
    with pytest.raises(StaleError, match="expected attributes that forward was seen to assign to, got forward"):
        net([forged])


def test_plain_instances_beside_captured_ones_keep_what_is_theirs() -> None:
    """In a mixed mini-batch gradients reach the tensors of plain instances, and forward leaves what it keeps there."""

    def forward(net: Any, item: Any) -> Any:
        if isinstance(item, dict):
            item["h"] = net.join(item["x"], net.start)
            return net.out(item["h"])
        return chain(net, item)

    leaf = torch.randn(6, requires_grad=True)
    net = bound(seeded(Base, forward), [[1, 2], [3], {"x": torch.ones(6)}])
    plain = {"x": leaf}
    results = net([net.capture([1, 2]), plain, net.capture([3])])
    sum(r.sum() for r in results).backward()
    expected = torch.autograd.grad(net.model({"x": leaf}).sum(), leaf)[0]

    assert torch.allclose(leaf.grad, expected)
    assert torch.allclose(net.model.out(plain["h"]), results[1])


def test_small_mini_batches_of_one_structure_share_their_graph() -> None:
    """Other words in the same places: the very graph and schedule, the results of those words."""
    net = bound(seeded(Base, chain), words(8))
    one, two, three = (net.capture([i, i + 1]) for i in (1, 5, 9))
    first, again, other = (net.mini_batch(batch) for batch in ([one, two], [two, three], [one]))

    assert first.graph is again.graph is not other.graph
    assert again.is_known
    for batch in ([one], [two], [three], [two, one]):
        assert told(net(batch)) == told([net([item])[0] for item in batch])
    assert told(net([three])) == told(net([[9, 10]]))


def test_a_model_that_changed_is_noticed() -> None:
    """An attribute that forward reads is in the captured graph: where it changes, no number comes of it."""
    model = seeded(Base, lambda net, ids: chain(net, ids) * net.scale)
    model.scale = 1.0
    net = bound(model, words(8))
    captured, batch = net.capture([1, 2]), collate(net)([[1, 2], [3]])
    model.scale = 2.0

    for instances in ([[1, 2]], [captured], [captured, [3]], batch):
        with pytest.raises(StaleError, match="'scale' of the model changed"):
            net(instances)


def test_what_is_captured_is_no_instance_to_capture(shared: Any) -> None:
    """Nor is a whole mini-batch one among instances."""
    plain = sentences(2)
    batch = collate(shared)(plain)

    for item in (shared.capture(plain[0]), batch):
        with pytest.raises(InputError, match=f"got a {type(item).__name__}, which is captured already"):
            shared.capture(item)
    with pytest.raises(InputError, match="got a CapturedBatch among them"):
        shared([plain[0], batch])


def test_vertices_are_told_to_run_alone(shared: Any) -> None:
    """A VertexInstance is no instance to capture, and no company for captured ones."""
    net, vertices = shared, VertexInstance([0], [0, 0], [])
    captured = net.capture(sentences(1)[0])

    with pytest.raises(InputError, match="arrays already"):
        net.capture(vertices)
    for batch in ([captured, vertices], [vertices, captured]):
        with pytest.raises(InputError, match=rf"instance {batch.index(captured)}: expected a VertexInstance.*Captured"):
            net(batch)


def test_streams_and_moves() -> None:
    """A stream takes captured instances; `.to` moves constants and refuses a dtype."""
    net, plain = net_of(), sentences(10)
    captured = net.capture_all(plain)

    assert told(list(net.stream(iter(captured), batch_size=3))) == told(list(net.stream(iter(plain), batch_size=3)))
    assert captured[0].to("cpu") == captured[0]
    with pytest.raises(InputError, match="expected a device to move to, got a dtype"):
        next(c for c in captured if c.constants).to(torch.float64)


def test_instances_that_were_moved_join_others() -> None:
    """Constants of a mini-batch are on one device, that of any which is not the host's."""
    here, there = torch.ones(2, 3), torch.ones(1, 3, device="meta")
    for pools in ([here, there], [there, here], [[here[0], here[1]], there], [here, [there[0]]]):
        found = as_one(pools)
        assert {tensor.device.type for tensor in found} == {"meta"}
        assert [tensor.shape for tensor in found] == [(3,)] * 3
    assert as_one([here, here]).is_cpu


@pytest.mark.parametrize("name", ["tree_lstm", "lattice_gru", "dag_gru", "mv_rnn"])
def test_memory(name: str) -> None:
    """At most 12 bytes for every node and operand."""
    file = model_file(name)
    plain = file.sample(16, 3)
    net = bound(seeded(file.build, hidden_size=8), plain)
    captured = net.capture_all(plain)

    assert sum(len(c.words) for c in captured) <= 12 * sum(c.num_nodes + c.num_operands for c in captured)
