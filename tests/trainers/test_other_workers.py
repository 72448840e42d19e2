"""Resuming a checkpoint with another number of ranks keeps the residuals."""

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.sum_by_owner import Shards
from trainers.exchange.topology import Topology
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.dion.spec import DionConfig
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.snapshot import Buffers, Kept
from trainers.traffic.block_shards import BlockShards
from trainers.training.checkpoint import CheckpointError, commit_manifest
from trainers.training.replica import Replica

SHAPES = ((20, 30), (40, 30), (30,))
PAIRS = [*itertools.product(range(1, 5), repeat=2)]
BLOCK = 100
KINDS: dict[str, ExchangeConfig] = {
    "threshold": ThresholdConfig(density=0.1, bucket_mib=0.001),
    "threshold, gathered": ThresholdConfig(density=0.1, aggregate="gather"),
    "dgc": DgcConfig(density=0.1),
    "powersgd": PowerSgdConfig(rank=2),
    "onebit": OneBitConfig(),
    "doublesqueeze": DoubleSqueezeConfig(block=BLOCK, bucket_mib=0.001),
    "blockwise": BlockwiseConfig(block=BLOCK, bucket_mib=0.001),
    "sparse_loco": SparseLoCoConfig(density=0.1),
    "dist_ef_sgd": DistEfSgdConfig(block=BLOCK, momentum=0.9),
    "demo": DemoConfig(),
    "onebit_adam": OneBitAdamConfig(block=BLOCK, bucket_mib=0.001),
}
DION = DionConfig()
EF21 = TopKConfig(density=0.1, memory="ef21")


def _buffer(config: ExchangeConfig) -> GradientBuffer:
    return GradientBuffer.behind([Parameter(torch.zeros(shape)) for shape in SHAPES], config)


def _exchanges(config: ExchangeConfig, num_workers: int) -> list[Exchange]:
    topology = Topology.stated(num_workers, 1)
    node_links = [NodeLinks(topology, rank, Unpaced()) for rank in range(num_workers)]
    return [between_nodes(config, _buffer(config), each) for each in node_links]


def _filled(config: ExchangeConfig, num_workers: int) -> list[Exchange]:
    """Return exchanges that keep something; what ranks know in common is equal."""
    exchanges = _exchanges(config, num_workers)
    for rank, exchange in enumerate(exchanges):
        for name, tensor in exchange.tensors().items():
            is_common = name.startswith("factor") or name in ("mean", "first", "second")
            draws = torch.Generator().manual_seed(len(name) if is_common else 100 + rank)
            tensor.copy_(torch.randn(tensor.shape, generator=draws))
    return exchanges


def _taken_over(config: ExchangeConfig, old: Sequence[Exchange], num_workers: int) -> list[Exchange]:
    exchanges = _exchanges(config, num_workers)
    for exchange, (index, each) in itertools.product(exchanges, enumerate(old)):
        exchange.inherit(Kept(each.tensors(), each.scalars(), index=index, of=len(old)))
    return exchanges


def _still_to_come(config: ExchangeConfig, exchanges: Sequence[Exchange]) -> Tensor:
    """Return what the mean gradient lacks of all that the ranks have computed `(d,)`: what a checkpoint must keep."""
    states = [exchange.tensors() for exchange in exchanges]
    total = sum(state["residual"] for state in states) / len(states)
    for bucket, (owner, state) in itertools.product(_buffer(config).buckets, enumerate(states)):
        kept = state.get(f"aggregate.{bucket.index}.kept")
        if kept is not None:
            Shards(bucket.num_elements, len(states)).add(total[bucket.span], owner, kept)
        if (kept := state.get(f"server.{bucket.index}")) is not None:
            own = total[bucket.span][BlockShards(bucket.num_elements, len(states), BLOCK).span(owner)]
            own += kept[: len(own)]
    return total


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_sent_yet_is_kept_whatever_the_number_of_ranks(kind: str, before: int, after: int) -> None:
    config = KINDS[kind]
    old = _filled(config, before)

    new = _taken_over(config, old, after)

    torch.testing.assert_close(_still_to_come(config, new), _still_to_come(config, old))
    assert _still_to_come(config, old).any()


@pytest.mark.parametrize("kind", ["dgc", "dist_ef_sgd", "dion"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (4, 1)])
def test_the_mean_of_the_momenta_is_kept(kind: str, before: int, after: int) -> None:
    config = (KINDS | {"dion": DION})[kind]
    old = _filled(config, before)

    new = _taken_over(config, old, after)

    means = [sum(each.tensors()["momentum"] for each in ranks) / len(ranks) for ranks in (old, new)]
    torch.testing.assert_close(*means)
    assert means[0].any()


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_what_ef21s_ranks_have_as_the_mean_of_their_estimates_is_that(before: int, after: int) -> None:
    old = _filled(EF21, before)

    states = [each.tensors() for each in _taken_over(EF21, old, after)]

    assert all(torch.equal(state["mean"], old[0].tensors()["mean"]) for state in states)
    torch.testing.assert_close(sum(state["sent"] for state in states) / after, states[0]["mean"])


@pytest.mark.parametrize(
    ("config", "count"), [(KINDS["powersgd"], 2), (DION, 4), (KINDS["onebit_adam"], 2)], ids=lambda each: str(each)[:20]
)
def test_what_all_ranks_had_alike_all_new_ones_have(config: ExchangeConfig, count: int) -> None:
    old = _filled(config, 2)

    for exchange in _taken_over(config, old, 3):
        common = [name for name in exchange.tensors() if name.startswith(("factor", "first", "second"))]
        assert len(common) == count
        assert all(torch.equal(exchange.tensors()[name], old[0].tensors()[name]) for name in common)


def test_buffers_become_their_mean_and_constants_keep_their_bits() -> None:
    constants = {"mask": torch.tensor([0.1, -torch.inf]), "count": torch.tensor(7)}
    new = Buffers({"mean": torch.zeros(2)} | {name: torch.zeros_like(each) for name, each in constants.items()})

    for rank in range(3):
        new.inherit(Kept({"mean": torch.tensor([rank, 6.0])} | constants, {}, index=rank, of=3))

    tensors = new.tensors()
    assert tensors["mean"].tolist() == [1.0, 6.0]
    assert all(torch.equal(tensors[name], constant) for name, constant in constants.items())


def _saved_by(num_workers: int, config: ReplicaConfig, url: str) -> list[Replica]:
    replicas = [Replica(config, rank, num_workers, device="cpu") for rank in range(num_workers)]
    for replica in replicas:
        replica.state.own["exchange"].tensors()["residual"].fill_(replica.rank + 1.0)
    commit_manifest(url, [shard for replica in replicas for shard in replica.save(url)], replicas[0].nodes)
    return replicas


def test_a_checkpoint_is_taken_over_alike_whatever_the_ranks_have_done(
    make_config: Callable[..., ReplicaConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(exchange=ThresholdConfig(density=0.1))
    [old, _] = _saved_by(2, config, str(tmp_path))
    fresh, used = (Replica(config, 0, 1, device="cpu") for _ in range(2))
    used.state.own["exchange"].tensors()["residual"].fill_(8.0)
    used.parts.random.begin(1)

    with caplog.at_level(logging.WARNING):
        for replica in (fresh, used):
            replica.load(str(tmp_path))

    for name, tensor in fresh.parts.random.tensors().items():
        assert torch.equal(tensor, used.parts.random.tensors()[name])
        assert not torch.equal(tensor, old.parts.random.tensors()[name])
    assert all(bool((each.state.own["exchange"].tensors()["residual"] == 1.5).all()) for each in (fresh, used))
    assert "saved on nodes ((0,), (1,)), now ((0,),)" in caplog.text


def test_the_state_of_another_exchange_is_refused(make_config: Callable[..., ReplicaConfig], tmp_path: Path) -> None:
    _saved_by(2, make_config(exchange=ThresholdConfig(density=0.1)), str(tmp_path))

    Replica(make_config(exchange=NoneConfig()), 0, 1, device="cpu").load(str(tmp_path))  # which keeps nothing
    with pytest.raises(CheckpointError, match=r"rank-0.safetensors has no 'sent|rank-0.safetensors has no 'mean"):
        Replica(make_config(exchange=EF21), 0, 1, device="cpu").load(str(tmp_path))


def test_a_rank_of_another_group_takes_no_parameters_that_were_one_ranks_own(tmp_path: Path) -> None:
    local = ReplicaConfig.model_validate(
        {"workload": {"kind": "digits-mlp"}, "optimizer": {"kind": "sgd"}, "exchange": {"kind": "none"}}
        | {"sync": {"kind": "local_sgd"}}
    )
    url = str(tmp_path / "saved")
    commit_manifest(url, Replica(local, 0, 1, device="cpu").save(url))

    with pytest.raises(CheckpointError, match="each has what others cannot take"):
        Replica(local, 0, 2, device="cpu").load(url)
