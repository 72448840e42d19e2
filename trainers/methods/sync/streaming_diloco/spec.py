"""Streaming DiLoCo: fragments of the model meet one after the other, behind training. Pydantic only."""

import math
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator

from trainers.methods.sync.diloco.spec import OuterConfig
from trainers.methods.sync.streaming_diloco.fragments import divide
from trainers.spec.exchange import ExchangeBase, Period
from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Conflict
from trainers.spec.sync import Shapes
from trainers.traffic.collectives import NOTHING, Traffic


class StreamingDiLoCoConfig(OuterConfig):
    """DiLoCo whose fragments meet one after the other while the workers train on (Douillard et al., 2025)."""

    kind: Literal["streaming_diloco"] = "streaming_diloco"
    period: Period = Field(
        8, description="steps from one averaging of a fragment to its next: one number, a multiple of `fragments`"
    )
    fragments: int = Field(4, ge=1, le=1024, description="of the model, of whole tensors, which are averaged in turn")
    overlap_steps: int = Field(
        1, ge=0, description="steps that workers take while an average travels; less than `period` / `fragments`"
    )
    merge: Literal["add", "mix", "replace"] = Field(
        "add",
        description="what becomes of a worker's fragment when its average has come: that, and the worker's own steps "
        "meanwhile are added, or mixed with it by `mix`, or lost",
    )
    mix: float | None = Field(None, ge=0, le=1, description="share of the worker's own in `merge: mix`; published: 0.5")

    @field_validator("period", mode="before")
    @classmethod
    def _is_one_number(cls, period: Any) -> Any:
        if isinstance(period, list | tuple):
            raise ValueError(
                "`period` of `streaming_diloco` is a multiple of `fragments`, which a search of a range does not heed: "
                "give one number"
            )
        return period

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.period % self.fragments:
            yield Conflict(
                "/period",
                self.period,
                f"`period` must be a multiple of `fragments` {self.fragments}, got {self.period}",
            )
        elif self.overlap_steps >= self.interval:
            yield Conflict(
                "/overlap_steps",
                self.overlap_steps,
                f"`overlap_steps` must be less than `period` / `fragments`, which is {self.interval}, got "
                f"{self.overlap_steps}",
            )
        if (self.merge == "mix") != (self.mix is not None):
            yield Conflict("/mix", self.mix, "`merge: mix` needs `mix`, a number in [0, 1], and others have none")

    def absence_conflict(self) -> str | None:
        if not self.overlap_steps:
            return None
        return (
            f"an average that is under way for `overlap_steps` {self.overlap_steps} waits for every worker that was "
            "there when it began: give `overlap_steps: 0`, or leave out `workers.min`"
        )

    @property
    def interval(self) -> int:
        """The steps from one fragment's average to the next one's."""
        return self.period // self.fragments

    @property
    def num_parts(self) -> int:
        return self.fragments

    @property
    def overlapped(self) -> float:
        return self.overlap_steps / self.interval

    def meeting_traffic(
        self,
        shapes: Shapes,
        *,
        num_workers: int,
        exchange: ExchangeBase,
        level: float | None = None,
        num_iterates: int = 1,
    ) -> Traffic:
        """Return the traffic of all fragments, each of which is averaged once."""
        fragments = divide([math.prod(shape) for shape in shapes], self.fragments)
        return sum(
            (
                super(StreamingDiLoCoConfig, self).meeting_traffic(
                    [shapes[index] for index in fragment],
                    num_workers=num_workers,
                    exchange=exchange,
                    level=level,
                    num_iterates=num_iterates,
                )
                for fragment in fragments
                if fragment
            ),
            start=NOTHING,
        )


METHOD = Method(
    "sync",
    StreamingDiLoCoConfig,
    "trainers.methods.sync.streaming_diloco.policy:build",
    papers=(
        Paper(
            "Douillard, Donchev, Rush, Kale, Charles, Garrett, Teston, Lacey, McIlroy, Shen, Rame, Szlam, Ranzato, "
            "Barham",
            "Streaming DiLoCo with overlapping communication: towards a distributed free lunch",
            "arXiv:2501.18512",
            2025,
        ),
    ),
)
