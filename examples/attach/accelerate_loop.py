"""A loop of Hugging Face Accelerate whose gradients are exchanged by Wiretune.

torchrun --nproc-per-node 2 examples/attach/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wiretune  # wiretune


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(net, sgd, DataLoader(data, batch_size=64, shuffle=True))
    handle = wiretune.attach(model, optimizer, exchange={"kind": "powersgd", "rank": 4})  # wiretune
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        print(f"rank {accelerator.process_index}: loss {loss.item()}")
    print(f"rank {accelerator.process_index}: sent {handle.take_bytes()}")  # wiretune
    accelerator.end_training()


if __name__ == "__main__":
    main()
