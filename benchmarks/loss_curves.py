"""Loss curves to forecast and to select from: 15 synthetic shapes, those that `record_curves.py` recorded, and others.

The others come from 16 small real tasks: data of scikit-learn, statsmodels and MNIST, and text; perceptrons,
convolutions and sequence models; SGD and AdamW. Each task was trained at several constant rates, from scratch and from
a fork. Of each task, the lowest, the middle and the highest rate that lasted are kept, and the middle one of its fork.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RECORDED = Path(__file__).parents[1] / "tests" / "search" / "curves.json"
FOLLOWED = RECORDED.with_name("horizons.json")
#: Steps seen of most synthetic curves, and how many times as far the horizon is.
SEEN, RATIO = 240, 10


def _correlated(rng: np.random.Generator, num_points: int) -> Array:
    noise = rng.normal(0, 0.04, num_points)
    for index in range(1, num_points):
        noise[index] += 0.7 * noise[index - 1]
    return noise


def _white(scale: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, num_points: rng.normal(0, scale, num_points)


def _spiky(rng: np.random.Generator, num_points: int) -> Array:
    return rng.normal(0, 0.03, num_points) + (rng.random(num_points) < 0.04) * rng.uniform(1, 3, num_points)


class Shape(NamedTuple):
    curve: Callable[[Array], Array]
    noise: Callable[[np.random.Generator, int], Array]
    seen: int = SEEN


SHAPES = {
    "exponential_fast": Shape(lambda t: 1.6 * np.exp(-t / 60) + 0.6, _white(0.05)),
    "exponential_slow": Shape(lambda t: 1.6 * np.exp(-t / 400) + 0.6, _white(0.05)),
    "power_half": Shape(lambda t: 2.0 * (1 + t / 20) ** -0.5 + 0.3, _white(0.05)),
    "power_quarter": Shape(lambda t: 2.0 * (1 + t / 10) ** -0.25 + 0.2, _white(0.05)),
    "power_one": Shape(lambda t: 2.0 / (1 + t / 50) + 0.4, _white(0.1)),
    "two_time_scales": Shape(lambda t: np.exp(-t / 20) + np.exp(-t / 500) + 0.3, _white(0.05)),
    "plateau": Shape(lambda t: 1.0 + 0 * t, _white(0.05)),
    "late_drop": Shape(lambda t: 2.0 - 1.2 / (1 + np.exp(-(t - 600) / 60)), _white(0.05)),
    "transient_bump": Shape(
        lambda t: 1.5 * np.exp(-t / 200) + 0.5 + 0.8 * np.exp(-(((t - 12) / 8) ** 2)), _white(0.05)
    ),
    "diverging": Shape(lambda t: np.minimum(1.0 + np.exp(t / 50) / 10, 100.0), _white(0.05)),
    "spikes": Shape(lambda t: 1.6 * np.exp(-t / 150) + 0.5, _spiky),
    "correlated_noise": Shape(lambda t: 1.6 * np.exp(-t / 150) + 0.5, _correlated),
    "large_scale": Shape(lambda t: 200 * (0.75 * np.exp(-t / 150) + 0.25), _white(5.0)),
    "small_scale": Shape(lambda t: 0.01 * (1.5 * np.exp(-t / 150) + 0.5), _white(0.0005)),
    "sixteen_points": Shape(lambda t: 1.6 * np.exp(-t / 12) + 0.6, _white(0.02), seen=16),
}


class Synthetic(NamedTuple):
    losses: list[float]
    horizon: int
    truth: float


def synthetic(shape: str, seed: int, *, seen: int = SEEN) -> Synthetic:
    """Return the first losses of a noisy curve, as far as its shape has them, and its noise-free loss at ten times."""
    curve, noise, most = SHAPES[shape]
    seen = min(seen, most)
    losses = curve(np.arange(seen, dtype=np.float64)) + noise(np.random.default_rng(seed), seen)
    return Synthetic(losses.tolist(), RATIO * seen, float(curve(np.array(float(RATIO * seen)))))


class Question(NamedTuple):
    """The beginning of a real run, and the median of its losses in the last fifth of the steps up to `horizon`."""

    task: str
    losses: list[float]
    level: float  # the loss that it began with
    horizon: int
    truth: float


@cache
def followed() -> tuple[Question, ...]:
    """Return what 20, 50 and 100 losses of each of 64 real curves are asked: 3, 10 and 30 times as many steps ahead."""
    return tuple(
        Question(curve["task"], curve["losses"][:seen], curve["level"], seen * ratio, curve["truth"][str(seen * ratio)])
        for curve in json.loads(FOLLOWED.read_text())["curves"]
        for seen in (20, 50, 100)
        for ratio in (3, 10, 30)
        if str(seen * ratio) in curve["truth"]
    )


class Line(NamedTuple):
    """Probes from one fork that differ in their learning rate only."""

    name: str  # workload/fork/density
    level: float  # the loss at the fork
    losses: list[list[float]]  # by learning rate: what a probe saw; shorter where it diverged
    truth: list[float]  # by learning rate: the loss at `horizon`, at most `level` worse than at the fork
    horizon: int
    seen: int

    def regret(self, chosen: int) -> float:
        """Return how much higher the chosen run's loss is than the best one's, as a share of the loss at the fork."""
        return (self.truth[chosen] - min(self.truth)) / self.level


@cache
def recorded() -> tuple[Line, ...]:
    """Return the recorded lines, and for each fork one that joins its densities."""
    file = json.loads(RECORDED.read_text())
    lines = [
        Line(
            name=each["name"],
            level=each["level"],
            losses=each["losses"],
            truth=[_capped(truth, each["level"]) for truth in each["truth"]],
            horizon=sum(each["truth_steps"]) // 2,
            seen=file["seen"],
        )
        for each in file["lines"]
    ]
    return (*lines, *_joined(lines))


def _capped(truth: float | None, level: float) -> float:
    # a run that diverged has lost what the fork had learned, not infinitely more
    return 2 * level if truth is None else min(truth, 2 * level)


def _joined(lines: list[Line]) -> Iterator[Line]:
    forks = {line.name.rpartition("/")[0] for line in lines}
    for fork in sorted(forks):
        same = [line for line in lines if line.name.startswith(f"{fork}/")]
        losses = [losses for line in same for losses in line.losses]
        yield same[0]._replace(name=fork, losses=losses, truth=[truth for line in same for truth in line.truth])
