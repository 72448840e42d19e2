"""A LightningModule whose gradients are exchanged by Wiretune.

torchrun --nproc-per-node 2 examples/attach/lightning_module.py
"""

import torch
from lightning import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from wiretune.lightning import AttachCallback  # wiretune


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print(f"rank {self.global_rank}: loss {loss.item()}")
        return loss


def main() -> None:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options["callbacks"] = [AttachCallback(exchange={"kind": "powersgd", "rank": 4})]  # wiretune
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **options)
    trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True))


if __name__ == "__main__":
    main()
