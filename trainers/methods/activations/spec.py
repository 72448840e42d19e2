"""The type of a job's `activations`: what layers keep for backward. Pydantic only: a job is checked without torch."""

from typing import Annotated

from pydantic import Field

from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.methods.activations.keep.spec import KeepConfig

ActivationsConfig = Annotated[KeepConfig | DropItConfig, Field(discriminator="kind")]
