"""Deep gradient compression: top-k of the accumulated momentum. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, Density
from trainers.spec.method import Method, Paper
from trainers.spec.sparse import ByDensity
from trainers.traffic.collectives import COUNT_MARGIN, capacity_for


class DgcConfig(ByDensity):
    """Deep gradient compression: top-k of the accumulated momentum (Lin et al., 2018)."""

    kind: Literal["dgc"] = "dgc"
    density: Density | tuple[Density, Density] = Field(0.001, description="share of entries sent, in (0, 1]")
    momentum_correction: Coefficient | None = Field(
        0.9, description="momentum before compression; the optimizer's own must be 0"
    )
    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="norm of the mean gradient; a rank's own is clipped to 1/sqrt(N)"
    )

    def difference_conflict(self) -> str | None:
        return f"`{self.kind}` here accumulates the momentum of gradients"

    def room(self, d: int, density: float) -> int:
        return capacity_for(density * d, d, COUNT_MARGIN)


METHOD = Method(
    "exchange",
    DgcConfig,
    "trainers.methods.exchange.dgc.exchange:build",
    papers=(
        Paper(
            "Lin, Han, Mao, Wang, Dally",
            "Deep gradient compression: reducing the communication bandwidth for distributed training",
            "ICLR",
            2018,
        ),
    ),
    beside={"optimizer": {"kind": "sgd", "momentum": 0}},
    otherwise=({"exchange": {"momentum_correction": None}},),
)
