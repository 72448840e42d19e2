"""Hard threshold: the entries whose magnitude reaches one cut-off. Pydantic only."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Density, SteeredConfig, Threshold
from trainers.spec.levels import CalibratedConfig
from trainers.spec.method import Competing, Method, Paper
from trainers.spec.ranges import Conflict
from trainers.spec.sparse import SparseConfig


class ThresholdConfig(SparseConfig, SteeredConfig):
    """Send the entries of gradient + residual whose magnitude reaches a threshold (Sahu et al., 2021).

    A pair of numbers is searchable, one number is fixed. With `search: density` (default) the threshold
    follows from a sampled quantile; with `search: absolute` it is given by `threshold`.
    """

    kind: Literal["threshold"] = "threshold"
    search: Literal["density", "absolute"] = "density"
    density: Density | tuple[Density, Density] | None = Field(None, description="share of entries sent, in (0, 1]")
    threshold: Threshold | tuple[Threshold, Threshold] | None = Field(None, description="absolute cut-off, >= 0")
    hold: Literal["stage", "run"] = Field(
        "stage",
        description="stage, our choice: the density holds, the threshold follows; run: the threshold, as published",
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        wanted, other = self.level_name, "threshold" if self.search == "density" else "density"
        extra = getattr(self, other)
        if getattr(self, wanted) is None:
            message = f"`search: {self.search}` needs `{wanted}`: a number, or a pair [low, high]"
            yield Conflict(f"/{wanted}", None, message)
        if extra is not None:
            message = f"`{other}` has no effect with `search: {self.search}`; leave it out"
            yield Conflict(f"/{other}", extra, message)

    @property
    def level_name(self) -> Literal["density", "threshold"]:
        return "density" if self.search == "density" else "threshold"

    @property
    def level(self) -> float | tuple[float, float] | None:
        return self.density if self.search == "density" else self.threshold

    def level_conflict(self, level: float) -> str | None:
        if self.search == "density":
            return super().level_conflict(level)
        return None if level >= 0 else "must be >= 0 for a threshold"

    def _levels_conflict(self) -> str | None:
        if not isinstance(self.levels, CalibratedConfig):
            return super()._levels_conflict()
        if self.search == "density" and self.hold == "run":
            return None
        return "`calibrated` finds the threshold of a density, which then holds: give `search: density` and `hold: run`"


METHOD = Method(
    "exchange",
    ThresholdConfig,
    "trainers.methods.exchange.threshold.exchange:build",
    papers=(
        Paper(
            "Sahu, Dutta, Abdelmoniem, Banerjee, Canini, Kalnis",
            "Rethinking gradient sparsification as total error minimization",
            "NeurIPS",
            2021,
        ),
    ),
    least={"density": 0.01},
    competing=Competing("density", (0.01, 0.001), as_dense=0.11, power=0.385),
)
