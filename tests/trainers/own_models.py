"""Workloads as users write them: the tests name their factories in a job."""

import os
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset, TensorDataset, random_split

from trainers.segment import Direction
from trainers.workload import Workload

WIDTH, NUM_SAMPLES = 6, 240
METRICS: dict[str, Any] = {
    "metric named loss": {"loss": "min"},
    "metric with a slash": {"f1/macro": "max"},
    "metric without direction": {"f1": "up"},
}


def samples(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """A linear rule with noise."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, WIDTH, generator=draw)
    return inputs, inputs.sum(dim=1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=draw)


class Regression(Workload):
    """The base of the others: two layers on the linear rule."""

    batch_size = 12
    metrics: Mapping[str, Direction] = {"mae": "min"}

    def __init__(self) -> None:
        self.training: Any = TensorDataset(*samples(0, NUM_SAMPLES))
        self.validation = TensorDataset(*samples(1, 50))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self.loss(model, batch), "mae": (model(batch[0]) - batch[1]).abs().mean()}


class Large(Regression):
    """No more than `fits` samples at once can be evaluated, on rank 0 of several."""

    def __init__(self, fits: int, evaluation_batch_size: int | None = None) -> None:
        super().__init__()
        self.fits, self.evaluation_batch_size = fits, evaluation_batch_size
        self.evaluated: list[int] = []

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        is_full = not dist.is_initialized() or dist.get_rank() == 0
        if is_full and len(batch[0]) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        self.evaluated.append(len(batch[0]))
        return super().evaluate(model, batch)


class Single(Regression):
    """One sample to validate on: fewer than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.validation = TensorDataset(*samples(1, 1))


class LearnedByHeart(Regression):
    """Targets that are noise: what is learned of them is of no use on others."""

    def __init__(self) -> None:
        (inputs, others), draw = (samples(0, 24)[0], samples(1, 50)[0]), torch.Generator().manual_seed(2)
        self.training = TensorDataset(inputs, torch.randn(24, 1, generator=draw))
        self.validation = TensorDataset(others, torch.randn(50, 1, generator=draw))


class NotANumber(Regression):
    """The logarithm of what is below 0."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return torch.log(-1 - super().loss(model, batch))


class Collated(Regression):
    """Its batches are dictionaries, made of pairs."""

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        inputs, targets = zip(*samples, strict=True)
        return {"x": torch.stack(inputs), "y": torch.stack(targets)}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, (batch["x"], batch["y"]))

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self.loss(model, batch), "mae": (model(batch["x"]) - batch["y"]).abs().mean()}


class Frozen(Regression):
    def model(self) -> nn.Module:
        model = super().model()
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        return model


class Compiled(Regression):
    """Its tensors are named as those of `torch.compile(model)`."""

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(_orig_mod=super().model()))


class TiedNet(nn.Module):
    """The second layer's weight is the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(inputs)))))


class Tied(Regression):
    def model(self) -> nn.Module:
        return TiedNet()


class UnusedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, 1), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)


class Unused(Regression):
    def model(self) -> nn.Module:
        return UnusedNet()


class Grouped(Regression):
    """The last layer learns ten times as fast, and without decay; the first layer's bias is in no group."""

    def parameter_groups(self, model: Any) -> list[dict[str, Any]]:
        return [{"params": [model[0].weight]}, {"params": model[2].parameters(), "lr": 10.0, "weight_decay": 0.0}]


class Decayed(Regression):
    """Eight layers, whose matrices decay and whose biases do not."""

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(7)), nn.Linear(WIDTH, 1))

    def parameter_groups(self, model: Any) -> list[dict[str, Any]]:
        matrices, biases = ([each for each in model.parameters() if each.dim() == dim] for dim in (2, 1))
        return [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]


class OwnOptimizer(Regression):
    def __init__(self, kind: str = "Adam") -> None:
        super().__init__()
        self.kind = kind

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]
        return getattr(torch.optim, self.kind)(groups, lr=0.01)


class Counting(torch.optim.SGD):
    """Keeps nothing but a number, which its steps depend on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                count = self.state[parameter].get("count", 0) + 1
                self.state[parameter]["count"] = count
                parameter.sub_(group["lr"] / count * parameter.grad)


class CountingInGroups(Counting):
    """Counts its steps by a number of each group, which the first step makes: as Lamb and Adan do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                parameter.sub_(group["lr"] / group["step"] * parameter.grad)


class Hoarding(Counting):
    """Keeps past gradients in a list."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("past", []).append(parameter.grad.clone())


class Global(Counting):
    """Counts its steps under no parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.state["t"] = 1 if "t" not in self.state else self.state["t"] + 1


class Grouping(Counting):
    """Counts its steps in tensors of its groups, which have one more that stays."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        for group in self.param_groups:
            group |= {"scale": torch.ones(()), "t": torch.zeros(())}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["t"] += 1


class OddOptimizer(Regression):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = {
            "counting": Counting,
            "counting in groups": CountingInGroups,
            "hoarding": Hoarding,
            "global": Global,
            "grouping": Grouping,
        }[kind]

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return self.kind(model.parameters(), lr=0.05)


class PartlyFrozen(Regression):
    """A normalisation that stays in evaluation mode, and a frozen layer in bfloat16: as fine-tuning does."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Linear(1, 1).bfloat16())
        model[3].requires_grad_(False)
        model[1].eval()
        return model

    def loss(self, model: Any, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model[:3](batch[0]), batch[1])

    def evaluate(self, model: Any, batch: Any) -> Mapping[str, Tensor]:
        loss = self.loss(model, batch)
        return {"loss": loss, "mae": loss}


class Pretrained(Regression):
    """Comes in evaluation mode."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 1)).eval()


class Mixed(Regression):
    """Draws from NumPy and Python in the loss."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return (np.random.beta(1, 1) + random.random()) * super().loss(model, batch)


class Averaging(nn.Module):
    """Keeps a moving average in a buffer: replaced by a new tensor, or changed in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(WIDTH, 1), in_place
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_place:
            self.average.lerp_(inputs.mean(dim=0).detach(), 0.1)
        else:
            self.average = torch.lerp(self.average, inputs.mean(dim=0).detach(), 0.1)
        return self.linear(inputs - self.average)


class Averaged(Regression):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def model(self) -> nn.Module:
        return Averaging(self.in_place)


class Taught(Regression):
    """A frozen teacher that follows the first layer: its values are replaced by new ones, or changed in place."""

    def __init__(self, in_place: bool, always: bool = False) -> None:
        super().__init__()
        self.in_place, self.always = in_place, always

    def model(self) -> nn.Module:
        model = nn.ModuleDict({"student": nn.Linear(WIDTH, 1), "teacher": nn.Linear(WIDTH, 1)})
        model["teacher"].requires_grad_(False)
        return model

    def loss(self, model: Any, batch: Any) -> Tensor:
        if model.training or self.always:
            for mine, taught in zip(model["teacher"].parameters(), model["student"].parameters(), strict=True):
                if self.in_place:
                    mine.lerp_(taught.detach(), 0.1)
                else:
                    mine.data = torch.lerp(mine, taught.detach(), 0.1)
        found = model["student"](batch[0])
        return nn.functional.mse_loss(found, batch[1]) + nn.functional.mse_loss(found, model["teacher"](batch[0]))

    def evaluate(self, model: Any, batch: Any) -> Mapping[str, Tensor]:
        loss = self.loss(model, batch)
        return {"loss": loss, "mae": loss}


class Merged(nn.Linear):
    """Adds an adapter to its frozen weight while it is evaluated, as loralib's layers do."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2) / 8)
        self.is_merged = False

    def train(self, mode: bool = True) -> "Merged":
        super().train(mode)
        if self.is_merged == mode:
            self.weight.data += (-1 if mode else 1) * self.up.data @ self.down.data
            self.is_merged = not mode
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        plain = super().forward(inputs)
        return plain if self.is_merged else plain + inputs @ self.down.T @ self.up.T


class Adapted(Regression):
    """A frozen layer with an adapter, then a normalisation that its owner keeps in evaluation mode."""

    def model(self) -> nn.Module:
        return KeepingStatistics(Merged(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class KeepingStatistics(nn.Sequential):
    """Leaves its second module in evaluation mode, whatever it is told."""

    def train(self, mode: bool = True) -> "KeepingStatistics":
        super().train(mode)
        self[1].eval()
        return self


class Clipped(Regression):
    """Clips its trained weights in place, behind torch's back: always, or while it trains."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def loss(self, model: Any, batch: Any) -> Tensor:
        if model.training or self.always:
            for parameter in model.parameters():
                parameter.data.clamp_(-0.1, 0.1)
        return super().loss(model, batch)


class Astray(Regression):
    """Stretches its first layer by its own batch, in place and behind torch's back, by about `size` in a step."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def loss(self, model: Any, batch: Any) -> Tensor:
        if model.training:
            model[0].weight.data.mul_(1 + self.size * batch[0].mean())
        return super().loss(model, batch)


class Sloped(Regression):
    """Punishes slopes of a model that draws and keeps statistics: computed by torch.func, or by torch.autograd."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.functional = functional

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, model: Any, batch: Any) -> Tensor:
        inputs = model[:2](batch[0])
        if self.functional:
            slopes = torch.func.grad(lambda given: model[2:](given).sum())(inputs)
        else:
            [slopes] = torch.autograd.grad(model[2:](inputs).sum(), inputs, create_graph=True)
        return nn.functional.mse_loss(model[2:](inputs), batch[1]) + 0.1 * slopes.square().mean()


class GraduallyTrained(Regression):
    """The first layer is frozen until number `begin` of the losses, or from it on."""

    def __init__(self, begin: int, unfreezes: bool) -> None:
        super().__init__()
        self.begin, self.unfreezes, self.num_losses = begin, unfreezes, 0

    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("0").requires_grad_(not self.unfreezes)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.num_losses == self.begin:
            model.get_submodule("0").requires_grad_(self.unfreezes)
        self.num_losses += 1
        return super().loss(model, batch)


class TaughtNormed(Taught):
    """The same behind a normalisation, whose statistics are taken in passes of their own, with a constant."""

    def __init__(self) -> None:
        super().__init__(in_place=True)

    def model(self) -> nn.Module:
        model = super().model()
        model.norm = nn.BatchNorm1d(WIDTH)
        model.register_buffer("constant", torch.full((WIDTH,), 0.1))  # of which three thirds are a little more
        return model

    def loss(self, model: Any, batch: Any) -> Tensor:
        return super().loss(model, (model.norm(batch[0]), batch[1]))


class Noisy(TensorDataset):
    """Tensor data that are augmented."""

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        inputs, targets = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(WIDTH), targets


class NoisyTensors(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.training = Noisy(*samples(0, NUM_SAMPLES))


class Checkpointed(Regression):
    """Recomputes its first layers in the backward pass, dropout included."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute

    def model(self) -> nn.Module:
        return nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Tanh()), nn.Linear(8, 1)])

    def evaluate(self, model: Any, batch: Any) -> Mapping[str, Tensor]:
        loss = self.loss(model, batch)
        return {"loss": loss, "mae": loss}

    def loss(self, model: Any, batch: Any) -> Tensor:
        hidden = checkpoint(model[0], batch[0], use_reentrant=False) if self.recompute else model[0](batch[0])
        return nn.functional.mse_loss(model[1](hidden), batch[1])


class Reentrant(Regression):
    """Backward adds to the middle layer's gradient twice: two stretches have it, and each is recomputed by itself."""

    def __init__(self, recompute: bool = True) -> None:
        super().__init__()
        self.recompute = recompute

    def model(self) -> nn.Module:
        return nn.ModuleList([nn.Linear(WIDTH, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1)])

    def loss(self, model: Any, batch: Any) -> Tensor:
        hidden = model[0](batch[0])
        for _ in range(2):
            hidden = checkpoint(model[1], hidden, use_reentrant=True) if self.recompute else model[1](hidden)
        return nn.functional.mse_loss(model[2](hidden), batch[1])

    def evaluate(self, model: Any, batch: Any) -> Mapping[str, Tensor]:
        loss = self.loss(model, batch)
        return {"loss": loss, "mae": loss}


class SparseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH, sparse=True)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.table((inputs[:, 0].abs() * 4).long().clamp(max=15)))


class SparseEmbedding(Regression):
    def model(self) -> nn.Module:
        return SparseNet()


class Augmented(Dataset[dict[str, Tensor]]):
    """Samples as dictionaries, each with noise from one of the three usual generators."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples(0, NUM_SAMPLES)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        noise = (torch.rand(1).item(), np.random.rand(), random.random())[index % 3]
        return {"x": self.inputs[index] + 0.1 * noise, "y": self.targets[index]}


class Drawn(Dataset[Tensor]):
    """Samples that are drawn, and kept in a list."""

    def __init__(self, drawn: list[float]) -> None:
        self.drawn = drawn

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        self.drawn += [np.random.rand(), random.random()]
        return torch.tensor(self.drawn[-2:])


class Drawing(Regression):
    """Keeps the numbers that samples and losses draw."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []
        self.training = Drawn(self.drawn)

    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.drawn += [np.random.rand(), random.random()]
        return model(batch).square().mean()


class MapStyle(Regression):
    metrics: Mapping[str, Direction] = {}

    def __init__(self, processes: int = 0) -> None:
        self.training = self.validation = Augmented()
        self.loader_processes = processes

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self.loss(model, batch)}


class Signed(Dataset[Tensor]):
    """Samples that say which process fetches them."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([os.getpid()])


class WhoFetches(Regression):
    """Keeps which processes fetched its validation samples."""

    loader_processes = 1
    metrics: Mapping[str, Direction] = {}

    def __init__(self) -> None:
        self.training = self.validation = Signed()
        self.fetched_by: set[int] = set()

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        self.fetched_by.update(batch.flatten().tolist())
        return {"loss": torch.zeros(())}


class Numbers:
    """A stream without an index; it ends after `length` steps, if that is given."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def batches(self, *, seed: int, start_step: int, rank: int, num_workers: int) -> Iterator[tuple[Tensor, Tensor]]:
        step = start_step
        while self.length is None or step < self.length:
            yield samples(hash((seed, step, rank)) % 2**31, 12)
            step += 1


class NoisyNumbers(Numbers):
    """With noise from the three usual generators."""

    def batches(self, **where: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, targets in super().batches(**where):
            yield inputs + 0.1 * (torch.rand(1) + np.random.rand() + random.random()), targets


class Streamed(Regression):
    def __init__(self, length: int | None = None, noisy: bool = False) -> None:
        super().__init__()
        self.training = NoisyNumbers(length) if noisy else Numbers(length)


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


class Scaled(nn.Module):
    """Keeps a number where `state_dict` alone finds it."""

    def get_extra_state(self) -> dict[str, float]:
        return {"scale": 1.0}


class Broken(Regression):
    """Each `fault` is one way to be unfit for training."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        if fault == "iterable":
            self.training = Endless()
        if fault == "few samples":
            self.training = TensorDataset(*samples(0, 5))
        if fault == "no data":
            del self.training
        if fault in METRICS:
            self.metrics = METRICS[fault]
        if fault == "empty validation":
            self.validation = TensorDataset(*samples(1, 0))

    def model(self) -> Any:
        model = super().model()
        match self.fault:
            case "no module":
                return "a model"
            case "lazy":
                return nn.LazyLinear(1)
            case "meta":
                return nn.Linear(WIDTH, 1, device="meta")
            case "half":
                return model.bfloat16()
            case "no entries":
                model.register_parameter("nobody", nn.Parameter(torch.empty(0, 3)))
            case "expanded":
                model.register_buffer("mask", torch.ones(1, 2).expand(3, 2))
            case "complex128":
                model.register_buffer("turns", torch.zeros(4, dtype=torch.complex128))
            case "conjugated":
                model.register_buffer("turns", torch.ones(4, dtype=torch.complex64).conj())
            case "negated":
                model.register_buffer("turns", torch.ones(4, dtype=torch.complex64).conj().imag)
            case "extra state":
                model.append(Scaled())
            case "sparse":
                model.register_buffer("graph", torch.eye(3).to_sparse())
            case "synchronised":
                return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(model, nn.BatchNorm1d(1)))
            case "max_norm":
                return nn.Sequential(nn.Embedding(16, WIDTH, max_norm=1.0), model)
            case "max_norm of bags":
                return nn.Sequential(nn.EmbeddingBag(16, WIDTH, max_norm=1.0), model)
            case "all frozen":
                return model.requires_grad_(False)
        return model

    def parameter_groups(self, model: Any) -> list[dict[str, Any]]:
        match self.fault:
            case "foreign parameter":
                return [{"params": [nn.Parameter(torch.zeros(3))]}]
            case "no group":
                return [{"params": [each for name, each in model.named_parameters() if "lroa" in name]}]
            case "bad rate":
                return [{"params": model.parameters(), "lr": 0.0}]
            case "unknown option":
                return [{"params": model.parameters(), "beta": 0.9}]
            case "momentum" | "weight_decay":
                return [{"params": model.parameters(), self.fault: 0.5}]
        return list(super().parameter_groups(model))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.fault == "loss without gradient":
            return super().loss(model, batch).item()  # type: ignore[return-value]
        if self.fault == "vector loss":
            return (model(batch[0]) - batch[1]).squeeze(1)
        if self.fault == "backward of its own":
            super().loss(model, batch).backward()
        return super().loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        measured = dict(super().evaluate(model, batch))
        if self.fault == "vector metric":
            measured["mae"] = measured["mae"].expand(2)
        if self.fault == "unnamed metric":
            measured["mse"] = measured["loss"]
        return measured

    def optimizer(self, model: Any) -> Any:
        if self.fault == "lbfgs":
            return torch.optim.LBFGS(model.parameters())
        if self.fault == "no rate":
            optimizer = Counting(model.parameters(), lr=0.05)
            optimizer.param_groups[0]["lr"] = None
            return optimizer
        return super().optimizer(model)


class Unequal(Regression):
    """One `part` comes from a generator of its own, which every process seeds in its own way."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part, draw = part, np.random.default_rng()
        if part == "split":
            own = torch.Generator().manual_seed(int(draw.integers(2**31)))
            self.training, self.validation = random_split(self.training, [0.8, 0.2], own)
        if part == "augmentation":
            self.training = self.validation = Jittered(draw)

    def model(self) -> nn.Module:
        model = super().model()
        drawn = torch.from_numpy(np.random.default_rng().normal(size=64)).float()
        if self.part == "weight":
            nn.init.constant_(model[0].weight, float(drawn[0]))
        if self.part == "buffer":
            model[2].register_buffer("features", drawn)
        if self.part == "rounding":
            model[2].register_buffer("features", torch.ones(64) * (1 + 1e-6 * drawn[0]))
        return model


class Jittered(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise from a generator of its own."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.pairs, self.draw = TensorDataset(*samples(0, NUM_SAMPLES)), draw

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.pairs[index]
        return inputs + float(self.draw.normal()), target


class Stumbling(Regression):
    """Raises an error of the operating system in its first step."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        print("about to stumble")
        raise OSError(self.number, "stumbled")


def nothing() -> None:
    """A factory that forgets to return."""


def of_table(table: str) -> Regression:
    """Return a workload that has read the file at this path."""
    made = Regression()
    made.data_version = Path(table).read_text()[:10]
    return made


class HeldOut(Regression):
    """Has samples that choose nothing; `fault` is what is wrong with them."""

    def __init__(self, fault: str = "", num_test: int = 70) -> None:
        super().__init__()
        inputs, targets = samples(2, num_test)
        self.fault, self.num_test = fault, num_test
        self.test = TensorDataset(inputs[:, : 3 if fault == "narrow" else WIDTH], targets)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        if self.fault == "fatal" and batch[1].sum() == self.test.tensors[1][::2].sum():  # of the first of two ranks
            os._exit(9)
        return super().evaluate(model, batch)


class HeldOutByName(Regression):
    """Has another thing by the name of the test set."""

    def test(self) -> None:  # type: ignore[override]
        """Check something."""
