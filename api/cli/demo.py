"""The demonstration: a real job that shows what online tuning gains on a slow link."""

from search.config import BoConfig, Budget, FixedConfig
from service.job.parts import Arm, Objective, Workers
from service.job.spec import JobSpec
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp

DEFAULT_SECONDS = 24.0


def demo_job(seconds: float = DEFAULT_SECONDS) -> JobSpec:
    """Return the demonstration's job. Each of its two arms trains for `seconds`."""
    return JobSpec(
        name="demo: digits over a slow link",
        workload=DigitsMlp(),
        workers=Workers(count=2, cpus=1),
        optimizer=ScheduleFreeSgdConfig(learning_rate=0.1, weight_decay=1e-3),
        exchange=ThresholdConfig(density=(0.003, 0.1)),
        controller=BoConfig(),
        arms=(
            Arm(name="tuned"),
            Arm(name="dense", controller=FixedConfig(), exchange=NoneConfig()),
        ),
        budget=Budget(seconds=seconds),
        objective=Objective(every=25),
        link=EmulateLink(mbps=100, latency_ms=1),
        labels={"source": "demo"},
    )


def introduction(spec: JobSpec) -> list[str]:
    """Return an introduction to the demonstration, printed before its progress."""
    seconds = spec.budget.seconds
    num_cores = len(spec.arms) * spec.workers.count * spec.workers.cpus
    assert seconds is not None and spec.link.mode == "emulate"
    return [
        f"Demo: handwritten digits, {spec.workers.count} workers, emulated {spec.link.mbps:g} Mbit link, "
        f"{seconds:g} s of training per arm; the arms run side by side where there are {num_cores:g} cores, "
        "else one after the other.",
        "  tuned: a Bayesian-optimisation controller picks learning rate and gradient density as it trains.",
        "  dense: the same guess of the learning rate, held, with uncompressed gradients.",
    ]
