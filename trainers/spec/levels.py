"""Configurations of the policies that change an exchange's level from step to step. Pydantic only, without torch."""

from typing import Annotated, Literal, Self

from pydantic import Field

from trainers.spec.method import Paper
from trainers.spec.ranges import Config, Onset

ACCORDION = Paper(
    "Agarwal, Wang, Lee, Venkataraman, Papailiopoulos",
    "Adaptive gradient communication via critical learning regime identification",
    "MLSys",
    2021,
)


class StaticConfig(Config):
    """The level is the job's, or what its controller chose for the stage."""

    kind: Literal["static"] = "static"


class WarmupConfig(Config):
    """The density falls to its level over the first steps (Lin et al., 2018)."""

    kind: Literal["warmup"] = "warmup"
    steps: int = Field(ge=1, description="until the level is reached")
    stages: int = Field(4, ge=1, le=1000, description="equal parts of these steps, each with a density of its own")

    def takes_effect_at(self) -> Onset:
        return Onset(self.steps, "its level is reached", ("steps",))


class CalibratedConfig(Config):
    """A threshold is 1 / (2 sqrt(k)) for k entries of the whole gradient (Sahu et al., 2021)."""

    kind: Literal["calibrated"] = "calibrated"


class RegimeConfig(Config):
    """Detect critical regimes: times in which the gradient, summed over an epoch, changes much (Agarwal et al.)."""

    eta: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="a regime is critical if the norm changed by so much, relative"
    )
    interval: int = Field(10, ge=1, description="epochs from one comparison to the next")
    epoch_steps: int | None = Field(
        None, ge=1, description="steps whose gradients are added up; default: an epoch of the data"
    )

    def takes_effect_at(self) -> Onset | None:
        if self.epoch_steps is None:
            return None
        return Onset(self.epoch_steps * (self.interval + 1), "it first compares two epochs", ("epoch_steps",))

    def lasting(self, epoch_steps: int | None) -> Self:
        """Return this with `epoch_steps` for an epoch, if it leaves that open."""
        return self if self.epoch_steps else self.model_copy(update={"epoch_steps": epoch_steps})


class AccordionConfig(RegimeConfig):
    """Compress less while gradients change fast: in critical regimes (Agarwal et al., 2021)."""

    kind: Literal["accordion"] = "accordion"
    critical: float = Field(ge=0, allow_inf_nan=False, description="the level in critical regimes")
    follow_decay: bool = Field(
        True, description="when the learning rate falls, all is critical until the next comparison"
    )


class PayloadCost(Config):
    """A message costs its bits."""

    kind: Literal["payload"] = "payload"


class PacketBase(Config):
    """Costs of a network of packets, in bytes.

    The defaults are our choice: RFC 791's datagram that every host takes, 512 bytes of data and 64 of headers.
    """

    fixed: float = Field(64, ge=0, allow_inf_nan=False, description="of any message, in bytes")
    per_packet: float = Field(576, gt=0, allow_inf_nan=False, description="of a full packet, in bytes")
    packet_bytes: float = Field(512, gt=0, allow_inf_nan=False, description="of payload that a packet takes")


class AffineCost(PacketBase):
    """A constant, and a price per bit."""

    kind: Literal["affine"] = "affine"


class PacketCost(PacketBase):
    """A constant, and a price per packet, full or not."""

    kind: Literal["packet"] = "packet"


class LinkCost(Config):
    """The seconds of a message on the job's link: an emulated one is known, any other is measured on the way."""

    kind: Literal["link"] = "link"


CostConfig = Annotated[PayloadCost | AffineCost | PacketCost | LinkCost, Field(discriminator="kind")]


class CatConfig(Config):
    """Each message has the entries that promise the most descent per unit of cost (Khirirat et al., 2021)."""

    kind: Literal["cat"] = "cat"
    cost: CostConfig = Field(LinkCost(), description="of a message with so many entries")
    variant: Literal["largest", "drawn"] = Field(
        "largest",
        description="drawn: entries are drawn at random, large ones most often, so that the mean is right",
    )


LevelsConfig = Annotated[
    StaticConfig | WarmupConfig | CalibratedConfig | AccordionConfig | CatConfig, Field(discriminator="kind")
]
