"""Measure what a run waits for besides training: a probe without steps, and the start of a group, attempt and job.

    python benchmarks/overheads.py

Uses two workers. The probe trains `stdlib-lm` with 25 million parameters, SGD with momentum and a threshold exchange:
300 MB of state per worker. It is compared with the time to copy as much memory. Goal: 60 ms.
"""

import re
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import ray
import torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from api.cli.local import start_server, stop_server
from api.client import Client
from service.cluster.group import RayGroup
from service.job.parts import Workers
from service.job.spec import JobSpec
from service.settings import Settings
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import StdlibLm

RUNS = 20
JOB = JobSpec.model_validate(
    {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}, "controller": {"kind": "fixed"}}
)
#: What the driver's log says at each turn of an attempt, in order, and what has been waited for then.
TURNS = {
    "driver is up": "Ray, its job supervisor, and the driver's imports",
    "starts 2 workers": "Tune, and the trial's process",
    "workers are ready": "two worker processes with torch, and their meeting",
}


def milliseconds(act: Callable[[], object]) -> list[float]:
    """Return the sorted times of `RUNS` acts."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        act()
        times.append(1e3 * (time.perf_counter() - started))
    return sorted(times)


def told(name: str, times: list[float]) -> str:
    return f"{name:<34} median {statistics.median(times):6.1f} ms   min {times[0]:6.1f}   max {times[-1]:6.1f}"


@ray.remote(num_cpus=0)
def probe() -> list[str]:
    """Start a group as a trial does, and measure probes without steps."""
    config = ReplicaConfig(
        workload=StdlibLm(size="25M", context=32, batch_size=1),
        optimizer=SgdConfig(momentum=0.9),
        exchange=ThresholdConfig(density=0.01),
    )
    started = time.perf_counter()
    with RayGroup(config, Workers(count=2)) as group:
        group_s = time.perf_counter() - started
        nothing = Segment(num_steps=0, learning_rate=0.01, level=0.01)
        group.run(nothing.model_copy(update={"num_steps": 2}))
        group.snapshot("stage")
        group.restore("stage")  # touches every page once
        times = milliseconds(lambda: (group.restore("stage"), group.run(nothing)))
        calls = milliseconds(lambda: group.run(nothing))
        num_bytes = 3 * 4 * group.num_elements
    return [
        f"group start, 25M: {group_s:.1f} s; the largest part: two processes that import torch and build the model",
        told("probe without steps, 25M", times),
        told("  of that dispatch and collect", calls),
        told(f"  of that copying {num_bytes / 1e6:.0f} MB, twice", copies(num_bytes)),
    ]


def copies(num_bytes: int) -> list[float]:
    """Return the times of what the workers' memory does in a restore: two copies of so many bytes at once."""
    buffers = [torch.zeros(num_bytes // 4) for _ in range(4)]
    torch.set_num_threads(2)
    return milliseconds(lambda: torch._foreach_copy_(buffers[:2], buffers[2:]))


def measure_probe() -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    here = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    for line in ray.get(probe.options(scheduling_strategy=here).remote(), timeout=300):
        print(line)
    ray.shutdown()


def measure_job() -> None:
    """Run a short job on a service of its own, and print what took the time besides training."""
    with tempfile.TemporaryDirectory(prefix="wt-") as folder:
        settings = Settings(state_dir=Path(folder), port=0)
        started = time.time()
        server = start_server(settings)
        try:
            up = time.time()
            with Client(server.url, server.key) as client:
                job = client.submit(JOB)
                over = client.wait(job.id, timeout_s=300, poll_s=0.1)
                log = client.logs(job.id).decode()
                clock = client.trials(job.id)[0].seconds
            ended = time.time()
        finally:
            stop_server(settings)
        stopped = time.time()
    assert over.finished_at is not None, over.reason
    waits = {"service": up - started} | attempt_waits(log, up)
    turns = sum(waits.values()) - waits["service"]
    waits["opening steps, evaluation at the end, export, reports"] = ended - up - turns - clock
    waits["stop of service and Ray"] = stopped - ended
    print(f"job of {clock:.1f} s training: {stopped - started:.1f} s in all")
    for name, seconds in sorted(waits.items(), key=lambda wait: -wait[1]):
        print(f"  {seconds:5.1f} s  {name}")


def attempt_waits(log: str, since: float) -> dict[str, float]:
    """Return how long each turn of the attempt was waited for, from the times in its log."""
    waits = {}
    for words, what in TURNS.items():
        found = re.search(rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}})[^\n]*{words}", log)
        assert found is not None, f"the log does not say `{words}`:\n{log}"
        moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        waits[what], since = moment - since, moment
    return waits


if __name__ == "__main__":
    measure_probe()
    measure_job()
