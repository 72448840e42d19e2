"""Measure what ending samples early saves, and how good a sampler's samples are: loss against bytes, at equal trials.

    python benchmarks/search_over_jobs.py run [--samplers bo sobol nsga2 ax] [--seeds 0 1] [--file FILE]
    python benchmarks/search_over_jobs.py table [--file FILE]

The task is small and real: the digits model, two workers, 60 steps, `threshold`. A sample is a learning rate and a
density; its objectives are the validation loss and the bytes that a worker sent. Every sampler has 16 samples and a
seed, and each sample trains to the end, on one pair of workers that starts from the same state. `sobol` and `bo` are
the service's own; their rivals are Optuna's NSGA-II (population 8) and Ax's default for two objectives.

The table has the mean hypervolume over the seeds, in log10 of loss and of bytes, below the point (loss 2.5, 50 MB). It
also has the steps that ASHA, by the service's rule, would have left of the same samples, and the best loss with and
without it. Each sample is one line of FILE. Other work on the machine changes none of these figures.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rows import append, read

from search.sweep.draw import designed
from search.sweep.propose import Seen, propose
from search.sweep.ranking import Mark, fronts, pruned, saved_share
from search.sweep.spec import SampleValues, SweepConfig
from service.cluster.sink import MemorySink
from service.cluster.trial import train
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import RungReached, TrialFinished
from trainers.training.process_group import ProcessGroup

FILE = Path(__file__).with_suffix(".jsonl")
NUM_SAMPLES = 16
RATE, DENSITY = "optimizer.learning_rate", "exchange.density"
JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp", "batch_size": 16},
    "workers": {"count": 2},
    "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    "exchange": {"kind": "threshold", "density": 0.02},
    "controller": {"kind": "fixed"},
    "budget": {"steps": 60},
    "objective": {"every": 5},
    "checkpoint": {"export": "last"},
    "params": {RATE: {"log_uniform": [0.001, 1.0]}, DENSITY: {"log_uniform": [0.001, 0.3]}},
    "sweep": {"samples": NUM_SAMPLES, "sampler": "bo", "cost": "bytes"},
}
#: Where a front is measured from: hardly any loss is higher, and no run sends more.
WORST_LOSS, WORST_BYTES = 2.5, 50e6
Json = dict[str, Any]


class Pair:
    """Two workers that train one sample after another, each from the state that they began with."""

    def __init__(self, spec: JobSpec, folder: str) -> None:
        self.spec, self._folder = spec, folder
        self._group = ProcessGroup(next(spec.trials()).replica, num_workers=spec.workers.count)
        self._start = f"file://{folder}/start"
        self._group.save(self._start)
        self._num_trained = 0

    def trial(self, values: SampleValues) -> TrialSpec:
        """Return the training run of a sample."""
        return list(self.spec.trials({"sample-0": values}))[1]

    def train(self, values: SampleValues) -> Json:
        """Train a sample to the end of its budget, and return what it measured at each rung and at the end."""
        self._group.load(self._start)
        sink, self._num_trained = MemorySink(), self._num_trained + 1
        name = f"sample.{self._num_trained}"
        ended = train(self.trial(values), self._group, sink, trial_id=name, storage_url=f"file://{self._folder}")
        rungs = [record for record in sink.records if isinstance(record, RungReached)]
        return {"marks": [(each.value, each.bytes_sent) for each in rungs] + [_end(ended)]}

    def close(self) -> None:
        self._group.close()


def _end(ended: TrialFinished) -> tuple[float | None, int]:
    return ended.validation_loss, ended.bill.bytes_sent


Objectives = Callable[[SampleValues], tuple[float, float]]


def ours(sampler: str) -> Callable[[JobSpec, int, Objectives], None]:
    """Return the service's sampler, every sample learning from the ends of all before it."""

    def run(spec: JobSpec, seed: int, measure: Objectives) -> None:
        sweep = SweepConfig(samples=NUM_SAMPLES, sampler=sampler, cost="bytes", seed=seed)  # type: ignore[arg-type]
        seen: list[Seen] = []
        drawn = designed(spec.params, sweep)
        for number in range(NUM_SAMPLES):
            later = number >= len(drawn)
            values = propose(spec.params, sweep, number, seen=seen).values if later else drawn[number]
            seen.append(Seen(values, 1.0, *measure(values)))

    return run


def nsga2(spec: JobSpec, seed: int, measure: Objectives) -> None:
    """Draw by Optuna's NSGA-II."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=8)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)

    def objective(trial: Any) -> tuple[float, float]:
        return measure({path: trial.suggest_float(path, of.low, of.high, log=True) for path, of in spec.params.items()})

    study.optimize(objective, n_trials=NUM_SAMPLES)


def ax(spec: JobSpec, seed: int, measure: Objectives) -> None:
    """Draw by Ax, which is installed for this alone: `pip install ax-platform`."""
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    client = Client(random_seed=seed)
    names = {path: path.replace(".", "_") for path in spec.params}
    ranges = [
        RangeParameterConfig(name=names[path], parameter_type="float", bounds=(of.low, of.high), scaling="log")
        for path, of in spec.params.items()
    ]
    client.configure_experiment(name="sweep", parameters=ranges)
    client.configure_optimization(objective="-loss, -bytes")
    for _ in range(NUM_SAMPLES):
        [(index, drawn)] = client.get_next_trials(max_trials=1).items()
        loss, sent = measure({path: float(drawn[name]) for path, name in names.items()})
        client.complete_trial(index, raw_data={"loss": loss, "bytes": sent})


SAMPLERS: dict[str, Callable[[JobSpec, int, Objectives], None]] = {
    "bo": ours("bo"), "sobol": ours("sobol"), "nsga2": nsga2, "ax": ax,
}  # fmt: skip


def run(file: Path, samplers: Sequence[str], seeds: Sequence[int]) -> None:
    """Train every sampler's samples with every seed; what is in `file` is not trained again."""
    spec = JobSpec.model_validate(JOB)
    done = {(row["sampler"], row["seed"]) for row in read(file)}
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(spec, folder)
        try:
            for sampler, seed in ((one, seed) for seed in seeds for one in samplers if (one, seed) not in done):
                found = list(_samples(spec, pair, sampler, seed))
                append(file, *found)
                print(sampler, seed, f"{hypervolume(found):.3f}", flush=True)
        finally:
            pair.close()


def _samples(spec: JobSpec, pair: Pair, sampler: str, seed: int) -> Iterator[Json]:
    found: list[Json] = []

    def measure(values: SampleValues) -> tuple[float, float]:
        row = {"sampler": sampler, "seed": seed, "values": values} | pair.train(values)
        found.append(row)
        loss, sent = row["marks"][-1]
        return (WORST_LOSS if loss is None else min(loss, WORST_LOSS)), float(sent)

    SAMPLERS[sampler](spec, seed, measure)
    yield from found


def hypervolume(found: Sequence[Json]) -> float:
    """Return the area that the samples' front dominates, in log10 of both objectives, below the worst ones."""
    ends = [row["marks"][-1] for row in found if row["marks"][-1][0] is not None]
    points = [(math.log10(WORST_LOSS / loss), math.log10(WORST_BYTES / sent)) for loss, sent in ends]
    known = [(-one, -other) for one, other in points if one > 0 and other > 0]
    front = sorted(point for point, number in zip(known, fronts(known), strict=True) if number == 0)
    area, lowest = 0.0, 0.0
    for one, other in front:  # from the lowest loss on, each adds a slab below the ones before
        area += -one * max(0.0, lowest - other)
        lowest = min(lowest, other)
    return area


def saving(found: Sequence[Json]) -> tuple[float, float, float]:
    """Return the share of the steps that ASHA leaves out, by loss, the best loss of what it keeps, and that of all."""
    sweep = JobSpec.model_validate(JOB).sweep_config
    ended: dict[str, int] = {}
    marks: list[Mark] = []
    for number, row in enumerate(found):  # one after another, as with `at_once: 1`
        for rung, (value, _) in enumerate(row["marks"][:-1]):
            marks.append(Mark(str(number), rung, value))
            ended = pruned(marks, {str(each) for each in range(len(found))}, num_rungs=2, reduction=sweep.reduction)
            if str(number) in ended:
                break
    losses = [math.inf if row["marks"][-1][0] is None else row["marks"][-1][0] for row in found]
    kept = min((loss for number, loss in enumerate(losses) if str(number) not in ended), default=math.inf)
    return saved_share(sweep.rungs(), ended, len(found)), kept, min(losses)


def table(file: Path) -> None:
    """Print a row for each sampler."""
    by: dict[str, dict[int, list[Json]]] = {}
    for row in read(file):
        by.setdefault(row["sampler"], {}).setdefault(row["seed"], []).append(row)
    print("| sampler | seeds | hypervolume | ASHA leaves out | best loss of it | of all |\n" + "| --- " * 6 + "|")
    for sampler, seeds in by.items():
        areas = [hypervolume(found) for found in seeds.values()]
        savings = [saving(found) for found in seeds.values()]
        spread = f" ± {statistics.stdev(areas):.2f}" if len(areas) > 1 else ""
        left, kept, best = (statistics.fmean(column) for column in zip(*savings, strict=True))
        area = f"{statistics.fmean(areas):.2f}{spread}"
        print(f"| {sampler} | {len(seeds)} | {area} | {left:.0%} | {kept:.3f} | {best:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "table"])
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=["bo", "sobol", "nsga2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    if given.command == "run":
        run(given.file, given.samplers, given.seeds)
    table(given.file)


if __name__ == "__main__":
    main()
