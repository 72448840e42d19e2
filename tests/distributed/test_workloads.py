"""The workloads with packaged data on two real ranks: they learn, are reproducible, and exchange what is trained."""

from collections.abc import Iterator
from statistics import mean

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment, SegmentResult
from trainers.spec.workloads import FlightsEmbedding, MinilmLora, WorkloadConfig
from trainers.traffic import collectives
from trainers.traffic.shapes import parameter_shapes
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

STEPS = 12
RATES: dict[WorkloadConfig, float] = {FlightsEmbedding(width=4): 0.02, MinilmLora(batch_size=4, max_tokens=12): 0.005}


@pytest.fixture(scope="module", params=RATES, ids=lambda config: config.kind)
def trained(request: pytest.FixtureRequest) -> Iterator[tuple[WorkloadConfig, list[SegmentResult]]]:
    """Train the same steps twice, from the same state."""
    config: WorkloadConfig = request.param
    replica = ReplicaConfig(workload=config, optimizer=AdamWConfig(), exchange=NoneConfig(), seed=3)
    segment = Segment(num_steps=STEPS, learning_rate=RATES[config])
    try:
        group = ProcessGroup(replica, 2, device="cpu")
    except WorkloadError as error:
        pytest.skip(str(error))
    with group as ranks:
        ranks.snapshot("start")
        first = ranks.run(segment)
        ranks.restore("start")
        yield config, [first, ranks.run(segment)]


def test_the_loss_falls(trained: tuple[WorkloadConfig, list[SegmentResult]]):
    _, [first, _] = trained

    assert mean(first.losses[-3:]) < 0.9 * mean(first.losses[:3])


def test_rewound_steps_are_the_same_bit_for_bit(trained: tuple[WorkloadConfig, list[SegmentResult]]):
    _, [first, again] = trained

    assert again.losses == first.losses and again.gradient_scales == first.gradient_scales


def test_only_trained_parameters_are_exchanged(trained: tuple[WorkloadConfig, list[SegmentResult]]):
    config, [first, _] = trained

    num_bytes = 4 * collectives.num_elements(parameter_shapes(config) or ())  # an all-reduce of two sends each once
    assert [sent["gradient"] for sent in first.bytes_sent] == [num_bytes * STEPS] * 2
