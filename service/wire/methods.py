"""The methods that a job can choose, as the API lists them."""

from typing import Any

from pydantic import Field

from service.wire.base import View
from trainers.spec.knobs import Knob


class PaperView(View):
    """A publication of a method."""

    authors: str = Field(description="family names, in the paper's order")
    title: str
    venue: str
    year: int


class RefusedView(View):
    """A choice that a job cannot make beside the method."""

    part: str
    kind: str
    reason: str = Field(description="with the nearest choice that is possible")


class NeedsView(View):
    """A kind that goes with the method by certain knobs alone, of either."""

    part: str
    kind: str
    knobs: dict[str, dict[str, Any]] = Field(description="by part of the job, besides those of both")


class TrafficView(View):
    """The predicted traffic of one worker in a step: the mean over a period, or over draws, at the job's level."""

    bytes_per_step: float
    rounds_per_step: float = Field(description="times that a step waits for the link's latency")


class MethodView(View):
    """One method, as a job may choose it."""

    name: str
    part: str = Field(description="of the job that it belongs to")
    summary: str
    papers: tuple[PaperView, ...] = Field(description="none: common practice, or our own")
    job: dict[str, Any] = Field(
        description="the parts of a job that choose it, and what they need: a whole job with a workload and a budget"
    )
    knobs: dict[str, tuple[Knob, ...]] = Field(description="by part of the job, as `exchange` or `exchange.levels`")
    combines_with: dict[str, tuple[str, ...]] = Field(
        description="kinds of the other parts, each by itself with its own `job`, in place of what `job` has there"
    )
    needs: tuple[NeedsView, ...] = Field(description="those of `combines_with` that go with it by certain knobs alone")
    refuses: tuple[RefusedView, ...] = Field(description="kinds of the other parts, with the knobs of `job`")
    traffic: TrafficView = Field(
        description="for the shapes and workers asked for, under `sgd` unless `job` says else; of `auto`, the least"
    )


class MethodsView(View):
    """The methods, and what their traffic was predicted for."""

    workload: str | None = Field(description="null: shapes were given")
    num_parameters: int
    workers: int
    methods: tuple[MethodView, ...]
