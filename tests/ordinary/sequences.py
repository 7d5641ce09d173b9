"""Sequences: recurrent loops, taggers, convolutions and pooling over words."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, VOCAB, actions, id_tensor, labelled_sentence, pair_of_sentences, sentence
from ordinary.data import series as series_of
from ordinary.registry import program


@program(sentence)
class ElmanLoop(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.step = size, nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, words):
        h = torch.zeros(self.size)
        for word in words:
            h = torch.tanh(self.step(torch.cat([self.words(torch.tensor(word)), h])))
        return h


@program(sentence)
class GRUCellOfBatchOne(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.cell = size, nn.Embedding(VOCAB, size), nn.GRUCell(size, size)

    def forward(self, words):
        h = torch.zeros(1, self.size)
        for word in words:
            h = self.cell(self.words(torch.tensor([word])), h)
        return h.squeeze(0)


@program(sentence)
class LSTMCellTagger(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.cell, self.out = nn.LSTMCell(size, size), nn.Linear(size, LABELS)

    def forward(self, words):
        h, c = torch.zeros(1, self.size), torch.zeros(1, self.size)
        tags = []
        for x in self.words(torch.tensor(words)).unsqueeze(1):
            h, c = self.cell(x, (h, c))
            tags.append(F.log_softmax(self.out(h), dim=-1))
        return torch.cat(tags)


@program(id_tensor)
class BiCellTagger(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.there, self.back = nn.GRUCell(size, size), nn.GRUCell(size, size)
        self.out = nn.Linear(2 * size, LABELS)

    def run(self, cell, xs):
        h, states = torch.zeros(self.size), []
        for x in xs:
            h = cell(x, h)
            states.append(h)
        return states

    def forward(self, ids):
        xs = list(self.words(ids))
        there, back = self.run(self.there, xs), self.run(self.back, xs[::-1])[::-1]
        return [self.out(torch.cat(pair)) for pair in zip(there, back, strict=True)]


@program(sentence)
class LSTMByChunks(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.wx, self.wh = nn.Linear(size, 4 * size), nn.Linear(size, 4 * size, bias=False)

    def forward(self, words):
        h = c = torch.zeros(1, self.size)
        for word in words:
            gates = self.wx(self.words(torch.tensor([word]))) + self.wh(h)
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


@program(sentence)
class LSTMModule(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(VOCAB, size), nn.LSTM(size, size), nn.Linear(size, LABELS)

    def forward(self, words):
        states, (h, _) = self.lstm(self.words(torch.tensor(words)).unsqueeze(1))
        return self.out(states.squeeze(1)), h[-1]


@program(id_tensor)
class GRUModuleLast(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.gru = nn.Embedding(VOCAB, size), nn.GRU(size, size, batch_first=True)

    def forward(self, ids):
        return self.gru(self.words(ids.unsqueeze(0)))[0][:, -1]


@program(series_of)
class BiGRUMean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gru = nn.GRU(FEATURES, size, bidirectional=True)

    def forward(self, series):
        states, _ = self.gru(series)
        return states.mean(dim=0)


@program(sentence)
class BagOfWords(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, LABELS)

    def forward(self, words):
        return self.out(self.words(torch.tensor(words)).mean(0))


@program(sentence)
class SumOverLength(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.hidden, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.Linear(size, LABELS)

    def forward(self, words):
        mean = sum(self.words(torch.tensor(w)) for w in words) / len(words)
        return self.out(F.relu(self.hidden(mean)))


@program(id_tensor)
class ConvolutionOverTime(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.conv = nn.Embedding(VOCAB, size), nn.Conv1d(size, size, 3, padding=1)

    def forward(self, ids):
        x = self.words(ids).t().unsqueeze(0)
        return F.relu(self.conv(x)).max(dim=2)[0].squeeze(0)


@program(series_of)
class AttentionPooling(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.score = nn.Linear(FEATURES, size), nn.Linear(size, 1)

    def forward(self, series):
        x = torch.tanh(self.up(series))
        weights = F.softmax(self.score(x), dim=0)
        return (weights * x).sum(0)


@program(series_of)
class RowsOfProjection(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.up, self.cell = size, nn.Linear(FEATURES, size), nn.GRUCell(size, size)

    def forward(self, series):
        x = self.up(series)
        h = torch.zeros(1, self.size)
        for i in range(x.size(0)):
            h = self.cell(x[i].view(1, -1), h)
        return h


@program(lambda rng: [sentence(rng) for _ in range(rng.randint(1, 4))])
class CharactersOfWords(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.chars = size, nn.Embedding(VOCAB, size)
        self.low, self.high = nn.GRUCell(size, size), nn.GRUCell(size, size)

    def fold(self, cell, xs):
        h = torch.zeros(self.size)
        for x in xs:
            h = cell(x, h)
        return h

    def forward(self, words):
        read = lambda word: self.fold(self.low, [self.chars(torch.tensor(c)) for c in word])  # noqa: E731
        return self.fold(self.high, [read(word) for word in words])


@program(pair_of_sentences)
class TeacherForcing(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.encoder, self.decoder = nn.LSTMCell(size, size), nn.LSTMCell(size, size)
        self.out = nn.Linear(size, VOCAB)

    def forward(self, pair):
        source, target = pair
        state = (torch.zeros(1, self.size), torch.zeros(1, self.size))
        for word in source:
            state = self.encoder(self.words(torch.tensor([word])), state)
        loss = 0
        for word, following in zip(target, target[1:], strict=False):
            state = self.decoder(self.words(torch.tensor([word])), state)
            loss = loss + F.cross_entropy(self.out(state[0]), torch.tensor([following]))
        return loss


@program(series_of)
class ReadBackwards(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.cell = size, nn.RNNCell(FEATURES, size)

    def forward(self, series):
        h = torch.zeros(self.size)
        for x in torch.flip(series, [0]):
            h = self.cell(x, h)
        return h


@program(series_of)
class Windows(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(3 * FEATURES, size)

    def forward(self, series):
        padded = F.pad(series, (0, 0, 1, 1))
        return torch.stack([self.up(padded[i : i + 3].reshape(-1)) for i in range(len(series))])


@program(sentence)
class AttendToPast(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step, self.query = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size), nn.Linear(size, size)

    def forward(self, words):
        past = [self.words(torch.tensor(words[0]))]
        for word in words[1:]:
            states = torch.stack(past)
            x = self.words(torch.tensor(word))
            weights = torch.softmax(states @ self.query(x), dim=0)
            past.append(torch.tanh(self.step(torch.cat([x, weights @ states]))))
        return past[-1]


@program(actions)
class ShiftReduce(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.join = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, item):
        words, steps = item
        buffer, stack = [self.words(torch.tensor(w)) for w in reversed(words)], []
        for step in steps:
            if step == "shift":
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(torch.tanh(self.join(torch.cat([left, right]))))
        return stack[0]


@program(sentence)
class LanguageModelLoss(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(VOCAB, size), nn.GRU(size, size), nn.Linear(size, VOCAB)

    def forward(self, words):
        ids = torch.tensor(words)
        states, _ = self.rnn(self.words(ids[:-1]))
        return F.cross_entropy(self.out(states), ids[1:])


@program(labelled_sentence)
class CRFLoss(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, LABELS)
        self.transitions = nn.Parameter(torch.randn(LABELS, LABELS))

    def forward(self, item):
        words, tags = item
        scores = self.out(self.words(torch.tensor(words)))
        alpha, gold = scores[0], scores[0][tags[0]]
        for i in range(1, len(words)):
            alpha = torch.logsumexp(alpha.unsqueeze(1) + self.transitions, dim=0) + scores[i]
            gold = gold + self.transitions[tags[i - 1], tags[i]] + scores[i, tags[i]]
        return torch.logsumexp(alpha, 0) - gold


@program(series_of)
class PointerScores(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.keys, self.query = nn.Linear(FEATURES, size), nn.Linear(FEATURES, size)

    def forward(self, series):
        keys, query = self.keys(series), self.query(series[-1])
        return F.log_softmax(torch.mv(keys, query), dim=0)


@program(sentence)
class Clockwork(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.step = size, nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, words):
        half = self.size // 2
        h = torch.zeros(self.size)
        for t, word in enumerate(words):
            new = torch.tanh(self.step(torch.cat([self.words(torch.tensor(word)), h])))
            h = new if t % 2 == 0 else torch.cat([new[:half], h[half:]])
        return h


@program(sentence)
class StackedCells(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.cells = nn.ModuleList(nn.GRUCell(size, size) for _ in range(3))

    def forward(self, words):
        states = [torch.zeros(self.size) for _ in self.cells]
        for word in words:
            x = self.words(torch.tensor(word))
            for level, cell in enumerate(self.cells):
                x = states[level] = cell(x, states[level])
        return states[-1]


@program(series_of)
class ForgetMean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.up = size, nn.Linear(FEATURES, 3 * size)

    def forward(self, series):
        value, forget, out = self.up(series).split(self.size, dim=-1)
        forget = torch.sigmoid(forget)
        c, states = torch.zeros(self.size), []
        for v, f, o in zip(value, forget, out, strict=True):
            c = f * c + (1 - f) * v
            states.append(torch.sigmoid(o) * c)
        return torch.stack(states)


@program(sentence)
class OneHotWords(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.step = size, nn.Linear(VOCAB + size, size)

    def forward(self, words):
        h = torch.zeros(1, self.size)
        for word in words:
            x = torch.zeros(1, VOCAB)
            x[0, word] = 1
            h = torch.tanh(self.step(torch.cat((x, h), 1)))
        return h


def _columns(rng):
    """Words of a sentence as torch's recurrent layers have them: a column, the batch of one second."""
    return id_tensor(rng).view(-1, 1)


@program(_columns)
class SequenceFirst(nn.Module):
    """A language model that makes its first states of a parameter, and returns the last ones."""

    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.rnn = size, nn.Embedding(VOCAB, size), nn.LSTM(size, size, 2)
        self.out = nn.Linear(size, VOCAB)

    def first_states(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, self.size), weight.new_zeros(2, batch, self.size)

    def forward(self, words):
        states, last = self.rnn(self.words(words), self.first_states(1))
        return F.log_softmax(self.out(states).view(-1, VOCAB), dim=1), last


class _Apart(nn.Module):
    def forward(self, x):
        if x.dim() <= 2:
            return super(_Apart, self).forward(x)  # noqa: UP008
        steps, batch = x.size()[:2]
        return super(_Apart, self).forward(x.view(steps * batch, -1)).view(steps, batch, -1)  # noqa: UP008


class _LinearApart(_Apart, nn.Linear):
    pass


@program(_columns)
class BaseClassesByName(nn.Module):
    """`super` of a named class, by a class that is mixed in."""

    def __init__(self, size):
        super().__init__()
        self.words, self.project = nn.Embedding(VOCAB, size), _LinearApart(size, size)
        self.rnn, self.out = nn.GRU(size, size, bidirectional=True), _LinearApart(2 * size, LABELS)

    def forward(self, words):
        embedded = torch.relu(self.project(self.words(words)))
        _, last = self.rnn(embedded, embedded.new_zeros(2, 1, embedded.size(2)))
        return self.out(last.transpose(0, 1).contiguous().view(1, -1))


class _Scaled(nn.Module):
    def forward(self, queries, keys, values, hidden):
        scores = torch.matmul(queries, keys.transpose(-1, -2)) / np.sqrt(keys.size(-1))
        scores.masked_fill_(hidden, -1e9)
        return torch.matmul(nn.Softmax(dim=-1)(scores), values)


def _six_words(rng):
    return torch.tensor([[rng.randrange(VOCAB) for _ in range(6)]])


@program(_six_words)
class ModulesMadeInForward(nn.Module):
    """Functions that are written as modules, and made where they are called."""

    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.project = size, nn.Embedding(VOCAB, size), nn.Linear(size, 3 * size)
        self.pooled = nn.Conv1d(size, size, 3)

    def forward(self, words):
        heads = self.project(self.words(words)).view(1, 6, 3, 2, -1).permute(2, 0, 3, 1, 4)
        later = torch.from_numpy(np.triu(np.ones((1, 6, 6)), k=1)).byte()
        attended = _Scaled()(*heads, torch.gt(later, 0)).transpose(1, 2).reshape(1, 6, self.size)
        return nn.MaxPool1d(2)(nn.ReLU()(self.pooled(attended.transpose(1, 2))))


@program(sentence)
class ScoresWrittenOneByOne(nn.Module):
    """A decoder that fills what it returns and what it attends with, of sizes in lists."""

    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.encoder = size, nn.Embedding(VOCAB, size), nn.RNN(size, size)
        self.decoder, self.match = nn.RNN(size, size), nn.Linear(size, size)
        self.out = nn.Linear(2 * size, LABELS)

    def attention(self, state, encoded):
        scores = torch.zeros(len(encoded))
        for i in range(len(encoded)):
            scores[i] = torch.dot(state.view(-1), self.match(encoded[i]).view(-1))
        return F.softmax(scores, dim=0).view(1, 1, -1)

    def forward(self, words):
        embedded = self.words(torch.tensor(words)).unsqueeze(1)
        encoded, hidden = self.encoder(embedded, torch.zeros(1, 1, self.size))
        found = torch.empty([len(words), 1, LABELS])
        for i in range(len(words)):
            state, hidden = self.decoder(embedded[i].unsqueeze(0), hidden)
            context = self.attention(state, encoded).bmm(encoded.transpose(0, 1))
            found[i] = self.out(torch.cat((state.squeeze(0), context.squeeze(1)), 1))
        return found.transpose(0, 1).squeeze(0)


@program(_six_words)
class WeightsForAPicture(nn.Module):
    """An encoder that returns its attention as an array, and its best guess as a number."""

    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.rnn, self.out = nn.LSTM(size, size, bidirectional=True), nn.Linear(2 * size, LABELS)

    def forward(self, words):
        embedded = self.words(words).permute(1, 0, 2)
        encoded, (last, _) = self.rnn(embedded, (torch.zeros(2, 1, self.size), torch.zeros(2, 1, self.size)))
        encoded = encoded.permute(1, 0, 2)
        weights = F.softmax(torch.bmm(encoded, last.view(-1, 2 * self.size, 1)).squeeze(2), 1)
        logits = self.out(torch.bmm(encoded.transpose(1, 2), weights.unsqueeze(2)).squeeze(2))
        return logits, weights.data.numpy(), logits.argmax().item()
