"""STL-SGD: local SGD in stages. Pydantic only."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Conflict, Onset
from trainers.spec.sync import CompressedUpdatesConfig


class StlSgdConfig(CompressedUpdatesConfig):
    """Local SGD in stages of falling rates and growing periods (Shen et al., 2021)."""

    sets_rates: ClassVar[bool] = True

    kind: Literal["stl_sgd"] = "stl_sgd"
    first_stage: int = Field(100, ge=1, description="steps of the first stage")
    growth: Literal["double", "linear"] = Field(
        "double",
        description="double: each stage halves the rate and is twice as long (SC, and NC option 1); linear: stage s "
        "has 1/s of the first rate and s times its length (NC option 2)",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="NC: each stage also minimises ||x - x_s||^2 / (2 gamma), x_s being where it began; None: SC",
    )
    data: Literal["auto", "iid", "non_iid"] = Field(
        "auto",
        description="the period grows as the rate falls (iid), or as its square root does (non_iid); auto: as the "
        "job's partition says",
    )

    def takes_effect_at(self) -> Onset:
        return Onset(self.first_stage, "its rate falls and its period grows", ("first_stage",))

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.growth == "linear" and self.gamma is None:
            yield Conflict(
                "/gamma", None, "`growth: linear` is for non-convex problems: it needs `gamma`, a number > 0"
            )


METHOD = Method(
    "sync",
    StlSgdConfig,
    "trainers.methods.sync.stl_sgd.policy:StlSgd",
    papers=(
        Paper(
            "Shen, Cheng, Liu, Xu", "STL-SGD: speeding up local SGD with stagewise communication period", "AAAI", 2021
        ),
    ),
)
