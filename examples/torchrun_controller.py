"""Let a controller choose the learning rate of a plain torchrun script: no Wiretune service, no Ray.

torchrun --nproc-per-node 2 examples/torchrun_controller.py
"""

import copy
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search import strategies
from search.loop.orders import Loop, Order, Taken, Task
from wiretune import BoConfig, Budget, Decision, SearchSpace, Values

BUDGET = Budget(steps=1600)  # search included
BATCH_SIZE = 32  # of each rank


class Trainer:
    """One rank: a model, its optimizer, and what all ranks do together when rank 0 says so."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        pixels, labels = load_digits(return_X_y=True)
        self.inputs, self.targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
        self.step, self.kept = 0, {}

    def do(self, task: Task = Task.STOP, rates: Sequence[float] = ()) -> tuple[Task, list[float]]:
        """Do what rank 0 says: a task, and steps with these learning rates; returns the task, and the mean losses."""
        head = torch.tensor([task, len(rates)])
        dist.broadcast(head, src=0)
        task, num_steps = Task(int(head[0])), int(head[1])
        if task == Task.SNAPSHOT:
            self.kept = copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict(), self.step])
        elif task == Task.RESTORE:
            model, optimizer, self.step = copy.deepcopy(self.kept)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        if not num_steps:
            return task, []
        told = torch.tensor(rates or [0.0] * num_steps, dtype=torch.float64)
        dist.broadcast(told, src=0)
        losses = torch.stack([self.train_step(rate) for rate in told.tolist()])
        dist.all_reduce(losses)
        return task, (losses / dist.get_world_size()).tolist()

    def train_step(self, learning_rate: float) -> torch.Tensor:
        order = torch.Generator().manual_seed(self.step * dist.get_world_size() + dist.get_rank())
        batch = torch.randint(len(self.inputs), (BATCH_SIZE,), generator=order)  # the same for every probe of a stage
        loss = nn.functional.cross_entropy(self.model(self.inputs[batch]), self.targets[batch])
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()


def lead(trainer: Trainer) -> None:
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    strategy = strategies.build(BoConfig(), space=space, seed=0, budget=BUDGET)
    loop = Loop(strategy, BUDGET, clock=time.monotonic)

    def carry_out(order: Order) -> Taken:
        if order.task == Task.GIVE_UP:
            trainer.do(Task.STOP)
            raise SystemExit("the loss is not finite whatever the rate: look at the loss and the data")
        return Taken(trainer.do(order.task, [values.learning_rate for values in order.steps])[1])

    loop.run(carry_out)
    trainer.do(Task.STOP)
    for what, seen in loop.told:
        if isinstance(what, Decision) and seen.losses:  # else it is the candidate of a probe, or took no step
            losses, end = seen.losses[-20:], ", rolled back" if seen.rolled_back else ""
            print(f"{seen.trace.num_steps} steps to loss {sum(losses) / len(losses):.4f}{end}: {what.reason}")


def follow(trainer: Trainer) -> None:
    while trainer.do()[0] != Task.STOP:
        pass


if __name__ == "__main__":
    dist.init_process_group("gloo")
    (lead if dist.get_rank() == 0 else follow)(Trainer())
    dist.destroy_process_group()
