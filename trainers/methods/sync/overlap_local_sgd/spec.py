"""Overlap-Local-SGD: workers are pulled to an anchor. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, Period
from trainers.spec.method import Method, Paper
from trainers.spec.sync import DelayedAverageConfig


class OverlapLocalSgdConfig(DelayedAverageConfig):
    """Pull the workers to an anchor, which is averaged while they train on (Wang, Liang and Joshi, 2020)."""

    kind: Literal["overlap_local_sgd"] = "overlap_local_sgd"
    period: Period | tuple[Period, Period] = Field(2, description="steps from one averaging to the next")
    pull: float = Field(0.6, gt=0, le=1, description="how far a worker goes to the anchor: 1 is all the way")
    momentum: Coefficient = Field(0.7, description="of the anchor")


METHOD = Method(
    "sync",
    OverlapLocalSgdConfig,
    "trainers.methods.sync.overlap_local_sgd.policy:OverlapLocalSgd",
    papers=(
        Paper(
            "Wang, Liang, Joshi",
            "Overlap local-SGD: an algorithmic approach to hide communication delays in distributed SGD",
            "ICASSP",
            2020,
        ),
    ),
)
