"""1-bit SGD: signs, and the mean of either sign. Pydantic only."""

from typing import ClassVar, Literal

from trainers.spec.exchange import CorrectedConfig
from trainers.spec.method import Method, Paper
from trainers.spec.quantized import QuantizedBase
from trainers.traffic.sizes import CodedLayout


class OneBitConfig(QuantizedBase, CorrectedConfig):
    """The sign of each entry, and each layer's mean of either sign, with error feedback (Seide et al., 2014)."""

    kind: Literal["onebit"] = "onebit"
    memory: ClassVar[Literal["residual", "none"]] = "residual"

    def difference_conflict(self) -> str | None:
        return f"`{self.kind}` here has no plain residual" if self.lr_corrected else super().difference_conflict()

    def layout(self, num_entries: int, num_layers: int) -> CodedLayout:
        """Return the layout of signs, and two means per layer."""
        return CodedLayout(num_entries, bits=1, num_scales=2 * num_layers)


METHOD = Method(
    "exchange",
    OneBitConfig,
    "trainers.methods.exchange.onebit.exchange:build",
    papers=(
        Paper(
            "Seide, Fu, Droppo, Li, Yu",
            "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech "
            "DNNs",
            "Interspeech",
            2014,
        ),
    ),
)
