"""torch's own ways to train in data-parallel, and the two controls."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainers.training import model as models
from trainers.workload import Workload

#: Above any model here: with several buckets torch's PowerSGD hook may order its collectives differently on two ranks.
ONE_BUCKET_MB = 1000
TOP_K = 0.01
LOCAL_STEPS = 8
SMALL_SHARE = 0.01
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}
#: Methods whose hosts hold different models between averages, if there are any.
DIVERGING = ("local-sgd-8", "nosync", "small-only")
TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class Method:
    """How one step is taken: forward through `module`, backward, `exchange`, `optimizer`."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    exchange: Callable[[], None] = lambda: None


class Rival:
    """A rank of a method by torch; `place` is (seed, rank, hosts). Mutable: the model."""

    warm_up_steps = 3

    def __init__(self, method: str, workload: Workload, optimizer: str, *, place: tuple[int, int, int]) -> None:
        self._method, self._workload, self._place = method, workload, place
        self._optimizer = OPTIMIZERS[optimizer]

    def connect(self, init_method: str) -> None:
        _, rank, num_workers = self._place
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method, timeout=TIMEOUT, rank=rank, world_size=num_workers)

    def begin(self, rate: float) -> None:
        """Go to the state before the first step, at this learning rate from now on."""
        seed, rank, num_workers = self._place
        self.model = models.build(self._workload, seed)
        self._trained = METHODS[self._method](self.model, self._optimizer(self.model.parameters(), lr=rate))
        stream: Any = self._workload.training
        self._batches = stream.batches(seed=seed, start_step=0, rank=rank, num_workers=num_workers)

    def run(self, num_steps: int) -> dict[str, float]:
        """Take the steps; returns this host's mean loss of the last one."""
        method = self._trained
        for _ in range(num_steps):
            method.optimizer.zero_grad()
            loss = self._workload.loss(method.module, next(self._batches))
            loss.backward()
            method.exchange()
            method.optimizer.step()
        return {"loss": loss.item()}

    def publish(self, folder: str) -> None:
        """Leave this host's parameters in `folder`, a file of this machine and no traffic, if hosts' models differ."""
        if self._method in DIVERGING:
            vector = nn.utils.parameters_to_vector(self.model.parameters()).detach()
            vector.numpy().tofile(_file(folder, self._place[1]))

    @torch.no_grad()
    def evaluate(self, folder: str) -> dict[str, float]:
        """Return the loss of this host's `own` model, and of the `mean` of all hosts' published parameters.

        Each is over this host's share of the validation set.
        """
        own = self._loss()
        if self._method not in DIVERGING:
            return {"own": own, "mean": own}
        _, _, num_workers = self._place
        named = dict(self.model.named_parameters())
        size = sum(parameter.numel() for parameter in named.values())
        vectors = [torch.from_file(_file(folder, rank), size=size) for rank in range(num_workers)]
        parts = torch.stack(vectors).mean(dim=0).split([parameter.numel() for parameter in named.values()])
        mean = {name: part.view_as(named[name]) for name, part in zip(named, parts, strict=True)}
        with models.lent(self.model, mean):
            return {"own": own, "mean": self._loss()}

    def _loss(self) -> float:
        _, rank, num_workers = self._place
        data: Any = self._workload.validation
        with models.evaluating(self.model):
            batch = data[torch.arange(rank, len(data), num_workers)]
            return self._workload.evaluate(self.model, batch)["loss"].item()


def _file(folder: str, rank: int) -> str:
    return f"{folder}/{rank}.float32"


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return DDP as it comes."""
    return Method(DistributedDataParallel(model, gradient_as_bucket_view=True), optimizer)


def fp16(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return DDP with torch's hook that halves the bytes."""
    module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return Method(module, optimizer)


def power_sgd(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return DDP with torch's PowerSGD of rank 4, whose first two steps must be dense."""
    module = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Method(module, optimizer)


def top_k(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return DDP with top-k of 1 % and error feedback in torch's operators."""
    module = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=ONE_BUCKET_MB)
    module.register_comm_hook(TopK(), TopK.hook)
    return Method(module, optimizer)


def local_sgd(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return training that averages the parameters after every 8 steps on the hosts' own gradients."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns when imported, so only where it is needed

    return Method(model, PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(LOCAL_STEPS)))


def no_sync(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return training without any exchange."""
    return Method(model, optimizer)


def small_only(model: nn.Module, optimizer: torch.optim.Optimizer) -> Method:
    """Return training that averages the gradients of the smallest tensors only, 1 % of the parameters."""
    small = smallest(list(model.parameters()), SMALL_SHARE)

    def exchange() -> None:
        gradients = [parameter.grad for parameter in small if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    return Method(model, optimizer, exchange)


def smallest(tensors: list[Tensor], share: float) -> list[Tensor]:
    """Return the smallest tensors, as many as hold at most `share` of all entries together."""
    room = share * sum(tensor.numel() for tensor in tensors)
    chosen = []
    for tensor in sorted(tensors, key=Tensor.numel):
        room -= tensor.numel()
        if room < 0:
            break
        chosen.append(tensor)
    return chosen


class TopK:
    """Mutable: the residual `(d,)` of the one bucket, and the order of the parameters in it."""

    def __init__(self) -> None:
        self._residual = torch.zeros(0)
        self._parameters: list[Tensor] = []

    def hook(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Replace the bucket by the mean of the hosts' k largest entries; what is not sent stays for the next step."""
        corrected = bucket.buffer()
        corrected += self._residual_of(bucket.parameters())
        largest = corrected.abs().topk(round(TOP_K * len(corrected)), sorted=False).indices
        payload = torch.cat([largest.int(), corrected[largest].view(torch.int32)])
        self._residual.copy_(corrected)
        self._residual[largest] = 0.0
        num_workers = dist.get_world_size()
        gathered = payload.new_empty(num_workers * len(payload))
        work = dist.all_gather_single(gathered, payload, async_op=True)

        def decode(_: object) -> Tensor:
            corrected.zero_()
            for row in gathered.view(num_workers, 2, -1):
                corrected.index_add_(0, row[0], row[1].view(torch.float32), alpha=1 / num_workers)
            return corrected

        return work.get_future().then(decode)

    def _residual_of(self, parameters: list[Tensor]) -> Tensor:
        """Return the residual in the order of `parameters`, which DDP changes after its first step."""
        if not self._parameters:
            self._residual = torch.zeros(sum(parameter.numel() for parameter in parameters))
        elif any(old is not new for old, new in zip(self._parameters, parameters, strict=True)):
            parts = self._residual.split([parameter.numel() for parameter in self._parameters])
            kept = {id(old): part for old, part in zip(self._parameters, parts, strict=True)}
            self._residual = torch.cat([kept[id(new)] for new in parameters])
        self._parameters = parameters
        return self._residual


METHODS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Method]] = {
    "plain": plain,
    "fp16": fp16,
    "torch-powersgd-4": power_sgd,
    "torch-topk-1%": top_k,
    "local-sgd-8": local_sgd,
    "nosync": no_sync,
    "small-only": small_only,
}
