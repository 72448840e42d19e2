"""Policies that keep ranks together, over a problem whose every worker wants something else.

Worker i minimises sum_j (curvature_ij / 2) (x_j - optimum_ij)^2, so that all is known of what they do together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from exchange_harness import Place
from torch import Tensor, nn

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.step_result import Exchanged
from trainers.methods.blocks.all.blocks import AllBlocks
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.build import build
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.workloads import DigitsMlp
from trainers.workload import Batch, Workload

SHAPES = ((24, 16), (16,))
D = 400


@dataclass(frozen=True)
class Problem:
    """One worker's part."""

    curvature: Tensor  # (D,)
    optimum: Tensor  # (D,)

    @classmethod
    def of(cls, rank: int) -> "Problem":
        """Return the part of `rank`."""
        generator = torch.Generator().manual_seed(rank)
        curvature, optimum = torch.rand(D, generator=generator) + 0.5, torch.randn(D, generator=generator)
        return cls(curvature, optimum)

    def gradient(self, x: Tensor) -> Tensor:
        return self.curvature * (x - self.optimum)


def solution(problems: Sequence[Problem]) -> Tensor:
    """Return where the workers' gradients add up to zero."""
    curvature = torch.stack([problem.curvature for problem in problems])
    optimum = torch.stack([problem.optimum for problem in problems])
    return (curvature * optimum).sum(dim=0) / curvature.sum(dim=0)


class Plain(Workload):
    """Parameters of the bench's shapes, all 0."""

    def model(self) -> nn.Module:
        return nn.ParameterDict({f"p{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(SHAPES)})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise AssertionError("the bench computes gradients itself")


class SyncBench:
    """One rank's optimizer and policy, stepped as a replica does."""

    def __init__(
        self,
        sync: SyncConfig,
        place: Place,
        *,
        optimizer: OptimizerConfig | None = None,
        exchange: ExchangeConfig | None = None,
    ) -> None:
        config = ReplicaConfig(
            workload=DigitsMlp(),  # of no use here
            optimizer=optimizer or SgdConfig(momentum=0.0),
            exchange=exchange or NoneConfig(),
            sync=sync,
        )
        model = Plain().model()
        self.problem = Problem.of(place.rank)
        self.optimizer = optimizers.build(config.optimizer, Plain(), model)
        self.parameters = list(self.optimizer.parameters.values())
        self.buffer = GradientBuffer.behind(self.parameters, config.exchange)
        self.node_links = place.node_links()
        blocks = AllBlocks(config.exchange, self.buffer, seed=config.seed)
        self.policy = build(PolicyParts(config, self.optimizer, self.buffer, self.node_links, blocks))
        self.number, self.loss = 0, 1.0

    @property
    def x(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def step(self, rate: float, *, level: float | None = None, period: int | None = None) -> Exchanged:
        rate = self.optimizer.set_learning_rate(self.policy.learning_rate(rate, self.number), self.number)
        self.buffer.expect()
        self.buffer.gradient.copy_(self.problem.gradient(self.x))
        self.buffer.finish()
        outcome = self.policy.gradients.step(torch.tensor(self.loss), level, rate)
        if not outcome.is_held:
            self.policy.amend(self.buffer.gradient)
            self.optimizer.step(outcome.loss)
        self.number += 1
        return self.policy.advance(outcome, Update(self.number, rate, level, period))

    def run(self, rates: Sequence[float], **options: Any) -> list[list[float]]:
        """Take a step with each rate, and wait for the last average; returns where each step led to."""
        trace = []
        for rate in rates:
            self.step(rate, **options)
            trace.append(self.x.tolist())
        self.policy.settle()
        return trace

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any], list[Tensor], int]:
        """Return a copy of the state, of which the optimizer has none here."""
        own: Any = self.policy.divide({})[1]["sync"]
        tensors = {name: tensor.clone() for name, tensor in own.tensors().items()}
        return tensors, own.scalars(), [parameter.detach().clone() for parameter in self.parameters], self.number

    def load(self, state: tuple[dict[str, Tensor], dict[str, Any], list[Tensor], int]) -> None:
        tensors, scalars, parameters, self.number = state
        own: Any = self.policy.divide({})[1]["sync"]
        for name, tensor in own.tensors().items():
            tensor.copy_(tensors[name])
        own.load_scalars(scalars)
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, parameters, strict=True):
                parameter.copy_(saved)
