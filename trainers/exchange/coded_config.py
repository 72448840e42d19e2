"""The exchanges that send each entry as a code of a few bits, one way or both ways, and their knobs. Pydantic only."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from trainers.exchange.config_base import Coefficient, CorrectedConfig, ExchangeBase, Period
from trainers.spec.ranges import Conflict


class QuantizedBase(ExchangeBase):
    """What all have that send every entry with few bits."""

    memory: ClassVar[Literal["residual", "none"]] = "none"


class QsgdConfig(QuantizedBase):
    """Random rounding to a few levels of each bucket's norm; unbiased (Alistarh et al., 2017)."""

    kind: Literal["qsgd"] = "qsgd"
    levels: int = Field(127, ge=1, le=127, description="quantisation levels of a magnitude")
    bucket: int = Field(128, ge=8, le=65_536, description="entries that share a norm")
    norm: Literal["l2", "max"] = "max"


class TernGradConfig(QuantizedBase):
    """Random rounding to -1, 0 or 1 times each layer's largest magnitude (Wen et al., 2017)."""

    kind: Literal["terngrad"] = "terngrad"
    clip: float = Field(2.5, gt=0, description="in standard deviations of a layer, before rounding")


class SignSgdConfig(QuantizedBase, CorrectedConfig):
    """The sign of each entry: the majority's (Bernstein et al., 2018), or scaled with error feedback (EF-signSGD)."""

    kind: Literal["signsgd"] = "signsgd"
    feedback: bool = Field(True, description="scale by a layer's mean magnitude and keep the error; else a majority")
    lr_corrected: bool = Field(
        False, description="residual: rescale it when the learning rate changes, as published; our choice is not to"
    )

    @property
    def memory(self) -> Literal["residual", "none"]:  # type: ignore[override]
        return "residual" if self.feedback else "none"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.lr_corrected and not self.feedback:
            yield Conflict("/lr_corrected", True, "`lr_corrected` needs `feedback: true`: a majority keeps no residual")


class OneBitConfig(QuantizedBase, CorrectedConfig):
    """The sign of each entry, and each layer's mean of either sign, with error feedback (Seide et al., 2014)."""

    kind: Literal["onebit"] = "onebit"
    memory: ClassVar[Literal["residual", "none"]] = "residual"


class TwoWayConfig(ExchangeBase):
    """What all have that send each entry's sign, and each block's mean magnitude, in every direction."""

    follows_rate: ClassVar[bool] = True  # whether errors are rescaled so that rate x error stays as it was

    block: int = Field(4096, ge=8, le=2**24, description="neighbouring entries that share a magnitude, at most")


class DoubleSqueezeConfig(TwoWayConfig):
    """Signs to a server and back, with error feedback on both sides (DoubleSqueeze, Tang et al., 2019)."""

    follows_rate: ClassVar[bool] = False

    kind: Literal["doublesqueeze"] = "doublesqueeze"


class DistEfSgdConfig(TwoWayConfig):
    """Signs to a server and back; errors follow the learning rate, momentum is the workers' (Zheng et al., 2019)."""

    kind: Literal["dist_ef_sgd"] = "dist_ef_sgd"
    momentum: Coefficient = Field(
        0.0, description="Nesterov's, of each worker, before it compresses; the optimizer's own must then be 0"
    )

    @property
    def without_momentum(self) -> str | None:
        return "momentum: 0" if self.momentum else None


class DriftingConfig(TwoWayConfig):
    """What all have whose workers apply what they do not send by themselves, so that their parameters differ."""

    period: Period


class CserConfig(DriftingConfig):
    """Workers apply what their signs get wrong by themselves, and reset it every `period` steps (Xie et al., 2020)."""

    kind: Literal["cser"] = "cser"
    period: Period = Field(8, description="steps from one reset of the errors to the next")


class LiecSgdConfig(DriftingConfig):
    """Signs both ways, a worker's error applied at once, averages every `period` steps (Cheng et al., 2024)."""

    kind: Literal["liec_sgd"] = "liec_sgd"
    period: Period = Field(100, description="steps from one dense average to the next")
