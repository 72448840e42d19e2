"""dist-EF-SGD: signs to a server and back, with errors that follow the learning rate. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient
from trainers.spec.method import Method, Paper
from trainers.spec.two_way import TwoWayConfig


class DistEfSgdConfig(TwoWayConfig):
    """Signs to a server and back; errors follow the learning rate, momentum is the workers' (Zheng et al., 2019)."""

    kind: Literal["dist_ef_sgd"] = "dist_ef_sgd"
    momentum: Coefficient = Field(
        0.0, description="Nesterov's, of each worker, before it compresses; the optimizer's own must then be 0"
    )

    @property
    def without_momentum(self) -> str | None:
        return "momentum: 0" if self.momentum else None


METHOD = Method(
    "exchange",
    DistEfSgdConfig,
    "trainers.methods.exchange.dist_ef_sgd.exchange:build",
    papers=(
        Paper(
            "Zheng, Huang, Kwok",
            "Communication-efficient distributed blockwise momentum SGD with error-feedback",
            "NeurIPS",
            2019,
        ),
    ),
)
