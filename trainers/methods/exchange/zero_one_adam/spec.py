"""0/1 Adam: signs of momenta both ways, ever more rarely, over a variance that is too. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.methods.exchange.onebit_adam.spec import SignsOfAdamConfig
from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Onset


class ZeroOneAdamConfig(SignsOfAdamConfig):
    """Signs of momenta both ways, over a variance that is refreshed ever more rarely (0/1 Adam, Lu et al., 2023).

    Predicted bytes are those of signs; a step that refreshes the variance sends what `none` does, and a step between
    exchanges nothing.
    """

    kind: Literal["zero_one_adam"] = "zero_one_adam"
    refreshes: int = Field(16, ge=1, le=10**9, description="dense steps at one interval, before it doubles; at first 1")
    freeze_steps: int = Field(10**5, ge=1, le=10**9, description="steps after which the variance stays")
    max_interval: int = Field(
        1,
        ge=1,
        le=10**5,
        description="steps from one exchange to the next once the variance stays, at most; published: 16",
    )
    interval_steps: int = Field(
        32_678, ge=1, le=10**9, description="steps at one interval between exchanges, before it doubles; at first 1"
    )

    @property
    def drifts(self) -> bool:
        return self.max_interval > 1

    def num_dense(self, num_steps: int) -> int:
        left, count, interval = min(num_steps, self.freeze_steps), 0, 1
        while left >= interval * self.refreshes:
            left, count, interval = left - interval * self.refreshes, count + self.refreshes, 2 * interval
        return count + left // interval

    def steps_to_exchange(self, step: int) -> int:
        """Return in how many steps workers exchange, step number `step` (from 0) included; 1: in that one.

        Every interval between exchanges holds for `interval_steps`, the last of which is an exchange.
        """
        if step < self.freeze_steps:
            return 1
        last = (self.max_interval - 1).bit_length()  # doublings until the longest interval
        doublings = min((step - self.freeze_steps) // self.interval_steps, last)
        interval = min(1 << doublings, self.max_interval)
        taken = step - self.freeze_steps - doublings * self.interval_steps
        left = interval - taken % interval
        return left if doublings == last else min(left, self.interval_steps - taken)

    def takes_effect_at(self) -> Onset | None:
        if self.max_interval == 1:
            return None
        return Onset(
            self.freeze_steps + self.interval_steps, "a step exchanges nothing", ("freeze_steps", "interval_steps")
        )


METHOD = Method(
    "exchange",
    ZeroOneAdamConfig,
    "trainers.methods.exchange.zero_one_adam.exchange:build",
    policy="trainers.methods.exchange.zero_one_adam.policy:ZeroOneAdam",
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
