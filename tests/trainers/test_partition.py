"""Partitions of samples among workers: whose data differ, and how much."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.partition import ByLabelPartition, DirichletPartition
from trainers.spec.workloads import DiamondsMlp, DigitsMlp, FlightsEmbedding, MinilmLora, OwnWorkload, StdlibLm
from trainers.training import feed
from trainers.training.partition import shares
from trainers.workload import WorkloadError
from trainers.workloads import registry

MakeConfig = Callable[..., ReplicaConfig]
PARTITIONS = [ByLabelPartition(), *(DirichletPartition(alpha=alpha) for alpha in (1e-3, 0.3, 1e6))]
LABELS = np.repeat(np.arange(10), 50)


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(-3, 7), min_size=5, max_size=60),
    config=st.sampled_from(PARTITIONS),
    num_workers=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_every_sample_belongs_to_exactly_one_worker(labels, config, num_workers, seed):
    dealt = shares(config, np.array(labels), num_workers=num_workers, seed=seed)

    assert sorted(np.concatenate(dealt)) == list(range(len(labels)))
    sizes = [len(share) for share in dealt]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("config", PARTITIONS)
def test_shares_follow_from_the_seed(config):
    first, again, other = (shares(config, LABELS, num_workers=4, seed=seed) for seed in (1, 1, 2))

    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(first, other, strict=True))


def test_by_label_a_worker_sees_few_classes():
    for share in shares(ByLabelPartition(), LABELS, num_workers=5, seed=0):
        assert len(np.unique(LABELS[share])) == 2


def _unlikeness(alpha: float) -> float:
    """Return the mean distance of the workers' class shares from the data's."""
    dealt = shares(DirichletPartition(alpha=alpha), LABELS, num_workers=4, seed=0)
    return float(
        np.mean([np.abs(np.bincount(LABELS[share], minlength=10) / len(share) - 0.1).sum() for share in dealt])
    )


def test_a_smaller_alpha_makes_workers_less_alike():
    assert _unlikeness(0.05) > 1.5 * _unlikeness(1.0) > 3 * _unlikeness(1e3)


@pytest.mark.parametrize("config", PARTITIONS[:2])
def test_a_worker_is_fed_its_own_samples_alone_each_once_an_epoch(make_config: MakeConfig, config):
    workload = registry.build(DigitsMlp(batch_size=16))
    labels = workload.labels()
    dealt = shares(config, labels.numpy(), num_workers=4, seed=3)
    fed = feed.build(workload, make_config(partition=config), 4)

    places = [feed.Place(step, 2, 0) for step in range(len(dealt[2]) // 16)]
    inputs = torch.cat([fed.batch(place, None)[0] for place in places])

    own = workload.training.tensors[0][dealt[2]]
    assert len(torch.cat([own, inputs]).unique(dim=0)) == len(own.unique(dim=0))
    assert len(inputs.unique(dim=0)) == len(inputs)


def test_a_step_beyond_a_workers_share_is_refused(make_config: MakeConfig):
    workload = registry.build(DigitsMlp(batch_size=400))

    with pytest.raises(WorkloadError, match="`batch_size` 400"):
        feed.build(workload, make_config(partition=ByLabelPartition()), 4)


def test_a_larger_batch_than_a_workers_share_is_refused_with_the_size_of_the_share(make_config: MakeConfig):
    fed = feed.build(registry.build(DigitsMlp(batch_size=16)), make_config(partition=ByLabelPartition()), 4)

    with pytest.raises(WorkloadError, match=r"a worker's share of 359 of the 1438 training samples, got 400"):
        fed.batch(feed.Place(0, 0, 0), 400)


def test_built_in_workloads_are_known_to_have_labels_or_not(small_data):
    for config in (DigitsMlp(), DiamondsMlp(), StdlibLm(), FlightsEmbedding(), MinilmLora()):
        assert config.has_labels == (registry.build(config).labels() is not None)


def _own(make_config: MakeConfig, labels: Any) -> None:
    workload = registry.build(DigitsMlp(batch_size=16))
    workload.labels = lambda: labels
    feed.build(workload, make_config(partition=ByLabelPartition()), 2)


@pytest.mark.parametrize(
    ("labels", "message"), [(None, "needs labels"), ([0, 1], "1438 whole numbers"), ([0.5] * 1438, "got float64")]
)
def test_a_workload_of_ones_own_must_know_whole_numbers_one_for_each_sample(make_config, labels, message):
    with pytest.raises(WorkloadError, match=message):
        _own(make_config, labels)


def test_a_stream_has_no_samples_to_divide(make_config: MakeConfig):
    config = OwnWorkload(factory="own_models:Streamed", path=None)

    with pytest.raises(WorkloadError, match=r"`partition` by_label .* is a stream"):
        feed.build(registry.build(config), make_config(workload=config, partition=ByLabelPartition()), 2)
