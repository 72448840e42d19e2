"""The network between workers: used as it is, or paced like one that a job states."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.spec.ranges import Config

#: Neighbouring workers that share a node, at least 1; `auto`: those that are found on one machine.
PerNode = int | Literal["auto"]


class MeasureLink(Config):
    """Use the network as it is."""

    mode: Literal["measure"] = "measure"


class EmulateLink(Config):
    """Pace every collective in real time as a full-duplex link of this rate and latency would."""

    mode: Literal["emulate"] = "emulate"
    mbps: float = Field(ge=0.001, le=1e6, allow_inf_nan=False, description="megabits per second, each way")
    latency_ms: float = Field(0.0, ge=0, le=10_000, description="milliseconds per round of a collective")


LinkConfig = Annotated[MeasureLink | EmulateLink, Field(discriminator="mode")]
