"""The values that pass between a controller and the training loop: frozen, and JSON both ways.

A *candidate* is tried as a *probe*, whose measurements are an *observation*. A *decision* names the values of a stage's
*commit*, the steps that stay.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search.trace import Trace

ForecastStatus = Literal["ok", "no_progress", "overshoot", "diverged", "too_short"]
#: How a running probe or commit continues: it goes on, ends early, or is rolled back, even to the run's first step.
Course = Literal["go_on", "end", "roll_back", "start_over"]
#: The lowest and the highest learning rate that a controller tries or uses, unless a run states others.
MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-8, 1e3
Origin = Literal[
    "incumbent", "wide", "finalist", "vertex", "option", "acquisition", "fallback", "move", "sobol", "random"
]


class Value(BaseModel):
    """Base of the frozen values. NaN and infinity travel as the strings `NaN` and `Infinity`."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


#: The scale of an axis. `log`: the logarithm of x. `complement`: the logarithm of 1 - x. `integer`: the logarithm, on
#: whole numbers. `choice`: false or true, 0 and 1 on the unit cube; a kernel with a length scale per axis then measures
#: the Hamming distance. `name`: one of several that compete; it has no axis with a scale.
Scale = Literal["log", "complement", "integer", "choice", "name"]


class ValueTraits(NamedTuple):
    """The traits of a value that a search may choose. All lists of searched values follow from these."""

    scale: Scale
    costs: bool = False  # whether the bytes or the seconds of a step depend on it


class Values(Value):
    """The values that a controller sets. None: not searched, so the configuration's value holds."""

    learning_rate: Annotated[float, ValueTraits("log")]
    level: Annotated[float | None, ValueTraits("log", costs=True)] = Field(
        None, description="how hard the exchange compresses; None: it has no level"
    )
    batch_size: Annotated[int | None, ValueTraits("integer", costs=True)] = Field(
        None, description="samples per worker and micro-batch"
    )
    momentum: Annotated[float | None, ValueTraits("complement")] = Field(
        None, description="of Adam kinds: the first beta"
    )
    weight_decay: Annotated[float | None, ValueTraits("log")] = None
    nesterov: Annotated[bool | None, ValueTraits("choice")] = None
    period: Annotated[int | None, ValueTraits("integer", costs=True)] = Field(
        None, description="steps from one averaging of the parameters to the next"
    )
    gamma: Annotated[float | None, ValueTraits("complement")] = Field(
        None, description="share of the activations that is dropped"
    )
    share: Annotated[float | None, ValueTraits("log", costs=True)] = Field(
        None, description="of the blocks, those that a step trains on average"
    )
    outer_learning_rate: Annotated[float | None, ValueTraits("log")] = Field(
        None, description="of the optimizer that moves all workers after a round of local updates"
    )
    outer_momentum: Annotated[float | None, ValueTraits("complement")] = Field(None, description="of the same")
    option: Annotated[str | None, ValueTraits("name", costs=True)] = Field(
        None, description="the exchange in force, of several that compete: `threshold 0.01`"
    )
    optimizer: Annotated[str | None, ValueTraits("name")] = Field(
        None, description="the optimizer that trains, of several that the job names: `adamw`"
    )

    @property
    def further(self) -> dict[str, Any]:
        """The values beyond learning rate and level, by name: numbers, booleans, names."""
        given = {name: getattr(self, name) for name in FURTHER}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The `further` values that can change from step to step, so without the optimizer."""
        return {name: value for name, value in self.further.items() if name != "optimizer"}


#: By name, every value that can be searched.
SEARCHED: dict[str, ValueTraits] = {
    name: declared
    for name, field in Values.model_fields.items()
    for declared in field.metadata
    if isinstance(declared, ValueTraits)
}
#: The values beyond learning rate and level, all of them optional.
FURTHER = tuple(name for name in SEARCHED if name not in ("learning_rate", "level"))


#: The types of a value: a choice is false or true, and a name stands for one of several that compete.
Setting = bool | int | float | str


class Band(Value):
    """The numbers that a veto excludes: those above one limit, those below another, or both."""

    above: float | None = Field(None, allow_inf_nan=False, description="values above it are vetoed")
    below: float | None = Field(None, allow_inf_nan=False, description="values below it are vetoed")

    @model_validator(mode="after")
    def _names_numbers(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("a veto of numbers needs `above`, `below` or both")
        if self.above is not None and self.below is not None and self.below > self.above:
            raise ValueError(f"`below` must be at most `above`, {self.above:g}, got {self.below:g}")
        return self

    def narrow(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends of the part of [`low`, `high`] that is left; the first is above the second if none is."""
        below, above = self.below, self.above
        return low if below is None else max(low, below), high if above is None else min(high, above)


class Steer(Value):
    """A person's pins, vetoes, or request for a search, which a running controller follows from the next stage on.

    Names are those of `Values`. A level may go by the exchange's name for it, such as `density`.
    """

    id: int = Field(description="counts from 1 within its job")
    by: str = Field(description="who steers: the name of their key")
    pin: dict[str, Setting] = Field(default_factory=dict, description="by name, the values to use")
    veto: dict[str, Band | tuple[bool | str, ...]] = Field(
        default_factory=dict, description="by name, the values not to use: a band of numbers, or a list"
    )
    search_now: bool = Field(False, description="the next stage searches, if the cap on searching has room")


class Spent(Value):
    """Totals of a training run so far, search included."""

    steps: int = 0
    bytes: int = Field(0, description="sent by one worker")
    seconds: float = Field(0.0, description="on the training clock")


class Piece(Value):
    """A straight piece of the learning rate: `num_steps` from `step` on, linearly from one rate towards the other."""

    step: int
    num_steps: int
    learning_rate: float
    final_learning_rate: float
    piece_steps: int | None = None  # steps until the final rate, where the run leaves the line earlier

    @property
    def end(self) -> int:
        """The step after its last."""
        return self.step + self.num_steps


class Allowance(Value):
    """The allowance of a probe, or the totals that end a commit; the first cap reached counts. None: no cap."""

    steps: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    min_steps: int = Field(1, description="a probe runs at least this many steps, whatever the caps say")


class Candidate(Value):
    """Values to try, from the stage's snapshot, until `allowance` is spent."""

    id: str
    stage: int
    values: Values
    allowance: Allowance
    origin: Origin
    rung: int = Field(0, description="probes of one rung are equally long and compared with each other")
    decay: float = Field(0.0, description="last share of the allowance in which the learning rate falls linearly to 0")
    alone: bool = Field(
        False,
        description="a worker trains it by itself, others beside it; its allowance is in steps",
    )

    def learning_rate_at(self, part: float) -> float:
        """Return the learning rate once the share `part` of the allowance is spent; 0 at the end of a decay."""
        return self.values.learning_rate * (min(1.0, (1 - part) / self.decay) if self.decay else 1.0)


class Observation(Value):
    """The measurements of a probe or a commit. Series have one entry per step.

    A loss that is not finite needs `diverged=True` as well.
    """

    candidate_id: str | None = Field(description="None: the committed line of the open stage")
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    gradient_scales: tuple[float, ...] = Field((), description="root mean square of the mean gradient; () if unknown")
    alignments: tuple[float, ...] = Field(
        (), description="cosine between each step's descent direction and the update before; () if unknown"
    )
    trace: Trace | None = Field(None, description="the whole course, where the series are only its end")
    bytes_sent: int = Field(description="by one worker, during this observation")
    density: float | None = Field(None, description="measured mean share of gradient entries sent")
    steps_to_meeting: int | None = Field(
        None,
        description="until workers that train apart average their parameters; 0: they just have, or train as one; "
        "None: not known",
    )
    diverged: bool = False
    is_cut: bool = Field(False, description="a probe ended before its allowance was spent; never a commit's")
    rolled_back: bool = Field(False, description="a commit's steps were rolled back; never a probe's")
    started_over: bool = Field(False, description="with all steps before them: the run is back at its first step")
    overfits: bool = Field(False, description="of a commit: more steps do not help (`search.curves.overfitting`)")
    spent: Spent = Field(description="the run's totals when this observation ended")
    searched_from: Spent = Field(
        Spent(), description="of a probe: the totals when its search opened; what was spent before is none of its cost"
    )

    @model_validator(mode="after")
    def _says_that_it_diverged(self) -> Self:
        step = next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)
        if step is not None and not self.diverged:
            raise ValueError(
                f"`losses[{step}]` is not finite, got {self.losses[step]}: stop the probe or commit there, and tell "
                "the controller with `diverged=True`, of a commit also with `rolled_back=True`"
            )
        return self


class Forecast(Value):
    """Predicted loss at the horizon."""

    mean: float
    std: float
    status: ForecastStatus
    tail: float | None = Field(
        None, description="where the curve ended; given with `average`, of a forecast that is ok"
    )
    average: float | None = Field(None, description="where its fitted curves lead; never above the tail")


class Refusal(Value):
    """Values that were not probed, or not to the end, because their probe costs too much."""

    values: Values
    origin: Origin
    kind: Literal["too_slow", "no_room"]
    reason: str


class ProbeReport(Value):
    """A probe as its stage's decision saw it."""

    candidate: Candidate
    forecast: Forecast
    reward: float | None = Field(
        description="what ranks it: fall of the log loss over its last half, or minus a forecast; None: diverged"
    )
    variance: float = Field(0.0, description="of the reward's difference to the first probe's")
    posterior_mean: float | None = None
    posterior_std: float | None = None


class GridAxis(Value):
    """An axis of a posterior's grid."""

    name: str = Field(description="a field of `Values`")
    coordinates: tuple[float, ...]


class Posterior(Value):
    """A stage's surrogate on a grid: rewards, higher is better, relative to the stage's first probe.

    A grid of axes with m and n coordinates has m x n entries, row by row: the last axis varies fastest.
    """

    axes: tuple[GridAxis, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _fills_its_grid(self) -> Self:
        size = math.prod(len(axis.coordinates) for axis in self.axes)
        if not len(self.mean) == len(self.std) == size:
            raise ValueError(
                f"`mean` and `std` need {size} entries, a grid's, got {len(self.mean)} and {len(self.std)}"
            )
        return self


class Tax(Value):
    """The cost of searching in a run, up to a decision."""

    budget_share: float = Field(description="spent on probes, as a share of the budget (the largest over its caps)")
    cap_share: float | None = Field(description="the same, as a share of what may be; None: the strategy has no cap")


class Decision(Value):
    """Values of a stage's commit, and why."""

    stage: int
    values: Values
    reason: str = Field(description="one sentence for a person")
    switched: bool
    is_usual: bool = Field(False, description="whether the run begins with what the model tells, without a probe")
    probability: float | None = Field(None, description="P(better than the incumbent)")
    forecast: Forecast | None = Field(None, description="the chosen values' loss at the end of the commit")
    promoted: str | None = Field(None, description="the probe whose steps the commit begins with; None: rewind")
    starts_over: bool = Field(False, description="go back to the run's first step, and train from there")
    commit_until: Allowance = Field(description="run totals at which the commit ends")
    ramp_steps: int = Field(0, description="steps in which the rate rises to that of `values`, first of this commit")
    probes: tuple[ProbeReport, ...] = ()
    refused: tuple[Refusal, ...] = Field((), description="what would have been probed, had there been room")
    search_seconds: float = Field(0.0, description="spent on this stage's probes")
    search_steps: int = 0
    tax: Tax = Tax(budget_share=0.0, cap_share=None)
    forecast_weight: float | None = Field(
        None, description="how far forecasts follow fitted curves, learned; in [0, 1]"
    )
    num_earlier: int = Field(0, description="probes of earlier stages that informed it")
    posterior: Posterior | None = Field(None, description="None: there was no surrogate")
    steers: tuple[Steer, ...] = Field((), description="those of people that held in this stage")

    @property
    def has_stages(self) -> bool:
        """True if its strategy shares the budget among stages: then it has a cap on searching, too."""
        return self.tax.cap_share is not None
