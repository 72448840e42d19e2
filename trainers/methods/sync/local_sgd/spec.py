"""Local SGD, optionally with slow momentum. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient
from trainers.spec.method import Method, Paper
from trainers.spec.sync import CompressedUpdatesConfig

SLOW_MOMENTUM = Paper(
    "Wang, Tantia, Ballas, Rabbat",
    "SlowMo: improving communication-efficient distributed SGD with slow momentum",
    "ICLR",
    2020,
)


class LocalSgdConfig(CompressedUpdatesConfig):
    """Average the parameters every `period` steps (Stich, 2019), optionally with slow momentum (Wang et al., 2020)."""

    kind: Literal["local_sgd"] = "local_sgd"
    slow_momentum: Coefficient = Field(0.0, description="momentum of what averaging changes; 0: plain averages")


METHOD = Method(
    "sync",
    LocalSgdConfig,
    "trainers.methods.sync.local_sgd.policy:LocalSgd",
    papers=(Paper("Stich", "Local SGD converges fast and communicates little", "ICLR", 2019), SLOW_MOMENTUM),
)
