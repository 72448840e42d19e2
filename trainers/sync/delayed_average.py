"""What methods share that average behind the next round: a vector under way, and when it may be touched."""

from abc import abstractmethod

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.sync.background import Background
from trainers.sync.config import BehindConfig
from trainers.sync.iterate import Iterate
from trainers.sync.local import Local
from trainers.sync.policy import Update


class Behind(Local):
    """Keeps the vector that the ranks average; before the first round it is the common start.

    Its bits are the same on all ranks when it has arrived, and so is the verdict whether it is finite.
    """

    agrees = False

    def __init__(self, config: BehindConfig, iterate: Iterate, background: Background, *, gradients: Exchange) -> None:
        super().__init__(config, iterate, gradients=gradients, exchange=gradients)
        self._background, self._average = background, iterate.read()

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        self._background.wait()
        if not is_finite(self._average):
            return DIVERGED
        self._take(self._average, update)
        self._background.launch(self._average)
        return outcome

    @abstractmethod
    def _take(self, average: Tensor, update: Update) -> None:
        """Use the `average` that has arrived, and write over it what is to be averaged next."""

    def settle(self) -> None:
        self._background.wait()

    def tensors(self) -> dict[str, Tensor]:
        self._background.wait()  # whoever reads or writes the state must not meet what is under way
        return {"average": self._average}
