"""Two ranks on whatever GPUs there are: one shared over gloo, or one each over NCCL."""

import pytest
import torch

from trainers.config import DigitsMlp, NoneConfig, ReplicaConfig, SgdConfig, ThresholdConfig
from trainers.group import ProcessGroup
from trainers.segment import Segment

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="NO GPU ON THIS MACHINE: the two-rank CUDA path was not tested"
)
EXCHANGES = {"none": (NoneConfig(), None), "threshold": (ThresholdConfig(density=0.02), 0.02)}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_two_ranks_on_gpus_train_as_two_on_the_cpu(exchange: str) -> None:
    config, level = EXCHANGES[exchange]
    replica = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=config)
    segment = Segment(num_steps=10, learning_rate=0.05, level=level)

    with ProcessGroup(replica, 2) as gpu, ProcessGroup(replica, 2, device="cpu") as cpu:
        gpu.snapshot("start")
        first, on_cpu = gpu.run(segment), cpu.run(segment)
        gpu.restore("start")
        again = gpu.run(segment)
        backend, device = gpu.backend, gpu.device

    assert device.startswith("cuda")
    assert backend == ("nccl" if torch.cuda.device_count() >= 2 else "gloo")
    assert first.losses == pytest.approx(on_cpu.losses, rel=1e-2)
    assert again.losses == pytest.approx(first.losses, rel=1e-5)
