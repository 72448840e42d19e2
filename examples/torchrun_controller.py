"""Let a controller choose the learning rate of a plain torchrun script: no Wiretune service, no Ray.

torchrun --nproc-per-node 2 examples/torchrun_controller.py
"""

import copy
import math

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from search import strategies
from wiretune import BoConfig, Budget, Observation, SearchSpace, Spent, Values

BUDGET = Budget(steps=1600)  # search included
BATCH_SIZE = 32  # of each rank
SNAPSHOT, RESTORE, TRAIN, STOP = range(4)


class Trainer:
    """One rank: a model, its optimizer, and four things that all ranks do together when rank 0 says so."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        pixels, labels = load_digits(return_X_y=True)
        self.inputs, self.targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
        self.step, self.kept = 0, {}

    def do(self, *order: float) -> tuple[int, list[float]]:
        """Do what rank 0 says (task, learning rate, number of steps); returns the task, and the steps' mean losses."""
        said = torch.tensor(order or (0, 0, 0), dtype=torch.float64)
        dist.broadcast(said, src=0)
        task, learning_rate, num_steps = said.tolist()
        if task == SNAPSHOT:
            self.kept = copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict(), self.step])
        elif task == RESTORE:
            model, optimizer, self.step = copy.deepcopy(self.kept)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        losses = torch.stack([self.train_step(learning_rate) for _ in range(int(num_steps))] or [torch.zeros(())])
        dist.all_reduce(losses)
        return int(task), (losses / dist.get_world_size()).tolist()

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
    num_steps = 0  # of probes and commits together

    def observe(candidate_id: str | None, losses: list[float]) -> Observation:
        return Observation(
            candidate_id=candidate_id,
            losses=losses,
            step_seconds=(),
            bytes_sent=0,
            diverged=not all(map(math.isfinite, losses)),
            spent=Spent(steps=num_steps),  # a budget in steps counts nothing else
        )

    while num_steps < BUDGET.steps:
        trainer.do(SNAPSHOT, 0, 0)
        while (candidate := strategy.ask()) is not None:
            trainer.do(RESTORE, 0, 0)
            length, losses = max(candidate.allowance.steps, candidate.allowance.min_steps), []
            for step in range(length):  # a finalist's rate falls to 0, as the run's will
                losses += trainer.do(TRAIN, candidate.learning_rate_at(step / length), 1)[1]
                num_steps += 1
                if not math.isfinite(losses[-1]):
                    break
            strategy.tell(observe(candidate.id, losses))
        trainer.do(RESTORE, 0, 0)
        decision, committed, course = strategy.decide(), [], "go_on"
        while course == "go_on" and num_steps < decision.commit_until.steps:
            rate = strategy.values(Spent(steps=num_steps)).learning_rate  # goes to 0 at the end
            length = min(10, decision.commit_until.steps - num_steps)
            committed += trainer.do(TRAIN, rate, length)[1]
            num_steps += length
            seen = observe(None, committed)
            course = "roll_back" if seen.diverged else strategy.watch(seen)
        if course == "roll_back":  # what it cost stays spent
            trainer.do(RESTORE, 0, 0)
        loss = sum(committed[-20:]) / max(1, len(committed[-20:]))
        end = ", rolled back" if course == "roll_back" else ""
        print(f"{len(committed)} steps to loss {loss:.4f}{end}: {decision.reason}")
        strategy.tell(observe(None, committed).model_copy(update={"rolled_back": course == "roll_back"}))
    trainer.do(STOP, 0, 0)


def follow(trainer: Trainer) -> None:
    while trainer.do()[0] != STOP:
        pass


if __name__ == "__main__":
    dist.init_process_group("gloo")
    (lead if dist.get_rank() == 0 else follow)(Trainer())
    dist.destroy_process_group()
