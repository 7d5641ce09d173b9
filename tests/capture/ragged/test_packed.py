"""Packed sequences and projections: what code for padded batches does with the one sequence of an instance."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, VOCAB, of_model, require_eager, sentence
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

import edbc
from edbc.capture.ragged.kept import KeptCall
from edbc.run.session import Net


class Packs(nn.Module):
    """A reader of packed batches of one, with states of its own, the last word left out; one in both directions, of two
    layers, sorted; and one with projections."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(VOCAB, HIDDEN), nn.Parameter(torch.randn(2, 1, 1, HIDDEN))
        self.reader = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.both = nn.GRU(HIDDEN, HIDDEN // 2, 2, bidirectional=True)
        self.projected = nn.LSTM(HIDDEN, 12, proj_size=4, bias=False, bidirectional=True)

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor(ids))
        packed = pack_padded_sequence(x[None], torch.tensor([max(1, len(ids) - 1)]), batch_first=True)
        output, (h, c) = self.reader(packed, (self.first[0], self.first[1]))
        padded, lengths = pad_packed_sequence(output, batch_first=True, padding_value=0.5, total_length=len(ids))
        both, last = self.both(pack_padded_sequence(x[:, None], [len(ids)], enforce_sorted=False))
        back, _ = pad_packed_sequence(both)
        projected, states = self.projected(pack_sequence([x]))
        return padded[0].sum(0) / lengths[0], h, c, back[:, 0].amax(0), last, projected.data.mean(0), *states


def test_packed_sequences_are_their_rows() -> None:
    """As rows and as whole values; no function takes rows whole."""
    torch.manual_seed(0)
    model = Packs()
    net = of_model(model, sentence, rounds=1)
    assert not net.taken_whole()
    instances = [[1, 2, 3], [4], [5, 6, 7]]
    require_eager(bound(model, instances), model, instances)


class PacksMany(nn.Module):
    """The words of a sentence, by their characters: sorted by torch, of two layers, with states, read once more."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.first = nn.Embedding(VOCAB, HIDDEN), nn.Parameter(torch.randn(4, 9, HIDDEN // 2))
        self.reader = nn.LSTM(HIDDEN, HIDDEN // 2, 2, batch_first=True, bidirectional=True)
        self.again = nn.GRU(HIDDEN, HIDDEN)

    def forward(self, words: list[list[int]]) -> Any:
        lengths = torch.tensor([len(word) for word in words])
        x = pad_sequence([self.letters(torch.tensor(word)) for word in words], batch_first=True)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x += 1.0  # which is not of what was packed
        output, (h, c) = self.reader(packed, (self.first[:, : len(words)], self.first[:, -len(words) :]))
        padded, counts = pad_packed_sequence(output, batch_first=True, padding_value=0.5, total_length=9)
        data = torch.tanh(output.data)
        again, last = self.again(PackedSequence(data, output.batch_sizes, output.sorted_indices))
        return padded.sum(1), h, c, counts, last, again.data.mean(0), x, pad_packed_sequence(again)[0]


def test_several_sequences_of_an_instance_are_read_each() -> None:
    """As rows and as whole values."""
    torch.manual_seed(0)
    model, instances = PacksMany(), [[[1, 2], [3]], [[4, 5, 6]], [[1], [7, 8], [9]], [[4, 5], [6]]]
    for rows in (False, True):
        require_eager(bound(model, instances, rows=rows), model, instances)


class ReadsEachRow(nn.Module):
    """As many sequences as there are rows, all as long."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.LSTM(3, HIDDEN // 2, 2, batch_first=True, bidirectional=True)
        self.reader = nn.GRU(3, HIDDEN)

    def forward(self, x: torch.Tensor) -> Any:
        output, (h, c) = self.both(torch.tanh(x))
        steps, last = self.reader(x.transpose(0, 1), output[:, -1].unsqueeze(0))
        return output.sum(1), h, c.mean(1), steps.sum(0), last[0].amax(0)


def sequences_of(rng: Random) -> torch.Tensor:
    return torch.tensor([rng.gauss(0, 1) for _ in range(rng.randint(1, 6) * 12)]).view(-1, 4, 3)


def test_a_sequence_for_each_row_is_a_node() -> None:
    """Whose batch is one call of torch's, however many rows instances have."""
    torch.manual_seed(0)
    model, instances = ReadsEachRow(), [sequences_of(Random(seed)) for seed in range(4)]
    net = bound(model, instances, rows=True)
    require_eager(net, model, instances[1:])
    assert not net.taken_whole()
    assert {"torch.lstm", "torch.gru"} <= {t.signature.partition("(")[0] for t in net.plan.types}


class PacksByLengths(nn.Module):
    """Lengths are computed, and what is packed is written in place where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(VOCAB, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor([ids, ids[::-1]]))
        lengths = 1 + (x.mean(2) > 0).sum(1).clamp(max=len(ids) - 1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.reader(packed, x[None, :, 0])[1]


def test_lengths_that_are_computed_are_read() -> None:
    """They are decisions; replaying gives eager those of edbc."""
    torch.manual_seed(0)
    model, instances = PacksByLengths(), [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2, 2, 4]]
    require_eager(edbc.compile(model, instances), model, instances)


class PacksFresh(nn.Module):
    """States that forward makes, for tensors that it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(VOCAB, HIDDEN), nn.GRU(HIDDEN, HIDDEN, 2, bidirectional=True)

    def forward(self, ids: torch.Tensor) -> Any:
        mask = ids.gt(0).float()
        packed = pack_padded_sequence(self.words(ids), mask.sum(0).int(), enforce_sorted=False)
        output, _ = pad_packed_sequence(self.reader(packed, torch.zeros(4, ids.shape[1], HIDDEN))[0])
        output *= mask.unsqueeze(2)
        return output.sum(0)


def test_packed_sequences_with_states_of_forwards_own() -> None:
    """Recorded alike whether such a call was met before or not, which compiling asks for."""
    torch.manual_seed(0)
    model, instances = PacksFresh(), [torch.tensor([[1], [2], [3]][:n]) for n in (3, 1, 2, 3)]
    instances += [torch.tensor([[1, 4], [2, 5], [0, 3]])] * 2
    net = edbc.compile(model, instances)
    require_eager(net, model, instances)


class SortsByIndex(nn.Module):
    """A batch of one sorted by its lengths with `x[order]`; what is sorted is changed in place, and read as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(VOCAB, HIDDEN), nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor([ids]))
        lengths = torch.tensor([len(ids)])
        order = torch.sort(-lengths)[1]
        back = torch.sort(order)[1]
        output, (h, _) = self.reader(pack_padded_sequence(x[order], lengths[order], batch_first=True))
        h = torch.transpose(h, 0, 1)[back]
        output = pad_packed_sequence(output, batch_first=True)[0][back]
        return h.transpose(0, 1)[0], output.sum(1), output[0, -1]


class ChangesSorted(SortsByIndex):
    """The same, changed in place."""

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor([ids]))
        other = x[torch.tensor([0])]
        other += 1
        total = x.sum(1)
        again = total[torch.tensor([0])]
        again *= 2
        return x.sum(1), other.sum(1), total, again


def test_a_batch_of_one_that_is_sorted_by_index_is_itself() -> None:
    """No function takes its rows whole, and no node does what sorting does."""
    torch.manual_seed(0)
    net = of_model(SortsByIndex(), sentence, rounds=1)
    assert not net.taken_whole()
    assert not any("pick" in t.signature or "getitem" in t.signature for t in net.plan.types)


@pytest.mark.parametrize("rows", [True, None])
def test_what_is_sorted_by_index_is_a_copy(rows: bool | None) -> None:
    """Of rows and of whole values."""
    torch.manual_seed(0)
    model, instances = ChangesSorted(), [[1, 2, 3], [4], [5, 6, 7]]
    require_eager(bound(model, instances, rows=rows), model, instances)


def test_an_index_that_is_a_mask_or_out_of_bounds_is_no_sorting() -> None:
    """A mask of one item chooses none, and the last item is the first."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCAB, HIDDEN)

        def forward(self, ids: list[int]) -> Any:
            x = self.words(torch.tensor([ids])).sum(1)
            return x[torch.tensor([False])], x[torch.tensor([True])], x[torch.tensor([-1])], x[torch.tensor([0, 0])]

    torch.manual_seed(0)
    model, instances = Chooses(), [[1, 2, 3], [4], [5, 6, 7]]
    require_eager(bound(model, instances), model, instances)


class TakesALength(nn.Module):
    """A reader of a batch of one and its length."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)

    def forward(self, x: torch.Tensor, length: torch.Tensor) -> Any:
        order = torch.sort(-length)[1]
        output, (h, _) = self.reader(pack_padded_sequence(x[order], length[order], batch_first=True))
        return pad_packed_sequence(output, batch_first=True)[0].sum(1), h[0]


class TakesANumber(nn.Module):
    """What looks a word up by a number that may be a length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> Any:
        return self.words(number - 1) * x.sum(1)


class ReadsByLength(nn.Module):
    """Instances of words and a number, which is how many words there are in some."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.part, self.other = nn.Embedding(VOCAB, HIDDEN), TakesALength(), TakesANumber()

    def forward(self, instance: tuple[list[int], int]) -> Any:
        ids = torch.tensor([instance[0]])
        x, number = self.words(ids), (ids >= 0).sum(1) if instance[1] < 0 else torch.tensor([instance[1]]) + 0
        return *self.part(x, number.clamp(max=len(instance[0]))), self.other(x, number)


def test_a_number_that_is_a_length_is_kept_with_it() -> None:
    """For each length; numbers that are none, or are one by chance, are read as they are."""
    torch.manual_seed(0)
    net = of_model(ReadsByLength(), lambda rng: (sentence(rng), rng.choice((-1, -1, 1, 2, 3, 5))), rounds=3)
    known = net._idle[0][1].functions.items()
    kept = [key[0][1] for key, call in known if "the length of argument 0" in str(key) and type(call) is KeptCall]
    assert len(kept) > 1
    assert set(kept) == {"part"}


class ReadsLengths(nn.Module):
    """A reader of a batch of one and its length, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.part = nn.Embedding(VOCAB, HIDDEN), TakesALength()

    def forward(self, ids: torch.Tensor) -> Any:
        return self.part(self.words(ids[None]), (ids >= 0)[None].sum(1))


def test_what_is_kept_by_sizes_that_recur_is_a_call() -> None:
    """The module is worth asking for, whatever the first call of each length takes."""
    torch.manual_seed(0)
    instances = [torch.arange(n) for n in (*range(2, 15), 3, 5, 7, 9)]
    net = bound(ReadsLengths(), instances, cells="auto", rows=True)
    assert "part" in net.plan.automatic
    require_eager(net, net.model, instances)


class OfLengths(nn.Module):
    """Two sentences, each in a batch of one with a tensor of its length: sorted, packed, masked, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.reader = nn.LSTM(HIDDEN, HIDDEN // 2, batch_first=True, bidirectional=True)

    def forward(self, pair: Any) -> Any:
        x, longest, y, other = pair
        first, mask = self.read(x, longest)
        second, _ = self.read(y, other)
        scores = torch.softmax(first.bmm(second.transpose(1, 2)) * mask.unsqueeze(2), -1)
        until = torch.arange(x.size(1))[None, :] < longest[:, None]
        mean = (first * until.unsqueeze(2)).sum(1) / longest.unsqueeze(1).float()
        return mean, scores.bmm(second).amax(1), (first * mask.unsqueeze(2)).sum(1)

    def read(self, ids: Any, lengths: Any) -> Any:
        mask = torch.ones(ids.shape[0], torch.max(lengths), dtype=torch.float)
        mask[ids[:, : torch.max(lengths)] == 0] = 0.0
        lengths, order = lengths.sort(0, descending=True)
        back = torch.arange(0, len(lengths)).index_select(0, order.sort(0)[1])
        packed = pack_padded_sequence(self.words(ids).index_select(0, order), lengths, batch_first=True)
        output, _ = pad_packed_sequence(self.reader(packed, None)[0], batch_first=True)
        return output.index_select(0, back), mask


def with_lengths(rng: Random, *sizes: int, least: int = 1) -> Any:
    """Sentences of these sizes."""
    sentences = [torch.tensor([[rng.randrange(least, VOCAB) for _ in range(n)]]) for n in sizes]
    return tuple(part for ids in sentences for part in (ids, torch.tensor([ids.shape[1]])))


@pytest.mark.parametrize("first", [(3, 5), (4, 4), (5, 1)])
def test_lengths_that_instances_bring_are_sizes(first: tuple[int, int]) -> None:
    """Forward is one run for all sizes, whatever the first instance was: one of two equal lengths has its own."""
    torch.manual_seed(0)
    model, rng = OfLengths().eval(), Random(0)
    made = [with_lengths(rng, rng.randint(2, 7), rng.randint(2, 7)) for _ in range(8)]
    net = Net(bound(model, made, cells="auto", rows=True).plan, model)
    require_eager(net, model, [with_lengths(rng, *first), *made])
    before = net._idle[0][1].found_forwards
    others = [with_lengths(rng, 2 + i, 9 - i) for i in range(5)]
    require_eager(net, model, others)
    assert net._idle[0][1].found_forwards == before + len(others)
    require_eager(net, model, [with_lengths(rng, 6, 3, least=0) for _ in range(6)])


class Labelled(nn.Module):
    """A number that may be as large as a sentence is long, and is none of its length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds, self.out = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(9, HIDDEN), nn.Linear(HIDDEN, 9)

    def forward(self, pair: Any) -> Any:
        ids, label = pair
        h = self.words(ids).sum(1)
        return nn.functional.cross_entropy(self.out(h), label), self.kinds(label) * h, h * label


def test_numbers_that_are_as_large_as_a_sentence_are_long() -> None:
    """By chance."""
    torch.manual_seed(0)
    of_model(Labelled(), lambda rng: (with_lengths(rng, rng.randint(2, 8))[0], torch.tensor([rng.randint(2, 8)])), 3)
