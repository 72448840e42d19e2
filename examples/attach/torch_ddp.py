"""A plain torch loop whose gradients are exchanged by Wiretune. The lines that end in `# wiretune` are all it takes.

torchrun --nproc-per-node 2 examples/attach/torch_ddp.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wiretune  # wiretune


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = wiretune.attach(model, optimizer, exchange={"kind": "powersgd", "rank": 4})  # wiretune
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()}: loss {loss.item()}")
    print(f"rank {dist.get_rank()}: sent {handle.take_bytes()}")  # wiretune
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
