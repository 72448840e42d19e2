"""Record real loss curves: what a short probe shows of a learning rate, and how the run ended.

    python benchmarks/record_curves.py tests/search/curves.json

Two workers train without an emulated link. From two snapshots of each workload, every density is trained with ten
learning rates, always on the same batches. A record keeps the first 100 losses, and the truth: the mean of the run's
last 100. Runs have 1050 steps (digits) or 550 (the larger workloads). All take half an hour on two free cores. A
restart goes on with the missing lines (workload, fork, density).
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import AdamWConfig, OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp, FashionConv, StdlibLm, WorkloadConfig
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup

FORMAT = "wiretune.curves/1"
#: Steps that a selector sees.
SEEN = 100
#: So many last steps of a run give the truth.
TRUTH_STEPS = 100
DENSITIES = (1.0, 0.1, 0.01)
#: Density of the steps that lead to a fork.
TRUNK_DENSITY = 0.1
#: Losses whose median is the level at a fork.
LEVEL_LOSSES = 20

Json = dict[str, Any]


class Recording(NamedTuple):
    """A workload, the rate that leads to its forks, their steps, and what is tried from them."""

    config: ReplicaConfig
    trunk_rate: float
    forks: dict[str, int]
    rates: list[float]
    num_steps: int  # of each run from a fork


def config(workload: WorkloadConfig, optimizer: OptimizerConfig) -> ReplicaConfig:
    return ReplicaConfig(workload=workload, optimizer=optimizer, exchange=ThresholdConfig(density=TRUNK_DENSITY))


def rates(low: float, high: float) -> list[float]:
    return [float(f"{rate:.4g}") for rate in np.geomspace(low, high, 10)]


DIGITS = config(DigitsMlp(batch_size=4), SgdConfig())
FASHION = config(FashionConv(batch_size=16), SgdConfig())
LM = config(StdlibLm(context=32, batch_size=4), AdamWConfig())

RECORDINGS = (
    Recording(DIGITS, 0.005, {"early": 20, "late": 500}, rates(1e-3, 1.0), num_steps=1050),
    Recording(FASHION, 0.02, {"early": 20, "late": 500}, rates(1e-3, 1.0), num_steps=550),
    Recording(LM, 0.002, {"early": 20, "late": 500}, rates(1e-4, 0.1), num_steps=550),
)


def main(path: Path) -> None:
    lines: list[Json] = json.loads(path.read_text())["lines"] if path.exists() else []
    for plan in RECORDINGS:
        missing = [name for name in names(plan) if all(line["name"] != name for line in lines)]
        if missing:
            for line in record(plan, missing):
                lines.append(line)
                save(path, lines)


def names(plan: Recording) -> list[str]:
    return [f"{plan.config.workload.kind}/{fork}/{density:g}" for fork in plan.forks for density in DENSITIES]


def save(path: Path, lines: Sequence[Json]) -> None:
    head = {"format": FORMAT, "seen": SEEN}
    rows = ",\n".join(json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines)
    part = path.with_suffix(".part")
    part.write_text(f'{json.dumps(head)[:-1]}, "lines": [\n{rows}\n]}}\n')
    part.replace(path)


def record(plan: Recording, wanted: Sequence[str]) -> Iterator[Json]:
    """Yield the lines named `wanted`, in order."""
    with ProcessGroup(plan.config, 2, device="cpu") as group:
        trunk: list[float] = []
        for fork, step in plan.forks.items():
            trunk += losses(group, step - len(trunk), plan.trunk_rate, TRUNK_DENSITY)
            group.snapshot("fork")
            for density in DENSITIES:
                name = f"{plan.config.workload.kind}/{fork}/{density:g}"
                if name not in wanted:
                    continue
                started = time.monotonic()
                curves = [probe(group, plan, rate, density) for rate in plan.rates]
                print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
                yield {
                    "name": name,
                    "workload": plan.config.workload.model_dump(mode="json", exclude_defaults=True)
                    | {"kind": plan.config.workload.kind},
                    "optimizer": plan.config.optimizer.kind,
                    "step": step,
                    "density": density,
                    "level": rounded(float(np.median(trunk[-LEVEL_LOSSES:]))),
                    "rates": plan.rates,
                    "truth_steps": [plan.num_steps - TRUTH_STEPS + 1, plan.num_steps],
                    "losses": [[rounded(loss) for loss in curve[:SEEN]] for curve in curves],
                    "truth": [truth(curve, plan.num_steps) for curve in curves],
                }
            group.restore("fork")


def probe(group: Group, plan: Recording, rate: float, density: float) -> list[float]:
    """Return the losses of a run from the fork; it is shorter than planned if it diverged."""
    group.restore("fork")
    return losses(group, plan.num_steps, rate, density)


def losses(group: Group, num_steps: int, rate: float, density: float) -> list[float]:
    return list(group.run(Segment(num_steps=num_steps, learning_rate=rate, level=density)).losses)


def truth(curve: Sequence[float], num_steps: int) -> float | None:
    """Return the mean loss of the last steps; None: the run diverged before."""
    return rounded(math.fsum(curve[-TRUTH_STEPS:]) / TRUTH_STEPS) if len(curve) == num_steps else None


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
