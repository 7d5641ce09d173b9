"""Rows that change in place: `h += x` and its like, where nobody else shows their memory, and where somebody does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound, seeded
from helpers import require_eager as require_equal
from rowparity import HIDDEN, VOCAB, kept_forwards, of_model, require_eager, sentence
from torch import nn

from edbc.capture.ragged.kept import KeptCall


class Changing(nn.Module):
    """Changes what it is given."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h += 1.0
        return h.sigmoid() * 2.0


class Net(nn.Module):
    """A function of two matrices of rows, the layers that made them, and a table of positions in a batch of one."""

    positions: torch.Tensor

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.words, self.up, self.out = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 4)
        self.drop, self.compute, self.inner = nn.Dropout(0.5), compute, Changing()
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=1)
        self.register_buffer("positions", torch.randn(1, 20, HIDDEN))

    def forward(self, ids: list[int]) -> Any:
        return self.compute(self, torch.tensor(ids))


def of_layer(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    h = net.drop(net.up(words))
    h += words
    return net.out(h)


def of_look_up(net: Net, ids: torch.Tensor) -> Any:
    h = net.words(ids)
    h *= HIDDEN**0.5
    h -= 1.0
    return net.out(h)


def of_item(net: Net, ids: torch.Tensor) -> Any:
    kept = {"h": net.up(net.words(ids))}
    kept["h"] /= 3.0
    return net.out(kept["h"])


def of_scores(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    scores = net.up(words) @ words.t()
    scores /= HIDDEN**0.5
    scores *= 2.0
    return scores.softmax(-1) @ words


def of_scores_of_rows_that_change(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    h = net.up(words) * 1.0
    scores = h.detach() @ words.t()
    h = h * 2.0
    h += 1.0
    return scores.softmax(-1) @ h


def of_rows_that_scores_were_made_of(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids).detach()
    h = words * 0.5
    scores = h @ words.t()
    h += 1.0
    return scores.softmax(-1) @ net.up(h)


def of_copies(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    copy = h.clone()
    copy += 1.0
    return net.out(h) + net.out(copy)


def of_a_convolution(net: Net, ids: torch.Tensor) -> Any:
    h = net.conv(net.words(ids).t().unsqueeze(0))
    h.relu_()
    return net.out(h.squeeze(0).t())


def of_functions(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    h = F.dropout(F.gelu(net.up(words)), 0.5, False)
    h += words
    scores = torch.einsum("qd,kd->qk", h, words)
    scores /= 3.0
    seen = torch.einsum("qk,kd->qd", scores.softmax(-1), words)
    seen += h
    whole = F.scaled_dot_product_attention(*[seen.unsqueeze(0)] * 3)
    whole += 1.0
    total = whole.squeeze(0).cumsum(0)
    total /= 2.0
    return net.out(total)


def held_twice(net: Net, ids: torch.Tensor) -> Any:
    h = other = net.up(net.words(ids))
    h += 1.0
    scores = same = h @ h.t()
    scores /= 3.0
    return same.softmax(-1) @ other


def of_an_argument_of_a_module(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    return net.inner(h) * net.out(h).sum() + net.inner(net.up(h))


def of_what_gives_the_same(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    none, joined, again = h.index_add(0, ids[:0], h[:0]), torch.cat([h]), h.repeat(1, 1)
    none += 1.0
    joined *= 2.0
    again -= 3.0
    return net.out(h), none, joined, again


def of_joined_rows(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    h, taken = torch.cat([words, net.up(words)]), words[ids % len(ids)]
    h += 1.0
    taken *= 2.0
    return net.out(h).sum(0), net.out(words), net.out(taken)


def through_a_turned_view(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    turned = h.t()
    turned *= torch.arange(1.0, HIDDEN + 1).unsqueeze(-1)
    return net.out(h) + turned.sum(), turned


def through_a_view_of_a_view(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids)).unsqueeze(0) * 1.0
    turned = h.transpose(1, 2)
    back = turned.transpose(1, 2)
    back += net.words(ids)
    back *= 2.0
    return net.out(h), turned.sum(2), back.sum(1)


def turned_by_an_argument(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    return net.inner(h.t()).sum(1) * net.out(h).sum()


ALONE = [of_layer, of_look_up, of_item, of_scores, of_scores_of_rows_that_change,
         of_rows_that_scores_were_made_of, of_copies, of_a_convolution, of_functions, held_twice,
         of_an_argument_of_a_module, of_what_gives_the_same, of_joined_rows, through_a_turned_view,
         through_a_view_of_a_view, turned_by_an_argument]  # fmt: skip


def under_two_names(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    other = h
    h += 1.0
    return net.out(other) * h.sum()


def of_dropout(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    same = net.drop(h)
    same *= 3.0
    return net.out(h)


def in_a_list(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    kept = [h]
    h += 1.0
    return net.out(kept[0])


def changed(h: Any) -> Any:
    h += 1.0
    return h * 2.0


def of_an_argument(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    return changed(h) * net.out(h).sum()


def with_a_view(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    seen = h.view(-1, 2, HIDDEN // 2)
    h *= 2.0
    return net.out(h), seen.sum(0)


def with_a_row(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    row = h[0]
    h -= 1.0
    return net.out(h) * row.sum()


def with_a_part(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    part = h[:, :2]
    part *= 0.5
    return net.out(h)


def heads(h: Any) -> Any:
    return h.view(-1, 2, HIDDEN // 2).transpose(0, 1)


def with_a_view_of_a_function(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    seen = heads(h)
    h += 1.0
    return net.out(h), seen.sum(1)


def with_scores_seen_otherwise(net: Net, ids: torch.Tensor) -> Any:
    words = net.words(ids)
    scores = net.up(words) @ words.t()
    seen = scores.t()
    scores /= 3.0
    return scores.softmax(-1) @ words + seen.softmax(-1) @ words


def of_a_cast(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    same = h.float()
    h += 1.0
    return net.out(h), same


def with_zeros(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    other = torch.zeros_like(h) + h
    other += 1.0
    return net.out(h), other


def turned_twice(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    turned, other = h.t(), h.t()
    turned += 1.0
    return net.out(h), other.sum(1)


def turned_before_the_whole_changes(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    turned = h.t()
    h += 1.0
    return net.out(h), turned.sum(1)


def turned_beside_a_row(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    turned, row = h.t(), h[0]
    turned *= 2.0
    return net.out(h), row


def turned_beside_a_part_of_its_own(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    turned = h.t()
    part = turned[:2]
    turned *= 2.0
    return net.out(h), part.sum(1)


def turned_and_assigned_by_rows(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids)).t() * 1.0
    turned = h.t()
    turned[0] = turned[0] * 3.0
    return net.out(turned), h.sum(1)


def turned_and_copied(net: Net, ids: torch.Tensor) -> Any:
    h = net.up(net.words(ids))
    copy = h.t().contiguous()
    copy *= 2.0
    return net.out(h), copy.sum(1)


SHARED = [under_two_names, of_dropout, in_a_list, of_an_argument, with_a_view, with_a_row, with_a_part,
          with_a_view_of_a_function, with_scores_seen_otherwise, of_a_cast, with_zeros, turned_twice,
          turned_before_the_whole_changes, turned_beside_a_row, turned_beside_a_part_of_its_own,
          turned_and_assigned_by_rows, turned_and_copied]  # fmt: skip


def positions_of_a_batch(net: Net, ids: torch.Tensor) -> Any:
    h = net.words(ids.unsqueeze(0))
    h = h + net.positions[:, : h.size(1)].clone().detach()
    return net.out(net.up(h).tanh()).sum(1)


def positions_that_are_told_to_require_none(net: Net, ids: torch.Tensor) -> Any:
    h = net.words(ids.unsqueeze(0))
    h = h + net.positions[:, : h.size(1), :].requires_grad_(False)
    return net.out(net.up(h).tanh()).sum(1)


@pytest.mark.parametrize("compute", [*ALONE, positions_of_a_batch, positions_that_are_told_to_require_none])
def test_rows_stay_rows(compute: Callable[..., Any]) -> None:
    """Numbers and gradients are eager's, and no row is stacked, but those that forward returns."""
    net = of_model(Net(compute), sentence)
    recorder = net._idle[0][1]
    assert recorder.ragged
    assert not recorder.keeps_books


@pytest.mark.parametrize("compute", SHARED)
def test_whoever_shows_the_memory_sees_the_change(compute: Callable[..., Any]) -> None:
    """As in eager PyTorch."""
    of_model(Net(compute), sentence)


def test_what_a_mask_leaves_as_it_is_has_memory_of_its_own() -> None:
    """As in eager PyTorch, where the function copies."""
    assert of_model(Scores(), sentence)._idle[0][1].ragged


class Masked(Net):
    """Scores masked behind autograd's back, by masks that come with sentences without padding."""

    def __init__(self) -> None:
        super().__init__(of_scores)

    def forward(self, instance: Any) -> Any:
        words, mask = self.words(instance[0]).unsqueeze(0), instance[1]
        scores = self.up(words).bmm(words.transpose(1, 2))
        scores.data.masked_fill_(~mask.unsqueeze(1), -1e9)
        return scores.softmax(-1).bmm(words)


def test_masks_that_show_nothing_leave_rows() -> None:
    """As in eager PyTorch, where they change nothing."""

    def masked(rng: Random) -> Any:
        ids = torch.tensor(sentence(rng))
        return ids, torch.ones(1, len(ids), dtype=torch.bool)

    net = of_model(Masked(), masked)
    assert net._idle[0][1].ragged


def test_whole_forwards_that_begin_with_positions_are_kept() -> None:
    """`h + table[:, : h.size(1)]` is one run for each later instance, whichever of the two a run takes first."""
    net = of_model(Positions(), sentence)
    recorder = net._idle[0][1]
    before = recorder.found_forwards
    net([[1, 2, 3], [4, 5, 6, 7], [1] * 9])
    assert recorder.found_forwards == before + 3


class Scores(Net):
    """Scores of a sentence without padding, whose mask changes nothing, twice."""

    def __init__(self) -> None:
        super().__init__(of_scores)

    def forward(self, ids: list[int]) -> Any:
        ids = torch.tensor(ids)
        words, used = self.words(ids), ids != VOCAB
        scores = self.up(words) @ words.t()
        masked = scores.masked_fill(~used.unsqueeze(0), -1e9)
        masked /= 3.0
        kept = words * used.unsqueeze(-1)
        kept += 1.0
        return scores.softmax(-1) @ words + masked.softmax(-1) @ kept


class Positions(Net):
    """The same as a closed forward."""

    def __init__(self) -> None:
        super().__init__(positions_of_a_batch)

    def forward(self, ids: list[int]) -> Any:
        h = self.words(torch.tensor(ids).unsqueeze(0))
        h = h + self.positions[:, : h.size(1)].clone().detach()
        return self.out(self.up(h).tanh()).sum(1)


class OfPoints(nn.Module):
    """Layers that change in place, of rows and of their sum, which is no row."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, HIDDEN), nn.ELU(inplace=True), nn.Linear(HIDDEN, HIDDEN))
        self.of_all = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ELU(inplace=True), nn.Linear(HIDDEN, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = points
        x = self.each(x)
        x = x.sum(dim=1)
        x = self.of_all(x)
        return 2.0 * x


def test_what_changes_in_place_behind_rows_is_kept_as_it_is_written() -> None:
    """Lines that run as one hide who shows memory: code runs as it is written then, and is kept all the same."""

    def points(rng: Random) -> torch.Tensor:
        return torch.tensor([rng.gauss(0, 1) for _ in range(3 * rng.randint(2, 9))]).view(1, -1, 3)

    model, instances = OfPoints(), [points(Random(seed)) for seed in range(8)]
    net = bound(model, instances[:4], cells="auto", rows=True)
    assert any(":" in name for name in net.view.automatic)
    for _ in range(2):
        require_eager(net, model, instances)
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}


def test_what_a_method_hands_back_of_a_buffer_changes_with_it() -> None:
    """The method is closed code that is given the buffer as rows, and what it gives is the buffer."""

    class HandsBack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(4, 4)

        def keep(self, h: torch.Tensor) -> torch.Tensor:
            kept = []
            kept.append(h)
            return kept[0]

        def forward(self, xs: torch.Tensor) -> list[torch.Tensor]:
            total = torch.zeros(len(xs), 4)
            kept = self.keep(total)
            total += self.step(xs)
            return [kept, total]

    instances = [torch.randn(1 + i % 4, 4) for i in range(5)]
    require_equal(bound(seeded(HandsBack), instances, cells="auto", rows=True), instances)
