"""TernGrad: -1, 0 or 1 times a layer's largest magnitude. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.quantized import QuantizedBase
from trainers.traffic.sizes import CodedLayout


class TernGradConfig(QuantizedBase):
    """Random rounding to -1, 0 or 1 times each layer's largest magnitude (Wen et al., 2017)."""

    kind: Literal["terngrad"] = "terngrad"
    clip: float = Field(
        2.5, gt=0, allow_inf_nan=False, description="in standard deviations of a layer, before rounding"
    )

    def layout(self, num_entries: int, num_layers: int) -> CodedLayout:
        """Return the layout of one of three values for each entry, and one scale per layer."""
        return CodedLayout(num_entries, bits=2, num_scales=num_layers)


METHOD = Method(
    "exchange",
    TernGradConfig,
    "trainers.methods.exchange.terngrad.exchange:build",
    papers=(
        Paper(
            "Wen, Xu, Yan, Wu, Wang, Chen, Li",
            "TernGrad: ternary gradients to reduce communication in distributed deep learning",
            "NeurIPS",
            2017,
        ),
    ),
)
