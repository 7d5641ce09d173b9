"""A net in PyTorch Lightning: the model is the module's, the net is called in its place."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from _labelled import TreeClassifier, labelled, loader
from torch import Tensor
from torch.nn import functional as F

import edbc


class Module(lightning.LightningModule):
    """Lightning moves and saves `model`, whose weights the net reads; the net itself holds none."""

    def __init__(self, model: TreeClassifier, net: Any):
        super().__init__()
        self.model, self.net = model, net
        self.losses: list[float] = []

    def training_step(self, batch: Any, _number: int) -> Tensor:
        trees, labels = batch
        loss = F.cross_entropy(torch.stack(self.net(trees)), labels)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.model.parameters(), lr=0.02)


def main(folder: str = ".", epochs: int = 3, **options: Any) -> list[float]:
    """Train on lists of trees, then on captured mini-batches; give the losses of all steps."""
    model, data = TreeClassifier(), labelled(64)
    net = edbc.compile(model, data, instance=0, **options)
    module = Module(model, net)
    for loaded in (loader(data), loader(data, edbc.collate(net, instance=0))):
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loaded)
    return module.losses


if __name__ == "__main__":
    print(main())
