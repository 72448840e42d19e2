"""The base of every sync policy's configuration: what it averages, what that sends, and what it goes with.

A policy that says nothing of a choice averages exactly, and refuses whatever would not. Pydantic only, so that a job
can be checked without torch.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import ExchangeBase, Period, UpdateConfig
from trainers.spec.ranges import Config
from trainers.traffic.buckets import split
from trainers.traffic.collectives import Traffic, all_reduce, num_elements
from trainers.traffic.sizes import WORD_BYTES

Shapes = Sequence[Sequence[int]]
#: What the bytes of a policy are billed as.
Payload = Literal["gradient", "parameters"]


class SyncBase(Config):
    """A policy that keeps the workers' parameters together."""

    payload: ClassVar[Payload] = "parameters"
    #: Whether its policy sets rates or gradients of its own, which a loop of the user's own keeps to itself.
    sets_rates: ClassVar[bool] = False

    kind: str

    @property
    def overlapped(self) -> float:
        """The share of the steps that workers take while an average is under way."""
        return 0.0

    @property
    def num_parts(self) -> int:
        """The number of parts of the parameters, which are averaged one after the other in a round."""
        return 1

    def absence_conflict(self) -> str | None:
        """Return why workers cannot leave and come back between two averages, and what to give; None: they can.

        They can where nothing but what all of them took over from the last average has to be agreed on.
        """
        return (
            f"under `sync: {{kind: {self.kind}}}` the workers cannot go on without one of them: leave out "
            "`workers.min`, or give `sync: {kind: local_sgd}` or `{kind: diloco}`"
        )

    def conflict(self, exchange: ExchangeBase, optimizer: str) -> str | None:
        """Return why this does not go with `exchange`, or with an optimizer of this kind; None: it does."""
        if exchange.competes:
            return (
                f"`auto` chooses itself how often workers meet, and `{self.kind}` says it too: leave `sync` out, or "
                "give one `exchange`, as `{kind: none}`"
            )
        if isinstance(exchange, UpdateConfig):
            return (
                f"`{exchange.kind}` returns a direction to step by at once, which `{self.kind}` does not do: give "
                "`sync: {kind: every_step}`, or `exchange: {kind: none}`"
            )
        return self.exchange_conflict(exchange)

    def exchange_conflict(self, exchange: ExchangeBase) -> str | None:
        """Return why this does not average by one kind of exchange; None: it does."""
        if exchange.is_exact:
            return None
        return (
            f"`{self.kind}` averages exactly, and `{exchange.kind}` does not: give `exchange: {{kind: none}}`, or "
            "`sync: {kind: local_sgd}`, which compresses"
        )

    def meeting_traffic(
        self,
        shapes: Shapes,
        *,
        num_workers: int,
        exchange: ExchangeBase,
        level: float | None = None,
        num_iterates: int = 1,
    ) -> Traffic:
        """Return the traffic of averaging once, by `exchange`.

        `num_iterates` is 2 with Schedule-Free, whose z is averaged too, and else 1; where gradients are averaged, only
        those are. `level` is as in `trainers.traffic.cost.step_traffic`.
        """
        averaged = [*shapes] * (num_iterates if self.payload == "parameters" else 1)
        return exchange.step_traffic(split(averaged, exchange), num_workers, level)


class LocalUpdatesConfig(SyncBase):
    """The base of local updates: workers train by themselves for a while and then average their parameters."""

    period: Period | tuple[Period, Period] = Field(8, description="steps from one averaging to the next")


class CompressedUpdatesConfig(LocalUpdatesConfig):
    """The base of policies that send differences of parameters, by any exchange that loses none of them for good."""

    max_z: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="a worker is left out of an average when it went more standard deviations farther than it used to, "
        "or nowhere finite; published: 3; null: nobody is",
    )
    offload: bool = Field(
        False, description="keep where a round began, and an outer velocity, in host memory, where a GPU's is short"
    )
    warmup_averages: int = Field(10, ge=2, description="the first averages, of which `max_z` leaves nobody finite out")

    def absence_conflict(self) -> str | None:
        return None

    def exchange_conflict(self, exchange: ExchangeBase) -> str | None:
        if exchange.level_policy == "static":
            reason = exchange.difference_conflict()
        else:
            reason = f"`levels: {{kind: {exchange.level_policy}}}` is about gradients of every step"
        if reason is None:
            return None
        return (
            f"`{self.kind}` compresses differences of parameters, and {reason}: give `exchange: {{kind: topk, density: "
            "0.01}` or another one with `memory: residual`, or `{kind: none}`"
        )

    def meeting_traffic(
        self,
        shapes: Shapes,
        *,
        num_workers: int,
        exchange: ExchangeBase,
        level: float | None = None,
        num_iterates: int = 1,
    ) -> Traffic:
        """Return also the traffic of agreeing on who takes part, if anybody may be left out."""
        sent = super().meeting_traffic(
            shapes, num_workers=num_workers, exchange=exchange, level=level, num_iterates=num_iterates
        )
        return sent if self.max_z is None else sent + all_reduce(WORD_BYTES, num_workers)


class DelayedAverageConfig(LocalUpdatesConfig):
    """The base of policies that average while the workers train on."""

    @property
    def overlapped(self) -> float:
        return 1.0

    def meeting_traffic(
        self,
        shapes: Shapes,
        *,
        num_workers: int,
        exchange: ExchangeBase,
        level: float | None = None,
        num_iterates: int = 1,
    ) -> Traffic:
        return all_reduce(WORD_BYTES * num_iterates * num_elements(shapes), num_workers)
