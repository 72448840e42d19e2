"""DiLoCo: local updates with an outer optimizer. Pydantic only."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient
from trainers.spec.method import Method, Paper
from trainers.spec.sync import CompressedUpdatesConfig

OuterRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class OuterConfig(CompressedUpdatesConfig):
    """The base of policies whose averages an outer optimizer takes for gradients."""

    outer_learning_rate: OuterRate | tuple[OuterRate, OuterRate] = Field(
        1.0, description="of the outer optimizer; 1 without momentum: plain averages"
    )
    outer_momentum: Coefficient | tuple[Coefficient, Coefficient] = Field(
        0.0,
        description="of the outer optimizer; where data are alike, the published 0.9 needs a hundred averages and more",
    )
    nesterov: bool = Field(True, description="whether the outer momentum is Nesterov's; false: heavy ball")


class DiLoCoConfig(OuterConfig):
    """Local updates by any optimizer; an outer one takes their mean for its gradient (Douillard et al., 2023)."""

    kind: Literal["diloco"] = "diloco"


METHOD = Method(
    "sync",
    DiLoCoConfig,
    "trainers.methods.sync.diloco.policy:DiLoCo",
    papers=(
        Paper(
            "Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen",
            "DiLoCo: distributed low-communication training of language models",
            "arXiv:2311.08105",
            2023,
        ),
        Paper(
            "Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan",
            "Adaptive federated optimization",
            "ICLR",
            2021,
        ),
    ),
)
