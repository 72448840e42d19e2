"""Build the workload that a configuration describes."""

from collections.abc import Callable
from typing import Any

from trainers.spec.workloads import WorkloadConfig
from trainers.workload import Workload
from trainers.workloads import own
from trainers.workloads.conv import FashionMnist, Mnist5k
from trainers.workloads.diamonds import Diamonds
from trainers.workloads.digits import Digits
from trainers.workloads.docstrings import Docstrings
from trainers.workloads.flights import Flights
from trainers.workloads.stdlib import Stdlib

BUILTIN: dict[str, Callable[[Any], Workload]] = {
    "digits-mlp": Digits,
    "mnist5k-cnn": Mnist5k,
    "fashion-conv": FashionMnist,
    "stdlib-lm": Stdlib,
    "diamonds-mlp": Diamonds,
    "flights-embedding": Flights,
    "minilm-lora": Docstrings,
    "own": own.load,
}


def build(config: WorkloadConfig) -> Workload:
    """Return the workload that `config` describes; raises WorkloadError where it cannot be trained.

    Where its batch size is searched, it has the largest.
    """
    workload = BUILTIN[config.kind](config)
    if config.batch_size is not None:
        workload.batch_size = config.batch_size if isinstance(config.batch_size, int) else max(config.batch_size)
    return workload
