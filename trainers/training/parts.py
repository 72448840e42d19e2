"""Everything on a rank that its steps need, however the ranks are connected."""

from dataclasses import dataclass

import torch
from torch import nn

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.communication import Communication
from trainers.methods.activations.dropit.dropit import Activations, SavedTensors
from trainers.methods.blocks import blocks
from trainers.methods.blocks.blocks import Blocks
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.spec import contenders
from trainers.methods.replica_config import ReplicaConfig
from trainers.snapshot import Buffers, RandomState, Steps, Tensors
from trainers.spec.exchange import group_conflict
from trainers.training import feed, model as models
from trainers.training.alignment import Alignment
from trainers.training.feed import Feed
from trainers.training.passes import Passes
from trainers.training.weight_average import WeightAverage
from trainers.workload import Workload, WorkloadError


@dataclass(frozen=True)
class TrainingParts:
    """A model, its optimizer and gradients, its data, and the state outside of them."""

    config: ReplicaConfig
    workload: Workload
    device: torch.device
    model: nn.Module
    parameters: Tensors  # all of the model, frozen ones included
    buffers: Buffers
    optimizer: Optimizer
    buffer: GradientBuffer  # of what the optimizer trains
    communication: Communication
    blocks: Blocks
    alignment: Alignment
    average: WeightAverage
    activations: Activations
    saved: SavedTensors
    feed: Feed
    passes: Passes
    steps: Steps
    random: RandomState


def build(
    config: ReplicaConfig, workload: Workload, rank: int, num_workers: int, *, device: torch.device
) -> TrainingParts:
    """Return the parts of rank `rank` before the first step.

    Raises WorkloadError for a model, parameter groups or an optimizer that cannot be trained.
    """
    if (named := config.workload.weights_of) is not None:  # a job's driver puts the file in its place
        raise WorkloadError(
            f"`workload.weights_of` names job `{named.job}`, whose weights only its service finds: `wiretune export "
            f"{named.job} --what weights --out FILE`, and `weights: FILE`"
        )
    weights_url, sha256 = config.workload.weights, config.weights_sha256
    model = models.build(workload, config.seed, device=device, weights_url=weights_url, sha256=sha256).to(device)
    chosen = contenders(config.optimizer)[0]  # of several, until `Group.rebuild` is told another
    optimizer = optimizers.build(chosen, workload, model, apart=config.blocks.leaves_out)
    if message := group_conflict(config.exchange, optimizer.config, optimizer.brought):
        raise WorkloadError(message)
    trained = list(optimizer.parameters.values())
    alignment, buffer = Alignment(trained), GradientBuffer.behind(trained, config.exchange)
    data = feed.build(workload, config, num_workers)
    return TrainingParts(
        config=config,
        workload=workload,
        device=device,
        model=model,
        parameters=Tensors(dict(model.named_parameters())),
        buffers=Buffers(dict(model.named_buffers())),
        optimizer=optimizer,
        buffer=buffer,
        communication=Communication(buffer, device, threads=config.threads),
        blocks=blocks.build(config, model, buffer, epoch_steps=data.epoch_steps),
        alignment=alignment,
        # Schedule-Free evaluates an average of its own.
        average=WeightAverage(optimizer.parameters if config.average and not optimizer.averages else {}),
        activations=Activations(config.activations, model),
        saved=SavedTensors(model),
        feed=data,
        passes=Passes(config, workload, model, data, device),
        steps=Steps(),
        # Distinct per rank and job, so that e.g. dropout masks differ; torch mixes the bits.
        random=RandomState(config.seed * 65_536 + rank, device),
    )
