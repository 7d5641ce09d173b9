"""Functions of torch that people reach for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, points, series, two_vectors, vector
from ordinary.registry import program


class Projected(nn.Module):
    """A layer before what the subclass does."""

    def __init__(self, size):
        super().__init__()
        self.size, self.up = size, nn.Linear(FEATURES, size)


@program(series)
class CumulativeSum(Projected):
    def forward(self, series):
        return torch.cumsum(self.up(series), dim=0)


@program(series)
class SortPooling(Projected):
    def forward(self, series):
        return self.up(series).sort(dim=0, descending=True).values[:2]


@program(series)
class TopValues(Projected):
    def forward(self, series):
        values, _ = torch.topk(self.up(series), 2, dim=0)
        return values.mean(0)


@program(two_vectors)
class OuterProduct(Projected):
    def forward(self, pair):
        return torch.outer(self.up(pair[0]), self.up(pair[1])).flatten()


@program(two_vectors)
class BilinearScore(Projected):
    def __init__(self, size):
        super().__init__(size)
        self.score = nn.Bilinear(size, size, LABELS)

    def forward(self, pair):
        return self.score(self.up(pair[0]), self.up(pair[1]))


@program(series)
class EinsumScores(Projected):
    def forward(self, series):
        x = self.up(series)
        return torch.einsum("ij,kj->ik", x, x)


@program(points)
class Distances(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(size, 3))

    def forward(self, cloud):
        return torch.exp(-torch.cdist(cloud, self.centres)).sum(0)


@program(series)
class Normalised(Projected):
    def forward(self, series):
        x = F.normalize(self.up(series), dim=-1)
        return x @ x.t()


@program(vector)
class WhereAndClamp(Projected):
    def forward(self, x):
        h = self.up(x)
        return torch.where(h > 0, h.clamp(max=1.0), 0.1 * h) + torch.sign(h)


@program(series)
class LogSumExp(Projected):
    def forward(self, series):
        return self.up(series).logsumexp(dim=0) - torch.norm(series)


@program(series)
class GatheredBest(Projected):
    def forward(self, series):
        x = self.up(series)
        best = x.sum(1).argmax(dim=0, keepdim=True)
        return x.index_select(0, best).squeeze(0)


@program(series)
class RolledAndFlipped(Projected):
    def forward(self, series):
        x = self.up(series)
        return x.roll(1, dims=0) + x.flip(0) - x.mean(dim=0, keepdim=True)


@program(series)
class VarianceAndNorm(Projected):
    def __init__(self, size):
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, series):
        x = self.norm(self.up(series))
        return torch.cat([x.std(dim=0), x.var(dim=0, unbiased=False)])


@program(vector)
class KroneckerAndCross(Projected):
    def forward(self, x):
        h = self.up(x)
        return torch.kron(h[:3], h[3:6]).sum() + torch.linalg.cross(h[:3], h[3:6])


@program(series)
class TriangularAndDiagonal(Projected):
    def forward(self, series):
        x = self.up(series)
        product = x @ x.mT
        return product.tril().sum() + product.diagonal().prod()


@program(series)
class ProductsAndPrefixes(Projected):
    def forward(self, series):
        x = torch.sigmoid(self.up(series))
        return torch.cumprod(x, dim=0)[-1] + x.prod(dim=0)


@program(vector)
class ReshapedBlocks(Projected):
    def forward(self, x):
        blocks = self.up(x).reshape(4, -1).permute(1, 0).contiguous()
        return torch.cat([b.max().view(1) for b in blocks.unbind(0)])


@program(series)
class PairwiseDifferences(Projected):
    def forward(self, series):
        x = self.up(series)
        left, right = torch.triu_indices(len(x), len(x), offset=1)
        return (x[left] - x[right]).abs().mean(0)


@program(series)
class RepeatAndExpand(Projected):
    def forward(self, series):
        x = self.up(series)
        return torch.tanh(x.unsqueeze(0).expand(2, -1, -1) + x.repeat(2, 1, 1)).sum((0, 1))
