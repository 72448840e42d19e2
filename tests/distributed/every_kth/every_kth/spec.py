"""Every k-th entry: a compressor from another package. Pydantic only."""

from typing import Literal

from trainers.spec.method import Method
from trainers.spec.sparse import ByDensity
from trainers.traffic.sizes import num_selected


class EveryKthConfig(ByDensity):
    """Send every k-th entry of gradient + residual, from one entry further in each step."""

    kind: Literal["every_kth"] = "every_kth"

    def room(self, d: int, density: float) -> int:
        return num_selected(d, density)


METHOD = Method("exchange", EveryKthConfig, "every_kth.exchange:build", least={"density": 0.01})
