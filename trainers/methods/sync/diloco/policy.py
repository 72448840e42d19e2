"""DiLoCo: ranks train by any optimizer, and an outer optimizer takes for a gradient how far they went on average.

Douillard et al. (2023), "DiLoCo: distributed low-communication training of language models", Algorithm 1.
What the inner optimizer keeps, such as Adam's moments, stays each rank's own and goes on through the averages.
"""

from torch import Tensor

from trainers.methods.sync.diloco.outer import OuterSgd
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.anchored import Anchored


class DiLoCo(Anchored):
    """Keeps the outer optimizer's parameters as its anchor, and that optimizer's velocity."""

    def __init__(self, config: DiLoCoConfig, parts: PolicyParts) -> None:
        super().__init__(config, parts)
        self._outer = OuterSgd(config, self._anchor)

    def _outer_step(self, mean: Tensor, update: Update) -> Tensor:
        return self._outer.step(mean, update)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"velocity": self._outer.velocity}
