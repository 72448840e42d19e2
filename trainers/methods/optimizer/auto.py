"""The optimizer of `optimizer: {kind: auto}`: several of the same parameters, of which a segment names the one to use.

Each starts from the parameters as they were built, so a run uses one of them from its first step to its last. A probe
of another one starts from the snapshot of that first step, in which nothing has moved yet.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.optimizers import NO_FACTORS, Optimizer
from trainers.methods.optimizer.spec import AutoOptimizerConfig, JobOptimizer
from trainers.segment import Segment
from trainers.snapshot import load_scalars, scalars_of, tensors_of
from trainers.workload import Workload


class AutoOptimizer(Optimizer):
    """Steps by one of the `contenders`, which are by kind; at first by the first one. The state holds those of all."""

    def __init__(self, contenders: Mapping[str, Optimizer]) -> None:
        self._optimizers = dict(contenders)
        self._kind, first = next(iter(self._optimizers.items()))
        self.config, self.brought, self.parameters = first.config, first.brought, first.parameters

    @property
    def _in_force(self) -> Optimizer:
        return self._optimizers[self._kind]

    def use(self, kind: str | None) -> None:
        """Step by the optimizer of this kind from now on.

        Raises ValueError for a kind that is none of them.
        """
        if kind is None or kind not in self._optimizers:
            raise ValueError(f"`optimizer` must be one of {list(self._optimizers)}, got {kind!r}")
        self._kind = kind

    def set_learning_rate(
        self, learning_rate: float, step: int, factors: Mapping[Parameter, float] = NO_FACTORS
    ) -> float:
        return self._in_force.set_learning_rate(learning_rate, step, factors)

    def set_options(self, segment: Segment) -> None:
        self._in_force.set_options(segment)

    def step(self, loss: float) -> None:
        self._in_force.step(loss)

    @property
    def averages(self) -> bool:
        return self._in_force.averages

    def iterate(self) -> list[Tensor]:
        return self._in_force.iterate()

    def evaluated(self) -> dict[str, Tensor]:
        return self._in_force.evaluated()

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self._optimizers)

    def fit(self, tensors: Mapping[str, Tensor]) -> None:
        return  # all state tensors exist from the start

    def scalars(self) -> dict[str, Any]:
        return {"kind": self._kind, "kinds": scalars_of(self._optimizers)}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        self._kind = scalars["kind"]
        load_scalars(self._optimizers, scalars["kinds"])


def build(config: JobOptimizer, workload: Workload, model: nn.Module, *, apart: bool = False) -> Optimizer:
    """Return the optimizer of `config`, as `optimizers.build` does of those that do not compete."""
    if not isinstance(config, AutoOptimizerConfig):
        return optimizers.build(config, workload, model, apart=apart)
    built: dict[str, Optimizer] = {
        option.kind: optimizers.build(option, workload, model, apart=apart) for option in config.options
    }
    return AutoOptimizer(built)
