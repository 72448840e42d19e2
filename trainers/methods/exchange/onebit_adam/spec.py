"""1-bit Adam: dense Adam for a while, then signs of momenta both ways over a frozen variance. Pydantic only."""

from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, UpdateConfig
from trainers.spec.method import Method, Paper
from trainers.spec.two_way import TwoWayConfig


class OneBitAdamConfig(UpdateConfig, TwoWayConfig):
    """Dense Adam for a while, then signs of momenta both ways over a frozen variance (1-bit Adam, Tang et al., 2021).

    Predicted bytes are those of signs; the steps before the variance freezes send what `none` does.
    """

    follows_rate: ClassVar[bool] = False

    kind: Literal["onebit_adam"] = "onebit_adam"
    freeze_steps: int = Field(
        100, ge=1, le=10**9, description="steps of dense Adam, after which the variance stays; rather 15 % of the run"
    )
    betas: tuple[Coefficient, Coefficient] = Field((0.9, 0.999), description="of the momentum and of the variance")


METHOD = Method(
    "exchange",
    OneBitAdamConfig,
    "trainers.methods.exchange.onebit_adam.exchange:build",
    papers=(
        Paper(
            "Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang, He",
            "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
            "ICML",
            2021,
        ),
    ),
    beside={"optimizer": {"kind": "from_exchange"}},
)
