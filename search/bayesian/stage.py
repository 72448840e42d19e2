"""The open stage: its candidates and their measurements. A controller mutates it, and nothing else does."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from search.budget.link import Link
from search.curves.calibration import ForecastOutcome
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Event, StepTime
from search.curves.faults import LossLevel, Probed
from search.past_jobs.prior import NO_PRIOR, Prior
from search.space import Box, are_within
from search.types import Candidate, Decision, Origin, Refusal, Spent, Steer, Values

if TYPE_CHECKING:
    from search.surrogate.model import AnySurrogate

#: A rate that diverged bars all rates from this share of it on ...
BARRED_SHARE = 0.7
#: ... if the values of `BARRED_AXES` lie within this factor (momentum: of 1 - momentum): they matter for divergence.
BARRED_FACTOR = 3.0
#: The rung of the finalists. Rung 0 has the coarse probes.
FINAL_RUNG = 1
BARRED_AXES = ("level", "batch_size", "momentum", "option")


class Proposal(NamedTuple):
    """The next values to try; `rung` is as in `search.types.Candidate`."""

    values: Values
    origin: Origin
    rung: int = 0


class Probe(NamedTuple):
    candidate: Candidate
    reading: Reading


class Score(NamedTuple):
    """A probe's reward, the fall of its log loss, and the variance of that. None: it diverged."""

    values: Values
    reward: float | None
    variance: float


class Ramp(NamedTuple):
    """The first steps of the committed line, in which the rate rises to the one found: their number, and those done.

    Steps of probes, and of commits that are taken back, do not count.
    """

    num_steps: int = 0
    done: int = 0  # when a commit begins, at a total of `start` steps
    start: int = 0

    @property
    def is_over(self) -> bool:
        return self.done >= self.num_steps

    def factor(self, step: int) -> float:
        """Return the factor of the rate, in (0, 1], at a total of `step` steps."""
        done = self.done + step - self.start
        return (done + 1) / self.num_steps if done < self.num_steps else 1.0

    def anew(self, step: int) -> "Ramp":
        """Return the ramp for a run that starts over at a total of `step` steps."""
        return self._replace(done=0, start=step)

    def begun(self, step: int) -> "Ramp":
        """Return the ramp for a commit that begins at a total of `step` steps."""
        return self._replace(start=step)

    def ended(self, step: int) -> "Ramp":
        """Return the ramp after a commit that ended at a total of `step` steps."""
        return self._replace(done=self.done + step - self.start, start=step)


#: Scores of the last stages: see `search.bayesian.history`.
History = tuple[tuple[Score, ...], ...]


@dataclass(frozen=True)
class CommittedLine:
    """The state of the committed line when a stage opens, as earlier stages have shown it."""

    start_loss: float | None = None  # the loss at which the stage starts
    initial: float | None = None  # the loss at which the run started
    best: LossLevel | None = None  # the lowest loss that the line has reached
    probed: Probed | None = None  # the lowest loss that a probe of an earlier stage ended at
    gradient_scale: float | None = None  # at the beginning of the run
    num_taken_back: int = 0  # commits that were rolled back
    before: Ending | None = None  # how the stage before ended
    loss_before: float | None = None  # the loss at which that stage started
    events: tuple[Event, ...] = ()  # what happened in it
    reference: StepTime | None = None  # the time of a step after the last search; None: this commit will show it
    link: Link | None = None
    history: History = ()
    drift: float = 0.0  # of rewards from stage to stage, as learned from `history`
    outcomes: tuple[ForecastOutcome, ...] = ()  # of the last stages that had a forecast
    barred: tuple[Values, ...] = ()  # values that failed on the line
    diverged: tuple[Values, ...] = ()  # values at which probes and commits of earlier stages diverged


NO_RAMP = Ramp()


@dataclass(frozen=True)
class RateCourse:
    """The changes of the rate after a stage's decision, without a probe."""

    ramp: Ramp = NO_RAMP  # after the wide search
    rise: float = 1.0  # the factor by which this commit has raised the rate so far ...
    raised: float = 1.0  # ... and that of the commits before it, since the last search
    kept: Values | None = None  # those of the last commit that stayed, with its rises; None: none since the first step
    picked: float | None = None  # the rate before these rises and cuts of a loss that stood still; None: no commit
    may_rise: bool = True  # False: something happened on the line, and no commit has met its forecast since
    awakens: bool = False  # nothing was learned yet, so the rate rises until something is
    has_awakened: bool = False  # whether an earlier stage has awakened
    given_up: float | None = None  # the rate at which a commit learned nothing


class Steered(NamedTuple):
    """The steers that hold in a stage."""

    steers: tuple[Steer, ...] = ()
    pinned: frozenset[str] = frozenset()  # the names of the pinned values
    unsteered: Values | None = None  # the incumbent without steers; None: as it is

    @property
    def search_asked(self) -> bool:
        return any(each.search_now for each in self.steers)


NOT_STEERED = Steered()


@dataclass
class Stage:
    """Mutable: a stage from its first candidate to its decision."""

    index: int
    incumbent: Values
    has_incumbent: bool = True  # False: the wide search, which has nothing to compare with
    note: str = ""  # why the incumbent differs from the values of the stage before
    rejected: tuple[Values, ...] = ()  # values of the commit that was rolled back to where this stage starts
    line: CommittedLine = CommittedLine()
    course: RateCourse = RateCourse()
    steered: Steered = NOT_STEERED
    is_paired: bool = True  # probes of one batch size see the same batches, step by step
    teaching: Mapping[str, float] = field(default_factory=dict)  # as `SearchSpace.teaching` says
    prior: Prior = NO_PRIOR  # of the wide search; later stages have a `history`
    width: float = 1.0  # of the trust region: the exponent of its limits
    opened: Spent = field(default_factory=Spent)
    search_before: Spent = field(default_factory=Spent)
    search_coarse: Spent = field(default_factory=Spent)  # by the coarse probes
    candidates: list[Candidate] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)  # before their first step
    too_slow: dict[str, Refusal] = field(default_factory=dict)  # by candidate, after a few steps
    decision: Decision | None = None
    decided: Spent = field(default_factory=Spent)  # the run's totals when its commit began
    #: Fitted surrogates, by their evidence (`search.bayesian.rewards.Evidence`) and their box.
    surrogates: "dict[tuple[Hashable, Box], AnySurrogate | None]" = field(default_factory=dict, compare=False)

    @property
    def probes(self) -> list[Probe]:
        """The finished probes in the order of asking, without those that were too slow."""
        done = [each for each in self.candidates if each.id in self.readings and each.id not in self.too_slow]
        return [Probe(candidate, self.readings[candidate.id]) for candidate in done]

    @property
    def rung(self) -> int:
        """The rung of the last candidate."""
        return self.candidates[-1].rung if self.candidates else 0

    def at(self, rung: int) -> "Stage":
        """Return the stage with its candidates of `rung` alone: probes are compared with those of their rung."""
        if all(candidate.rung == rung for candidate in self.candidates):
            return self
        return replace(self, candidates=[candidate for candidate in self.candidates if candidate.rung == rung])

    @property
    def decisive(self) -> "Stage":
        """The stage with the probes that decide it alone: those of the last rung that has some."""
        last = self.at(self.rung)
        return last if last.probes else self.at(0)

    @property
    def is_pinned(self) -> bool:
        """Return whether the learning rate is pinned: then nothing is searched."""
        return "learning_rate" in self.steered.pinned

    @property
    def is_on_ramp(self) -> bool:
        """Return whether the commit begins before the rate has risen to what the wide search found."""
        return not self.course.ramp.is_over

    @property
    def is_displaced(self) -> bool:
        """Return whether steers have changed the incumbent."""
        return self.steered.unsteered not in (None, self.incumbent)

    @property
    def pending(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.id not in self.readings]

    @property
    def lacks_control(self) -> bool:
        """Return whether the incumbent's probe was too slow, so there is nothing to compare others with."""
        return self.has_incumbent and bool(self.candidates) and self.candidates[0].id in self.too_slow

    @property
    def is_full(self) -> bool:
        """Return whether no further probe fits."""
        return any(refusal.kind == "no_room" for refusal in self.refused)

    @property
    def tried(self) -> list[Candidate | Refusal]:
        """All proposals, whether or not they were probed."""
        return [*self.candidates, *self.refused]


def is_barred(values: Values, diverged: tuple[Values, ...]) -> bool:
    """Return whether `values` are as likely to diverge as any of those that did."""
    return values.learning_rate >= barred_from(values, diverged)


def barred_from(values: Values, diverged: tuple[Values, ...]) -> float:
    """Return the learning rate from which on `values` would be barred; infinity: none is."""
    alike = (other.learning_rate for other in diverged if are_within(values, other, BARRED_FACTOR, BARRED_AXES))
    return BARRED_SHARE * min(alike, default=math.inf)
