"""The choices of what layers keep for backward. Pydantic only: a job is checked without torch."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.spec.ranges import Config


class KeepConfig(Config):
    """Layers keep their whole inputs for backward."""

    kind: Literal["keep"] = "keep"


ActivationsConfig = Annotated[KeepConfig | DropItConfig, Field(discriminator="kind")]
