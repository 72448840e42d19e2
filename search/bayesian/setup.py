"""The parts of a run that do not change: its space, settings and budget, and what follows from them."""

import math
from dataclasses import dataclass

import numpy as np

from search.budget import spending
from search.config import FINALISTS, PAYING_STEPS, Budget, SearchConfig, first_finalists, num_coarse
from search.curves.faults import SHORTEST_WINDOW
from search.optimizer_traits import OPTIMIZER_TRAITS, OptimizerTraits
from search.space import SearchSpace
from search.types import Spent, Values

#: The share of the search's cap that the wide search keeps for later searches. Its shortest probes may use it too.
KEPT_PART = {"events": 0.25, "stages": 0.6}
#: On batches below `SMALL_BATCH`, coarse probes are longer by the factor sqrt(`LARGE_BATCH` / batch size). Together
#: they take at most the share `COARSE_SHARE` of the run.
SMALL_BATCH, LARGE_BATCH, COARSE_SHARE = 16, 32, 0.12
#: A coarse probe learns little from more steps than this.
MOST_COARSE_STEPS = 20
#: Nor does a finalist from more than this, however many steps a budget allows that was given as an upper bound.
MOST_FINALIST_STEPS = 1000
#: A step may turn out to take only this share of the time that the warm-up showed.
ESTIMATED_PART = 2 / 3
#: Additional finalists where the level is searched: a surrogate needs four.
LEVEL_PROBES = 2
#: Under AdamW, a model of more than `SHALLOW` matrices needs a ramp: `RAMP_PER_MATRIX` steps for each, at most
#: `MOST_RAMP` steps, and at most the share `RAMP_PART` of the run (docs/decisions/0032).
SHALLOW, RAMP_PER_MATRIX, MOST_RAMP, RAMP_PART = 4, 10, 100, 1 / 3
#: The least steps of a run's first commit.
FIRST_COMMIT_STEPS = 2 * SHORTEST_WINDOW
#: If W single workers trained the coarse probes, a batch of the run is W times as large. Its best rate is higher by
#: this power of W (docs/decisions/0013).
BATCH_POWER = 1 / 3
#: If an end of the coarse probes' range does best, the range is extended there, at most this often.
MAX_EXTENSIONS = 2


@dataclass(frozen=True)
class SearchSetup:
    """A run's space, settings and budget."""

    space: SearchSpace
    config: SearchConfig
    budget: Budget
    seed: int
    has_grown: bool = False  # whether the budget was smaller when the run began

    @property
    def traits(self) -> OptimizerTraits:
        return OPTIMIZER_TRAITS[self.space.optimizer]

    @property
    def is_pretrained(self) -> bool:
        """True if the model is known to have been trained before."""
        return self.space.weights is not None and not self.space.weights.is_new

    @property
    def opening(self) -> Values:
        """The opening values: the guess, inside the space."""
        return self.space.opening

    @property
    def _cap_steps(self) -> float:
        return math.inf if self.num_steps is None else self.search_fraction * self.num_steps

    @property
    def num_steps(self) -> float | None:
        """The steps that the budget holds, evaluations included, by costs before the clock started; None: not known."""
        cost, caps = self.line_cost(self.planned_step_cost), spending.caps(self.budget)
        return min((cap / cost[unit] for unit, cap in caps.items() if cost.get(unit)), default=None)

    def line_cost(self, step_cost: spending.Amounts) -> spending.Amounts:
        """Return the mean cost of a step of the committed line, which is evaluated, by that of a step alone."""
        added = {"seconds": self.space.evaluation_s}
        return {unit: cost + added.get(unit, 0.0) for unit, cost in step_cost.items()}

    @property
    def planned_step_cost(self) -> spending.Amounts:
        """The cost of a step of all workers before the clock started, in those of the budget's units that are known."""
        step = self.space.step
        cost = {"steps": 1.0} | ({} if step is None else {"bytes": step.bytes, "seconds": step.seconds})
        return {unit: cost[unit] for unit in spending.caps(self.budget) if unit in cost}

    @property
    def coarse_step_cost(self) -> spending.Amounts:
        """The same for a coarse probe. A worker that trains alone sends nothing, and waits for nobody."""
        if self.space.num_alone == 1:
            return self.planned_step_cost
        seconds = {} if self.space.alone_s is None else {"seconds": self.space.alone_s}
        cost = {"steps": 1.0, "bytes": 0.0} | seconds
        return {unit: cost[unit] for unit in spending.caps(self.budget) if unit in cost}

    @property
    def whole_batch_factor(self) -> float:
        """The factor by which the batch of all workers takes a higher rate than that of a worker alone."""
        return float(self.space.num_alone**BATCH_POWER)

    @property
    def search_fraction(self) -> float:
        """The largest share of the budget that probes may spend."""
        return self.config.search_fraction(self.num_steps)

    @property
    def wide_probes(self) -> int:
        """The number of finalists of the wide search, without extensions; 0: the coarse probes decide."""
        return self.rate_probes + max(0, len(self.space.options) - 1)

    @property
    def rate_probes(self) -> int:
        """The finalists with the exchange that the run opens with. Each competing exchange has one more."""
        first = first_finalists(
            self.config.wide_probes,
            has_ranges=bool(self.space.ranges),
            has_options=bool(self.space.options),
            pay=self._finalists_pay,
        )
        of_axes = self.config.wide_probes_per_axis * len(self.space.further)
        return first + LEVEL_PROBES * bool(self.space.axis("level")) + of_axes

    @property
    def is_timed(self) -> bool:
        """True if the budget caps seconds, and a searched value decides how many a step takes: the rate does not."""
        return self.budget.seconds is not None and self.space.decides_costs

    @property
    def is_of_rate_alone(self) -> bool:
        """True if only the learning rate is searched."""
        return not (self.space.ranges or self.space.options)

    @property
    def _finalists_pay(self) -> bool:
        """True if the cap leaves each finalist enough steps to find a better rate than coarse probes do.

        Each competing exchange has one more finalist, and one may extend the range of rates.
        """
        if self.num_steps is None:
            return False
        left = self._wide_steps - self._coarse_rounds * self.config.coarse_probe_steps
        return left >= (FINALISTS + len(self.space.options)) * PAYING_STEPS

    @property
    def coarse_steps(self) -> int:
        """The steps of a coarse probe: more on small batches, to reduce noise, if there is room.

        The noise falls with the square root of a probe's samples. If more than the rate is searched, finalists need
        the room.
        """
        least, batch_size = self.config.coarse_probe_steps, self.space.batch_size
        if not self.is_of_rate_alone or self.num_steps is None or batch_size is None or batch_size >= SMALL_BATCH:
            return least
        room = self._wide_steps * (1.0 if self.budget.seconds is None else ESTIMATED_PART)
        room -= FINALISTS * PAYING_STEPS if self.wide_probes else 0
        room = min(room, COARSE_SHARE * self.num_steps) / self._coarse_rounds
        wanted = least * math.sqrt(LARGE_BATCH / batch_size)
        return math.floor(max(least, min(wanted, room, MOST_COARSE_STEPS)))

    def ramp_steps(self, num_steps: float | None) -> int:
        """Return the steps in which the rate rises to the one found, in a run of `num_steps`; None: number unknown."""
        weights = self.space.weights
        if self.config.ramp_steps is not None:
            return self.config.ramp_steps
        if not self.traits.ramps or self.space.warms_up or weights is None or weights.num_matrices <= SHALLOW:
            return 0
        most = MOST_RAMP if num_steps is None else min(MOST_RAMP, RAMP_PART * num_steps)
        return math.floor(min(most, RAMP_PER_MATRIX * weights.num_matrices))

    @property
    def _wide_steps(self) -> float:
        return self._cap_steps * (1 - KEPT_PART[self.config.revisit])

    @property
    def _coarse_rounds(self) -> int:
        return math.ceil(len(self.coarse_rates) / self.space.num_alone)

    @property
    def coarse_rates(self) -> list[float]:
        """The rates of the coarse probes, a decade apart: in the stated range, or around the guess."""
        low, high = map(self.clip_rate, self.config.stated_rates or self._rates_around_guess())
        return [float(rate) for rate in np.geomspace(low, high, num_coarse(math.log10(high / low)))]

    def _rates_around_guess(self) -> tuple[float, float]:
        centre, decades = self.opening.learning_rate * self.traits.centre, self.config.wide_decades
        centre, half = self.clip_rate(centre), decades / 2
        return self.clip_rate(centre / 10**half), self.clip_rate(centre * 10**half)

    def clip_rate(self, rate: float) -> float:
        """Move a learning rate into the space."""
        return min(self.space.max_learning_rate, max(self.space.min_learning_rate, rate))

    def commit_part(self, index: int, num_taken_back: int, spent: Spent) -> float:
        """Return the share, in (0, 1], of the rest of the budget that the commit of stage `index` takes.

        Commits take 1 : 2 : 4 : ..., and one past the last stage takes all. Commits that were taken back do not count,
        up to the number of stages. If the budget has grown, at least as many stages are left as a run with it from the
        start would have here. The first commit is long enough to show whether the model has died: only from that one
        can it come back.
        """
        num_stages, fraction = self.config.num_stages, spending.fraction_spent(self.budget, spent)
        place = index - min(num_taken_back, num_stages)
        num_left = max(1, num_stages - place)
        if self.has_grown:  # each about doubles what is spent
            num_left = max(num_left, math.floor(-math.log2(max(fraction, 2.0**-num_stages))))
        part = 1 / (2.0**num_left - 1)
        if place or self.num_steps is None:
            return part
        left = self.num_steps * (1 - fraction)
        return max(part, FIRST_COMMIT_STEPS / max(FIRST_COMMIT_STEPS, left))
