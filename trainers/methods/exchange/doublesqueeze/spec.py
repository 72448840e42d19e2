"""DoubleSqueeze: signs to a server and back, with error feedback on both sides. Pydantic only."""

from typing import ClassVar, Literal

from trainers.spec.method import Method, Paper
from trainers.spec.two_way import TwoWayConfig


class DoubleSqueezeConfig(TwoWayConfig):
    """Signs to a server and back, with error feedback on both sides (DoubleSqueeze, Tang et al., 2019)."""

    follows_rate: ClassVar[bool] = False

    kind: Literal["doublesqueeze"] = "doublesqueeze"


METHOD = Method(
    "exchange",
    DoubleSqueezeConfig,
    "trainers.methods.exchange.doublesqueeze.exchange:build",
    papers=(
        Paper(
            "Tang, Yu, Lian, Zhang, Liu",
            "DoubleSqueeze: parallel stochastic gradient descent with double-pass error-compensated compression",
            "ICML",
            2019,
        ),
    ),
)
