"""The promise of `hold`, on a single worker with made-up gradients."""

from collections.abc import Iterable

import pytest
import torch

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.traffic import collectives

SHAPES = ((60, 200), (40, 200))  # d = 20,000 in two buckets
PLAN = 0.01
#: How the scale of the gradient goes on, from 1. What is left of large gradients lies just below lambda when they fall.
SCALES = {
    "steady": [1.0] * 60,
    "rising": [1.1**step for step in range(60)],
    "falling": [0.95**step for step in range(60)],
    "of a noisy batch": [(1.0, 1.4, 0.8, 1.2, 0.7)[step % 5] for step in range(60)],
    "after a spike": [8.0 if step in (10, 11) else 1.0 for step in range(60)],
}


class Worker:
    def __init__(self, config: ThresholdConfig) -> None:
        self._buffer = GradientBuffer(SHAPES, config.model_copy(update={"bucket_mib": 0.01}), torch.device("cpu"))
        self._exchange = build.exchange(config, self._buffer, Connection(1, Unpaced(), Ledger()))

    def step(
        self, step: int, scale: float, level: float | None = None, *, is_void: bool = False
    ) -> tuple[float | None, float]:
        """Take a step; returns the density and lambda. Ten entries in a hundred have ten times as large gradients."""
        generator = torch.Generator().manual_seed(step)
        gradient = scale * torch.randn(collectives.num_elements(SHAPES), generator=generator)
        gradient.view(-1, 100)[:, :10] *= 10
        gradient[7] = torch.inf if is_void else gradient[7]
        self._buffer.gradient.copy_(gradient)
        self._buffer.finish()
        outcome, threshold = self._exchange.step(torch.zeros(()), level, 0.1), self._exchange.threshold
        assert (outcome.density is None) == outcome.diverged and threshold is not None
        return outcome.density, threshold

    def run(self, scales: Iterable[float]) -> tuple[list[float], list[float]]:
        steps = [self.step(step, scale) for step, scale in enumerate(scales)]
        return [density for density, _ in steps], [threshold for _, threshold in steps]


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES.keys())
def test_a_held_density_stays_within_twice_its_plan(scales: list[float]):
    densities, _ = Worker(ThresholdConfig(density=PLAN)).run(scales)

    is_outside = [not PLAN / 2 <= density <= 2 * PLAN for density in densities]
    assert sum(is_outside) <= 0.05 * len(densities)
    assert not any(map(all, zip(is_outside, is_outside[1:], is_outside[2:], strict=False)))


@pytest.mark.parametrize(
    "config", [ThresholdConfig(density=PLAN, hold="run"), ThresholdConfig(search="absolute", threshold=3.0)]
)
def test_the_published_threshold_never_changes(config: ThresholdConfig):
    _, thresholds = Worker(config).run(SCALES["after a spike"])

    assert len(set(thresholds)) == 1


def test_a_void_step_at_another_level_leaves_no_lambda_behind():
    worker = Worker(ThresholdConfig(density=(0.01, 0.5), hold="run"))
    _, before = worker.step(0, 1.0, level=0.1)
    worker.step(1, 1.0, level=0.3, is_void=True)

    _, after = worker.step(2, 1.0, level=0.1)

    assert after == before
