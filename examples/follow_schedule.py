"""Follow a learned schedule in a plain torch loop with a DDP hook: rates by a scheduler, levels by a callback.

wiretune export JOB --out schedule.json
torchrun --nproc-per-node 2 examples/follow_schedule.py schedule.json

Prints the rate and the level of every step. Take the optimizer that `schedule.optimizer` names, and the exchange of the
job: rates and levels were learned for them, and SGD and Top-k here only show the calls.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wiretune import Schedule, attach


def main(path: Path) -> None:
    schedule = Schedule.from_json(path.read_text())
    highest = max((entry.level for entry in schedule.entries if entry.level is not None), default=None)
    if highest is not None and highest > 1:
        sys.exit(f"level {highest:g} is no density, as Top-k needs: give `attach` the exchange of the schedule's job")
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=schedule.learning_rate_at(0), momentum=0.9)
    handle = attach(model, optimizer, exchange={"kind": "topk", "density": 0.05})
    scheduler = schedule.scheduler(optimizer, on_level=handle.set_level)
    for step in range(schedule.num_steps):
        inputs = torch.randn(32, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1)).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            level = "" if handle.chosen.level is None else f", level {handle.chosen.level:g}"
            print(f"step {step}: rate {scheduler.get_last_lr()[0]:g}{level}")
        scheduler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
