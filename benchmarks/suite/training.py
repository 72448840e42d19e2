"""Training a task in one process: the product's optimizers and order of samples, without an exchange."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.func import functional_call

from search.space import Weights
from service.cluster.trial_ledger import is_clockless_turn, patience_for
from suite.tasks import SuiteWorkload, Task
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import OptimizerConfig
from trainers.training import landscape
from trainers.training.alignment import Alignment
from trainers.training.model import NUM_BATCHES, looks_trained, matrices
from trainers.training.sampler import Sampler
from trainers.training.weight_average import WeightAverage

#: Steps between two evaluations, as between committed steps of a job.
EVERY = 50
#: Samples of a data set that are evaluated, at most.
NUM_EVALUATED = 1000
#: Of the samples evaluated: all, and each half.
PARTS = (slice(None), slice(0, None, 2), slice(1, None, 2))


class Losses(NamedTuple):
    """A validation loss: of the whole set, and of each half of its samples (every other one)."""

    whole: float
    first: float
    second: float


class Evaluated(NamedTuple):
    """The losses that a state is evaluated at."""

    weights: Losses
    average: Losses | None = None  # of the last steps' weights; None: there is none

    def better(self, by: int) -> Losses:
        """Return the losses of the weights or of their average, whichever has the lower one at index `by`."""
        return self.weights if self.average is None else min(self.weights, self.average, key=lambda each: each[by])


LOST = Losses(math.inf, math.inf, math.inf)


@dataclass
class Export:
    """The states of a run that a job would evaluate: it exports the best of them where the end is worse. Mutable."""

    seen: list[tuple[Evaluated, float]] = field(default_factory=list)  # with the part of the budget spent before
    record: float = math.inf

    def look(self, state: Evaluated, part: float) -> float:
        """Note a state, and return its loss as a job does: that of the average only where the weights set no record."""
        self.seen.append((state, part))
        found = _noted(state, self.record, 0).whole
        self.record = min(self.record, found)
        return found

    def loss(self, end: Evaluated) -> float:
        """Return the loss of what is exported, on samples that did not choose it.

        Each half of the validation samples chooses a state for the other half (cross-fitting); the mean of both. The
        samples that choose one of several states flatter it (`flattered`).
        """
        return (_exported(self.seen, end, by=1).second + _exported(self.seen, end, by=2).first) / 2

    def flattered(self, end: Evaluated) -> float:
        """Return the loss of what is exported, on the samples that chose it."""
        return _exported(self.seen, end, by=0).whole


def _exported(seen: Sequence[tuple[Evaluated, float]], end: Evaluated, *, by: int) -> Losses:
    """Return the losses of the state that a job would export by the loss at index `by`."""
    record, best, kept_at = math.inf, None, 0.0
    for state, part in seen:
        found = _noted(state, record, by)
        record = min(record, found[by])
        if math.isfinite(found[by]) and is_clockless_turn(part - kept_at, patience_for(found[by], best and best[by])):
            best, kept_at = found, part
    last = end.better(by)
    return last if best is None or not best[by] < last[by] else best


def _noted(state: Evaluated, record: float, by: int) -> Losses:
    return state.weights if state.weights[by] < record else state.better(by)


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
        self._alignment.begin_if_moved()
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
    def evaluate(self, *, training: bool = False) -> float:
        """Return the loss on the validation set, or on the first samples of the training set."""
        tensors = self.data if training else self.workload.validation.tensors
        inputs, targets = (each[:NUM_EVALUATED] for each in tensors)
        return float(self.workload._task.loss(self._scores(inputs), targets))

    @torch.no_grad()
    def evaluated(self) -> Evaluated:
        """Return the losses of the state on the validation set."""
        inputs, targets = self.workload.validation.tensors
        return Evaluated(self._losses(self._scores(inputs), targets))

    def _scores(self, inputs: Tensor) -> Tensor:
        self.model.eval()
        scores = functional_call(self.model, self.optimizer.evaluated(), (inputs,))
        self.model.train()
        return scores

    def _losses(self, scores: Tensor, targets: Tensor) -> Losses:
        losses = (float(self.workload._task.loss(scores[part], targets[part])) for part in PARTS)
        return Losses(*(loss if math.isfinite(loss) else math.inf for loss in losses))  # the worst, as in a job

    def snapshot(self) -> Any:
        """Return all that training changes."""
        tensors = {name: tensor.clone() for name, tensor in self.optimizer.tensors().items()}
        state = self.model.state_dict(), tensors, self.optimizer.scalars(), self._alignment.tensors()
        return copy.deepcopy((*state, self.step, self.recent))

    def restore(self, snapshot: Any) -> None:
        """Go back to where `snapshot` was taken."""
        weights, tensors, scalars, alignment, self.step, self.recent = copy.deepcopy(snapshot)
        self.model.load_state_dict(weights)
        self.optimizer.fit(tensors)
        for name, tensor in self.optimizer.tensors().items():
            tensor.copy_(tensors[name])
        self.optimizer.load_scalars(scalars)
        self._alignment.load_state_dict(alignment)


class Averaged(Line):
    """A line that keeps an average of its weights as well, as a job does."""

    def __init__(self, task: Task, seed: int) -> None:
        """Build the task's model from `seed`."""
        super().__init__(task, seed)
        self.average = WeightAverage({} if self.optimizer.averages else self.optimizer.parameters)
        step = self.optimizer.step

        def stepped(loss: float) -> None:
            step(loss)
            self.average.follow(self.step + 1)

        self.optimizer.step = stepped  # type: ignore[method-assign]

    def snapshot(self) -> Any:
        """Return all that training changes."""
        return super().snapshot(), copy.deepcopy((self.average.tensors(), self.average.scalars()))

    def restore(self, snapshot: Any) -> None:
        """Go back to where `snapshot` was taken."""
        line, (tensors, scalars) = snapshot
        super().restore(line)
        self.average.fit(tensors)
        for name, tensor in self.average.tensors().items():
            tensor.copy_(tensors[name])
        self.average.load_scalars(scalars)

    @torch.no_grad()
    def evaluated(self) -> Evaluated:
        """Return the losses of the weights and of their average. BatchNorm's statistics are those of the next batches.

        It is so in a job.
        """
        weights, *_ = super().evaluated()
        if not self.average.has_states:
            return Evaluated(weights)
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.average.weights(), strict=False)
        layers = [each for each in model.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean of all
        for ahead in range(NUM_BATCHES if layers else 0):
            model(self.data[0][self._sampler.indices(self.step + ahead, rank=0)])
        model.eval()
        inputs, targets = self.workload.validation.tensors
        return Evaluated(weights, self._losses(model(inputs), targets))
