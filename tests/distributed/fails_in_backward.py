"""A script whose backward fails on one of two ranks, amid an exchange: python fails_in_backward.py RANK FILE."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.own_loop.attach import attach

rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(32, 32) for _ in range(6))), bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
handle = attach(model, optimizer, exchange={"kind": "topk", "density": 0.1, "bucket_mib": 0.001})


def fail(*_: object) -> None:
    if rank == 1 and step == 3:
        assert handle._hook._step is not None, "nothing was under way"
        raise MemoryError("no room on one rank")


model.module[0].register_full_backward_pre_hook(fail)
for step in range(6):
    try:
        model(torch.ones(4, 32)).sum().backward()
    except MemoryError as error:
        print("failed:", error, flush=True)
        model(torch.ones(4, 32)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
