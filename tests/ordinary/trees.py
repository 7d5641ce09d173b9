"""Trees: recursion, states on nodes, children as lists, top-down and bottom-up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import LABELS, VOCAB, binary_tree, expression, tree
from ordinary.registry import program


@program(binary_tree)
class PairTree(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.join = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, tree):
        if isinstance(tree, int):
            return self.words(torch.tensor(tree))
        return torch.tanh(self.join(torch.cat([self.forward(part) for part in tree])))


@program(binary_tree)
class TreeOfItself(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.left, self.right = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, tree):
        if isinstance(tree, int):
            return self.words.weight[tree]
        return F.relu(self.left(self(tree[0])) + self.right(self(tree[1])))


@program(tree)
class ChildSumOfBatchOne(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.ioux, self.iouh = nn.Linear(size, 3 * size), nn.Linear(size, 3 * size)
        self.fx, self.fh = nn.Linear(size, size), nn.Linear(size, size)

    def node_forward(self, x, child_c, child_h):
        i, o, u = torch.split(self.ioux(x) + self.iouh(child_h.sum(dim=0, keepdim=True)), self.size, dim=1)
        f = torch.sigmoid(self.fh(child_h) + self.fx(x).repeat(len(child_h), 1))
        c = torch.sigmoid(i) * torch.tanh(u) + (f * child_c).sum(dim=0, keepdim=True)
        return c, torch.sigmoid(o) * torch.tanh(c)

    def forward(self, node):
        for child in node.children:
            self.forward(child)
        if node.children:
            child_c, child_h = (torch.cat(list(states)) for states in zip(*[c.state for c in node.children]))  # noqa: B905
        else:
            child_c = child_h = torch.zeros(1, self.size)
        node.state = self.node_forward(self.words(torch.tensor([node.word])), child_c, child_h)
        return node.state[1]


@program(tree)
class ChildAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.query, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.Linear(2 * size, size)

    def forward(self, node):
        x = self.words(torch.tensor(node.word))
        if not node.children:
            return x
        below = torch.stack([self.forward(child) for child in node.children])
        weights = F.softmax(below @ self.query(x), dim=0)
        return torch.tanh(self.out(torch.cat([x, weights @ below])))


@program(tree)
class StatesOnNodes(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.mix = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, root):
        self.walk(root)
        return root.state

    def walk(self, node):
        for child in node.children:
            self.walk(child)
        total = sum((child.state for child in node.children), torch.zeros_like(self.words.weight[0]))
        node.state = torch.tanh(self.mix(torch.cat((self.words(torch.tensor(node.word)), total))))


@program(tree)
class PostOrder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.GRUCell(size, size)

    def forward(self, root):
        order, stack = [], [root]
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(node.children)
        states = {}
        for node in reversed(order):
            h = self.words(torch.tensor(node.word))
            for child in node.children:
                h = self.step(states[id(child)], h)
            states[id(node)] = h
        return states[id(root)]


@program(tree)
class DownTheTree(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.step = size, nn.Embedding(VOCAB, size), nn.GRUCell(size, size)

    def forward(self, node, h=None):
        h = torch.zeros(self.size) if h is None else h
        h = self.step(self.words(torch.tensor(node.word)), h)
        return [h] + [x for child in node.children for x in self.forward(child, h)]


@program(tree)
class UpAndDown(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up, self.down = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.Linear(2 * size, size)

    def forward(self, root):
        self.climb(root)
        return torch.stack(list(self.descend(root))).mean(0)

    def climb(self, node):
        node.state = self.words(torch.tensor(node.word))
        for child in node.children:
            self.climb(child)
            node.state = node.state + torch.relu(self.up(child.state))

    def descend(self, node):
        if node.parent is not None:
            node.state = torch.tanh(self.down(torch.cat([node.parent.state, node.state])))
        yield node.state
        for child in node.children:
            yield from self.descend(child)


@program(binary_tree)
class MatrixVectorTree(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size + 4 * size)
        self.join = nn.Linear(2 * size, size)

    def forward(self, tree):
        return self.visit(tree)[0]

    def visit(self, tree):
        if isinstance(tree, int):
            row = self.words(torch.tensor(tree))
            return row[: self.size], row[self.size :].view(4, self.size)
        (a, A), (b, B) = self.visit(tree[0]), self.visit(tree[1])
        scale = (A @ b).sum() + (B @ a).sum()
        return torch.tanh(self.join(torch.cat([a, b])) + scale), torch.tanh(A + B)


@program(expression)
class ExpressionByName(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.numbers = nn.Embedding(10, size)
        self.add, self.mul, self.neg = nn.Linear(2 * size, size), nn.Bilinear(size, size, size), nn.Linear(size, size)

    def forward(self, item):
        if isinstance(item, int):
            return self.numbers(torch.tensor(item))
        name, *args = item
        return getattr(self, "eval_" + name)(*map(self.forward, args))

    def eval_add(self, a, b):
        return torch.tanh(self.add(torch.cat([a, b])))

    def eval_mul(self, a, b):
        return torch.tanh(self.mul(a, b))

    def eval_neg(self, a):
        return -self.neg(a)


@program(binary_tree)
class SentimentAtEveryNode(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.join = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)
        self.out = nn.Linear(size, LABELS)

    def forward(self, tree):
        outputs = []
        self.visit(tree, outputs)
        return torch.stack(outputs)

    def visit(self, tree, outputs):
        h = self.words(torch.tensor(tree)) if isinstance(tree, int) else self.visit_pair(tree, outputs)
        outputs.append(F.log_softmax(self.out(h), dim=0))
        return h

    def visit_pair(self, tree, outputs):
        return torch.tanh(self.join(torch.cat([self.visit(tree[0], outputs), self.visit(tree[1], outputs)], dim=0)))


@program(tree)
class PaddedChildren(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.words, self.join = size, nn.Embedding(VOCAB, size), nn.Linear(4 * size, size)

    def forward(self, node):
        below = [self.forward(child) for child in node.children]
        below += [torch.zeros(self.size)] * (3 - len(below))
        return torch.tanh(self.join(torch.cat([self.words(torch.tensor(node.word)), *below])))


@program(tree)
class MaxOverChildren(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, node):
        x = self.words(torch.tensor(node.word))
        if node.children:
            x = x + torch.stack([self.up(self.forward(child)) for child in node.children]).max(dim=0).values
        return F.relu(x)


@program(tree)
class ChildrenInARow(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.lstm = nn.Embedding(VOCAB, size), nn.LSTM(size, size)

    def forward(self, node):
        x = self.words(torch.tensor([node.word]))
        rows = torch.cat([x, *[self.forward(child) for child in node.children]])
        return self.lstm(rows)[0][-1:]


@program(tree)
class RootOfDict(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, root):
        found = {}
        self.visit(root, found, "r")
        return found

    def visit(self, node, found, name):
        below = [self.visit(child, found, f"{name}{i}") for i, child in enumerate(node.children)]
        found[name] = torch.sigmoid(self.up(sum(below, self.words(torch.tensor(node.word)))))
        return found[name]


def gated(model, tree):
    if isinstance(tree, int):
        return model.words.weight[tree]
    below = torch.cat([gated(model, tree[0]), gated(model, tree[1])])
    gate = torch.sigmoid(model.gate(below))
    return gate * torch.tanh(model.join(below)) + (1 - gate) * model.leaf


@program(binary_tree)
class FunctionOfTheModel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.gate, self.join = (
            nn.Embedding(VOCAB, size),
            nn.Linear(2 * size, size),
            nn.Linear(2 * size, size),
        )
        self.leaf = nn.Parameter(torch.zeros(size))

    def forward(self, tree):
        return gated(self, tree)


def composed(tree, words, w, b):
    if isinstance(tree, int):
        return words[tree]
    left, right = composed(tree[0], words, w, b), composed(tree[1], words, w, b)
    return torch.tanh(torch.cat([left, right]) @ w + b) + 0.5 * (left + right)


@program(binary_tree)
class FunctionOfParameters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.b = nn.Parameter(torch.randn(VOCAB, size)), nn.Parameter(torch.zeros(size))
        self.w = nn.Parameter(torch.randn(2 * size, size) / size)

    def forward(self, tree):
        return composed(tree, self.words, self.w, self.b)
