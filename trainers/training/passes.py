"""Run batches forward and backward through a rank's model, and check what the workload returns."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainers import random_state
from trainers.methods.replica_config import ReplicaConfig
from trainers.training.feed import Feed, Place, fetch, seed_of, to_device
from trainers.workload import Workload, WorkloadError


class Passes:
    """Passes of training batches (from `feed`) and validation batches through `model`.

    All methods raise WorkloadError if the workload does not return what it must.
    """

    def __init__(
        self, config: ReplicaConfig, workload: Workload, model: nn.Module, feed: Feed, device: torch.device
    ) -> None:
        self._config, self._workload, self._model = config, workload, model
        self._feed, self.device = feed, device

    def loss(self, place: Place, batch_size: int | None = None) -> Tensor:
        """Return the loss of the micro-batch at `place`; `batch_size` None: the workload's own."""
        batch = to_device(self._feed.batch(place, batch_size), self.device)
        with random_state.host_seeded(seed_of((self._config.seed, *place))), self._autocast():
            loss = self._workload.loss(self._model, batch)
        if not isinstance(loss, Tensor) or loss.ndim:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise WorkloadError(f"`loss` must return a scalar tensor, the mean over the batch; got {found}")
        return loss

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to those of the parameters."""
        if loss.requires_grad:
            torch.autograd.backward(loss)
        elif not self._config.blocks.leaves_out:  # else it may depend on no block that was drawn
            raise WorkloadError(
                "`loss` returned a value without a gradient: compute it from the model's output by torch operations, "
                "without `detach`, `item` or `no_grad`"
            )

    def measure(self, indices: Tensor, names: Sequence[str]) -> Tensor:
        """Return what is measured of the validation samples at `indices`: means `(len(names),)` in float64."""
        batch = to_device(fetch(self._workload, self._workload.validation, indices), self.device)
        with self._autocast():
            measured = self._workload.evaluate(self._model, batch)
        if measured.keys() != set(names):
            raise WorkloadError(f"`evaluate` must return {sorted(names)}, as `metrics` says; got {sorted(measured)}")
        for name in names:
            if torch.as_tensor(measured[name]).ndim:
                raise WorkloadError(f"`evaluate` must return scalars, means over the batch; `{name}` is none")
        return torch.tensor([float(measured[name]) for name in names], dtype=torch.float64)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._config.precision == "bf16")
