"""The open stage: what was asked in it and what came back. The one mutable value that a controller holds."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from search.budget import spending
from search.budget.link import Link
from search.config import (
    CONTEST_RATES,
    FINALISTS,
    OPTIMIZER_TRAITS,
    PAYING_STEPS,
    Budget,
    OptimizerTraits,
    SearchConfig,
    contest_steps,
    num_coarse,
)
from search.curves.calibration import Outcome
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Event, StepTime
from search.curves.faults import Level, Probed
from search.past_jobs.prior import NO_PRIOR, Prior
from search.space import Box, SearchSpace, are_within
from search.types import Candidate, Decision, Origin, Refusal, Spent, Steer, Values

if TYPE_CHECKING:
    from search.surrogate.model import AnySurrogate

#: A rate that diverged bars those at or above this share of it ...
BARRED_SHARE = 0.7
#: ... at values within this factor of what also decides whether a rate diverges (momentum: of 1 - momentum).
BARRED_FACTOR = 3.0
#: Of what searching may spend, the part that the wide search keeps for later ones; its shortest probes may use it too.
KEPT_PART = {"events": 0.25, "stages": 0.6}
#: Coarse probes on smaller batches than the first are longer: by the root of how many times the second is as large.
#: Together they take at most this share of the run.
SMALL_BATCH, LARGE_BATCH, COARSE_SHARE = 16, 32, 0.12
#: More steps than this tell little more.
MOST_COARSE_STEPS = 20
#: Of what they may spend they take this part where the warm-up alone tells how long a step takes.
ESTIMATED_PART = 2 / 3
#: Finalists more where the level is searched: a surrogate needs four.
LEVEL_PROBES = 2
#: A model of more matrices than the first needs a ramp under AdamW: of so many steps for each matrix, at most so many,
#: and at most this part of the run (docs/decisions/0032).
SHALLOW, RAMP_PER_MATRIX, MOST_RAMP, RAMP_PART = 4, 10, 100, 1 / 3
#: Rung 0 are the probes that tell decades apart.
FINAL_RUNG = 1
BARRED_AXES = ("level", "batch_size", "momentum", "option", "optimizer")
#: Where optimizers compete, the coarse probes of each span these decades about its own guess.
CONTEST_DECADES = 2.0
#: An end of the coarse probes' range that turns out best is extended, at most this often.
MAX_EXTENSIONS = 2


@dataclass(frozen=True)
class SearchSetup:
    """Everything about a run that does not change."""

    space: SearchSpace
    config: SearchConfig
    budget: Budget
    seed: int

    @property
    def traits(self) -> OptimizerTraits:
        return OPTIMIZER_TRAITS[self.space.optimizer]

    @property
    def opening(self) -> Values:
        """The opening values: the guess, inside the space."""
        return self.space.opening

    def of(self, optimizer: str | None) -> "SearchSetup":
        """Return the setup as this optimizer has it: its traits, its guess. None: no optimizers compete."""
        if optimizer in (None, self.space.optimizer):
            return self
        [rate] = [each.learning_rate for each in self.space.optimizers if each.optimizer == optimizer]
        guess = self.space.guess.model_copy(update={"learning_rate": self.clip_rate(rate), "optimizer": optimizer})
        return replace(self, space=self.space.model_copy(update={"optimizer": optimizer, "guess": guess}))

    @property
    def contenders(self) -> tuple[str, ...]:
        """The optimizers that the wide search compares: the first of the job's, as many as its cap has room for.

        None where no optimizers compete, or the cap has room for one alone.
        """
        names = tuple(each.optimizer for each in self.space.optimizers)
        cap = self._cap_steps
        return names[
            : max((number for number in range(2, len(names) + 1) if self.contest_steps(number) <= cap), default=0)
        ]

    def contest_steps(self, num_optimizers: int) -> int:
        """Return the fewest steps that compare so many."""
        finalists = self._rate_probes(has_contest=True)
        return contest_steps(self.config, num_optimizers=num_optimizers, num_finalists=finalists)

    @property
    def most_coarse(self) -> int:
        """Coarse probes that a contest has room for, extensions included."""
        number = len(self.contenders)
        spare = (self._cap_steps - self.contest_steps(number)) / self.config.coarse_probe_steps
        return number * CONTEST_RATES + math.floor(min(spare, number * MAX_EXTENSIONS))

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
        return self.rate_probes + max(0, len(self.space.options) - 1) + max(0, len(self.contenders) - 1)

    @property
    def rate_probes(self) -> int:
        """Those of them with the exchange and the optimizer that do best; each that competes with it has one more."""
        return self._rate_probes(has_contest=bool(self.space.options or self.contenders))

    def _rate_probes(self, *, has_contest: bool) -> int:
        first = self.config.wide_probes
        if first is None:
            first = FINALISTS if self._finalists_pay or self.space.ranges else int(has_contest)
        of_axes = self.config.wide_probes_per_axis * len(self.space.further)
        return first + LEVEL_PROBES * bool(self.space.axis("level")) + of_axes

    @property
    def is_timed(self) -> bool:
        """True where seconds are short, and something searched decides how many a step takes: the rate does not."""
        return self.budget.seconds is not None and self.space.decides_costs

    @property
    def is_of_rate_alone(self) -> bool:
        """True where the learning rate is the only value that is searched."""
        return not (self.space.ranges or self.space.options or self.contenders)

    @property
    def _finalists_pay(self) -> bool:
        """True where the cap leaves each finalist enough steps to tell the rate better than coarse probes do.

        Exchanges that compete have one more each, and may have one that extends the range of rates. Optimizers that
        compete need the steps for themselves.
        """
        if self.num_steps is None or self.space.optimizers:
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
        if self.contenders:  # a narrow range has to lie about what is best in so few steps
            centre /= self.traits.pick
            decades = min(decades, CONTEST_DECADES)
        centre, half = self.clip_rate(centre), decades / 2
        return self.clip_rate(centre / 10**half), self.clip_rate(centre * 10**half)

    def clip_rate(self, rate: float) -> float:
        """Move a learning rate into the space."""
        return min(self.space.max_learning_rate, max(self.space.min_learning_rate, rate))

    def shares(self, stage: int) -> list[int]:
        """Return the weights 1 : 2 : 4 : ... of the commits from `stage` on; past the last stage, all is one."""
        return [2**index for index in range(stage, self.config.num_stages)] or [1]


class Proposal(NamedTuple):
    """The next values to try; `rung` is as in `search.types.Candidate`."""

    values: Values
    origin: Origin
    rung: int = 0


class Probe(NamedTuple):
    candidate: Candidate
    reading: Reading


class Score(NamedTuple):
    """A probe's reward: the fall of the log loss, and its variance. None: it diverged."""

    values: Values
    reward: float | None
    variance: float


class Ramp(NamedTuple):
    """The steps of the committed line in which the rate rises to what was found: how many, and how many it has done.

    Probes, and commits that are taken back, are no steps of the line.
    """

    num_steps: int = 0
    done: int = 0  # when a commit begins, at a total of `start` steps
    start: int = 0

    @property
    def is_over(self) -> bool:
        return self.done >= self.num_steps

    def factor(self, step: int) -> float:
        """Return what the rate is multiplied by at a total of `step` steps, in (0, 1]."""
        done = self.done + step - self.start
        return (done + 1) / self.num_steps if done < self.num_steps else 1.0

    def begun(self, step: int) -> "Ramp":
        """Return the ramp for a commit that begins at a total of `step` steps."""
        return self._replace(start=step)

    def ended(self, step: int) -> "Ramp":
        """Return the ramp after a commit that ended at a total of `step` steps."""
        return self._replace(done=self.done + step - self.start, start=step)


NO_RAMP = Ramp()
#: Scores of the last stages: see `search.bayesian.history`.
History = tuple[tuple[Score, ...], ...]


@dataclass
class Stage:
    """Mutable. `level` and `initial` are losses: where the stage starts, and where the run started."""

    index: int
    incumbent: Values
    has_incumbent: bool = True  # False: the wide search, which compares with nothing
    is_paired: bool = True  # its probes of one batch size see the same batches, step by step
    teaching: Mapping[str, float] = field(default_factory=dict)  # as `SearchSpace.teaching` says
    opened: Spent = field(default_factory=Spent)
    search_before: Spent = field(default_factory=Spent)
    search_coarse: Spent = field(default_factory=Spent)  # by the probes that tell decades apart
    level: float | None = None
    initial: float | None = None
    best: Level | None = None  # the lowest that the committed line has reached
    probed: Probed | None = None  # the lowest loss that a probe of an earlier stage ended at
    gradient_scale: float | None = None  # in the run's beginning
    history: History = ()
    drift: float = 0.0  # of rewards from stage to stage, as far as `history` shows it
    prior: Prior = NO_PRIOR  # of the wide search; later stages have a `history`
    width: float = 1.0  # of the trust region: the exponent of its limits
    barred: tuple[Values, ...] = ()  # diverged on the committed line
    rejected: tuple[Values, ...] = ()  # rolled back, from where this stage starts again
    may_rise: bool = True  # False: something happened on the line, and no commit has met its forecast since
    has_awakened: bool = False  # an earlier stage did: what rate it was lost at is known
    awakens: bool = False  # nothing was learned yet: its rate rises until something is
    before: Ending | None = None  # how the stage before ended
    before_level: float | None = None  # the loss at which that stage started
    events: tuple[Event, ...] = ()  # what happened in it
    reference: StepTime | None = None  # a step after the last search; None: this commit will show it
    link: Link | None = None  # as the stages before have shown it
    candidates: list[Candidate] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()  # of the last stages that had a forecast
    refused: list[Refusal] = field(default_factory=list)  # without a step
    too_slow: dict[str, Refusal] = field(default_factory=dict)  # by candidate, after a few steps
    decided: Spent = field(default_factory=Spent)  # the run's totals when its commit began
    ramp: Ramp = NO_RAMP  # after the wide search
    raised: float = 1.0  # what commits since the last search have multiplied the rate by ...
    rise: float = 1.0  # ... and this one so far
    note: str = ""  # why the incumbent is not what the stage before used
    steers: tuple[Steer, ...] = ()  # that hold in it
    pinned: frozenset[str] = frozenset()  # the values that people have pinned
    unsteered: Values | None = None  # the incumbent as it would be without them; None: as it is
    search_asked: bool = False  # by a person
    is_complete: bool = False
    decision: Decision | None = None
    #: Fitted, by what they learned from (`search.bayesian.rewards.Evidence`) and where.
    surrogates: "dict[tuple[Hashable, Box], AnySurrogate | None]" = field(default_factory=dict, compare=False)

    @property
    def probes(self) -> list[Probe]:
        """The finished probes, without those that were too slow, in the order in which they were asked for."""
        done = [each for each in self.candidates if each.id in self.readings and each.id not in self.too_slow]
        return [Probe(candidate, self.readings[candidate.id]) for candidate in done]

    @property
    def rung(self) -> int:
        """The rung that the search has reached: the one of its last candidate."""
        return self.candidates[-1].rung if self.candidates else 0

    def at(self, rung: int) -> "Stage":
        """Return the stage as if its candidates of `rung` were all: probes are compared with those of their rung."""
        if all(candidate.rung == rung for candidate in self.candidates):
            return self
        return replace(self, candidates=[candidate for candidate in self.candidates if candidate.rung == rung])

    def of(self, optimizer: str | None) -> "Stage":
        """Return the stage as if its candidates with this optimizer were all; None: no optimizers compete."""
        if all(each.values.optimizer == optimizer for each in self.tried):
            return self
        own = [candidate for candidate in self.candidates if candidate.values.optimizer == optimizer]
        ids = {candidate.id for candidate in own}
        return replace(
            self,
            candidates=own,
            readings={name: reading for name, reading in self.readings.items() if name in ids},
            refused=[each for each in self.refused if each.values.optimizer == optimizer],
            too_slow={name: each for name, each in self.too_slow.items() if name in ids},
        )

    @property
    def decisive(self) -> "Stage":
        """The stage as if those probes were all that decide it: of the last rung that has some."""
        last = self.at(self.rung)
        return last if last.probes else self.at(0)

    @property
    def is_pinned(self) -> bool:
        """Return whether a person has pinned its learning rate: then there is nothing to search."""
        return "learning_rate" in self.pinned

    @property
    def is_on_ramp(self) -> bool:
        """Return whether its commit begins before the rate has risen to what the wide search found."""
        return not self.ramp.is_over

    @property
    def is_displaced(self) -> bool:
        """Return whether it begins with other values than it would without what people say."""
        return self.unsteered is not None and self.unsteered != self.incumbent

    @property
    def pending(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.id not in self.readings]

    @property
    def lacks_control(self) -> bool:
        """Return whether the incumbent's probe took too long, so that there is nothing to compare others with."""
        return self.has_incumbent and bool(self.candidates) and self.candidates[0].id in self.too_slow

    @property
    def is_full(self) -> bool:
        """Return whether no further probe fits."""
        return any(refusal.kind == "no_room" for refusal in self.refused)

    @property
    def tried(self) -> list[Candidate | Refusal]:
        """All that was proposed, whether or not it was probed."""
        return [*self.candidates, *self.refused]


def is_barred(values: Values, diverged: tuple[Values, ...]) -> bool:
    """Return whether `values` are as likely to diverge as any of those that did."""
    return any(
        values.learning_rate >= BARRED_SHARE * other.learning_rate
        and are_within(values, other, BARRED_FACTOR, BARRED_AXES)
        for other in diverged
    )
