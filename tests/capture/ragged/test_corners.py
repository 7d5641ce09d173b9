"""Masks cut from buffers by the instance's size, code that compares sizes, and labels, against eager PyTorch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, seeded
from rowparity import HIDDEN, VOCAB, kept_forwards, model_of_text, of_model, require_eager
from torch import nn

from edbc.capture.ragged.kept import BY_SIZES, KeptCall
from edbc.capture.ragged.whole.function import triangle
from edbc.capture.ragged.whole.runs import triangle_of
from edbc.errors import EdbcError, StaleError
from edbc.run.session import Net

LONGEST = 10
MASKED = """
import math
import torch
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, 3 * {hidden})
        ones = torch.ones({longest}, {longest})
        self.register_buffer("ones", torch.tril(ones).view(1, 1, {longest}, {longest}))
        self.register_buffer("above", torch.triu(ones, 2).bool())
        self.register_buffer("added", torch.zeros_like(ones).masked_fill(torch.triu(ones, 1) > 0, -math.inf))
        self.register_buffer("bias", torch.randn({longest}, {longest}))
        self.learned = nn.Parameter(torch.randn({longest}, {longest}))

    def forward(self, ids):
        n = ids.size(1)
        q, k, v = (x.view(1, n, 2, -1).transpose(1, 2) for x in self.mix(self.words(ids)).split({hidden}, dim=2))
        scores = q @ k.transpose(-2, -1) * 0.5
        scores = {scores}
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, n, {hidden}).sum(1)
"""
"""Attention of a batch of one, written out, with heads."""
TAKES = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, ids):
        n = ids.size(1)
        h = torch.relu(self.up(self.words(ids)))
        return {taken}
"""
"""What is taken of rows, also by code that looks on which side of a number their size is."""
TAKEN = [
    "h[:, -1:].repeat(1, n, 1).sum(1)",
    "h[:, [-1]]",
    "h[:, [-1], :]",
    "h[..., [0], :].sum(1)",
    "h[[0]].sum(1)",
    "h[:, [1]]",
    "torch.relu(h).view(h.shape[:-1] + torch.Size([2, {hidden} // 2])).sum(1)",
    "h.sum(1) if h.shape == self.up(h).shape else h.amax(1)",
    "h[0].new_full((n, {hidden}), 2.0).mul(h[0]).sum(0)",
    "h[0].new_zeros(n, {hidden}).add(h[0]).amax(0)",
    "h[0].new_ones((h.size(1), {hidden}), dtype=h.dtype).sub(h[0]).sum(0)",
    "torch.relu(h - 0.1 + torch.zeros(h.shape)).sum(1)",
    "torch.full(h.shape, 2.0).mul(h).sum(1)",
    "torch.full((n, {hidden}), 2.0).mul(h[0]).sum(0)",
    "torch.ones(*h.shape).sub(h).sum(1)",
    "torch.zeros(1, n, {hidden}).add(h).amax(1)",
]
AMOUNTS = [
    "h.sum(1) / n",
    "h.sum(1).div(n) + n",
    "n * h.sum(1)",
    "(h / n).sum(1)",
    "h.sum(1) / math.sqrt(n)",
    "h.sum(1) * n ** -0.5 - math.log(n)",
    "h.sum(1) / (1 + n / 2) + (2 - n)",
    "((h.sum(1, keepdim=True) - h) / (n - 1)).amax(1)",
    "h[:, n - 1]",
    "h[0, n - 1 - 1]",
    "h[0][: n - 1].sum(0) * h[0][1:n].amax(0)",
    "h[:, n - 2 :].sum(1) + h[:, : n + 3].sum(1)",
    "h.sum(1) / n if n - 1 > 4 else h.amax(1)",
]
"""What follows from sizes by arithmetic, for all sizes."""
ASKED = [
    "h.sum(1) * len(range(n - 1))",
    "F.pad(h, (0, n - 1)).sum((1, 2))",
    "torch.full((n - 1,), 1.5).sum() * h.sum(1)",
    "h.clamp(max=n - 1.5).sum(1)",
    "h.sum(1) * float(n - 0.5)",
    "h.sum(1) * int(n / 2)",
    "h.sum(1) * {n - 1: 2.0}.get(3, 1.0)",
    "h[:, : n - 3].sum(1) + h[:, n - 4 :].amax(1)",
    "h[:, : 2 - n].sum(1)",
    "(h.sum(1), n - 1)",
    "h.sum(1) * torch.zeros(n - 1, 2).size(0)",
]
"""The same where code asks what they are, or where they are no places of small sizes."""
MASKS = {
    "of ones": "scores.masked_fill(self.ones[:, :, :n, :n] == 0, -math.inf)",
    "of booleans": "scores.masked_fill(self.above[:n, :n], -math.inf)",
    "added": "scores + self.added[:n, : k.size(-2)]",
    "first and last": "scores.masked_fill(self.ones[:, :, 0:n, 0 : scores.size(-1)] < 0.5, -1e4)",
    "of numbers": "scores + self.bias[:n, :n]",
    "learned": "scores + self.learned[:n, :n]",
    "where": "torch.where(self.ones[0, 0, :n, :n] > 0, scores, torch.tensor(-1e4))",
}
KEPT = {"of ones", "of booleans", "added", "first and last"}
ASKS = ["n < 5", "n <= 5", "n > 5", "n >= 5", "n == 5", "n != 5", "n", "3 < n <= 7", "not n > 4", "5 < n", "n % 2 == 1"]

PAIR = """
import torch
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, pair):
        n, m = (ids.size(1) for ids in pair)
        h, g = (torch.relu(self.up(self.words(ids)))[0] for ids in pair)
        return {taken}
"""
LABELLED = """
import torch
import torch.nn.functional as F
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, 4)

    def forward(self, instance):
        words, y = instance
        x = self.out(self.words(words))
        return {loss}
"""
"""Scores of words, and a label for each."""
LOSSES = {
    "cross_entropy": "F.cross_entropy(x, y)",
    "of views": "F.cross_entropy(x.view(-1, x.size(-1)), y.view(-1), ignore_index=-1)",
    "of a line": "F.cross_entropy(x, y.unsqueeze(0).reshape(-1), reduction='sum')",
    "each": "F.cross_entropy(input=x, target=y, reduction='none').square().sum()",
    "nll_loss": "F.nll_loss(F.log_softmax(x, -1), y)",
    "smoothed": "F.cross_entropy(x, y, label_smoothing=0.1)",
    "one ignored": "F.cross_entropy(x, y, ignore_index=2, reduction='sum')",
    "as numbers": "(x.mean(1) * y).sum()",
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """A model of a file, which is read."""

    def make(text: str, **lines: str) -> nn.Module:
        text = text.format(vocab=VOCAB, hidden=HIDDEN, longest=LONGEST, **lines)
        return model_of_text(text, tmp_path, monkeypatch)

    return make


def texts(rng: Random) -> torch.Tensor:
    """Word numbers, (1, n)."""
    return torch.tensor([[rng.randrange(VOCAB) for _ in range(rng.randint(2, LONGEST))]])


def kept(net: Net) -> set[Any]:
    """What is known of forward."""
    return {known if known is BY_SIZES else type(known) for known in kept_forwards(net)}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_cut_from_buffers(name: str, made: Callable[..., nn.Module]) -> None:
    """Triangles are functions of the size, so forward is one run for all; others are what they are."""
    net = of_model(made(MASKED, scores=MASKS[name]), texts, rounds=2)
    assert (kept(net) == {KeptCall}) == (name in KEPT)


class Weighed(nn.Module):
    """Scores times a triangle of tenths, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.register_buffer("weights", torch.ones(LONGEST, LONGEST).double().tril() * 0.1 + 0.3)

    def forward(self, ids: list[int]) -> torch.Tensor:
        h, n = self.words(torch.tensor(ids)), len(ids)
        return ((h @ h.t()) * self.weights[:n, :n]).softmax(1) @ h  # type: ignore[index]


def test_numbers_of_a_triangle_are_of_its_dtype() -> None:
    """To the last digits, whatever dtype torch makes tensors of numbers in."""
    model, rng = seeded(Weighed).double(), Random(0)
    batch = lambda: [[rng.randrange(VOCAB) for _ in range(rng.randint(2, LONGEST))] for _ in range(5)]  # noqa: E731
    net = bound(model, batch(), rows=True)
    for _ in range(2):
        require_eager(net, model, batch(), 1e-13)


@pytest.mark.parametrize("change", [
    lambda m: m.ones.copy_(m.ones.transpose(-2, -1).clone()), lambda m: m.ones[..., 3, 0].zero_(),
    lambda m: setattr(m, "ones", torch.ones_like(m.ones)),
    lambda m: m.load_state_dict({k: v.roll(1, -1) if k == "ones" else v for k, v in m.state_dict().items()}),
])  # fmt: skip
def test_a_buffer_that_changes_is_looked_at_again(change: Callable[[Any], Any], made: Callable[..., nn.Module]) -> None:
    """Its content was relied on: whatever is recorded after is what eager computes, again and again."""
    model = made(MASKED, scores="scores.masked_fill(self.ones[:, :, :n, :n] == 0, -1e4)")
    net = of_model(model, texts, rounds=1)
    rng = Random(5)
    for _ in range(2):
        with torch.no_grad():
            change(model)
        require_eager(net, model, [texts(rng) for _ in range(5)])
        require_eager(net, model, [texts(rng) for _ in range(3)])


def test_a_text_that_is_longer_than_the_mask_is_told_as_by_eager(made: Callable[..., nn.Module]) -> None:
    """Of a kept forward too."""
    model = made(MASKED, scores=MASKS["of ones"])
    net = of_model(model, texts, rounds=1)
    longer = torch.zeros(1, LONGEST + 2, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        model(longer)
    with pytest.raises((RuntimeError, EdbcError)):
        net([longer])


@pytest.mark.parametrize("asks", ASKS)
def test_code_that_compares_sizes(asks: str, made: Callable[..., nn.Module]) -> None:
    """What is recorded on one side of a number is kept for that side."""
    net = of_model(made(TAKES, taken=f"h.sum(1) if {asks} else h.amax(1) * 2"), texts, rounds=3)
    assert (BY_SIZES in kept(net)) == (asks == "n % 2 == 1")


@pytest.mark.parametrize(
    "taken", ["(torch.ones(m, n) @ h).sum(0)", "(torch.ones(n, m) * h.sum(1, keepdim=True)).sum()",
              "(h.sum(1, keepdim=True) + torch.zeros(n, m)).sum()", "h.sum(0) if h.shape == g.shape else g.amax(0)"]
)  # fmt: skip
def test_two_sizes_that_happen_to_be_equal(taken: str, made: Callable[..., nn.Module]) -> None:
    """What is recorded of the first pair, whose texts are as long as each other, serves such pairs alone."""
    model = made(PAIR, taken=taken)
    rng = Random(5)
    pairs = [tuple(torch.tensor([[rng.randrange(VOCAB) for _ in range(size)]]) for size in sizes)
             for sizes in ((4, 4), (4, 5), (6, 6), (7, 3), (3, 8), (5, 5), (8, 2))]  # fmt: skip
    net = bound(model, pairs, cells="auto", rows=True)
    for batch in (pairs, pairs[::-1], pairs[1:4]):
        require_eager(net, model, batch)


class Distances(nn.Module):
    """Between some rows and all."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        h = torch.relu(self.up(pair[0])) + 0.1
        return torch.cdist(h[pair[1]], h).sum()


def test_distances_of_equal_rows_are_none() -> None:
    """As torch has them of few rows, by differences; by products they were 1e-3 in all."""
    torch.manual_seed(0)
    model = Distances()
    pairs = [(torch.randn(n, 4), torch.randint(n, (m,))) for n, m in [(3, 5), (4, 2), (6, 3), (7, 4)] * 10]
    net = bound(model, pairs, cells="auto", rows=True)
    with torch.no_grad():
        torch.testing.assert_close(net(pairs), [*map(model, pairs)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "taken",
    ["h[:, :1].expand(1, n, -1)", "torch.broadcast_to(h[:, :1], h.shape)",
     "h[:, -1:].expand(h.size())", "h.amax(1, keepdim=True).expand(-1, n, -1)"],
)  # fmt: skip
def test_one_row_as_often_as_there_are_words(taken: str, made: Callable[..., nn.Module]) -> None:
    """What torch is given of a size is this instance's, so what comes of it is of no other size."""
    net = of_model(made(TAKES, taken=f"({taken}).sum(1)"), texts, rounds=3)
    assert BY_SIZES in kept(net)


@pytest.mark.parametrize("taken", TAKEN)
def test_what_is_the_same_row_in_all_instances(taken: str, made: Callable[..., nn.Module]) -> None:
    """A list of one number is a slice, and new rows are as many as others: forward is one run for all sizes."""
    net = of_model(made(TAKES, taken=taken.format(hidden=HIDDEN)), texts, rounds=2)
    assert kept(net) == {KeptCall}


@pytest.mark.parametrize("taken", AMOUNTS)
def test_numbers_that_follow_from_sizes(taken: str, made: Callable[..., nn.Module]) -> None:
    """Forward is one run for all sizes, or for those on one side of a number."""
    assert kept(of_model(made(TAKES, taken=taken), texts, rounds=3)) == {KeptCall}


@pytest.mark.parametrize("taken", ASKED)
def test_numbers_that_code_asks_for(taken: str, made: Callable[..., nn.Module]) -> None:
    """What is recorded of them is kept for these sizes alone, and as eager has it for all."""
    of_model(made(TAKES, taken=taken), texts, rounds=3)


def test_a_place_that_small_sizes_do_not_have(made: Callable[..., nn.Module]) -> None:
    """`h[n - 4]` is the last one of 3: what is kept for longer ones does not serve it."""
    model = made(TAKES, taken="h[0, n - 4]")
    net = bound(model, [torch.zeros(1, n, dtype=torch.int64) for n in (6, 7, 9)], cells="auto", rows=True)
    rng = Random(0)
    for n in (9, 5, 4, 3, 2, 7, 3):
        require_eager(net, model, [torch.tensor([[rng.randrange(VOCAB) for _ in range(n)]])] * 2)


def test_one_number_that_there_is_not_is_told_as_by_eager(made: Callable[..., nn.Module]) -> None:
    """Also where forward is known from longer texts."""
    model = made(TAKES, taken="h[:, [3]].sum(1)")
    net = bound(model, [torch.zeros(1, n, dtype=torch.int64) for n in (4, 6, 9)], cells="auto", rows=True)
    for n in (4, 7, 5, 9, 8):
        require_eager(net, model, [torch.zeros(1, n, dtype=torch.int64)] * 2)
    with pytest.raises(IndexError):
        model(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises((IndexError, EdbcError)):
        net([torch.zeros(1, 3, dtype=torch.int64)])


def test_sizes_of_a_side_that_is_known_are_not_recorded_anew(made: Callable[..., nn.Module]) -> None:
    """Of the other side there is one record too, for all its sizes."""
    net = of_model(made(TAKES, taken="h.sum(1) if n > 5 else h.amax(1) * 2"), texts)
    rng = Random(3)
    with torch.no_grad():
        for _ in range(60):
            net([texts(rng), texts(rng)])
        recorder = net._idle[0][1]
        before = set(recorder.functions)
        for n in (7, 8, 3, 9, 4, 10, 2, 6, 5):
            net([torch.zeros(1, n, dtype=torch.int64)])
    assert set(recorder.functions) == before
    assert [type(known) for known in kept_forwards(net)] == [KeptCall] * 2


def test_a_large_mini_batch_of_known_forwards_is_found(made: Callable[..., nn.Module]) -> None:
    """All of it is read before any of it is found, which is no sign that forwards are not known."""
    net = of_model(made(MASKED, scores=MASKS["of ones"]), texts, rounds=1)
    rng, recorder = Random(2), net._idle[0][1]
    with torch.no_grad():
        for count in (3, 400, 3):
            before = recorder.found_forwards
            many = (texts(rng) for _ in range(3 * count))  # two words may be a pair
            net([text for text in many if text.shape[1] > 2][:count])
            assert recorder.found_forwards == before + count


def test_captured_instances_rest_on_the_mask_that_there_was(made: Callable[..., nn.Module]) -> None:
    """They are refused once the buffer is another one, and so are files of them."""
    model = made(MASKED, scores=MASKS["of ones"])
    net = of_model(model, texts, rounds=1)
    rng = Random(7)
    plain = [text for text in (texts(rng) for _ in range(30)) if text.shape[1] > 2][:8]
    captured = net.capture_all(plain)
    for ours, theirs in zip(net([*captured[:4], *plain[4:]]), map(model, plain), strict=True):
        torch.testing.assert_close(ours, theirs)

    with torch.no_grad():
        model.ones.fill_(1.0)

    with pytest.raises(StaleError, match="structure"):
        net(captured)
    with pytest.raises(StaleError, match="structure"):
        net([*plain[:2], captured[2]])
    require_eager(net, model, plain)
    again = net.capture_all(plain)
    for ours, theirs in zip(net(again), map(model, plain), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["of numbers", "where", "of ones"])
def test_what_a_mini_batch_rests_on_does_not_grow(name: str, made: Callable[..., nn.Module]) -> None:
    """Whether forward is kept, or asks for the buffer each time."""
    net = of_model(made(MASKED, scores=MASKS[name]), texts, rounds=1)
    rng = Random(4)
    counts = []
    for _ in range(3):
        with torch.no_grad():
            for _ in range(4):
                net([texts(rng) for _ in range(6)])
        counts.append(len(net.view.copies.look_ups._known))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize("matrix", [
    torch.ones(4, 4).tril(), torch.ones(3, 5).triu(2), torch.zeros(3, 3), torch.full((2, 4), -math.inf),
    torch.ones(3, 3, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool), torch.ones(3, 4, dtype=torch.bool).tril(1),
    torch.full((3, 3), 2), torch.eye(3), torch.arange(4.0).view(2, 2), torch.ones(3, 3).fill_diagonal_(0),
])  # fmt: skip
def test_a_triangle_is_told_whole(matrix: torch.Tensor) -> None:
    """What is told of a matrix makes it again; of others nothing is."""
    found = triangle_of(matrix)
    assert (found is None) == (matrix.unique().numel() > 2 or (matrix.equal(matrix.T) and matrix.unique().numel() > 1))
    if found is not None:
        assert triangle(matrix, *matrix.shape, *found, matrix.dtype).equal(matrix)


def labelled(rng: Random) -> Any:
    """Words and their labels."""
    n = rng.randint(2, 9)
    return tuple(torch.tensor([rng.randrange(size) for _ in range(n)]) for size in (VOCAB, 4))


@pytest.mark.parametrize("name", LOSSES)
def test_labels_are_rows_of_integers(name: str, made: Callable[..., nn.Module]) -> None:
    """Forward is kept for sentences of all lengths, and alone each has the bits that it has in company."""
    net = of_model(made(LABELLED, loss=LOSSES[name]), labelled, rounds=1)
    rng = Random(3)
    together = [labelled(rng) for _ in range(9)]
    with torch.no_grad():
        alone = [net([one])[0] for one in together]
        for ours, theirs in zip(net(together), alone, strict=True):
            assert name == "smoothed" or name == "one ignored" or ours.equal(theirs), "but for what torch computes"
    assert kept(net) == {KeptCall}


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss", "of views"])
@pytest.mark.parametrize("company", [0, 9])
def test_labels_that_are_no_classes_are_as_in_eager(name: str, company: int, made: Callable[..., nn.Module]) -> None:
    """Of a later instance, whose call is known: one that is ignored, and ones that there are not."""
    model = made(LABELLED, loss=LOSSES[name])
    net, rng = of_model(model, labelled, rounds=1), Random(5)
    others = [labelled(rng) for _ in range(company)]

    for label in (4, -2, -1 if name == "of views" else -100):
        odd = torch.tensor([1, 2, 3]), torch.tensor([0, label, 3])
        try:
            expected = model(odd)
        except IndexError as error:
            with pytest.raises(IndexError, match=re.escape(str(error))):
                net([*others, odd])
        else:
            torch.testing.assert_close(net([*others, odd])[-1], expected)


class NamedAsInNumPy(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.words, self.out, self.function = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN), function

    def forward(self, ids):
        h = self.words(torch.tensor(ids))
        return self.function(h, torch.tanh(self.out(h)))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.cat([a, b], axis=1),
        lambda a, b: torch.concat((a, b), axis=-1),
        lambda a, b: torch.stack([a, b], axis=-1),
        lambda a, b: torch.stack([a, b], axis=1).mean(axis=1, keepdims=True),
        lambda a, b: torch.unbind(a * b, axis=1)[2],
        lambda a, b: (a * b).softmax(axis=0),
        lambda a, b: torch.cumsum(a, axis=0) - b.amax(axis=1, keepdims=True),
        lambda a, b: a.chunk(2, axis=1)[1] + torch.index_select(b, axis=1, index=torch.arange(HIDDEN // 2)),
    ],
)
def test_arguments_have_numpys_names_too(function: Any) -> None:
    torch.manual_seed(0)
    model = NamedAsInNumPy(function)
    net = bound(model, [[1, 2, 3], [4, 5], [1, 2, 3, 4, 5]], cells="auto", rows=True)
    require_eager(net, model, [[3, 1], [2, 2, 4, 1], [1, 2, 3]])


class Counted(nn.Module):
    """How many words there are comes from a method, and meets floats."""

    def __init__(self, asks: str):
        super().__init__()
        self.words, self.out, self.asks = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, 2), asks

    def begin(self, ids: torch.Tensor) -> tuple[int, torch.Tensor]:
        h = torch.tanh(self.out(self.words(ids)))
        return ids.size(0), h * 2

    def forward(self, ids: torch.Tensor) -> Any:
        n, h = self.begin(ids)
        first = h[: max(1, int(0.4 * n))].sum(0)
        return first * ARITHMETIC[self.asks](n)


ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "on the left": lambda n: n / 4.0 + n**0.5 - n % 2.5, "on the right": lambda n: 1.5 / n - 0.5 + 2.5 // n,
    "both": lambda n: divmod(n, 2.5)[1] + n * (1 + 0j).real, "compared": lambda n: (n > 3.5) + (n <= 2.5) + (n == 4.0),
    "numpy": lambda n: float(np.float32(0.5) * n) + float(n * np.float32(2)),
}  # fmt: skip


@pytest.mark.parametrize("asks", ARITHMETIC)
def test_sizes_meet_floats(asks: str) -> None:
    """As integers do; and who calls a method that is kept gets integers from it."""
    generator = torch.Generator().manual_seed(0)
    instances = [torch.randint(0, VOCAB, (2 + k % 6,), generator=generator) for k in range(24)]
    model = seeded(Counted, asks)
    net = bound(model, instances, cells="auto")
    for _ in range(3):
        require_eager(net, model, instances)


class ViewsOfItself(nn.Module):
    """What libraries do to ids, in case there are more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shape = ids.size()
        ids = ids.view(-1, shape[-1])
        return torch.tanh(self.words(ids.view(shape))).sum(1) * ids.shape[0]


def test_ids_that_are_seen_by_their_own_sizes_are_the_same() -> None:
    """Forward is kept, for all lengths."""
    net = bound(ViewsOfItself(), [torch.zeros(1, n, dtype=torch.int64) for n in (2, 4, 6, 9)], cells="auto", rows=True)
    with torch.no_grad():
        net([torch.zeros(1, n, dtype=torch.int64) for n in (2, 4)])
        recorder = net._idle[0][1]
        before = recorder.found_forwards
        texts = [torch.arange(n)[None] for n in (3, 5, 7)]
        for got, expected in zip(net(texts), map(net.model, texts), strict=True):
            torch.testing.assert_close(got, expected)
    assert recorder.found_forwards == before + 3
