"""Run batches forward and backward through a rank's model, and check what the workload returns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from trainers import random_state
from trainers.methods.replica_config import ReplicaConfig
from trainers.training import whole_set
from trainers.training.feed import EvaluationFeed, Feed, Place, seed_of, to_device
from trainers.workload import (
    MOST_OWN,
    OWN_NAME,
    Batch,
    EvaluatedSet,
    OwnNumbers,
    Workload,
    WorkloadError,
    evaluated_sets,
)


class Forward(NamedTuple):
    """The scalars of a micro-batch: its loss, and the workload's own numbers by name, detached and in float64."""

    loss: Tensor
    own: Mapping[str, Tensor]


class Measured(NamedTuple):
    """The results of a batch of an evaluation."""

    means: Tensor  # one for each name that was asked for, in float64; 0 where `compute_metrics` returns it
    predictions: Mapping[str, Tensor]  # in host memory, by name, a row for each sample; {}: none are needed


class Passes:
    """Passes of training batches (from `feed`) and of batches that are evaluated through `model`.

    All methods raise WorkloadError if the workload does not return what it must.
    """

    def __init__(
        self, config: ReplicaConfig, workload: Workload, model: nn.Module, feed: Feed, device: torch.device
    ) -> None:
        self._config, self._workload, self._model = config, workload, model
        self._feed, self.device = feed, device
        self._evaluation_feeds = {
            on: EvaluationFeed(workload, samples, timeout_s=config.reply_timeout_s)
            for on, samples in evaluated_sets(workload).items()
        }
        self._own_names: frozenset[str] | None = None  # None: no loss has been computed yet
        self.predicts = whole_set.predicts(workload)
        #: The names that `evaluate` returns; empty: it was not called yet.
        self.evaluated: frozenset[str] = frozenset()

    def forward(self, place: Place, batch_size: int | None = None) -> Forward:
        """Return what the workload computes of the micro-batch at `place`; `batch_size` None: the workload's own."""
        batch = to_device(self._feed.batch(place, batch_size), self.device)
        with random_state.host_seeded(seed_of((self._config.seed, *place))), self._autocast():
            returned = self._workload.loss(self._model, batch)
        loss, own = returned if _is_pair(returned) else (returned, {})
        if not isinstance(loss, Tensor) or loss.ndim:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise WorkloadError(f"`loss` must return a scalar tensor, the mean over the batch; got {found}")
        return Forward(loss, self._numbers(own))

    def _numbers(self, own: OwnNumbers) -> dict[str, Tensor]:
        """Return the numbers that came with a loss. The first loss settles their names."""
        if self._own_names is None:
            _check_names(own)
            self._own_names = frozenset(own)
        if own.keys() != self._own_names:
            raise WorkloadError(
                f"`loss` must return the same numbers in every step: {sorted(self._own_names)} at first, "
                f"now {sorted(map(str, own))}"
            )
        return {name: self._number(name, value) for name, value in own.items()}

    def _number(self, name: str, value: Tensor | float) -> Tensor:
        try:
            number = torch.as_tensor(value, device=self.device).detach().to(torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise WorkloadError(f"`{name}`, which `loss` returns, must be a number; got {value!r}") from error
        if number.ndim:
            raise WorkloadError(
                f"`{name}`, which `loss` returns, must be a scalar, the mean over the batch; "
                f"got shape {tuple(number.shape)}"
            )
        return number

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to those of the parameters."""
        if loss.requires_grad:
            torch.autograd.backward(loss)
        elif not self._config.blocks.leaves_out:  # else it may depend on no block that was drawn
            raise WorkloadError(
                "`loss` returned a value without a gradient: compute it from the model's output by torch operations, "
                "without `detach`, `item` or `no_grad`"
            )

    def measured(self, on: EvaluatedSet, parts: Sequence[Tensor], names: Sequence[str]) -> Iterator[Measured]:
        """Yield what is measured of the samples of `on` at each of `parts`: `names`, and predictions."""
        for part, batch in zip(parts, self._evaluation_feeds[on].batches(parts), strict=True):
            moved = to_device(batch, self.device)
            yield Measured(self._means(moved, names), self._predictions(moved, len(part)))

    def _means(self, batch: Batch, names: Sequence[str]) -> Tensor:
        with self._autocast():
            measured = self._workload.evaluate(self._model, batch)
        self._check_evaluated(measured, names)
        for name in measured:
            if torch.as_tensor(measured[name]).ndim:
                raise WorkloadError(f"`evaluate` must return scalars, means over the batch; `{name}` is none")
        return torch.tensor([float(measured.get(name, 0.0)) for name in names], dtype=torch.float64)

    def _check_evaluated(self, measured: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Raise WorkloadError for other names than `names`. Those that `compute_metrics` returns may be missing."""
        found = frozenset(measured)
        if found != {*names} and not (self.predicts and "loss" in found and found < {*names}):
            rest = ", except what `compute_metrics` returns" if self.predicts else ""
            raise WorkloadError(
                f"`evaluate` must return {sorted(names)}, as `metrics` says{rest}; got {sorted(measured)}"
            )
        if self.evaluated and found != self.evaluated:
            raise WorkloadError(
                f"`evaluate` must return the same names for every batch: {sorted(self.evaluated)} at first, now "
                f"{sorted(found)}"
            )
        self.evaluated = found

    def _predictions(self, batch: Batch, num_samples: int) -> dict[str, Tensor]:
        if not self.predicts:
            return {}
        with self._autocast():
            predicted = self._workload.predictions(self._model, batch)
        return whole_set.checked(predicted, num_samples)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._config.precision == "bf16")


def _is_pair(returned: object) -> TypeGuard[tuple[Tensor, OwnNumbers]]:
    return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)


def _check_names(own: OwnNumbers) -> None:
    """Raise WorkloadError for names that cannot name a series, or for too many of them."""
    if len(own) > MOST_OWN:
        raise WorkloadError(f"`loss` may return at most {MOST_OWN} numbers besides the loss, got {len(own)}")
    for name in own:
        if not (isinstance(name, str) and OWN_NAME.fullmatch(name)):
            raise WorkloadError(
                f"a number that `loss` returns needs a name of a-z, 0-9 and _ that begins with a letter, at most 50 "
                f"characters; got {name!r}"
            )
