"""The training task: a model, its data and its loss. Subclass `Workload`, and name its factory in the job."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from trainers.segment import Direction

#: Tensors in any nesting of tuples, lists and mappings. `loss` gets them on the worker's device.
Batch = Any
EvaluatedSet = Literal["validation", "test"]
#: Numbers of a training step besides its loss, by name: scalars, means over the batch.
OwnNumbers = Mapping[str, Tensor | float]
#: What their names look like, and how many there may be.
OWN_NAME, MOST_OWN = re.compile(r"[a-z][a-z0-9_]{0,49}"), 16

#: Training batches that are evaluated in one forward pass, and samples at most, unless the workload says it.
BATCHES_AT_ONCE, MOST_AT_ONCE = 4, 1024


class Samples(Protocol):
    """A data set by index, such as any map-style `torch.utils.data.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class Stream(Protocol):
    """Data without an index: endless batches from any step on, so that a job can resume where it stopped."""

    def batches(self, *, seed: int, start_step: int, rank: int, num_workers: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches, `accumulate` of them per step, from `start_step` on.

        The same arguments must give the same batches, and ranks should share no samples.
        """


class Workload(ABC):
    """A model, its data and its loss. Every rank builds its own copy, and all copies must be equal.

    Set `training` and `validation` in `__init__`; the other attributes have defaults.
    """

    training: Samples | Stream
    validation: Samples
    test: Samples | None = None  # evaluated once, by the weights that a run exports: no choice depends on them
    batch_size: int = 32  # samples per worker and micro-batch
    evaluation_batch_size: int | None = None  # samples per forward pass of an evaluation; None: `samples_at_once`
    loader_processes: int = 0  # per worker: processes that load and transform samples by index in the background
    data_version: str = ""  # distinguishes data of the same size; a job resumes only on the same version
    metrics: Mapping[str, Direction] = {}  # what evaluations measure besides the loss, and which way is better

    @property
    def samples_at_once(self) -> int:
        """The samples per forward pass of an evaluation: `evaluation_batch_size`, or 4 batches, at most 1,024 samples.

        Without gradients, 4 batches take about as much memory as one that is trained.
        """
        return self.evaluation_batch_size or min(MOST_AT_ONCE, BATCHES_AT_ONCE * self.batch_size)

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new float32 model. Draw its weights from the global generators, which the caller has seeded."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, OwnNumbers]:
        """Return the mean loss over the samples of a batch, a scalar; with it, if you like, numbers to record.

        `(loss, {"aux": aux})` records the series `own_aux`, a mean over micro-batches and workers. Every call returns
        the same names, at most `MOST_OWN`, each of which matches `OWN_NAME`.
        """

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return `loss` and each of `metrics` for a validation batch: scalars, means over its samples.

        Leave out the metrics that `compute_metrics` returns.
        """
        returned = self.loss(model, batch)
        return {"loss": returned[0] if isinstance(returned, tuple) else returned}

    def predictions(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return tensors of a validation batch by name, one row for each sample; `compute_metrics` gets them all.

        It is called after `evaluate`, on the same batch and in the same way. Each call returns the same names, and
        rows of the same types and shapes.
        """
        return {}

    def compute_metrics(self, predictions: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Return those of `metrics` that are no means over samples, such as an AUC, for the whole validation set.

        `predictions` are the tensors that `predictions` returned, by name. They lie in host memory, with one row for
        each sample in the order of `validation`, however many workers there are. Rows in half precision come as
        float32. The first worker calls this, unless the loss is not finite.
        """
        return {}

    def labels(self) -> Sequence[int] | Tensor | None:
        """Return the integer class of each sample of `training`, for a `partition` by labels; None: no classes."""
        return None

    def collate(self, samples: list[Any]) -> Batch:
        """Return the samples as one batch."""
        return default_collate(samples)

    def parameter_groups(self, model: nn.Module) -> Sequence[dict[str, Any]]:
        """Return torch parameter groups; a group's `lr` multiplies the learning rate (default 1).

        Parameters in no group are frozen.
        """
        return [{"params": list(model.parameters())}]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of `optimizer: {kind: own}`; the learning rate multiplies its groups' rates."""
        raise WorkloadError(
            f"`optimizer: {{kind: own}}` needs {type(self).__name__} to have a method `optimizer`; "
            "write one, or take another kind"
        )


def evaluated_sets(workload: Workload) -> dict[EvaluatedSet, Samples]:
    """Return the data sets of `workload` that weights are evaluated on, by name."""
    sets: dict[EvaluatedSet, Samples] = {"validation": workload.validation}
    return sets if workload.test is None else {**sets, "test": workload.test}


class WorkloadError(Exception):
    """A workload cannot be trained as it is. The message says why and what to do; a retry would not help."""


class NoData(WorkloadError):
    """The data are not available on the machine of a worker."""
