"""Everything about a run that does not change: its space, its knobs and its budget, and what follows from them."""

import math
from dataclasses import dataclass

import numpy as np

from search.budget import spending
from search.config import FINALISTS, PAYING_STEPS, Budget, SearchConfig, num_coarse
from search.curves.faults import SHORTEST_WINDOW
from search.optimizer_traits import OPTIMIZER_TRAITS, OptimizerTraits
from search.space import SearchSpace
from search.types import Spent, Values

#: Of what searching may spend, the part that the wide search keeps for later ones; its shortest probes may use it too.
KEPT_PART = {"events": 0.25, "stages": 0.6}
#: Coarse probes on smaller batches than the first are longer: by the root of how many times the second is as large.
#: Together they take at most this share of the run.
SMALL_BATCH, LARGE_BATCH, COARSE_SHARE = 16, 32, 0.12
#: More steps than this tell little more.
MOST_COARSE_STEPS = 20
#: Where the warm-up alone tells how long a step takes, it may take this part of that.
ESTIMATED_PART = 2 / 3
#: Finalists more where the level is searched: a surrogate needs four.
LEVEL_PROBES = 2
#: A model of more matrices than the first needs a ramp under AdamW: of so many steps for each matrix, at most so many,
#: and at most this part of the run (docs/decisions/0032).
SHALLOW, RAMP_PER_MATRIX, MOST_RAMP, RAMP_PART = 4, 10, 100, 1 / 3
#: The least steps of a run's first commit.
FIRST_COMMIT_STEPS = 2 * SHORTEST_WINDOW
#: An end of the coarse probes' range that turns out best is extended, at most this often.
MAX_EXTENSIONS = 2


@dataclass(frozen=True)
class SearchSetup:
    """A run's space, knobs and budget."""

    space: SearchSpace
    config: SearchConfig
    budget: Budget
    seed: int

    @property
    def traits(self) -> OptimizerTraits:
        return OPTIMIZER_TRAITS[self.space.optimizer]

    @property
    def is_pretrained(self) -> bool:
        """True where the model is known to have been trained before."""
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
        """Steps that the budget holds, by what one cost before the clock started; None: nothing tells."""
        cost, caps = self.step_cost, spending.caps(self.budget)
        return min((cap / cost[unit] for unit, cap in caps.items() if cost.get(unit)), default=None)

    @property
    def step_cost(self) -> spending.Amounts:
        """The cost of a step of all workers before the clock started, in the budget's units; one step if unmeasured."""
        step = self.space.step
        cost = {"steps": 1.0} | ({} if step is None else {"bytes": step.bytes, "seconds": step.seconds})
        return {unit: cost[unit] for unit in spending.caps(self.budget) if unit in cost}

    @property
    def search_fraction(self) -> float:
        """Most of the budget that probes may spend."""
        return self.config.search_fraction(self.num_steps)

    @property
    def wide_probes(self) -> int:
        """Probes of the wide search's last rung, extensions of its range apart; 0: the coarse ones decide."""
        return self.rate_probes + max(0, len(self.space.options) - 1)

    @property
    def rate_probes(self) -> int:
        """Those of them with the exchange that does best; each that competes with it has one more."""
        first = self.config.wide_probes
        if first is None:
            first = FINALISTS if self._finalists_pay or self.space.ranges else int(bool(self.space.options))
        of_axes = self.config.wide_probes_per_axis * len(self.space.further)
        return first + LEVEL_PROBES * bool(self.space.axis("level")) + of_axes

    @property
    def is_timed(self) -> bool:
        """True where seconds are short, and something searched decides how many a step takes: the rate does not."""
        return self.budget.seconds is not None and self.space.decides_costs

    @property
    def is_of_rate_alone(self) -> bool:
        """True where the learning rate is the only value that is searched."""
        return not (self.space.ranges or self.space.options)

    @property
    def _finalists_pay(self) -> bool:
        """True where the cap leaves each finalist enough steps to tell the rate better than coarse probes do.

        Exchanges that compete have one more each, and may have one that extends the range of rates.
        """
        if self.num_steps is None:
            return False
        left = self._wide_steps - self._coarse_rounds * self.config.coarse_probe_steps
        return left >= (FINALISTS + len(self.space.options)) * PAYING_STEPS

    @property
    def coarse_steps(self) -> int:
        """Steps of a probe that tells decades apart: of small batches so many that noise falls, where there is room.

        The noise of what probes saw falls with the root of their samples. Where more than the rate is searched,
        finalists need what there is.
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
        """Return the steps in which the rate rises to what the wide search found, in a run of `num_steps` if known."""
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
        """Learning rates a decade apart, by which the wide search begins: in the stated range, or about the guess."""
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
        """Return which part of what is left the commit of stage `index` takes, in (0, 1].

        They take 1 : 2 : 4 : ..., and past the last stage all is one. Of those before it the first few that were taken
        back do not count. From the first one alone a net comes back that has died in it, so it is long enough to show
        that.
        """
        num_stages = self.config.num_stages
        place = index - min(num_taken_back, num_stages)
        shares: list[int] = [2**each for each in range(place, num_stages)] or [1]
        part = shares[0] / sum(shares)
        if place or self.num_steps is None:
            return part
        left = self.num_steps * (1 - spending.fraction_spent(self.budget, spent))
        return max(part, FIRST_COMMIT_STEPS / max(FIRST_COMMIT_STEPS, left))
