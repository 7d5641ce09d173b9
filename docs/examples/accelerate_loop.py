"""A net in a loop of Hugging Face Accelerate: `prepare` gets model, optimizer and loader; the net is called."""

from __future__ import annotations

from typing import Any

import torch
from _labelled import TreeClassifier, labelled, loader
from accelerate import Accelerator
from torch.nn import functional as F

import edbc


def main(epochs: int = 3, **options: Any) -> list[float]:
    """Train on captured mini-batches, which Accelerate moves by their `.to()`; give the losses of all steps."""
    model, data = TreeClassifier(), labelled(64)
    net = edbc.compile(model, data, instance=0, **options)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batches = loader(data, edbc.collate(net, instance=0))
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    losses = []
    for _ in range(epochs):
        for trees, labels in batches:
            loss = F.cross_entropy(torch.stack(net(trees)), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    print(main())
