"""Scenarios of one rank in a real gloo group that draws blocks of the model."""

from pathlib import Path
from typing import Any

from exchange_harness import digest
from sync_scenarios import write_checkpoint

from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.blocks.jointspar.jointspar import JointSpar
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import LarsConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.partition import ByLabelPartition
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import cost
from trainers.training.replica import Replica

RATE = 5.0


def jointspar(rank: int, num_workers: int) -> dict[str, Any]:
    """Training on data that differ, each rank a node; gone on with by another replica, from a checkpoint."""
    first, second = (_replica(rank, num_workers, JointSparConfig()) for _ in range(2))
    steps = [_step(first) for _ in range(8)]
    url = f"{Path.cwd()}/drawn"
    write_checkpoint(first, url)
    second.load(url)
    losses = [replica.run(Segment(num_steps=8, learning_rate=RATE)).losses for replica in (first, second)]
    whole = (_replica(rank, num_workers, blocks) for blocks in (JointSparConfig(share=1.0), AllBlocksConfig()))
    return {
        "steps": steps,
        "all drawn, plain": [each.run(Segment(num_steps=8, learning_rate=RATE)).losses for each in whole],
        "losses": losses,
        "bits": [digest(list(replica.model.parameters())) for replica in (first, second)],
        "chances": _blocks(first).tensors()["chances"].tolist(),
    }


def jointspar_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Training on two nodes: of drawn blocks, of blocks that are all drawn, and plainly."""
    kinds: dict[str, BlocksConfig] = {
        "drawn": JointSparConfig(),
        "all drawn": JointSparConfig(share=1.0),
        "plain": AllBlocksConfig(),
    }
    replicas = {name: _replica(rank, num_workers, blocks, per_node=2) for name, blocks in kinds.items()}
    losses = {name: each.run(Segment(num_steps=8, learning_rate=RATE)).losses for name, each in replicas.items()}
    return {
        "losses": losses,
        "bits": {name: digest(list(each.model.parameters())) for name, each in replicas.items()},
        "chances": _blocks(replicas["drawn"]).tensors()["chances"].tolist(),
    }


def _step(replica: Replica) -> dict[str, Any]:
    """Take a step; returns what was drawn, what was sent, and what was foreseen of such a draw."""
    result = replica.run(Segment(num_steps=1, learning_rate=RATE))
    drawn = _blocks(replica).drawn
    shapes = [(_blocks(replica).num_blocks,), *(layer.shape for layer in sorted(drawn, key=lambda each: each.start))]
    return {
        "drawn": sorted(set(drawn.values())),
        "sent": sum(result.bytes_sent[0].values()),
        "foreseen": cost.step_traffic(shapes, num_workers=replica.num_workers, exchange=NoneConfig()).bytes,
        "dense": result.bytes_dense,
    }


def _blocks(replica: Replica) -> JointSpar:
    assert isinstance(replica.parts.blocks, JointSpar)
    return replica.parts.blocks


def _replica(rank: int, num_workers: int, blocks: BlocksConfig, *, per_node: int = 1) -> Replica:
    config = ReplicaConfig(
        workload=DigitsMlp(),
        partition=ByLabelPartition(),
        optimizer=LarsConfig(learning_rate=RATE),
        exchange=NoneConfig(),
        blocks=blocks,
        workers_per_node=per_node,
    )
    replica = Replica(config, rank, num_workers, device="cpu")
    replica._node_links.join()
    return replica
