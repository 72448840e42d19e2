"""The settings of all controllers, each declared once. Pydantic only, so that a job can be checked without torch."""

import math
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from search.optimizer_traits import usual_rate_told_by
from search.schedule_file import ScheduleFile
from search.types import MAX_LEARNING_RATE, MIN_LEARNING_RATE


def _whole(given: object) -> object:
    if isinstance(given, bool):
        raise ValueError(f"should be a whole number, got {given}")
    return given


#: A whole number above 0. `true` is refused; 1e9 is accepted.
Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=MIN_LEARNING_RATE, le=MAX_LEARNING_RATE)]


#: The most axes that are searched, the learning rate included: a run can afford a dozen probes.
MAX_DIMENSIONS = 4


class Config(BaseModel):
    """Base of every configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Caps(Config):
    """Caps on what a training run spends."""

    seconds: PositiveFloat | None = Field(None, ge=0.01, le=1e9, description="elapsed seconds on the training clock")
    steps: Count | None = Field(None, le=10**12, description="optimizer steps, search included")
    bytes: Count | None = Field(None, le=10**18, description="bytes sent by one worker, search included")


class Budget(Caps):
    """The budget of a training run; with several caps, whichever is reached first ends it."""

    @property
    def counts_bytes_alone(self) -> bool:
        """Return whether bytes are the only cap, so a run that sends nothing would never end."""
        return self.seconds is None and self.steps is None

    @property
    def counts_traffic(self) -> bool:
        """Return whether the bytes of a step use up the budget, directly or by the time that they take."""
        return self.seconds is not None or self.bytes is not None

    @model_validator(mode="after")
    def _has_a_cap(self) -> "Budget":
        if self.seconds is None and self.steps is None and self.bytes is None:
            raise ValueError("a budget needs at least one of `seconds`, `steps`, `bytes`")
        return self


class FixedConfig(Config):
    """The user's guess, held constant."""

    kind: Literal["fixed"] = "fixed"


class CosineConfig(Config):
    """The guess annealed to zero over the budget by half a cosine (Loshchilov & Hutter, 2017, eq. 5, one cycle)."""

    kind: Literal["cosine"] = "cosine"


class LinearConfig(Config):
    """The guess, decayed linearly to zero over the budget."""

    kind: Literal["linear"] = "linear"


class PolynomialConfig(Config):
    """The guess x (1 - f)^power, f the fraction of the budget spent; with power 2 as LARS is published."""

    kind: Literal["polynomial"] = "polynomial"
    power: float = Field(2.0, gt=0, le=10)


CoolDown = Annotated[
    float,
    Field(
        ge=0,
        le=0.5,
        description="last share of the budget, decayed linearly to 0 (plain optimizers; Schedule-Free needs none)",
    ),
]


class OffConfig(Config):
    """The guess without any search: held constant, and for plain optimizers decayed to zero at the end."""

    kind: Literal["off"] = "off"
    cooldown: CoolDown = 0.5


class PastJobs(Config):
    """Jobs that succeeded, with the same optimizer and exchange, whose wide searches the first one may learn from."""

    jobs: tuple[Annotated[str, Field(max_length=100)], ...] = Field(min_length=1, max_length=5)

    @field_validator("jobs")
    @classmethod
    def _are_distinct(cls, jobs: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(jobs)) < len(jobs):
            raise ValueError(f"`jobs` must be distinct, got {list(jobs)}")
        return jobs


def _is_auto_or_jobs(given: object) -> object:
    if given != "auto" and not isinstance(given, dict | PastJobs):
        raise ValueError(f"`transfer` must be `auto` or `{{jobs: [job-...]}}`, got {given!r:.100}")
    return given


#: `auto`: the newest jobs that are like this one.
Transfer = Annotated[
    Annotated[PastJobs, Tag("named")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda given: "named" if isinstance(given, dict | PastJobs) else "auto"),
    BeforeValidator(_is_auto_or_jobs),
]


class ScheduleConfig(Config):
    """A learned schedule, followed step by step; its last values hold to the budget's end."""

    kind: Literal["schedule"] = "schedule"
    schedule: ScheduleFile = Field(description="as `wiretune export` writes it; a job's file may name its `path`")

    @model_validator(mode="before")
    @classmethod
    def _is_given_itself(cls, given: object) -> object:
        if isinstance(given, dict) and "path" in given:
            raise ValueError("`path` is for the command line, which reads the file: give `schedule` itself")
        return given


class RateRange(Config):
    """The range of learning rates to try, of controllers that search them; else it follows from the guess."""

    min_learning_rate: Rate | None = Field(None, description="no lower one is tried or used")
    max_learning_rate: Rate | None = Field(None, description="no higher one is tried or used")

    @model_validator(mode="after")
    def _has_two_ends(self) -> "RateRange":
        low, high = self.min_learning_rate, self.max_learning_rate
        if (low is None) != (high is None):
            raise ValueError(f"give both `min_learning_rate` and `max_learning_rate`, or neither, got {low} and {high}")
        if low is not None and high is not None and not low < high:
            raise ValueError(f"`min_learning_rate` must be below `max_learning_rate`, got {low:g} and {high:g}")
        return self

    @property
    def stated_rates(self) -> tuple[float, float] | None:
        """The lowest and the highest rate; None: not stated."""
        if self.min_learning_rate is None or self.max_learning_rate is None:
            return None
        return self.min_learning_rate, self.max_learning_rate


class StagedConfig(RateRange):
    """The knobs of every controller that probes a few candidates at a stage."""

    revisit: Literal["events", "stages"] = Field(
        "events", description="when a later search opens: after something happened, or at every stage"
    )
    num_stages: int = Field(4, ge=1, le=12, description="commits take 1 : 2 : 4 : ... of the budget")
    probes: int = Field(3, ge=2, le=8, description="probes of a later stage, the incumbent among them")
    probe_fraction: PositiveFloat = Field(0.1, le=0.5, description="a probe's share of its stage's commit")
    max_search_fraction: PositiveFloat | None = Field(
        None,
        le=0.9,
        description="most of the budget that probes may spend; null: 0.2 for `stages`; for `events` 0.2 of 480 steps "
        "and less, half of that for four times as many, at least 0.03",
    )
    min_probe_steps: int = Field(14, ge=4, description="a probe is not shortened below this")
    max_up: float = Field(
        2.0, gt=1, allow_inf_nan=False, description="most a later stage may multiply the learning rate by"
    )
    max_down: float = Field(0.25, gt=0, lt=1, description="most a later stage may shrink the learning rate to")
    max_level_move: float = Field(
        4.0,
        gt=1,
        allow_inf_nan=False,
        description="most a later stage may multiply or divide the level by, and each further axis",
    )
    promote: bool = Field(True, description="a later stage's commit begins with the steps of the probe that won")
    event_step_time: float = Field(
        1.5,
        gt=1,
        allow_inf_nan=False,
        description="an event: by its waits for the exchange a step takes so many times as long, or as short "
        "(budgets in seconds, where a searched value decides what a step costs)",
    )
    event_gradient_scale: float = Field(
        4.0,
        gt=1,
        allow_inf_nan=False,
        description="an event: within a commit the gradient's scale jumps by this factor, up or down",
    )
    event_loss_stds: PositiveFloat = Field(
        3.0, description="an event: no progress for a fifth of the commit, and the loss so far above its forecast"
    )
    event_dwell: float = Field(0.1, gt=0, le=1, description="share of a commit before an event may end it")
    cooldown: CoolDown = 0.5

    def search_fraction(self, num_steps: float | None) -> float:
        """Return the largest share of a budget of `num_steps` steps that probes may spend; None: number unknown.

        A search needs more steps in a longer run, but a smaller share: it falls with the square root of the steps.
        """
        if self.max_search_fraction is not None:
            return self.max_search_fraction
        if self.revisit == "stages" or num_steps is None:
            return MOST_SEARCH
        return min(MOST_SEARCH, max(LEAST_SEARCH, MOST_SEARCH * math.sqrt(SHORT_RUN / num_steps)))

    def least_budget(self, num_steps: int) -> int:
        """Return the smallest budget, in steps, that lets probes spend `num_steps`."""
        too_few, enough = num_steps - 1, math.ceil(num_steps / self.search_fraction(math.inf))
        while enough - too_few > 1:  # what probes may spend grows with the budget
            middle = (too_few + enough) // 2
            if self.search_fraction(middle) * middle >= num_steps:
                enough = middle
            else:
                too_few = middle
        return enough


#: Finalists (longer probes) of the first search, where the coarse ones do not decide.
FINALISTS = 3
#: Where the rate alone is searched, three finalists of this many steps find a better one than coarse probes do
#: (docs/decisions/0016).
PAYING_STEPS = 40
#: Probes may spend the first share of a run of `SHORT_RUN` steps or less, and at least the last share of the longest.
MOST_SEARCH, SHORT_RUN, LEAST_SEARCH = 0.20, 480, 0.03


def num_coarse(decades: float) -> int:
    """Return how many coarse probes cover this many `decades` of learning rate, both ends included."""
    return max(3, math.floor(round(decades, 6)) + 1)  # rounded first: 3.9999999 decades are 4


def first_finalists(stated: int | None, *, has_ranges: bool, has_options: bool, pay: bool = False) -> int:
    """Return the finalists of a first search about the rate that coarse probes find; further axes add more.

    Args:
        stated: `wide_probes` of the job; None: not stated.
        has_ranges: whether more than the rate is searched.
        has_options: whether exchanges compete.
        pay: whether the run is long enough for finalists about the rate alone, by `PAYING_STEPS`.
    """
    if stated is not None:
        return stated
    return FINALISTS if has_ranges or pay else int(has_options)


class WideConfig(StagedConfig):
    """The knobs of controllers whose first stage is one wide search."""

    first_search: Literal["auto", "always", "unless_known"] = Field(
        "auto",
        description="whether a run begins with probes where the learning rate alone is searched: `always`; under "
        "`auto` not where the model's sharpness tells which rate is usual (`sgd`, `schedulefree_sgd`), or one rate is "
        "usual for all models (`muon`, `schedulefree_plus`); under `unless_known` not where its weights do either "
        "(`adamw`, `schedulefree_adamw`), which takes a model that nobody has trained before",
    )
    wide_probes: int | None = Field(
        None,
        ge=0,
        le=16,
        description="longer probes of the first search about the rate that the coarse ones found; null: 3 where a "
        "further value is searched or all have 40 steps each, else 1 where exchanges compete, and none elsewhere",
    )
    wide_probes_per_axis: int = Field(3, ge=0, le=8, description="more of them for each further axis")
    wide_decades: PositiveFloat = Field(
        4.0, le=8, description="decades of learning rate that it looks at first, where no range is stated"
    )
    coarse_probe_steps: int = Field(
        7, ge=2, description="steps of the probes that tell decades apart; up to 20 on batches of less than 16 samples"
    )
    ramp_steps: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="steps in which the rate rises to what the first search found; null: 10 for each matrix of the "
        "model, at most 100 and a third of the run, under `adamw` and for more than four matrices; else none",
    )

    def trusts_usual(self, optimizer: str) -> bool:
        """Return whether a run with `optimizer` begins with its usual rate, if it has one."""
        trusted = ("unless_known",) if usual_rate_told_by(optimizer) in ("weights", None) else ("unless_known", "auto")
        return self.first_search in trusted and self.wide_probes is None and self.stated_rates is None


class BoConfig(WideConfig):
    """One wide Bayesian-optimisation search; later a trust region around the incumbent, on events or at every stage."""

    kind: Literal["bo"] = "bo"
    has_surrogate: ClassVar[bool] = True
    transfer: Transfer | None = Field(
        None, description="past jobs to learn from: `{jobs: [...]}`, or `auto`, the newest 5 that are like this one"
    )
    max_raise: float = Field(
        3.0,
        ge=1,
        le=3,
        description="most that the gradients of commits may raise the rate by between two searches; 1: it stays",
    )
    start_over: bool = Field(
        True,
        description="start a run over at a lower rate if it learns its training data by heart, or its rate was far too "
        "high, in the first half of the budget",
    )
    switch_probability: float = Field(0.95, ge=0.5, lt=1, description="switch only if this sure to be better")
    min_gain: float = Field(0.002, ge=0, allow_inf_nan=False, description="and better by this share of the loss")


class BestProbeWins:
    """Constants of the controllers that compare probes alone: the best one wins."""

    has_surrogate: ClassVar[bool] = False
    max_raise: ClassVar[float] = 1.0
    start_over: ClassVar[bool] = False
    switch_probability: ClassVar[float] = 0.5
    min_gain: ClassVar[float] = 0.0


class SobolConfig(BestProbeWins, WideConfig):
    """The stages of `bo` without a surrogate: space-filling points in place of promising ones, the best probe wins."""

    kind: Literal["sobol"] = "sobol"
    revisit: Literal["events", "stages"] = Field("stages", description="when a later search opens")


class LocalConfig(BestProbeWins, StagedConfig):
    """No wide search and no surrogate: a stage tries the incumbent, x2 and :2, and the best probe wins."""

    kind: Literal["local"] = "local"
    revisit: Literal["events", "stages"] = Field("stages", description="when a search opens")
    wide_probes: ClassVar[int | None] = 0
    wide_probes_per_axis: ClassVar[int] = 0
    wide_decades: ClassVar[float] = 0.0
    coarse_probe_steps: ClassVar[int] = 0
    ramp_steps: ClassVar[int | None] = 0


class AutoLrsConfig(RateRange):
    """The published AutoLRS (Jin et al., ICLR 2021): probes and stages of the learning rate alone, from training loss.

    Half of the budget is search. The published numbers are the defaults, but for a first stage of 1000 steps:
    without `first_stage` it is such that `num_stages` stages and their searches fill the budget.
    """

    kind: Literal["autolrs"] = "autolrs"
    first_stage: Count | None = Field(None, description="steps of the first stage, tau; none: a share of the budget")
    num_stages: int = Field(4, ge=1, le=12, description="stages that fill the budget; without effect on `first_stage`")
    growth: float = Field(2.0, ge=1, le=10, description="each stage is so many times as long as the one before")
    max_growth: float = Field(8.0, ge=1, le=1e6, description="but at most so many times as long as the first")
    num_probes: int = Field(10, ge=2, le=100, description="probes of every stage, one after the other")
    probe_fraction: PositiveFloat = Field(0.1, le=0.5, description="a probe's share of its stage's commit")
    forecast_passes: int = Field(10, ge=0, le=100, description="passes that drop outliers from a probe's losses")
    outlier_fraction: float = Field(0.03, ge=0, le=0.2, description="share of the losses that a pass may drop")
    kappa: PositiveFloat = Field(
        1000.0, le=1e9, description="weight of the deviation in the confidence bound; code: 1e6"
    )


#: The controllers that `search.bayesian.controller.Controller` runs; they search the level too.
SearchConfig = Annotated[BoConfig | SobolConfig | LocalConfig, Field(discriminator="kind")]
#: The kinds of these controllers.
STAGED_KINDS: tuple[str, ...] = tuple(each.model_fields["kind"].default for each in get_args(get_args(SearchConfig)[0]))


ControllerConfig = Annotated[
    BoConfig
    | SobolConfig
    | LocalConfig
    | AutoLrsConfig
    | FixedConfig
    | CosineConfig
    | LinearConfig
    | PolynomialConfig
    | OffConfig
    | ScheduleConfig,
    Field(discriminator="kind"),
]


def range_conflict(controller: ControllerConfig, name: str, number: int) -> str | None:
    """Return why `controller` does not search the range of the value `name`, the `number`th one; None: it does."""
    if not isinstance(controller, StagedConfig):
        return (
            "a range needs a controller that searches it (`bo`, `sobol`; `local` the level), and this is "
            f"`{controller.kind}`"
        )
    if isinstance(controller, LocalConfig) and name != "level":
        return "the controller `local` searches rate and level alone"
    if number > MAX_DIMENSIONS - 1:
        return f"at most {MAX_DIMENSIONS - 1} values are searched beside the learning rate, and this is number {number}"
    return None
