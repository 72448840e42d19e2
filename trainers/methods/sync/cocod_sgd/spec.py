"""CoCoD-SGD: parameters are averaged while workers train on. Pydantic only."""

from typing import Literal

from trainers.spec.method import Method, Paper
from trainers.spec.sync import DelayedAverageConfig


class CocodSgdConfig(DelayedAverageConfig):
    """Average while the workers train on, and add what they did meanwhile (Shen et al., 2019)."""

    kind: Literal["cocod_sgd"] = "cocod_sgd"


METHOD = Method(
    "sync",
    CocodSgdConfig,
    "trainers.methods.sync.cocod_sgd.policy:CocodSgd",
    papers=(
        Paper(
            "Shen, Xu, Liu, Liang, Cheng",
            "Faster distributed deep net training: computation and communication decoupled stochastic gradient descent",
            "IJCAI",
            2019,
        ),
    ),
)
