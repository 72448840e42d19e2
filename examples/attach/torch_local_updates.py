"""A plain torch loop without DistributedDataParallel: ranks train by themselves, and meet every 20 steps.

torchrun --nproc-per-node 2 examples/attach/torch_local_updates.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import wiretune


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # each rank draws its own batches
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    handle = wiretune.attach(model, optimizer, sync={"kind": "diloco", "period": 20}, exchange={"kind": "sparse_loco"})
    for _ in range(200):
        batch = torch.randint(len(inputs), (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # the ranks have just met
        loss = nn.functional.cross_entropy(model(inputs), targets)
    print(f"rank {dist.get_rank()}: loss {loss.item()}, sent {handle.take_bytes()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
