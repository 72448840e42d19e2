"""A loop of Lightning Fabric whose gradients are exchanged by Wiretune.

torchrun --nproc-per-node 2 examples/attach/fabric_loop.py
"""

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wiretune  # wiretune


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=64, shuffle=True))
    handle = wiretune.attach(model, optimizer, exchange={"kind": "powersgd", "rank": 4})  # wiretune
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        print(f"rank {fabric.global_rank}: loss {loss.item()}")
    print(f"rank {fabric.global_rank}: sent {handle.take_bytes()}")  # wiretune


if __name__ == "__main__":
    main()
