"""Segments: the order to train some steps, and the results that workers report."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.spec.ranges import SEARCHABLE

Purpose = Literal["gradient", "parameters", "state", "control", "padding"]
Direction = Literal["min", "max"]


class Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Segment(Value):
    """An order to take `num_steps` optimizer steps while the learning rate moves linearly between two values.

    The steps may be part of a longer linear piece. Where the piece is cut does not change its rates.
    """

    num_steps: int
    learning_rate: float
    final_learning_rate: float | None = None  # at the last step of the linear piece; None: constant
    piece_steps: int | None = None  # length of that piece; None: these steps are all of it
    piece_from: int = 0  # steps of the piece that come before these
    level: float | None = None  # density or absolute threshold; None: the exchange has no level
    # From here on, None stands for the configuration's own value.
    batch_size: int | None = None  # samples per rank and micro-batch
    momentum: float | None = None  # of Adam kinds: the first beta
    weight_decay: float | None = None
    nesterov: bool | None = None
    period: int | None = None  # steps from one averaging of the parameters to the next
    gamma: float | None = None  # share of the activations that is dropped
    share: float | None = None  # share of the blocks that a step trains
    outer_learning_rate: float | None = None  # of the outer optimizer, which moves all ranks after a round
    outer_momentum: float | None = None  # of the outer optimizer
    option: str | None = None  # the one to train by; always given under `exchange: {kind: auto}`

    def learning_rate_at(self, index: int) -> float:
        """Return the rate of step `index` (from 0): linear from the first to the final value of the piece."""
        final, last = self.final_learning_rate, (self.piece_steps or self.num_steps) - 1
        if final is None or last == 0:
            return self.learning_rate
        place = self.piece_from + index
        if place == last:
            return final  # rounding in the sum below could turn a final 0 into a negative rate
        return self.learning_rate + (final - self.learning_rate) * place / last

    @property
    def options(self) -> dict[str, Any]:
        """The searched values besides rate and level, by name."""
        given = {name: getattr(self, name) for name in (*SEARCHABLE, "option")}
        return {name: value for name, value in given.items() if value is not None}


class StepTimes(Value):
    """Seconds that steps took, by activity: sums over a segment, for one rank or averaged over the ranks.

    A step takes `compute` + `exposed`. `compress` and `wire` are the exchange's own time, part of which is hidden
    behind backward. If a background thread averages while training goes on, `exposed` counts only the wait for it.
    """

    compute: float  # seconds in which training did not wait: forward, backward, update
    exposed: float  # seconds in which it waited for the exchange after backward, or was inside an average
    compress: float  # seconds of the exchange's own work: selecting, coding, adding up
    wire: float  # seconds inside collectives, waits for other ranks among them

    def plus(self, other: "StepTimes") -> "StepTimes":
        """Return the sums of both."""
        return StepTimes(**{name: value + getattr(other, name) for name, value in self})


class SegmentResult(Value):
    """The result of a segment. Each series has one entry per finished step.

    A segment that diverges ends early, on all ranks at once.
    """

    first_step: int
    losses: tuple[float, ...]  # mean over the ranks' mini-batches, before the update; a rank alone: its own
    step_seconds: tuple[float, ...]  # slowest rank
    waits: tuple[float, ...] = ()  # seconds per step (see `RoundWait`); nan: not known yet; (): not measured
    bytes_sent: tuple[dict[Purpose, int], ...]  # per rank, over the whole segment
    bytes_within: tuple[dict[Purpose, int], ...] = ()  # the same, sent to ranks of the same node: not in `bytes_sent`
    gradient_scales: tuple[
        float, ...
    ] = ()  # root mean square of the mean gradient, before clipping; of a rank alone its own
    alignments: tuple[float, ...] = ()  # cosine between the descent direction and the update before; 0: none is known
    own: dict[str, tuple[float, ...]] = Field(default_factory=dict)  # returned by `loss`, by name; a rank's, or means
    bytes_dense: int  # what a rank, or the leader of a node, would have sent without compression
    density: float | None = None  # measured mean share of entries sent; None: dense exchange
    threshold: float | None = None  # in force at the segment's end
    times: StepTimes | None = (
        None  # of the steps; None: not measured, as on a GPU, whose work no clock of the host sees
    )
    saved_bytes: int = 0  # kept for backward in the first step, on the rank that kept most; without parameters
    memory_bytes: int = 0  # the peak so far, on the rank that needs most: of its GPU, else of its process
    steps_by_workers: dict[int, int] = Field(default_factory=dict)  # where ranks may be away; {}: all took all steps
    batch_samples: int | None = None  # of a rank's step, with all its micro-batches; None: a stream does not say
    steps_to_meeting: int = 0  # until the ranks' parameters are equal again; 0: they are, or never will be
    meets: bool = False  # ranks that trained apart average next; until then, the last loss is each rank's own
    diverged: bool = False  # the mean loss or a gradient was not finite; what was averaged in every step is unchanged


class Written(Value):
    """A file of evaluated weights, and the bytes that were sent to make it."""

    sha256: str | None  # of the file; None: another rank wrote it
    bytes_sent: tuple[dict[Purpose, int], ...]  # per rank
    bytes_within: tuple[dict[Purpose, int], ...]  # the same, sent to ranks of the same node


class Evaluation(Value):
    """Loss and metrics on one data set, in the workload's units. Schedule-Free evaluates its averaged iterate."""

    loss: float
    metrics: dict[str, float] = Field(default_factory=dict)  # the workload's own
    num_samples: int
    averaged: bool = False  # of the average of the weights
    has_average: bool = False  # there is one, which may be evaluated too
    bytes_sent: tuple[dict[Purpose, int], ...] = ()  # per rank
    bytes_within: tuple[dict[Purpose, int], ...] = ()  # the same, sent to ranks of the same node
