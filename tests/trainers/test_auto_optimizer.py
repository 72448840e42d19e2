"""Optimizers that compete, on one rank: each trains as if it were alone, from the state that all start from."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import AutoOptimizerConfig, JobOptimizer
from trainers.segment import Segment, SegmentResult
from trainers.spec.replica import ReplicaConfig
from trainers.training.checkpoint import commit_manifest
from trainers.training.replica import Replica

AUTO = AutoOptimizerConfig(
    options=({"kind": "sgd", "weight_decay": 0.01}, "adamw", "muon", "schedulefree_sgd", "schedulefree_plus")
)
RATES = {"sgd": 0.1, "adamw": 0.003, "muon": 0.01, "schedulefree_sgd": 1.0, "schedulefree_plus": 0.5}
KINDS = list(RATES)
Make = Callable[..., ReplicaConfig]


def _replica(make_config: Make, optimizer: JobOptimizer = AUTO) -> Replica:
    return Replica(make_config(optimizer=optimizer, exchange=ThresholdConfig(density=0.1)), 0, 1, device="cpu")


def _run(replica: Replica, kind: str | None, num_steps: int = 6) -> SegmentResult:
    rate = RATES[kind or "sgd"]
    return replica.run(Segment(num_steps=num_steps, learning_rate=rate, level=0.1, optimizer=kind))


@pytest.mark.parametrize("option", AUTO.options, ids=KINDS)
def test_the_one_that_is_used_trains_and_evaluates_as_if_it_were_alone(make_config: Make, option: JobOptimizer):
    competing, alone = _replica(make_config), _replica(make_config, option)

    losses = [(_run(each, option.kind).losses, each.evaluate().loss) for each in (competing, alone)]

    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_of_another_leaves_no_trace(make_config: Make, kind: str):
    replica, fresh = _replica(make_config), _replica(make_config)
    replica.snapshot("start")
    for other in KINDS:
        _run(replica, other)
        replica.restore("start")

    assert _run(replica, kind).losses == _run(fresh, kind).losses


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_bit_for_bit_from_a_checkpoint(make_config: Make, kind: str, tmp_path: Path):
    replica, other = _replica(make_config), _replica(make_config)
    _run(replica, kind)
    shards = replica.save(str(tmp_path / "saved"))
    commit_manifest(str(tmp_path / "saved"), shards)

    other.load(str(tmp_path / "saved"))

    assert other.evaluate().loss == replica.evaluate().loss  # of the same optimizer's iterate
    assert _run(other, kind).losses == _run(replica, kind).losses


@pytest.mark.parametrize("kind", [None, "lars"])
def test_a_segment_must_name_one_of_them(make_config: Make, kind: str | None):
    with pytest.raises(ValueError, match=r"`optimizer` must be one of \['sgd', 'adamw', 'muon', 'schedulefree_sgd', "):
        _replica(make_config).run(Segment(num_steps=1, learning_rate=0.1, level=0.1, optimizer=kind))


def test_a_segment_of_one_optimizer_may_name_it_and_no_other(make_config: Make):
    replica = _replica(make_config, AUTO.options[0])

    assert _run(replica, "sgd").losses
    with pytest.raises(ValueError, match="`optimizer` must be 'sgd', got 'adamw'"):
        _run(replica, "adamw")


def test_all_see_the_gradient_in_one_order(make_config: Make):
    replica = _replica(make_config)
    order = [list(each.parameters) for each in replica._optimizer._optimizers.values()]

    assert all(names == order[0] for names in order)
    assert torch.equal(torch.tensor(replica.shapes[0]), torch.tensor(next(iter(replica.model.parameters())).shape))
