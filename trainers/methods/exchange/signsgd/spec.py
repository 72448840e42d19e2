"""signSGD: one bit per entry, by majority vote or scaled with error feedback. Pydantic only."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainers.spec.exchange import CorrectedConfig
from trainers.spec.method import Method, Paper
from trainers.spec.quantized import QuantizedBase
from trainers.spec.ranges import Conflict
from trainers.traffic.sizes import CodedLayout

MAJORITY = Paper(
    "Bernstein, Wang, Azizzadenesheli, Anandkumar",
    "signSGD: compressed optimisation for non-convex problems",
    "ICML",
    2018,
)
ERROR_FEEDBACK = Paper(
    "Karimireddy, Rebjock, Stich, Jaggi",
    "Error feedback fixes SignSGD and other gradient compression schemes",
    "ICML",
    2019,
)


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

    @property
    def keeps_scale(self) -> bool:
        return self.feedback

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.lr_corrected and not self.feedback:
            yield Conflict("/lr_corrected", True, "`lr_corrected` needs `feedback: true`: a majority keeps no residual")

    def difference_conflict(self) -> str | None:
        return f"`{self.kind}` here has no plain residual" if self.lr_corrected else super().difference_conflict()

    def layout(self, num_entries: int, num_layers: int) -> CodedLayout:
        """Return the layout of signs, and with feedback one magnitude per layer."""
        return CodedLayout(num_entries, bits=1, num_scales=num_layers if self.feedback else 0)


METHOD = Method(
    "exchange",
    SignSgdConfig,
    "trainers.methods.exchange.signsgd.exchange:build",
    papers=(MAJORITY, ERROR_FEEDBACK),
)
