"""DropIT's knobs. Pydantic only."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Config

Gamma = Annotated[float, Field(ge=0, lt=1)]


class DropItConfig(Config):
    """Linear and convolutional layers drop the smallest entries of what they keep (DropIT, Chen et al., 2023)."""

    kind: Literal["dropit"] = "dropit"
    gamma: Gamma | tuple[Gamma, Gamma] = Field(0.8, description="share of a layer's input that is dropped; 0: none")
    selection: Literal["sampled", "exact"] = Field(
        "sampled", description="sampled: by a threshold that a sample of the entries finds; exact: by sorting them"
    )


METHOD = Method(
    "activations",
    DropItConfig,
    papers=(
        Paper(
            "Chen, Xu, Wang, Cheng, Yao",
            "DropIT: dropping intermediate tensors for memory-efficient DNN training",
            "ICLR",
            2023,
        ),
    ),
)
