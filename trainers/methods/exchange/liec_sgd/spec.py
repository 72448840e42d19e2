"""LIEC-SGD: signs both ways, a worker's error applied at once, dense averages now and then. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Period
from trainers.spec.method import Method, Paper
from trainers.spec.two_way import DriftingConfig, Shapes
from trainers.traffic.buckets import split
from trainers.traffic.collectives import NOTHING, Traffic, all_reduce, dense_bucket, num_elements
from trainers.traffic.sizes import WORD_BYTES


class LiecSgdConfig(DriftingConfig):
    """Signs both ways, a worker's error applied at once, averages every `period` steps (Cheng et al., 2024)."""

    kind: Literal["liec_sgd"] = "liec_sgd"
    period: Period = Field(100, description="steps from one dense average to the next")

    def meeting_traffic(self, shapes: Shapes, *, num_workers: int, num_iterates: int = 1) -> Traffic:
        gradients = sum((dense_bucket(each, num_workers) for each in split(shapes, self)), NOTHING)
        if self.period == 1:  # nobody drifts apart
            return gradients
        return gradients + all_reduce(WORD_BYTES * num_iterates * num_elements(shapes), num_workers)


METHOD = Method(
    "exchange",
    LiecSgdConfig,
    "trainers.methods.exchange.liec_sgd.exchange:build",
    policy="trainers.methods.exchange.liec_sgd.policy:LiecSgd",
    papers=(
        Paper(
            "Cheng, Shen, Xu, Qian, Wu, Zhou, Zhang, Tao, Chen",
            "Communication-efficient distributed learning with local immediate error compensation",
            "arXiv:2402.11857",
            2024,
        ),
    ),
    beside={"optimizer": {"kind": "sgd", "momentum": 0}},
)
