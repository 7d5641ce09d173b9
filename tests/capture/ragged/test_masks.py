"""Masks that code makes of sizes and of indices that are never a number: padding and what comes later."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from rowparity import kept_forwards, require_eager
from torch import nn

import edbc
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.masks import call_of_masks, call_of_sizes, made_of_sizes
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import Mask, Size
from edbc.capture.record.table import TypeTable

SIZE, WORDS, PAD = 16, 30, 7


class Masked(nn.Module):
    """Attention to what is no padding and comes before; a mean over the same."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.project, self.out = nn.Embedding(WORDS, SIZE), nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, 4)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids)
        there, count = (ids != PAD).unsqueeze(1), ids.size(1)
        mask = there & torch.ones(count, count).tril().bool()
        q, k, v = self.project(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)) / SIZE**0.5
        weights = scores.masked_fill(~mask, -1e9).softmax(-1)
        kept = there.transpose(1, 2).float()
        return self.out(weights @ v), (x * kept).sum(1), weights


def sentences(seed: int, count: int, pads: float) -> list[torch.Tensor]:
    """Ids on both sides of the padding's, which stands in some at the end or in between."""
    rng, made = Random(seed), []
    for _ in range(count):
        ids = [rng.choice([i for i in range(WORDS) if i != PAD]) for _ in range(rng.randint(2, 9))]
        if rng.random() < pads:
            ids[rng.randrange(1, len(ids))] = PAD
        if rng.random() < 0.3:
            ids = [i % PAD for i in ids]
        made.append(torch.tensor([ids]))
    return made


@pytest.mark.parametrize("compiled_on", [0.0, 0.3, 1.0])
def test_padding_is_seen_wherever_it_comes(compiled_on: float) -> None:
    """Whatever share of the sentences that it was compiled on had some, outputs and gradients are eager's."""
    torch.manual_seed(0)
    model = Masked().eval()
    net = edbc.compile(model, sentences(1, 24, compiled_on), force=True)
    for seed, pads in enumerate((0.0, 1.0, 0.5)):
        batch = sentences(10 + seed, 12, pads)
        ours, theirs = net(batch), [model(ids) for ids in batch]
        found = []
        for results in (ours, theirs):
            model.zero_grad()
            sum((part**2).sum() for result in results for part in result).backward()  # type: ignore[union-attr]
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(*found, atol=1e-3, rtol=1e-4)


def test_a_sentence_with_padding_is_not_that_of_one_without() -> None:
    """Ids between which the padding's lies are asked one by one; where it is the lowest or below, bounds tell."""
    model = Masked().eval()
    net = edbc.compile(model, sentences(1, 24, 0.0), force=True)
    without, padded = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, PAD, 4]])
    with torch.no_grad():
        net([without] * 3)
        ours = net([padded, without, padded])
    torch.testing.assert_close(ours[0], model(padded))
    torch.testing.assert_close(ours[1], model(without))
    assert not torch.allclose(ours[0][1], ours[1][1])


@pytest.mark.parametrize("compiled_on", [0.0, 1.0])
def test_sentences_with_padding_are_one_record_for_all_sizes(compiled_on: float) -> None:
    """What they compare is rows then; so there is a record with, and where some have none one without."""
    model = Masked().eval()
    net = edbc.compile(model, sentences(1, 24, compiled_on), force=True)
    with torch.no_grad():
        for seed in range(8):
            net(sentences(seed, 12, 0.5))
        for ids in sentences(9, 12, 0.5):
            net([ids, ids])
    known = kept_forwards(net)
    assert {type(call) for call in known} == {KeptCall}
    assert len(known) <= 2


class Looks(nn.Module):
    """Attention of a state to words that a mask leaves in."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2 * SIZE, SIZE)
        self.weigh = nn.Linear(SIZE, 1)

    def forward(self, state: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        both = torch.cat([state[0].expand(words.size(0), -1), words], -1)
        scores = self.weigh(torch.tanh(self.score(both))).transpose(0, 1)
        return torch.softmax(scores.masked_fill(mask, -1e9), 1) @ words


class Recursive(nn.Module):
    """A tree is written by looking at words again and again; a batch of one is stacked, and has a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.looks, self.step = nn.Embedding(WORDS, SIZE), Looks(), nn.Linear(SIZE, SIZE)

    def forward(self, given: Any) -> Any:
        ids, mask, depth = given
        return self.visit(self.words(ids), mask, self.step.bias.view(1, -1), depth)

    def visit(self, words: torch.Tensor, mask: torch.Tensor, state: torch.Tensor, depth: int) -> torch.Tensor:
        if depth == 0:
            return state
        seen = self.looks(torch.stack([torch.tanh(self.step(state))]), words, mask)
        return self.visit(words, mask, seen[0], depth - 1)


@pytest.mark.parametrize("masked", [0.0, 0.5])
def test_a_mask_that_says_the_same_everywhere_is_told(masked: float) -> None:
    """Closed code is kept with it, for all lengths; one that leaves words out is what it is."""
    torch.manual_seed(0)
    model, rng = Recursive().eval(), Random(3)

    def made(seed: int, count: int, share: float) -> list[Any]:
        found = [(ids[0], torch.zeros(1, ids.shape[1], dtype=torch.bool), 3) for ids in sentences(seed, count, 0.0)]
        for _, mask, _ in found:
            mask[0, -1] = rng.random() < share
        return found

    net = bound(model, made(0, 8, 0.0), cells="auto", rows=True)
    for seed in range(1, 4):
        require_eager(net, model, made(seed, 9, masked))
    functions = net._idle[0][1].functions.items()
    known = [value for key, value in functions if type(key[0]) is tuple and key[0][:2] == (KeptCall, "visit:1")]
    assert KeptCall in map(type, known)


class Counted(nn.Module):
    """A method of integers, which is a cell of its own in a mini-batch of one word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(WORDS, SIZE), nn.Embedding(20, SIZE), nn.Linear(SIZE, 4)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]).unsqueeze(0))

    def forward(self, pair: Any) -> Any:
        first, second = pair
        there = (first > PAD).unsqueeze(-1)
        seen = self.embedded(first).masked_fill(~there, 0.0) * first.unsqueeze(-1)
        return self.out(seen.mean(1) + self.embedded(second).sum(1))


def test_a_cell_that_is_given_integers_is_none_in_code_that_is_kept() -> None:
    """Its calls are unrolled by then, for tensors of one word, which nothing is kept of."""
    model = Counted().eval()
    net = bound(model, [(ids, ids) for ids in sentences(1, 12, 0.5)], cells="auto", rows=True)
    one = torch.tensor([[3]])
    with torch.no_grad():
        net([(one, one)] * 3)
        for seed in range(3):
            pairs = [*zip(sentences(seed, 9, 0.5), sentences(seed + 50, 9, 0.0), strict=True)]
            torch.testing.assert_close(net(pairs), [model(pair) for pair in pairs])
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}


class Repeated(nn.Module):
    """A mask of words, as often as there are others: scores of either's words to those of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)

    def forward(self, pair: Any) -> torch.Tensor:
        first, second = pair
        x, y = torch.tanh(self.words(first)), self.words(second)
        mask = (second > PAD).unsqueeze(1).repeat(1, first.size(1), 1).unsqueeze(1)
        scores = (x @ y.transpose(1, 2)).unsqueeze(1).masked_fill(mask == 0, -1e9)
        return (scores.softmax(-1).squeeze(1) @ y).sum(1)


def test_sizes_are_told_to_functions_of_runs() -> None:
    """Also where the first instances are as long on either side, which later ones are not."""
    model = Repeated().eval()
    pairs = [(ids, ids.roll(1)) for ids in sentences(1, 8, 0.5)]
    net = bound(model, pairs, cells="auto", rows=True)
    for seed in range(4):
        require_eager(net, model, [*zip(sentences(seed, 7, 0.5), sentences(seed + 9, 7, 0.5), strict=True)], 1e-4)
        require_eager(net, model, pairs[seed:], 1e-4)
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}


def masks() -> tuple[Any, Mask, Mask]:
    """A recorder, a mask that is true everywhere, and a triangle."""
    _, rec = recording_shadow(ModelView(nn.Linear(2, 2)), TypeTable())
    rec.begin()
    n = Size(rec, 4, (100, 1, 4))
    return rec, Mask(rec, (1, 1, 1, n), (0, True, True), torch.bool), Mask(rec, (n, n), (0, 1.0, 0.0), torch.float32)


def test_functions_of_masks_are_told_by_sizes() -> None:
    """Views, comparisons and combinations; what is no mask any more is not told."""
    rec, there, before = masks()
    made = made_of_sizes(rec, torch.ones, (before.dims[0], before.dims[1]), {})
    assert (made.told, made.dtype) == ((0, 1.0, 1.0), torch.float32)
    lower = call_of_sizes(rec, torch.tril, (made,), {})
    assert lower.told == (0, 1.0, 0.0)
    both = call_of_sizes(rec, torch.bitwise_and, (there, call_of_sizes(rec, torch.Tensor.bool, (lower,), {})), {})
    assert both.told == (0, True, False)
    assert [getattr(d, "value", d) for d in both.dims] == [1, 1, 4, 4]
    none = call_of_sizes(rec, torch.eq, (both, 0), {})
    assert none.told == (0, False, True)
    assert none.number is None


def test_what_other_sizes_may_not_hold_is_claimed() -> None:
    """A window, and a size that is compared; not what is of each element, or of shapes."""
    rec, there, before = masks()
    n = before.dims[0]
    for func, args in ((torch.logical_not, (there,)), (torch.mul, (before, 2.0)), (torch.unsqueeze, (before, 0)),
                       (torch.Tensor.expand, (there, 2, 1, 1, n))):  # fmt: skip
        assert call_of_sizes(rec, func, args, {}) is not None
        assert rec.claims == []
    size = Mask(rec, (1,), (0, n, n), torch.int64)
    for func, args in ((torch.lt, (size, 30)), (torch.triu, (before, -30)), (torch.Tensor.__getitem__, (before, 0))):
        begin = len(rec.claims)
        call_of_sizes(rec, func, args, {})
        assert len(rec.claims) == begin + 1  # of a row, which is worked out, how long it is
    assert call_of_sizes(rec, torch.lt, (size, 30), {}).number is True


def test_a_mask_that_changes_nothing_leaves_the_other() -> None:
    """Filling nowhere, adding nothing, multiplying by one; not what the mask would make larger."""
    rec, _, _ = masks()
    x, there = rec.constant(torch.randn(1, 2, 4, 4)), Mask(rec, (1, 1, 1, 4), (0, True, True), torch.bool)
    nowhere = call_of_sizes(rec, torch.logical_not, (there,), {})
    assert call_of_masks(rec, torch.masked_fill, "masked_fill", (x, nowhere, -1e9), {}) is x
    ones = call_of_sizes(rec, torch.Tensor.float, (there,), {})
    assert call_of_masks(rec, torch.mul, "mul", (x, ones), {}) is x
    assert call_of_masks(rec, torch.sub, "sub", (x, call_of_sizes(rec, torch.sub, (1.0, ones), {})), {}) is x
    small = rec.constant(torch.randn(1, 2, 4, 1))
    assert tuple(call_of_masks(rec, torch.mul, "mul", (small, ones), {}).shape) == (1, 2, 4, 4)


class Spread(nn.Module):
    """One state for all words, by way of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, 4 * SIZE), nn.Linear(4 * SIZE, 4 * SIZE)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        state = torch.tanh(self.layer(x)).mean(1, keepdim=True)
        return torch.tanh(self.layer(state * (ids != WORDS).unsqueeze(-1).float())).sum(1) + x.sum(1)


def test_what_a_mask_spreads_is_as_large_as_the_mask() -> None:
    """A state of one row times ones for each word is a row for each word."""
    torch.manual_seed(0)
    model = Spread().eval()
    made = torch.Generator().manual_seed(1)
    first, batch = ([torch.randint(WORDS, (1, 3 + i % 6), generator=made) for i in range(24)] for _ in range(2))
    net = edbc.compile(model, first, force=True)
    with torch.no_grad():
        torch.testing.assert_close(net(batch), [model(ids) for ids in batch], atol=1e-5, rtol=1e-4)
    assert net.plan.ragged


def test_a_mask_is_no_value_of_its_own() -> None:
    """Who asks for its bytes, or whether it is true, gives the attempt up."""
    _, there, before = masks()
    for ask in (lambda: there.materialise(), lambda: bool(before), lambda: before.numpy(), lambda: there.tensor_of({})):
        with pytest.raises(CannotKeep):
            ask()


class Encoded(nn.Module):
    """torch's own encoder, with masks as people give them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, 2, 2 * SIZE, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.words, self.how = nn.Embedding(WORDS, SIZE), how

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, count = self.words(ids), ids.size(1)
        if self.how == "padding":
            return self.encoder(x, src_key_padding_mask=ids == PAD)
        later = torch.triu(torch.full((count, count), float("-inf")), diagonal=1)
        if self.how == "later":
            return self.encoder(x, mask=later)
        return self.encoder(x, mask=later, is_causal=True)


@pytest.mark.parametrize("how", ["padding", "later", "causal"])
def test_encoders_of_torch_take_masks(how: str) -> None:
    """Outputs are eager's, with padding and without, and attention is native with any mask."""
    torch.manual_seed(0)
    model = Encoded(how).eval()
    net = edbc.compile(model, sentences(1, 24, 0.0), force=True)
    for pads in (0.0, 0.4):
        batch = [ids for ids in sentences(2, 16, pads) if (ids != PAD).any()]
        with torch.no_grad():
            for ours, ids in zip(net(batch), batch, strict=True):
                torch.testing.assert_close(ours, model(ids), atol=1e-5, rtol=1e-4)
    runs = [kind for kind, of in enumerate(net.table.types) if kind in net.table.operation_of_type and of.is_run]
    assert runs
    assert all(net.kernel(kind).is_native for kind in runs)


class Hides(nn.Module):
    """A function of rows and of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, h: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(h)).masked_fill(hidden, 0.5)


class Turned(nn.Module):
    """A mask of the instance's that stands as columns."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.out, self.inner = nn.Linear(3, SIZE), nn.Linear(SIZE, 4), Hides()

    def forward(self, instance: dict[str, Any]) -> torch.Tensor:
        h = torch.relu(self.up(instance["x"]))
        for _ in instance["times"]:
            h = self.inner(h, instance["hidden"].T)
        return self.out(h.sum(0))


def test_masks_are_turned() -> None:
    """What is no run of numbers is asked, too, whether it says the same everywhere."""
    instances = [
        {"x": torch.randn(n, 3), "hidden": torch.rand(SIZE, n) > share, "times": [1, 2]}
        for n, share in ((4, 0.5), (5, 2.0), (6, -1.0), (3, 0.5), (7, 0.5))
    ]
    require_eager(bound(model := Turned(), instances, "auto", rows=True), model, instances)
