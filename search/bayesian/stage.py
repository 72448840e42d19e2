"""The open stage: what was asked in it and what came back. The one mutable value that a controller holds."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from search.budget.link import Link
from search.curves.calibration import Outcome
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Event, StepTime
from search.curves.faults import LossLevel, Probed
from search.past_jobs.prior import NO_PRIOR, Prior
from search.space import Box, are_within
from search.types import Candidate, Decision, Origin, Refusal, Spent, Steer, Values

if TYPE_CHECKING:
    from search.surrogate.model import AnySurrogate

#: A rate that diverged bars those at or above this share of it ...
BARRED_SHARE = 0.7
#: ... at values within this factor of what also decides whether a rate diverges (momentum: of 1 - momentum).
BARRED_FACTOR = 3.0
#: Rung 0 are the probes that tell decades apart.
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


#: Scores of the last stages: see `search.bayesian.history`.
History = tuple[tuple[Score, ...], ...]


@dataclass(frozen=True)
class CommittedLine:
    """The committed line where a stage opens, as the stages before have shown it."""

    start_loss: float | None = None  # where the stage starts
    initial: float | None = None  # the loss at which the run started
    best: LossLevel | None = None  # the lowest that the line has reached
    probed: Probed | None = None  # the lowest loss that a probe of an earlier stage ended at
    gradient_scale: float | None = None  # in the run's beginning
    num_taken_back: int = 0  # commits
    before: Ending | None = None  # how the stage before ended
    loss_before: float | None = None  # the loss at which that stage started
    events: tuple[Event, ...] = ()  # what happened in it
    reference: StepTime | None = None  # a step after the last search; None: this commit will show it
    link: Link | None = None
    history: History = ()
    drift: float = 0.0  # of rewards from stage to stage, as far as `history` shows it
    outcomes: tuple[Outcome, ...] = ()  # of the last stages that had a forecast
    barred: tuple[Values, ...] = ()  # diverged on the line
    lowest_diverged: float | None = None  # the lowest rate at which a probe of an earlier stage diverged


NO_RAMP = Ramp()


@dataclass(frozen=True)
class RateCourse:
    """The way that the rate goes on from what a stage decides, without a probe."""

    ramp: Ramp = NO_RAMP  # after the wide search
    rise: float = 1.0  # what this commit has multiplied the rate by so far ...
    raised: float = 1.0  # ... and those before it since the last search
    may_rise: bool = True  # False: something happened on the line, and no commit has met its forecast since
    awakens: bool = False  # nothing was learned yet: the rate rises until something is
    has_awakened: bool = False  # an earlier stage did: what rate it was lost at is known


class Steered(NamedTuple):
    """The wishes of people for a stage."""

    steers: tuple[Steer, ...] = ()  # that hold in it
    pinned: frozenset[str] = frozenset()  # the values that they have pinned
    unsteered: Values | None = None  # the incumbent as it would be without them; None: as it is
    search_asked: bool = False


NOT_STEERED = Steered()


@dataclass
class Stage:
    """Mutable: a stage from its first candidate to its decision."""

    index: int
    incumbent: Values
    has_incumbent: bool = True  # False: the wide search, which compares with nothing
    note: str = ""  # why the incumbent is not what the stage before used
    rejected: tuple[Values, ...] = ()  # rolled back, from where this stage starts again
    line: CommittedLine = CommittedLine()
    course: RateCourse = RateCourse()
    steered: Steered = NOT_STEERED
    is_paired: bool = True  # its probes of one batch size see the same batches, step by step
    teaching: Mapping[str, float] = field(default_factory=dict)  # as `SearchSpace.teaching` says
    prior: Prior = NO_PRIOR  # of the wide search; later stages have a `history`
    width: float = 1.0  # of the trust region: the exponent of its limits
    opened: Spent = field(default_factory=Spent)
    search_before: Spent = field(default_factory=Spent)
    search_coarse: Spent = field(default_factory=Spent)  # by the probes that tell decades apart
    candidates: list[Candidate] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)  # without a step
    too_slow: dict[str, Refusal] = field(default_factory=dict)  # by candidate, after a few steps
    is_complete: bool = False
    decision: Decision | None = None
    decided: Spent = field(default_factory=Spent)  # the run's totals when its commit began
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

    @property
    def decisive(self) -> "Stage":
        """The stage as if those probes were all that decide it: of the last rung that has some."""
        last = self.at(self.rung)
        return last if last.probes else self.at(0)

    @property
    def is_pinned(self) -> bool:
        """Return whether a person has pinned its learning rate: then there is nothing to search."""
        return "learning_rate" in self.steered.pinned

    @property
    def is_on_ramp(self) -> bool:
        """Return whether its commit begins before the rate has risen to what the wide search found."""
        return not self.course.ramp.is_over

    @property
    def is_displaced(self) -> bool:
        """Return whether it begins with other values than it would without what people say."""
        return self.steered.unsteered not in (None, self.incumbent)

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
