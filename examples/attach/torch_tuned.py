"""A plain torch loop whose learning rate a controller chooses. The lines that end in `# wiretune` are all it takes.

torchrun --nproc-per-node 2 examples/attach/torch_tuned.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiretune  # wiretune

STEPS = 800  # search included


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # each rank draws its own batches
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    tuner = wiretune.attach(model, optimizer, controller={"kind": "bo"}, steps=STEPS)  # wiretune
    for _ in range(STEPS):
        batch = torch.randint(len(inputs), (32,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        tuner.report(loss)  # wiretune
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(inputs), targets)
    print(f"rank {dist.get_rank()}: loss {loss.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
