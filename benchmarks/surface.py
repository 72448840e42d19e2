"""Compare wide searches on a surface with a known optimum: ours, Sobol points, and scikit-optimize as AutoLRS sets it.

The loss over u = (log learning rate, log density), both scaled to [0, 1], is

    1 + 1 - exp(-((u1 - c) / 0.12)^2 / 2) + 0.3 (u2 - d)^2 + 1.5 / (1 + exp(-(u1 - c - 0.3) / 0.02)),
    c = a + 0.2 (u2 - 0.5):

a valley half a decade wide that leans towards higher rates at higher densities, a plain where the rate is too low, and
a cliff where it is too high. The seed draws a from [0.3, 0.7] and d from [0.2, 0.8]. An evaluation adds normal noise of
standard deviation 0.02.
"""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.space import Axis, Box, SearchSpace
from search.surrogate.acquisition import sobol_points
from search.types import Candidate, Observation, Spent, Values

Array = NDArray[np.float64]

NUM_EVALUATIONS, NUM_SEEDS = 10, 32
NOISE = 0.02
UNIT_SQUARE = np.array([[0.0, 0.0], [1.0, 1.0]])
RATE, LEVEL = Axis(name="learning_rate", low=1e-4, high=1.0), Axis(name="level", low=1e-3, high=1.0)
BOX = Box(axes=(RATE, LEVEL))
#: Loss of the first steps of a probe, and its length in steps.
START_LOSS, PROBE_STEPS = 2.0, 20


class Surface:
    """Mutable: draws its noise as it is evaluated, and remembers the true loss of each evaluated point."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._centre, self._density = self._rng.uniform(0.3, 0.7), self._rng.uniform(0.2, 0.8)
        axis = np.linspace(0, 1, 401)
        self.best = float(self.loss(np.stack(np.meshgrid(axis, axis), axis=-1)).min())
        self.seen: list[float] = []

    def loss(self, points: Array) -> Array:
        """Return the noise-free losses `(...)` at `points` `(..., 2)`."""
        rate, density = points[..., 0], points[..., 1]
        off = rate - self._centre - 0.2 * (density - 0.5)
        valley, cliff = 1 - np.exp(-((off / 0.12) ** 2) / 2), 1.5 / (1 + np.exp(-(off - 0.3) / 0.02))
        return np.asarray(1 + valley + 0.3 * (density - self._density) ** 2 + cliff)

    def evaluate(self, point: Array) -> float:
        """Return the noisy loss at `point` `(2,)`."""
        self.seen.append(float(self.loss(point)))
        return self.seen[-1] + float(self._rng.normal(0, NOISE))


class Outcome(NamedTuple):
    """Regrets: how much higher the true loss is than the surface's lowest."""

    decision: float  # of the point that the method settles on
    best_seen: float  # of the best point that it evaluated


Method = Callable[[Surface, int], Array]


def ours(surface: Surface, seed: int) -> Array:
    """Return the controller's decision after its wide search; it knows the box, not the optimum."""
    controller = new_controller(seed, wide_probes=NUM_EVALUATIONS)
    for index in range(NUM_EVALUATIONS):
        candidate = controller.ask()
        if candidate is None:
            break
        loss = surface.evaluate(np.array(BOX.to_unit(candidate.values)))
        controller.tell(observation(candidate, loss, num_probes=index + 1))
    return np.array(BOX.to_unit(BOX.clip(controller.decide().values)))


def new_controller(seed: int, *, wide_probes: int) -> Controller:
    """Return a controller that is about to search the whole box."""
    guess = Values(learning_rate=5e-4, level=10**-1.5)  # x20 under this optimizer: the middle of the box
    space = SearchSpace(
        optimizer="schedulefree_sgd",
        guess=guess,
        axes=(LEVEL,),
        min_learning_rate=RATE.low,
        max_learning_rate=RATE.high,
    )
    config = BoConfig(wide_probes=wide_probes, max_search_fraction=0.9)
    return Controller(space, config, seed, budget=Budget(steps=100_000))


def observation(candidate: Candidate, loss: float, *, num_probes: int) -> Observation:
    """Return what a probe measures that falls to `loss`, the mean of its last half, at once and stays there.

    Its steps are as noisy as makes a mean of so many of them have the evaluation's noise.
    """
    noise = np.random.default_rng(num_probes).normal(0, NOISE * math.sqrt(PROBE_STEPS / 2), PROBE_STEPS)
    noise -= noise[PROBE_STEPS // 2 :].mean()
    losses = np.where(np.arange(PROBE_STEPS) < 5, START_LOSS, loss + noise)
    spent = Spent(steps=PROBE_STEPS * num_probes, bytes=1000 * num_probes)
    return Observation(
        candidate_id=candidate.id,
        losses=tuple(losses.tolist()),
        step_seconds=(0.01,) * PROBE_STEPS,
        bytes_sent=1000,
        spent=spent,
    )


def sobol(surface: Surface, seed: int) -> Array:
    """Return the point with the lowest noisy loss of a scrambled Sobol sequence."""
    points = sobol_points(NUM_EVALUATIONS, UNIT_SQUARE, seed=seed)
    return points[int(np.argmin([surface.evaluate(point) for point in points]))]


def reference(surface: Surface, seed: int) -> Array:
    """Return what AutoLRS does with scikit-optimize: one random point, then LCB with kappa 1e6; the raw minimum."""
    from skopt import Optimizer  # the extra `bench`

    optimizer = Optimizer(
        [(0.0, 1.0), (0.0, 1.0)],
        base_estimator="GP",
        n_initial_points=1,
        acq_func="LCB",
        acq_func_kwargs={"kappa": 1e6},
        random_state=seed,
    )
    for _ in range(NUM_EVALUATIONS):
        point = optimizer.ask()
        optimizer.tell(point, surface.evaluate(np.array(point)))
    return np.array(optimizer.Xi[int(np.argmin(optimizer.yi))])


def outcomes(method: Method) -> list[Outcome]:
    """Return the regrets of `method` on the surface of each seed."""
    return [_outcome(method, seed) for seed in range(NUM_SEEDS)]


def _outcome(method: Method, seed: int) -> Outcome:
    surface = Surface(seed)
    decision = method(surface, seed)
    return Outcome(float(surface.loss(decision)) - surface.best, min(surface.seen) - surface.best)


def median(found: list[Outcome]) -> Outcome:
    return Outcome(*(statistics.median(regrets) for regrets in zip(*found, strict=True)))
