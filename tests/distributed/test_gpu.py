"""Training on whatever GPUs there are: two ranks on one over gloo, or on one each over NCCL; one rank by itself."""

from collections import Counter

import pytest
import torch
from scenarios import Reports
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainers.methods.exchange.adacomp.spec import AdaCompConfig
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.randomk.spec import RandomKConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig, OuterConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training import model as models
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica
from trainers.workload import WorkloadError
from trainers.workloads.digits import Digits

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="NO GPU ON THIS MACHINE: the CUDA path was neither tested nor traced"
)
ON_TWO_RANKS = ["on_gpus", "scripts_on_gpus"]
EXCHANGES: dict[str, tuple[ExchangeConfig, float | None]] = {
    "none": (NoneConfig(), None),
    "threshold": (ThresholdConfig(density=0.02), 0.02),
}
TRACED: dict[str, tuple[ExchangeConfig, float | None]] = EXCHANGES | {
    "powersgd": (PowerSgdConfig(rank=2, values="float32"), None),
    "topk": (TopKConfig(density=0.02), 0.02),
    "topk, exact": (TopKConfig(density=0.02, selection="exact", scope="layer"), 0.02),
    "topk, by owners": (TopKConfig(density=0.02, aggregate="sharded"), 0.02),
    "dgc": (DgcConfig(density=0.02), 0.02),
    "gtopk": (GTopKConfig(density=0.02), 0.02),
    "randomk": (RandomKConfig(density=0.02), 0.02),
    "adacomp": (AdaCompConfig(), None),
}
#: What a trace calls the host's waits for a GPU; a copy to the host is followed by one.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


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


def test_every_method_trains_on_gpus_as_on_the_cpu(two_ranks: Reports) -> None:
    for rank in two_ranks["on_gpus"]:
        differing = {}
        for method, seen in rank.items():
            expected, first, again = seen["losses"]
            rel = 0.1 if method == "exchange/dion" else 0.01  # which gives length 1 to directions of rounding errors
            is_alike = first == pytest.approx(expected, rel=rel) and again == pytest.approx(first, rel=1e-5)
            if not is_alike or seen["sent"] != pytest.approx([seen["sent"][0]] * 3, rel=0.02):
                differing[method] = seen
        assert differing == {}


def test_scripts_of_ones_own_train_on_gpus_as_on_the_cpu(two_ranks: Reports) -> None:
    for rank in two_ranks["scripts_on_gpus"]:
        assert {kind for kind, (cpu, gpu) in rank.items() if gpu != pytest.approx(cpu, rel=1e-2, abs=1e-3)} == set()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("kind", ["stdlib-lm", "mnist5k-cnn", "fashion-conv", "flights-embedding", "minilm-lora"])
def test_workloads_train_on_a_gpu_as_on_the_cpu(kind: str, precision: str) -> None:
    parts = {"workload": {"kind": kind}, "optimizer": {"kind": "adamw"}, "exchange": {"kind": "none"}}
    config = ReplicaConfig.model_validate(parts | {"precision": precision})
    try:
        replicas = [Replica(config, 0, 1, device=device) for device in ("cpu", "cuda:0")]
    except WorkloadError as error:
        pytest.skip(str(error))

    on_cpu, on_gpu = (replica.run(Segment(num_steps=5, learning_rate=1e-3)) for replica in replicas)

    assert on_gpu.losses == pytest.approx(on_cpu.losses, rel=0.01 if precision == "float32" else 0.03)


@pytest.mark.parametrize("kind", TRACED)
def test_the_host_waits_for_the_gpu_once_a_step(kind: str) -> None:
    exchange, level = TRACED[kind]
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(momentum=0.0), exchange=exchange)
    replica = Replica(config, 0, 1, device="cuda:0")
    replica.run(Segment(num_steps=3, learning_rate=0.05, level=level))  # what is compiled, allocated or counted once

    few, many = (
        waits(replica, Segment(num_steps=num_steps, learning_rate=0.05, level=level)) for num_steps in (10, 30)
    )

    assert many - few == 20, "see which calls wait: torch.profiler with `with_stack=True`"


@pytest.mark.parametrize("sync", [DiLoCoConfig, StreamingDiLoCoConfig])
def test_an_anchor_in_host_memory_trains_as_one_on_the_gpu_bit_for_bit(sync: type[OuterConfig]) -> None:
    segment, losses = Segment(num_steps=16, learning_rate=0.05), []
    for offload in (False, True):
        policy = sync(period=8, outer_momentum=0.5, offload=offload)
        config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), sync=policy)
        replica = Replica(config, 0, 1, device="cuda:0")
        losses.append(replica.run(segment).losses)
        kept = replica.state.own["sync"].tensors()
        assert {kept[name].is_cuda for name in kept if name.endswith(("anchor", "velocity"))} == {not offload}

    assert losses[0] == losses[1]


def test_a_model_that_is_built_on_a_gpu_is_that_of_its_seed_on_every_rank() -> None:
    built = []
    for drawn in (0, 1):  # other processes have drawn other numbers
        torch.randn(drawn, device="cuda:0")
        kept = torch.cuda.get_rng_state("cuda:0")
        built.append(models.build(BuiltOnGpu(DigitsMlp()), 3, device=torch.device("cuda:0")).state_dict())
        assert torch.equal(torch.cuda.get_rng_state("cuda:0"), kept)

    assert all(torch.equal(built[1][name], tensor) for name, tensor in built[0].items())


class BuiltOnGpu(Digits):
    """Draws its weights on the GPU that is the process's current one."""

    def model(self) -> nn.Module:
        with torch.device("cuda"):
            return super().model()


def waits(replica: Replica, segment: Segment) -> int:
    """Return how often the host waits for the GPU in a segment; what a call costs beside its steps is in it."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        replica.run(segment)
    names = Counter(event.name for event in trace.events() or ())
    return sum(names[name] for name in WAITS)
