"""QSGD: entries rounded at random to a few levels. Pydantic only."""

import math
from typing import Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.quantized import QuantizedBase
from trainers.traffic.sizes import CodedLayout, code_bits

PAPER = Paper(
    "Alistarh, Grubic, Li, Tomioka, Vojnovic",
    "QSGD: communication-efficient SGD via gradient quantization and encoding",
    "NeurIPS",
    2017,
)


class QsgdConfig(QuantizedBase):
    """Random rounding to a few levels of each bucket's norm; unbiased (Alistarh et al., 2017)."""

    kind: Literal["qsgd"] = "qsgd"
    levels: int = Field(127, ge=1, le=127, description="quantisation levels of a magnitude")
    bucket: int = Field(128, ge=8, le=65_536, description="entries that share a norm")
    norm: Literal["l2", "max"] = "max"

    def layout(self, num_entries: int, num_layers: int) -> CodedLayout:
        """Return the layout of codes of 2 `levels` + 1 values, with one norm for each `bucket` entries."""
        return CodedLayout(num_entries, bits=code_bits(self.levels), num_scales=math.ceil(num_entries / self.bucket))


METHOD = Method("exchange", QsgdConfig, "trainers.methods.exchange.qsgd.exchange:build", papers=(PAPER,))
