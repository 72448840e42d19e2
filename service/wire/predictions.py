"""A prediction of each method's cost, as the API answers it."""

from typing import Any, Literal

from pydantic import Field

from service.wire.base import View

#: Tasks with recorded losses. In those that end in `apart`, and in the first three, the hosts' data differ.
Task = Literal[
    "one-large-layer", "residual-net", "transformer", "images", "images-apart", "text", "text-apart"
]  # fmt: skip


class Span(View):
    """A predicted number, and where four of five measured ones are expected."""

    expected: float
    low: float
    high: float


class MethodPrediction(View):
    """A method on the link."""

    method: str = Field(description="as benchmarks name it; `this job`: the job's own choice")
    job: dict[str, Any] = Field(description="the parts of a job that choose it")
    bytes_per_step: float = Field(description="sent by one host, or by one worker of its own host")
    step_s: Span
    compute_s: float
    exchange_s: float = Field(description="of a step, the method's own work")
    wire_s: float = Field(description="of a step, waiting for the link")
    steps: float | None = Field(description="in the budget; null: it is unlimited")
    budget_s: float | None = Field(description="seconds of the whole budget")
    budget_bytes: float | None = Field(description="bytes of the whole budget")
    steps_ratio: Span | None = Field(description="steps to a loss, as a multiple of dense training's; null: unknown")
    loss_s: Span | None = Field(description="until the loss that dense training has after `dense_steps`; null: unknown")
    known_from: str = Field(description="the rows behind `steps_ratio`, or why it is unknown")
    num_missed: int = Field(
        0,
        description="seeds of these rows that did not reach the loss; with any, `steps_ratio` and `loss_s` have no "
        "upper end: `high` is at least ten times `expected`, and more is possible",
    )
    spare_ratio: float = Field(description="it may take so many times dense training's steps and still be as fast")
    pays_below_mbps: float | None = Field(
        description="rate below which it beats dense training: to a loss if known, else by the step; 0: at none; "
        "null: at any, or at any above `pays_above_mbps`"
    )
    pays_above_mbps: float | None = Field(
        None, description="rate above which alone it does, as with more bytes in fewer rounds; null: there is none"
    )


class Prediction(View):
    """All methods that fit a job, the fastest first: to a loss where that is known, then by the step."""

    workers: int
    hosts: int
    mbps: float
    latency_ms: float
    num_parameters: int
    dense_steps: int | None
    task: Task | None = Field(description="recorded, whose losses stand for the job's")
    methods: tuple[MethodPrediction, ...]
    assumptions: tuple[str, ...]
