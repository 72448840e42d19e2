"""1-bit Adam: dense Adam for a while, then signs of momenta both ways over a frozen variance. Pydantic only."""

from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, UpdateConfig
from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Onset
from trainers.spec.two_way import TwoWayConfig


class SignsOfAdamConfig(UpdateConfig, TwoWayConfig):
    """Signs of momenta both ways, in units of a variance that only dense steps change.

    Predicted bytes are those of signs; a dense step sends what `none` does.
    """

    follows_rate: ClassVar[bool] = False

    betas: tuple[Coefficient, Coefficient] = Field((0.9, 0.999), description="of the momentum and of the variance")

    def num_dense(self, num_steps: int) -> int:
        """Return how many of the first `num_steps` are dense; of the very first, 1."""
        raise NotImplementedError(f"`{self.kind}` does not say when it is dense")

    def is_dense(self, step: int) -> bool:
        """Return whether step number `step` (from 0) is dense."""
        return self.num_dense(step + 1) > self.num_dense(step)


class OneBitAdamConfig(SignsOfAdamConfig):
    """Dense Adam for a while, then signs of momenta both ways over a frozen variance (1-bit Adam, Tang et al., 2021).

    Predicted bytes are those of signs; the steps before the variance freezes send what `none` does.
    """

    kind: Literal["onebit_adam"] = "onebit_adam"
    freeze_steps: int = Field(
        100, ge=1, le=10**9, description="steps of dense Adam, after which the variance stays; rather 15 % of the run"
    )

    def num_dense(self, num_steps: int) -> int:
        return min(num_steps, self.freeze_steps)

    def takes_effect_at(self) -> Onset:
        return Onset(self.freeze_steps, "it sends signs", ("freeze_steps",))


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
