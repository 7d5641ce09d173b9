"""Graphs: message passing over edges, adjacency products, index_add, point clouds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, edge_graph, graph, points
from ordinary.registry import program


@program(graph)
class AdjacencyProduct(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, size), nn.Linear(size, size)

    def forward(self, g):
        a = torch.eye(g.num_nodes)
        for i, j in g.edges:
            a[i, j] = a[j, i] = 1.0
        degree = a.sum(1)
        a = a / torch.sqrt(degree.unsqueeze(0) * degree.unsqueeze(1))
        return self.second(a @ F.relu(self.first(a @ g.x))).mean(0)


@program(edge_graph)
class IndexAdd(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.message = nn.Linear(FEATURES, size), nn.Linear(size, size)

    def forward(self, data):
        h = self.up(data.x)
        source, target = data.edge_index
        gathered = torch.zeros_like(h).index_add(0, target, self.message(h[source]))
        return torch.relu(h + gathered).sum(0)


@program(edge_graph)
class ScatterMean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.up = size, nn.Linear(FEATURES, size)

    def forward(self, data):
        h = self.up(data.x)
        source, target = data.edge_index[0], data.edge_index[1]
        index = target.unsqueeze(-1).expand(-1, self.size)
        total = torch.zeros(data.num_nodes, self.size).scatter_add(0, index, h[source])
        count = torch.zeros(data.num_nodes).scatter_add(0, target, torch.ones(len(target)))
        return total / count.clamp(min=1).unsqueeze(-1)


@program(graph)
class LoopOverEdges(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.message, self.update = (
            nn.Linear(FEATURES, size),
            nn.Linear(2 * size, size),
            nn.GRUCell(size, size),
        )

    def forward(self, g):
        h = [torch.tanh(self.up(x)) for x in g.x]
        for _ in range(2):
            inbox = [[] for _ in h]
            for i, j in g.edges:
                inbox[j].append(torch.relu(self.message(torch.cat([h[i], h[j]]))))
            h = [self.update(torch.stack(m).sum(0), x) if m else x for m, x in zip(inbox, h, strict=True)]
        return torch.stack(h).mean(0)


@program(edge_graph)
class EdgeAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.score = nn.Linear(FEATURES, size), nn.Linear(2 * size, 1)

    def forward(self, data):
        h = self.up(data.x)
        source, target = data.edge_index
        weights = F.leaky_relu(self.score(torch.cat([h[source], h[target]], dim=-1)), 0.2).exp()
        total = torch.zeros(len(h), 1).index_add(0, target, weights)
        return torch.zeros_like(h).index_add(0, target, weights / total[target] * h[source])


@program(graph)
class DenseAttentionGraph(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.left, self.right = nn.Linear(FEATURES, size), nn.Linear(size, 1), nn.Linear(size, 1)

    def forward(self, g):
        mask = torch.eye(g.num_nodes, dtype=torch.bool)
        for i, j in g.edges:
            mask[i, j] = True
        h = self.up(g.x)
        scores = F.leaky_relu(self.left(h) + self.right(h).t())
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ h


@program(edge_graph)
class Isomorphism(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(FEATURES, size), nn.ReLU(), nn.Linear(size, size))

    def forward(self, data):
        x = data.x
        neighbours = torch.zeros_like(x).index_add(0, data.edge_index[1], x[data.edge_index[0]])
        return self.mlp((1 + self.eps) * x + neighbours).sum(dim=0)


@program(edge_graph)
class EdgeConditioned(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.kernel, self.root = size, nn.Linear(3, FEATURES * size), nn.Linear(FEATURES, size)

    def forward(self, data):
        source, target = data.edge_index
        kernels = self.kernel(data.edge_attr).view(-1, FEATURES, self.size)
        messages = torch.bmm(data.x[source].unsqueeze(1), kernels).squeeze(1)
        return self.root(data.x).index_add(0, target, messages)


@program(edge_graph)
class GatedGraph(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.message, self.update = size, nn.Linear(size, size), nn.GRUCell(size, size)

    def forward(self, data):
        h = F.pad(data.x, (0, self.size - FEATURES))
        source, target = data.edge_index
        for _ in range(3):
            m = torch.zeros_like(h).index_add(0, target, self.message(h)[source])
            h = self.update(m, h)
        return h


@program(graph)
class RowOfFeatures(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.mix = nn.Linear(FEATURES, size), nn.Linear(2 * size, size)

    def forward(self, g):
        neighbours = {i: [j for a, j in g.edges if a == i] for i in range(g.num_nodes)}
        states = [torch.relu(self.up(g.x[i].view(1, -1))) for i in range(g.num_nodes)]
        mixed = []
        for i, near in neighbours.items():
            around = torch.cat([states[j] for j in near] or [torch.zeros_like(states[i])]).mean(0, keepdim=True)
            mixed.append(self.mix(torch.cat([states[i], around], dim=1)))
        return torch.cat(mixed)


@program(points)
class NearestNeighbours(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.edge = nn.Linear(6, size)

    def forward(self, cloud):
        near = torch.cdist(cloud, cloud).topk(3, largest=False).indices
        around = cloud[near]
        centre = cloud.unsqueeze(1).expand_as(around)
        return self.edge(torch.cat([centre, around - centre], dim=-1)).max(dim=1)[0].max(dim=0)[0]


@program(points)
class PointNet(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.local, self.out = nn.Sequential(nn.Linear(3, size), nn.ReLU(), nn.Linear(size, size)), nn.Linear(size, 4)

    def forward(self, cloud):
        return self.out(self.local(cloud).max(0).values)


@program(points)
class PairwiseForces(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(1, size), nn.Tanh(), nn.Linear(size, 1))

    def forward(self, cloud):
        delta = cloud[:, None, :] - cloud[None, :, :]
        distance = (delta**2).sum(-1, keepdim=True)
        return (self.radial(distance) * delta).sum(1)


@program(graph)
class VirtualNode(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.down, self.out = nn.Linear(FEATURES, size), nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, g):
        h = self.up(g.x)
        everyone = self.down(h.mean(dim=0, keepdim=True))
        return torch.tanh(self.out(h + everyone.expand(h.size(0), -1)))


@program(graph)
class JumpingKnowledge(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, size), nn.Linear(size, size), nn.Linear(size, size)])

    def forward(self, g):
        a = torch.zeros(g.num_nodes, g.num_nodes)
        a[[i for i, _ in g.edges], [j for _, j in g.edges]] = 1
        h, kept = g.x, []
        for layer in self.layers:
            h = torch.relu(layer(h + a @ h))
            kept.append(h)
        return torch.cat(kept, dim=-1).sum(0)


@program(graph)
class LinkScores(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, g):
        h = self.up(g.x)
        return torch.stack([(h[i] * h[j]).sum() for i, j in g.edges])


@program(edge_graph)
class SetToSet(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.up, self.cell = size, nn.Linear(FEATURES, size), nn.LSTMCell(2 * size, size)

    def forward(self, data):
        x = self.up(data.x)
        state, q = (torch.zeros(1, self.size), torch.zeros(1, self.size)), torch.zeros(1, 2 * self.size)
        for _ in range(3):
            state = self.cell(q, state)
            weights = torch.softmax(x @ state[0].t(), dim=0)
            q = torch.cat([state[0], (weights * x).sum(0, keepdim=True)], dim=-1)
        return q
