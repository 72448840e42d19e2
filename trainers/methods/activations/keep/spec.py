"""The trivial choice of what layers keep. Pydantic only."""

from typing import Literal

from trainers.spec.method import Method
from trainers.spec.ranges import Config


class KeepConfig(Config):
    """Layers keep their whole inputs for backward."""

    kind: Literal["keep"] = "keep"


METHOD = Method("activations", KeepConfig)
