"""Build the sync policy that a configuration describes."""

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.node_links import NodeLinks
from trainers.methods.blocks.registry import Blocks
from trainers.methods.exchange.auto.spec import AutoConfig
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.optimizer.optimizers import Optimizer
from trainers.methods.sync import auto
from trainers.methods.sync.accordion_batch import AccordionBatch
from trainers.methods.sync.averaging import Iterate, Meeting
from trainers.methods.sync.cocod_sgd import CocodSgd
from trainers.methods.sync.delayed_average import Background
from trainers.methods.sync.every_step import EveryStep
from trainers.methods.sync.local import Alone
from trainers.methods.sync.local_error import Drifting, LiecSgd
from trainers.methods.sync.local_sgd import LocalSgd
from trainers.methods.sync.overlap_local_sgd import OverlapLocalSgd
from trainers.methods.sync.policy import SyncPolicy
from trainers.methods.sync.spec import (
    AccordionBatchConfig,
    CocodSgdConfig,
    EveryStepConfig,
    LocalSgdConfig,
    OverlapLocalSgdConfig,
    StlSgdConfig,
    VrlSgdConfig,
)
from trainers.methods.sync.stl_sgd import StlSgd
from trainers.methods.sync.vrl_sgd import VrlSgd
from trainers.spec.partition import IidPartition
from trainers.spec.replica import ReplicaConfig


def build(
    config: ReplicaConfig,
    optimizer: Optimizer,
    buffer: GradientBuffer,
    node_links: NodeLinks,
    *,
    blocks: Blocks,
    epoch_steps: int | None = None,
) -> SyncPolicy:
    """Return the policy of `config` for the parameters of `optimizer`, whose gradients are in `buffer`.

    They, and what the policy starts from, are those of the moment. An epoch of the data has `epoch_steps`, if it ends.
    """
    sync = config.sync
    if isinstance(config.exchange, AutoConfig):
        return auto.build(config, config.exchange, optimizer, buffer, node_links)
    iterate = Iterate(optimizer.iterate(), num_parameters=buffer.num_elements)
    if isinstance(sync, EveryStepConfig):
        exchange = blocks.exchange(node_links)
        match config.exchange:
            case CserConfig():
                return Drifting(config.exchange, iterate, exchange=exchange)
            case LiecSgdConfig():
                return LiecSgd(config.exchange, iterate, node_links, exchange=exchange)
        return EveryStep(exchange)
    if isinstance(sync, AccordionBatchConfig):
        return AccordionBatch(sync.lasting(epoch_steps), blocks.exchange(node_links), buffer, node_links)
    alone, background = Alone(buffer), Background(node_links, buffer.gradient.device, threads=config.threads)
    match sync:
        case CocodSgdConfig():
            return CocodSgd(sync, iterate, background, gradients=alone)
        case OverlapLocalSgdConfig():
            return OverlapLocalSgd(sync, iterate, background, gradients=alone)
    meeting = Meeting(config.exchange, iterate, node_links, seed=config.seed)
    match sync:
        case LocalSgdConfig():
            return LocalSgd(sync, iterate, meeting, gradients=alone)
        case StlSgdConfig():
            return StlSgd(sync, iterate, meeting, gradients=alone, is_iid=_is_iid(sync, config))
        case VrlSgdConfig():
            return VrlSgd(sync, iterate, meeting, gradients=alone)


def _is_iid(sync: StlSgdConfig, config: ReplicaConfig) -> bool:
    return sync.data == "iid" or (sync.data == "auto" and isinstance(config.partition, IidPartition))
