"""Training a task in one process: the product's optimizers and order of samples, without an exchange."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.func import functional_call

from search.space import Weights
from suite.tasks import SuiteWorkload, Task
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import OptimizerConfig
from trainers.training import landscape
from trainers.training.alignment import Alignment
from trainers.training.model import looks_trained, matrices
from trainers.training.sampler import Sampler

#: Steps between two evaluations, as between committed steps of a job.
EVERY = 50
#: A checkpoint for export has a validation loss that is lower by this share, and comes so late after the last one.
LEAST_GAIN, LEAST_PART = 0.002, 0.05


@dataclass
class Best:
    """The lowest validation loss of a checkpoint so far, which a job exports where the end is worse. Mutable."""

    loss: float = math.inf
    part: float = 0.0  # of the budget, where it was kept

    def look(self, loss: float, part: float) -> None:
        """Keep a state that was evaluated after this part of the budget, if it is worth it."""
        if loss < self.loss * (1 - math.copysign(LEAST_GAIN, self.loss)) and part - self.part >= LEAST_PART:
            self.loss, self.part = loss, part


#: What somebody would try by hand: each multiplies the rate by a function of the part of the budget spent.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda part: 1.0,
    "cosine": lambda part: 0.5 * (1 + math.cos(math.pi * part)),
    "linear": lambda part: 1 - part,
    "cool-down": lambda part: min(1.0, (1 - part) / 0.15),
    "half": lambda part: min(1.0, (1 - part) / 0.5),
    "sqrt-half": lambda part: 1 - math.sqrt(max(0.0, (part - 0.5) / 0.5)),
}


class Line:
    """Mutable: a model in training, which can be put back to where it was."""

    def __init__(self, task: Task, seed: int, *, num_workers: int = 1) -> None:
        """Build the task's model from `seed`."""
        self.workload, self.kind = SuiteWorkload(task), task.optimizer
        torch.manual_seed(seed)
        self.model = self.workload.model()
        decay = {} if task.optimizer == "own" else {"weight_decay": task.weight_decay}
        config = {"kind": task.optimizer, "learning_rate": 1.0} | decay
        self.optimizer = optimizers.build(
            TypeAdapter[Any](OptimizerConfig).validate_python(config), self.workload, self.model
        )
        self.data = self.workload.training.tensors
        self._sampler = Sampler(
            seed=seed, num_samples=len(self.data[0]), num_workers=num_workers, batch_size=task.batch_size
        )
        self._alignment = Alignment(list(self.optimizer.parameters.values()))
        self.weights = self._weights()
        self.step = 0
        self.recent = list[float]()  # losses of the last steps

    def with_optimizer(self, config: OptimizerConfig) -> "Line":
        """Train with another optimizer than the task's; returns the line, which has taken no step."""
        self.optimizer, self.kind = optimizers.build(config, self.workload, self.model), config.kind
        return self

    def with_weights(self, state: Mapping[str, Tensor]) -> "Line":
        """Load what a model of the same kind was trained to; returns the line."""
        self.model.load_state_dict(state)
        self.weights = self._weights()
        return self

    def _weights(self) -> Weights | None:
        trained = list(self.optimizer.parameters.values())
        found = matrices(trained)
        return found and Weights(*found, is_new=not looks_trained(trained))

    def landscape(self) -> dict[str, float]:
        """Return what a search space holds of the loss before the first step: it takes two gradients of each batch."""
        parameters = list(self.optimizer.parameters.values())
        buffers = copy.deepcopy(dict(self.model.named_buffers()))

        def slope(number: int) -> tuple[float, Sequence[torch.Tensor]]:
            indices = self._sampler.indices(number, rank=0)
            with torch.enable_grad():
                loss = self.workload.loss(self.model, (self.data[0][indices], self.data[1][indices]))
                return loss.item(), torch.autograd.grad(loss, parameters, materialize_grads=True)

        found = landscape.measured(parameters, slope, landscape.NUM_BATCHES)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        return {} if found is None else {"first_loss": found.loss, "sharpness": found.sharpness}

    def train(
        self,
        rates: Sequence[float],
        *,
        rank: int = 0,
        scales: list[float] | None = None,
        alignments: list[float] | None = None,
    ) -> list[float]:
        """Take a step with each of `rates`; returns the losses, up to the first that is not finite.

        The root mean squares of the gradients are appended to `scales`, their cosines to `alignments`.
        """
        losses = []
        self._alignment.begin()
        for rate in rates:
            indices = self._sampler.indices(self.step, rank=rank)
            loss = self.workload.loss(self.model, (self.data[0][indices], self.data[1][indices]))
            self.model.zero_grad()
            loss.backward()
            if scales is not None:
                scales.append(self._gradient_scale())
            if alignments is not None:
                alignments.append(float(self._alignment.measure()))
            self.optimizer.set_learning_rate(rate, self.step)
            losses.append(loss.item())
            self.recent = [*self.recent[1 - EVERY :], losses[-1]]
            with nullcontext() if alignments is None else self._alignment.following():
                self.optimizer.step(losses[-1])
            self.step += 1
            if not math.isfinite(losses[-1]):
                break
        return losses

    def _gradient_scale(self) -> float:
        gradients = [each.grad.flatten() for each in self.model.parameters() if each.grad is not None]
        return float(torch.cat(gradients).square().mean().sqrt())

    @torch.no_grad()
    def evaluate(self, *, training: bool = False, num_samples: int = 1000) -> float:
        """Return the loss on the validation set, or on the first samples of the training set."""
        inputs, targets = self.data if training else self.workload.validation.tensors
        weights = self.optimizer.evaluated()
        self.model.eval()
        scores = functional_call(self.model, weights, (inputs[:num_samples],))
        self.model.train()
        return float(self.workload._task.loss(scores, targets[:num_samples]))

    def snapshot(self) -> Any:
        """Return all that training changes."""
        tensors = {name: tensor.clone() for name, tensor in self.optimizer.tensors().items()}
        return copy.deepcopy((self.model.state_dict(), tensors, self.optimizer.scalars(), self.step))

    def restore(self, snapshot: Any) -> None:
        """Go back to where `snapshot` was taken."""
        weights, tensors, scalars, self.step = copy.deepcopy(snapshot)
        self.model.load_state_dict(weights)
        self.optimizer.fit(tensors)
        for name, tensor in self.optimizer.tensors().items():
            tensor.copy_(tensors[name])
        self.optimizer.load_scalars(scalars)
