"""0/1 Adam: signs of momenta both ways, over a variance that is refreshed ever more rarely. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.methods.exchange.onebit_adam.spec import SignsOfAdamConfig
from trainers.spec.method import Method, Paper


class ZeroOneAdamConfig(SignsOfAdamConfig):
    """Signs of momenta both ways, over a variance that is refreshed ever more rarely (0/1 Adam, Lu et al., 2023).

    Predicted bytes are those of signs; a step that refreshes the variance sends what `none` does.
    """

    kind: Literal["zero_one_adam"] = "zero_one_adam"
    refreshes: int = Field(16, ge=1, le=10**9, description="dense steps at one interval, before it doubles; at first 1")
    freeze_steps: int = Field(10**5, ge=1, le=10**9, description="steps after which the variance stays")

    def num_dense(self, num_steps: int) -> int:
        left, count, interval = min(num_steps, self.freeze_steps), 0, 1
        while left >= interval * self.refreshes:
            left, count, interval = left - interval * self.refreshes, count + self.refreshes, 2 * interval
        return count + left // interval


METHOD = Method(
    "exchange",
    ZeroOneAdamConfig,
    "trainers.methods.exchange.zero_one_adam.exchange:build",
    papers=(
        Paper(
            "Lu, Li, Zhang, De Sa, He",
            "Maximizing communication efficiency for large-scale training via 0/1 Adam",
            "ICLR",
            2023,
        ),
    ),
    beside={"optimizer": {"kind": "from_exchange"}},
)
