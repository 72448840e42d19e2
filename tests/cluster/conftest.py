"""A worker group with arithmetic instead of training, so that every path of a run takes milliseconds."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import fsspec
import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Evaluation, Segment, SegmentResult, Written
from trainers.spec.workloads import DigitsMlp
from trainers.training.group import Group


def _taught(rate: float) -> float:
    """Return how much a step at this rate teaches."""
    return min(rate / 3, 3 / rate) if rate else 0.0


class ArithmeticGroup(Group):
    """Its state is the rates it has trained with; a rate above `limit` diverges after `patience` steps in a row.

    Its gradients grow eightfold at step 200. The batch of step `bad_step` is not finite.
    """

    def __init__(self, *, limit: float = 50.0, patience: int = 7, bad_step: int | None = None) -> None:
        self.config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())
        self.num_workers, self.backend, self.device, self.shapes = 2, "gloo", "cpu", [(1,)]
        self.nodes = ((0,), (1,))
        self.limit, self.patience, self.bad_step = limit, patience, bad_step
        self.rates: list[float] = []
        self.slots: dict[str, list[float]] = {}

    def absorb(self, others: Sequence[Group]) -> None:
        self.num_workers += sum(other.num_workers for other in others)
        self.rates, self.slots = [], {}

    def rebuild(self, config: ReplicaConfig) -> None:
        self.config, self.rates, self.slots = config, [], {}

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        raise AssertionError(f"{method} is not asked of this group")

    def run(self, segment: Segment) -> SegmentResult:
        first, losses = len(self.rates), []
        learned = sum(map(_taught, self.rates))
        for index in range(segment.num_steps):
            self.rates.append(segment.learning_rate_at(index))
            if len(self.rates) - 1 == self.bad_step:
                break
            if len(self.rates) > self.patience and min(self.rates[-self.patience :]) > self.limit:
                break
            learned += _taught(self.rates[-1])
            losses.append(2.0 / (1.0 + 0.01 * learned))
        return SegmentResult(
            first_step=first,
            losses=tuple(losses),
            step_seconds=(0.001,) * len(losses),
            gradient_scales=tuple(8.0 if first + index >= 200 else 1.0 for index in range(len(losses))),
            bytes_sent=({"gradient": 1000 * segment.num_steps + 17 * first},) * self.num_workers,
            bytes_dense=5000 * segment.num_steps,
            diverged=len(losses) < segment.num_steps,
        )

    def run_alone(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        start, results = self.rates, []
        for segment in segments:
            self.rates = list(start)
            results.append(self.run(segment).model_copy(update={"bytes_sent": ({},), "bytes_dense": 0}))
        self.rates = [math.nan]  # of no use until it is restored
        return results

    def snapshot(self, slot: str) -> None:
        self.slots[slot] = list(self.rates)

    def restore(self, slot: str) -> None:
        self.rates = list(self.slots[slot])

    def forget(self, slot: str) -> None:
        self.slots.pop(slot, None)

    def landscape(self) -> None:
        return None  # so that runs search

    def evaluate(self, *, averaged: bool = False) -> Evaluation:
        return Evaluation(
            loss=sum(self.rates), metrics={"accuracy": 0.5}, num_samples=10, bytes_sent=({"control": 8},) * 2
        )

    def save(self, url: str) -> None:
        with fsspec.open(f"{url}/state.json", "w", auto_mkdir=True) as file:
            json.dump([self.num_workers, self.rates], file)

    def load(self, url: str) -> None:
        with fsspec.open(f"{url}/state.json") as file:
            num_workers, self.rates = json.load(file)
        assert num_workers == self.num_workers

    def export(self, url: str, *, averaged: bool = False) -> Written:
        self.save(url.removesuffix(".safetensors"))
        sent = ({"state": 1000},) * self.num_workers
        return Written(sha256=hashlib.sha256(url.encode()).hexdigest(), bytes_sent=sent, bytes_within=())

    def close(self) -> None:
        return


@pytest.fixture
def arithmetic_group() -> Callable[..., ArithmeticGroup]:
    return ArithmeticGroup
