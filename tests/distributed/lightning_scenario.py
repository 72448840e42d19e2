"""A run of Lightning with the callback, and one that stops and resumes: torchrun lightning_scenario.py FOLDER."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from wiretune.lightning import AttachCallback

KINDS: dict[str, dict[str, Any]] = {
    "topk": {"exchange": {"kind": "topk", "density": 0.1}},
    "local_sgd": {"sync": {"kind": "local_sgd", "period": 5}},
    "cser": {"exchange": {"kind": "cser"}},
}


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.validated: list[float] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.validated.append(self.net[0].weight.double().sum().item())

    def sums(self) -> list[float]:
        return [each.detach().double().sum().item() for each in self.parameters()]


def fit(how: dict[str, Any], folder: Path, *, epochs: int, checkpoint: Path | None = None) -> Regression:
    torch.manual_seed(1)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    saving = ModelCheckpoint(dirpath=folder, filename="{epoch}")  # keeps the last one
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        callbacks=[saving, AttachCallback(**how)],
        **quiet,
    )
    model = Regression()
    trainer.fit(model, DataLoader(data, batch_size=16), DataLoader(data, batch_size=64), ckpt_path=checkpoint)
    return model


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")  # Lightning advises on workers of loaders
    found = {}
    for kind, how in KINDS.items():
        whole = fit(how, folder / kind, epochs=4)
        fit(how, folder / f"{kind}-stopped", epochs=2)
        resumed = fit(how, folder / f"{kind}-stopped", epochs=4, checkpoint=folder / f"{kind}-stopped" / "epoch=1.ckpt")
        found[kind] = {
            "whole": whole.sums(),
            "resumed": resumed.sums(),
            "validated": whole.validated,
            "files": sorted(each.name for each in (folder / kind).iterdir()),
        }
    (folder / f"rank-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
