"""The base of every gradient exchange's configuration: its knobs, its level, its traffic, and what it goes with.

A kind that says nothing of a capability does not have it: whoever needs that capability refuses the kind. Pydantic
only, so that a job can be checked without torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainers.spec.levels import (
    AccordionConfig,
    CalibratedConfig,
    CatConfig,
    LevelsConfig,
    LinkCost,
    StaticConfig,
    WarmupConfig,
)
from trainers.spec.optimizer import OptimizerBase
from trainers.spec.ranges import Config, Conflict, Range
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import NOTHING, Traffic

Density = Annotated[float, Field(gt=0, le=1)]
Threshold = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(ge=0, lt=1)]
#: Steps from one average of the ranks to the next.
Period = Annotated[int, Field(ge=1, le=100_000)]
LevelName = Literal["density", "threshold", "rank", "rank_fraction"]
#: From gradients of so few entries AdamW ended above Schedule-Free SGD, and below it from more (docs/job.md).
FEW_ENTRIES = 0.01


class ExchangeBase(Config):
    """A gradient exchange. Its level, if it has one, is what a controller steers."""

    #: Whether the workers' mean arrives exactly, up to the rounding of float32.
    is_exact: ClassVar[bool] = False
    #: Whether workers may leave and come back between two exchanges: nothing that it keeps depends on their number.
    is_elastic: ClassVar[bool] = False
    #: Whether it has a level for each layer by itself.
    has_layer_levels: ClassVar[bool] = False
    #: Whether it stands for several kinds, of which a search chooses.
    competes: ClassVar[bool] = False
    #: Whether ranks that round differently may step apart by much more, as by factors that each computes by itself.
    amplifies_rounding: ClassVar[bool] = False

    kind: str
    overlap: bool = Field(True, description="send gradients while backward still computes others")
    bucket_mib: float = Field(
        4.0, gt=0, le=1024, description="gradients sent together, in MiB of float32; at most 8 buckets"
    )

    @property
    def keeps_scale(self) -> bool:
        """Return whether what it leaves of a gradient is about as long, so that rates mean what they do without it."""
        return True

    @property
    def level_name(self) -> LevelName:
        """The level's name for people; an exchange without one is told by its density."""
        return "density"

    @property
    def level(self) -> float | tuple[float, float] | None:
        """The level, fixed or [low, high]; None: there is none."""
        return None

    @property
    def densest(self) -> float | None:
        """The level that leaves out least of a gradient; None: there is none."""
        if not isinstance(self.level, tuple):
            return self.level
        return min(self.level) if self.level_name == "threshold" else max(self.level)

    @property
    def is_by_density(self) -> bool:
        """Return whether the level is a density."""
        return self.level is not None and self.level_name == "density"

    @property
    def few_entries(self) -> float | None:
        """The density, if AdamW learns slowly from so few entries of a gradient; None: they are more, or searched."""
        level = self.level
        return level if self.is_by_density and isinstance(level, float) and level <= FEW_ENTRIES else None

    @property
    def without_momentum(self) -> str | None:
        """The knob that spares workers the momentum that they apply before they compress; None: they apply none."""
        return None

    @property
    def level_policy(self) -> str:
        """The kind of what changes the level from step to step; `static`: nothing does."""
        return "static"

    @property
    def drifts(self) -> bool:
        """Return whether workers step by themselves too, so that their parameters differ, as its `policy` sees to."""
        return False

    @property
    def reads_clock(self) -> bool:
        """Return whether what is sent follows from how long a link took that nobody states."""
        return False

    def check_level(self, level: float | None) -> float:
        """Return the level to use: `level`, or the configured one; raises ValueError if it is none."""
        if level is not None and self.level is None:
            raise ValueError(
                f"`level` must be left out, as `{self.kind}` has none, got {level:g}: give an exchange that has one, "
                "such as `topk`, or follow a schedule without `on_level`"
            )
        wanted = self.level if level is None else level
        if wanted is None or isinstance(wanted, tuple):
            raise ValueError(f"`level` must be given where it is searched, got None for the range {wanted}")
        if conflict := self.level_conflict(wanted):
            raise ValueError(f"`level` {conflict}, got {wanted:g}")
        return wanted

    def level_conflict(self, level: float) -> str | None:
        """Return what is wrong with a level, as `must be ...`; None: nothing."""
        return None if 0 < level <= 1 else "must be in (0, 1] for a density"

    def ranges(self) -> Iterator[Range]:
        if isinstance(self.level, tuple):
            yield Range("level", self.level_name, self.level)

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        """Return the traffic of one bucket in one step, at the planned or measured `level`."""
        raise NotImplementedError(f"`{self.kind}` does not say what it sends")

    def step_traffic(self, buckets: Sequence[Bucket], num_workers: int, level: float | None) -> Traffic:
        """Return the traffic of one step. Raises ValueError without a level where one is needed."""
        return sum((self.bucket_traffic(bucket, num_workers, level) for bucket in buckets), start=NOTHING)

    def difference_conflict(self) -> str | None:
        """Return why this cannot send differences of parameters, none of which may be lost for good; None: it can."""
        return f"`{self.kind}` does not say that it sends later what it does not send now"

    def optimizer_conflict(self, optimizer: OptimizerBase, *, clip: float | None) -> str | None:
        """Return why this does not go with the optimizer, or with clipping; None: it does.

        Momentum that workers apply before they compress comes instead of the optimizer's, which an optimizer of one's
        own has to see to itself.
        """
        if optimizer.kind == "from_exchange":
            return (
                f"`from_exchange` steps by a direction that the exchange returns, and `{self.kind}` returns a mean "
                "gradient: give `optimizer: {kind: adamw}`, or `exchange: {kind: demo}`"
            )
        is_plain = optimizer.kind in ("sgd", "lars") and getattr(optimizer, "momentum", None) == 0
        if self.without_momentum is None or is_plain or optimizer.kind == "own":
            return None
        plain = optimizer.kind if optimizer.kind in ("sgd", "lars") else "sgd"
        return (
            f"`{self.kind}` here applies momentum before it compresses: give "
            f"`optimizer: {{kind: {plain}, momentum: 0}}`, or the exchange `{self.without_momentum}`"
        )


class UpdateConfig(ExchangeBase):
    """An exchange that returns the direction to step by: momentum, and what scales it, are the exchange's own."""

    def optimizer_conflict(self, optimizer: OptimizerBase, *, clip: float | None) -> str | None:
        if clip is not None:
            return (
                f"`{self.kind}` returns the direction to step by, whose length is the method's, and `clip` {clip:g} "
                "would shorten that, not a gradient: give `clip: null`, or `exchange: {kind: none}`"
            )
        if optimizer.kind == "from_exchange" and not getattr(optimizer, "momentum", 0):  # which groups may bring
            return None
        return (
            f"`{self.kind}` returns the direction to step by, momentum included: give "
            "`optimizer: {kind: from_exchange}` without momentum, or `exchange: {kind: none}`"
        )


class CorrectedConfig(ExchangeBase):
    """An exchange whose residual can follow the learning rate. Its default is our choice, whatever was published."""

    lr_corrected: bool = Field(False, description="residual: rescale it when the learning rate changes")


class SteeredConfig(ExchangeBase):
    """An exchange whose level can change from step to step."""

    levels: LevelsConfig = Field(StaticConfig(), description="what changes the level from step to step")

    @property
    def level_policy(self) -> str:
        return self.levels.kind

    @property
    def reads_clock(self) -> bool:
        return isinstance(self.levels, CatConfig) and isinstance(self.levels.cost, LinkCost)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if message := self._levels_conflict():
            yield Conflict("/levels", self.levels.kind, message)
        elif isinstance(self.levels, AccordionConfig) and (message := self._critical_conflict(self.levels.critical)):
            critical = self.levels.critical
            yield Conflict("/levels/critical", critical, f"`critical` {message}, got {critical:g}")

    def _levels_conflict(self) -> str | None:
        """Return why `levels` does not go with this exchange, and what does; None: it does."""
        match self.levels:
            case WarmupConfig() if self.level_name != "density":
                return (
                    f"`warmup` lowers a density, and this exchange has a {self.level_name}: give "
                    "`levels: {kind: accordion}`, or leave it out"
                )
            case CalibratedConfig():
                return "`calibrated` is a threshold: give `exchange: {kind: threshold, hold: run}`, or leave it out"
            case CatConfig():
                return "`cat` chooses how many of the largest entries are sent: give `exchange: {kind: topk}`"
        return None

    def _critical_conflict(self, critical: float) -> str | None:
        """Return why `critical` is no level that sends more than the job's, as `must be ...`."""
        if self.level is None:
            return None  # another fault
        if conflict := self.level_conflict(critical):
            return conflict
        low, high = self.level if isinstance(self.level, tuple) else (self.level, self.level)
        if self.level_name == "threshold":
            return None if critical < low else f"must be below the threshold, {low:g}, to send more"
        return None if critical > high else f"must be above the {self.level_name}, {high:g}, to send more"


def group_conflict(exchange: ExchangeBase, optimizer: OptimizerBase, groups: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why `exchange` does not go with the options that parameter groups bring; None: it does."""
    for group in groups:
        brought = {name: group[name] for name in ("momentum", "weight_decay") if name in group}
        if message := exchange.optimizer_conflict(optimizer.model_copy(update=brought), clip=None):
            given = ", ".join(f"{name} {value:g}" for name, value in brought.items())
            return f"a parameter group brings {given}: {message}"
    return None
