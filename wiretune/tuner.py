"""A controller inside a loop that goes on calling `optimizer.step()`: it sets the rates, and rewinds after each probe.

The loop reports every loss. Rank 0 leads: it has all ranks keep their state, go back to it, and step at given rates.
"""

import math
from collections.abc import Generator
from itertools import takewhile

import torch
import torch.distributed as dist
from torch import Tensor

from search import strategies
from search.config import Budget, ControllerConfig
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Course, Decision, Observation, Spent, Values
from trainers.attach import Attached

#: What all ranks do before the steps of an order.
SNAPSHOT, RESTORE, GO_ON, STOP = range(4)
#: One of these, and the learning rate of each step to take then.
Order = tuple[int, list[float]]
#: Between so many parts of a commit the controller is asked whether it should go on.
PARTS = 20
#: Torch's optimizers of which the controller knows how rates behave; others are like a workload's own.
KINDS = {"SGD": "sgd", "Adam": "adamw", "AdamW": "adamw"}


class Tuner:
    """Searches the learning rate while the loop trains. Call `report` once a step, after `optimizer.step()`.

    `handle` is what `attach` returns without a controller. Rank 0 has the `decisions` so far.
    """

    def __init__(self, handle: Attached, config: ControllerConfig, *, steps: int, seed: int) -> None:
        self.handle = handle
        self.decisions: list[Decision] = []
        self._groups = handle.optimizer.param_groups
        guess = float(self._groups[0]["lr"])
        if not guess > 0:
            raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {guess}")
        self._ratios = [float(group["lr"]) / guess for group in self._groups]
        kind = KINDS.get(type(handle.optimizer).__name__, "own")
        space = SearchSpace(optimizer=kind, guess=Values(learning_rate=guess))
        strategy = strategies.build(config, space=space, seed=seed, budget=Budget(steps=steps))
        self._orders = lead(strategy, steps, self.decisions)
        self._losses: list[float] | None = None  # of the last order's steps
        self._course = self._follow()
        next(self._course, None)

    def report(self, loss: Tensor | float) -> None:
        """Take note of a step's `loss` on this rank, a scalar, and set the rate of the next step.

        Where an order ends, this is collective, and may take model and optimizer back to where a probe began. After
        the budget's last step it does nothing.
        """
        try:
            self._course.send(torch.as_tensor(loss).item())
        except StopIteration:
            return

    def _follow(self) -> Generator[None, float, None]:
        """Do what rank 0 orders; takes the loss of each step."""
        while (order := self._ordered())[0] != STOP:
            task, rates = order
            if task == SNAPSHOT:
                self.handle.snapshot("stage")
            elif task == RESTORE:
                self.handle.restore("stage")
            losses = []
            for rate in rates:
                for group, ratio in zip(self._groups, self._ratios, strict=True):
                    group["lr"] = rate * ratio
                losses.append((yield))
            self._losses = self._mean(losses)

    def _ordered(self) -> Order:
        """Return rank 0's next order, on all ranks."""
        task, rates = STOP, list[float]()
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                task, rates = self._orders.send(self._losses)
            except StopIteration:
                task, rates = STOP, []
        head = torch.tensor([task, len(rates)])
        self.handle.node_links.tell(head)
        told = torch.tensor(rates or [0.0] * int(head[1]), dtype=torch.float64)
        if len(told):
            self.handle.node_links.tell(told)
        return int(head[0]), told.tolist()

    def _mean(self, losses: list[float]) -> list[float]:
        """Return the means over the ranks."""
        sums = torch.tensor(losses, dtype=torch.float64)
        if losses:
            self.handle.node_links.all_reduce_sum(sums, {"control": sums.nbytes})
        means: list[float] = (sums / self.handle.node_links.topology.num_workers).tolist()
        return means


def lead(strategy: Strategy, steps: int, decisions: list[Decision]) -> Generator[Order, list[float] | None, None]:
    """Yield what the ranks are to do in a run of `steps`; takes the mean loss of each step that was ordered.

    `decisions` grows by that of each stage.
    """
    spent = 0

    def observed(candidate_id: str | None, losses: list[float], *, rolled_back: bool = False) -> Observation:
        finite = tuple(takewhile(math.isfinite, losses))
        return Observation(
            candidate_id=candidate_id,
            losses=finite,
            step_seconds=(),
            bytes_sent=0,  # a budget in steps counts nothing else
            diverged=len(finite) < len(losses),
            rolled_back=rolled_back,
            spent=Spent(steps=spent),
        )

    while spent < steps:
        yield SNAPSHOT, []
        while (candidate := strategy.ask()) is not None:
            length = max(candidate.allowance.steps or 0, candidate.allowance.min_steps)
            losses = yield RESTORE, [candidate.learning_rate_at(step / length) for step in range(length)]
            spent += length
            strategy.tell(observed(candidate.id, losses or []))
        yield RESTORE, []
        decision = strategy.decide()
        decisions.append(decision)
        committed: list[float] = []
        course: Course = "go_on"
        until = min(steps, decision.commit_until.steps or steps)
        part = max(1, (until - spent) // PARTS)
        while course == "go_on" and spent < until:
            coming = range(spent, min(spent + part, until))
            committed += (yield GO_ON, [strategy.values(Spent(steps=step)).learning_rate for step in coming]) or []
            spent += len(coming)
            course = strategy.watch(observed(None, committed))
        if course == "roll_back":
            yield RESTORE, []
        strategy.tell(observed(None, committed, rolled_back=course == "roll_back"))
