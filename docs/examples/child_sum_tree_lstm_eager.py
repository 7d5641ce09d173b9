"""Child-sum tree-LSTM (Tai, Socher and Manning, ACL 2015, section 3.1) over treebank trees: a label for every node."""

import random
import zlib

import torch
from torch import nn


class Tree:
    """A bracket of a treebank: a label, and children or a word. Its state is filled in by the model."""

    def __init__(self, label, children, word):
        self.label, self.children, self.word = label, children, word
        self.h = self.c = None


class ForgetGate(nn.Module):
    """How much of a child's memory is kept."""

    def __init__(self, size):
        super().__init__()
        self.fh = nn.Linear(size, size)

    def forward(self, h, c):
        return torch.sigmoid(self.fh(h)) * c


class NodeUpdate(nn.Module):
    """State of a node from its word or from its children."""

    def __init__(self, size):
        super().__init__()
        self.iou = nn.Linear(size, 3 * size)

    def forward(self, x, kept):
        i, o, u = self.iou(x).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        return torch.sigmoid(o) * torch.tanh(c), c


class ChildSumTreeLSTM(nn.Module):
    """Fills in `h` and `c` of every node and labels it."""

    def __init__(self, size, vocab_size=1000, num_labels=30):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.forget = ForgetGate(size)
        self.leaf = NodeUpdate(size)
        self.inner = NodeUpdate(size)
        self.out = nn.Linear(size, num_labels)
        self.zero = nn.Buffer(torch.zeros(size))

    def forward(self, tree):
        scores = []
        self.encode(tree, scores)
        return scores

    def encode(self, tree, scores):
        if tree.word is not None:
            x = self.embedding(torch.tensor(zlib.crc32(tree.word.encode()) % 1000))
            tree.h, tree.c = self.leaf(x, self.zero)
        else:
            for child in tree.children:
                self.encode(child, scores)
            h = torch.stack([child.h for child in tree.children])
            c = torch.stack([child.c for child in tree.children])
            tree.h, tree.c = self.inner(h.sum(dim=0), self.forget(h, c).sum(dim=0))
        scores.append(self.out(tree.h))


def parse(text):
    stack = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            label, *rest = stack.pop()
            words = [part for part in rest if isinstance(part, str)]
            stack[-1].append(Tree(label, [part for part in rest if isinstance(part, Tree)], " ".join(words) or None))
        else:
            stack[-1].append(token)
    return stack[0][0]


def load(*paths, **config):
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            yield from map(parse, lines)


def sample(count, seed, **config):
    rng = random.Random(seed)

    def tree(depth):
        if depth == 0 or rng.random() < 0.2:
            return Tree("NN", [], f"word{rng.randrange(100)}")
        return Tree("NP", [tree(depth - 1) for _ in range(rng.choice([1, 2, 2, 3, 4]))], None)

    return [tree(4) for _ in range(count)]
