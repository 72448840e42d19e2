"""The order that a group of workers gets to train some steps, and its report."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.spec.ranges import SEARCHABLE

Purpose = Literal["gradient", "parameters", "state", "control", "padding"]
Direction = Literal["min", "max"]


class Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Segment(Value):
    """`num_steps` optimizer steps with a learning rate that goes linearly from one value to another.

    They may be a part of a longer straight piece, whose rates do not depend on where it is cut.
    """

    num_steps: int
    learning_rate: float
    final_learning_rate: float | None = None  # of the last step of the straight piece; None: constant
    piece_steps: int | None = None  # of that piece, of which these steps are a part; None: they are all of it
    piece_from: int = 0  # steps of the piece before these
    level: float | None = None  # density or absolute threshold; None: the exchange has no level
    # None from here on: the configuration's own
    batch_size: int | None = None  # samples per rank and micro-batch
    momentum: float | None = None  # of Adam kinds: the first beta
    weight_decay: float | None = None
    nesterov: bool | None = None
    period: int | None = None  # steps from one averaging of the parameters to the next
    gamma: float | None = None  # share of the activations that is dropped
    share: float | None = None  # of the blocks, those that a step trains
    outer_learning_rate: float | None = None  # of the optimizer that moves all ranks after a round
    outer_momentum: float | None = None  # of the same
    option: str | None = None  # of `exchange: {kind: auto}`, whose segments always name one

    def learning_rate_at(self, index: int) -> float:
        """Return the rate of step `index` (from 0): linear from the first to the final value of the piece."""
        final, last = self.final_learning_rate, (self.piece_steps or self.num_steps) - 1
        if final is None or last == 0:
            return self.learning_rate
        place = self.piece_from + index
        if place == last:
            return final  # which the sum below may miss, by so little that a final 0 would become negative
        return self.learning_rate + (final - self.learning_rate) * place / last

    @property
    def options(self) -> dict[str, Any]:
        """The searched values besides rate and level, by name."""
        given = {name: getattr(self, name) for name in (*SEARCHABLE, "option")}
        return {name: value for name, value in given.items() if value is not None}


class StepTimes(Value):
    """The time of steps, by what it went to: sums over a segment, of a rank or the mean over ranks.

    `compute` and `exposed` make up the steps. `compress` and `wire` are those of the exchange, which is partly hidden
    behind backward. Of an average that a thread of its own makes beside training, `exposed` has the wait for it alone.
    """

    compute: float  # seconds in which training did not wait: forward, backward, update
    exposed: float  # seconds in which it waited for the exchange after backward, or was inside an average
    compress: float  # seconds of the exchange's own work: selecting, coding, adding up
    wire: float  # seconds inside collectives, waits for other ranks among them

    def plus(self, other: "StepTimes") -> "StepTimes":
        """Return both together."""
        return StepTimes(**{name: value + getattr(other, name) for name, value in self})


class SegmentResult(Value):
    """One entry per finished step in each series; it ends early, on all ranks at once, when it diverges."""

    first_step: int
    losses: tuple[float, ...]  # mean over the ranks' mini-batches, before the step's update; of a rank alone its own
    step_seconds: tuple[float, ...]  # slowest rank
    waits: tuple[float, ...] = ()  # seconds, as `RoundWait` tells them; nan: not known yet; (): not measured
    bytes_sent: tuple[dict[Purpose, int], ...]  # per rank, over the whole segment
    bytes_within: tuple[dict[Purpose, int], ...] = ()  # the same, sent to ranks of the same node: not in `bytes_sent`
    gradient_scales: tuple[
        float, ...
    ] = ()  # root mean square of the mean gradient, before clipping; of a rank alone its own
    alignments: tuple[float, ...] = ()  # cosine between the descent direction and the update before; 0: none is known
    bytes_dense: int  # what a rank, or the leader of a node, would have sent without compression
    density: float | None = None  # measured mean share of entries sent; None: dense exchange
    threshold: float | None = None  # in force at the segment's end
    times: StepTimes | None = (
        None  # of the steps; None: not measured, as on a GPU, whose work no clock of the host sees
    )
    saved_bytes: int = 0  # kept for backward in the first step, by the rank that kept most; parameters apart
    steps_by_workers: dict[int, int] = Field(default_factory=dict)  # where ranks may be away; {}: all took all steps
    batch_samples: int | None = None  # of a rank's step, with all its micro-batches; None: a stream does not say
    steps_to_meeting: int = 0  # until ranks that have trained apart have equal parameters; 0: they have, or never will
    meets: bool = False  # ranks that have trained apart are to meet next: the last step's loss is each one's own
    diverged: bool = False  # the mean loss or a gradient was not finite; what was averaged in every step is unchanged


class Written(Value):
    """The evaluated weights as written to a file, and what was sent for it."""

    sha256: str | None  # of the file; None: another rank wrote it
    bytes_sent: tuple[dict[Purpose, int], ...]  # per rank
    bytes_within: tuple[dict[Purpose, int], ...]  # the same, sent to ranks of the same node


class Evaluation(Value):
    """The evaluated (for Schedule-Free: averaged) iterate on one data set, in the workload's units."""

    loss: float
    metrics: dict[str, float] = Field(default_factory=dict)  # the workload's own, each a mean over the samples
    num_samples: int
    bytes_sent: tuple[dict[Purpose, int], ...] = ()  # per rank
    bytes_within: tuple[dict[Purpose, int], ...] = ()  # the same, sent to ranks of the same node
