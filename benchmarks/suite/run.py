"""Compare the controller on small real tasks with what somebody would try by hand, and with rivals.

    make bench-suite      installs the data, and does all of this; PYTHONPATH=benchmarks for each by itself:
    python benchmarks/suite/run.py grid     [--steps 300 1000] [--seeds 0 1 2] [--tasks ...]   nothing is charged
    python benchmarks/suite/run.py guess    ...   the guess with a decay, right, 10x too low and 10x too high
    python benchmarks/suite/run.py search   ...   the controller from the same three guesses, its search charged
    python benchmarks/suite/run.py rivals   ...   Optuna, ASHA, PBT and GreedyLR from the same three guesses, with
                                                  all that they try charged; AutoLRS, Prodigy, Schedule-Free
    python benchmarks/suite/run.py table    [--steps ...]

A run is one line of `rows.jsonl`, with its date; what is in it is not run again. Budgets are in steps, so that other
load on the machine changes nothing. Two processes share the work: `--part 0 2` and `--part 1 2`.

Six tasks are others once more, with Schedule-Free or Muon. Schedule-Free is trained at constant rates, in the grid and
from the guess too. Its guess is about the right rate for itself, which is well above that of the plain optimizer.

The grid tries seven rates in half decades about the task's own, and the best five of them with three more schedules:
what somebody knows who has trained the task before. A task's reference is the schedule and rate that are best on the
mean of the seeds. All losses are of the validation set, at the run's end. What the controller exports, the end or its
best evaluated checkpoint, stands beside it: `exported` on samples that did not choose it, `flattered` on those that did
(`Export`). Some rows are older, and have the latter alone. `search` and AutoLRS keep an average of the weights, as jobs
do (`Averaged`); schedules and rivals do not. Constants were chosen with one family left out at a time (`constants.py`);
what was added afterwards is *new*.
"""

import math
import statistics
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from rows import append, read

from search.config import ControllerConfig
from search.curves.calibration import calibration, z_score
from suite.controlled import searched
from suite.excess import ROWS, Excesses, Row, excesses
from suite.program import arguments
from suite.rivals import TUNERS, tune
from suite.tasks import TASKS, Task
from suite.training import EVERY, LOST, SCHEDULES, Averaged, Evaluated, Export, Line
from trainers.workload import WorkloadError

GUESSES = {"10x low": 0.1, "right": 1.0, "10x high": 10.0}
#: Half decades about a task's own rate.
STEPS_OF_GRID = (-3, -2, -1, 0, 1, 2, 3)
#: Of plain optimizers, and of those that need no decay; the first is tried with all rates.
REFERENCE_SCHEDULES = {True: ("linear", "constant", "cosine", "cool-down"), False: ("constant",)}
#: The rates of Schedule-Free that its package takes by default, by the optimizer that it stands in for.
DEFAULT_OF_FREE = {"sgd": 1.0, "adamw": 0.0025}
GROUPS = tuple(dict.fromkeys(task.group for task in TASKS.values()))
LOST_LOSSES = {"loss": math.inf, "training_loss": math.inf}


def grid(task: str, steps: int, seed: int, known: Sequence[Row]) -> Iterator[Row]:
    """Yield runs at all rates with the first schedule, then at the best five with the others."""
    definition = TASKS[task]
    rates = [definition.guess * 10 ** (each / 2) for each in STEPS_OF_GRID]
    first, *others = REFERENCE_SCHEDULES[definition.decays]
    for schedule in (first, *others):
        for rate in rates:
            yield {"what": "grid", "arm": schedule, "rate": rate} | scheduled(definition, schedule, rate, steps, seed)
        losses = defaultdict(list)
        for row in known:
            if row["what"] == "grid" and row["arm"] == first and _is(row, task, steps):
                losses[row["rate"]].append(row["loss"])
        best = min(losses, key=lambda rate: statistics.fmean(losses[rate]), default=definition.guess)
        rates = [rate for rate in rates if 10**-1.01 <= rate / best <= 10**1.01]


def guess(task: str, steps: int, seed: int, known: Sequence[Row]) -> Iterator[Row]:
    schedule = "half" if TASKS[task].decays else "constant"
    for name, factor in GUESSES.items():
        rate = TASKS[task].guess * factor
        yield {"what": "guess", "arm": name, "rate": rate} | scheduled(TASKS[task], schedule, rate, steps, seed)


def search(task: str, steps: int, seed: int, known: Sequence[Row]) -> Iterator[Row]:
    for name, factor in GUESSES.items():
        yield {"what": "search", "arm": name} | controlled(TASKS[task], {"kind": "bo"}, steps, seed, factor)


def rivals(task: str, steps: int, seed: int, known: Sequence[Row]) -> Iterator[Row]:
    for name in TUNERS:
        for start, factor in GUESSES.items():
            yield {"what": "rival", "arm": f"{name}, {start}"} | _tuned(task, name, steps, seed, factor)
    definition = TASKS[task]
    if definition.optimizer not in DEFAULT_OF_FREE:
        return
    yield {"what": "rival", "arm": "AutoLRS"} | controlled(definition, {"kind": "autolrs"}, steps, seed, 1.0)
    own = replace(definition, optimizer="own")
    yield {"what": "rival", "arm": "Prodigy, cosine"} | scheduled(own, "cosine", 1.0, steps, seed)
    free = replace(definition, optimizer=f"schedulefree_{definition.optimizer}")
    rate = DEFAULT_OF_FREE[definition.optimizer]
    yield {"what": "rival", "arm": "Schedule-Free"} | scheduled(free, "constant", rate, steps, seed)


def _tuned(task: str, tuner: str, steps: int, seed: int, factor: float) -> Row:
    key = {"task": task, "steps": steps, "seed": seed}

    def run() -> Row:
        line = Line(TASKS[task], seed)
        draws = zlib.crc32(f"{task} {steps} {seed} {factor}".encode())  # or all tasks would try the same rates
        study = tune(tuner, line, steps, TASKS[task].guess * factor, draws)
        is_sound = math.isfinite(study.loss)
        measured = _exported(line, study.export) if is_sound else _lost(study.export)
        return measured | {"picked": [study.rate], "trials": study.num_trials, "spent": study.spent}

    return key | {"run": run}


def scheduled(task: Task, schedule: str, rate: float, steps: int, seed: int) -> Row:
    key = {"task": task.name, "steps": steps, "seed": seed}

    def run() -> Row:
        line, export = Line(task, seed), Export()
        rates = [rate * SCHEDULES[schedule](step / steps) for step in range(steps)]
        while line.step < steps:
            losses = line.train(rates[line.step : line.step + EVERY])
            if not math.isfinite(losses[-1]):
                return _lost(export)
            export.look(line.evaluated(), line.step / steps)
        return _exported(line, export)

    return key | {"run": run}


def controlled(task: Task, controller: Row, steps: int, seed: int, factor: float) -> Row:
    key = {"task": task.name, "steps": steps, "seed": seed}

    def run() -> Row:
        line, config = Averaged(task, seed), TypeAdapter[Any](ControllerConfig).validate_python(controller)
        done = searched(line, task.guess * factor, steps, seed, controller=config)
        return _measured(line) | {
            "exported": done.exported,
            "flattered": done.flattered,
            "picked": [decision.values.learning_rate for decision in done.decisions],
            "searched": done.searched,
            "taken_back": done.taken_back,
            "z_scores": [
                score
                for forecast, ended in done.outcomes
                if (score := z_score(ended, mean=forecast.mean, std=forecast.std)) is not None
            ],
        }

    return key | {"run": run}


def _exported(line: Line, export: Export) -> Row:
    """Return the losses at the end, and that of the state which is exported by the rule of a job."""
    end = line.evaluated()
    return _measured(line) | {"exported": export.loss(end), "flattered": export.flattered(end)}


def _lost(export: Export) -> Row:
    """Return the losses of a run that diverged, and that of its best state before."""
    end = Evaluated(LOST)
    return LOST_LOSSES | {"exported": export.loss(end), "flattered": export.flattered(end)}


def _measured(line: Line) -> Row:
    return {"loss": line.evaluate(), "training_loss": line.evaluate(training=True)}


def _is(row: Row, task: str, steps: int) -> bool:
    return bool(row["task"] == task and row["steps"] == steps)


def _key(row: Row) -> tuple[Any, ...]:
    rate = round(math.log10(row["rate"]), 3) if "rate" in row else None
    return row["what"], row["arm"], rate, row["task"], row["steps"], row["seed"]


def run(what: str, tasks: Sequence[str], steps: Sequence[int], seeds: Sequence[int], part: Sequence[int]) -> None:
    """Run what is missing of `what`, and append each result to the file at once."""
    cells = [(task, length, seed) for length in steps for seed in seeds for task in tasks]
    for task, length, seed in cells[part[0] :: part[1]]:
        known = read(ROWS)
        done = {_key(row) for row in known}
        for row in {"grid": grid, "guess": guess, "search": search, "rivals": rivals}[what](task, length, seed, known):
            if _key(row) in done:
                continue
            call = row.pop("run")
            try:
                measured = call()
            except WorkloadError as error:  # its data are not on this machine
                print(f"{task}: {error}", file=sys.stderr)
                break
            result = row | measured | {"date": datetime.now(UTC).date().isoformat()}
            append(ROWS, result)


# -- the table ---------------------------------------------------------------------------------------------


def table(steps: Sequence[int]) -> None:
    """Print, for each length, how far above the reference each arm ends: per task, mean and worst run."""
    known = read(ROWS)
    for length in steps:
        arms = excesses(known, length)
        print(f"\n{length} steps; above the best of the grid, in % (mean, worst run)\n")
        names = sorted(arms)
        print("| task | " + " | ".join(" ".join(name) for name in names) + " |")
        print("| --- |" + " --- |" * len(names))
        for task in TASKS:
            cells = [arms[name].get(task) for name in names]
            if any(cells):
                print(f"| {task} | " + " | ".join(_cell(each) for each in cells) + " |")
        for group in GROUPS:
            parts = [{task: each for task, each in arms[name].items() if TASKS[task].group == group} for name in names]
            print(f"| **{group}: mean of tasks, median run** | " + " | ".join(map(_summary, parts)) + " |")
        found = calibration(each for row in known if row["steps"] == length for each in row.get("z_scores", ()))
        if found.num_outcomes:
            shares = f"{found.within_1_std:.0%} and {found.within_2_std:.0%} lie within 1 and 2 standard deviations"
            print(f"\nof {found.num_outcomes} commits {shares} of their forecasts, on average {found.mean_z:+.2f}")
    _print_medians({length: excesses(known, length) for length in steps})


def _print_medians(by_length: dict[int, Excesses]) -> None:
    """Print the median run of each arm and group, with its quartiles and the number of runs."""
    columns = [(length, group) for length in by_length for group in GROUPS]
    print("\nabove the best of the grid, in %: median run (quartiles), number of runs\n")
    print("| | " + " | ".join(f"{length} steps, {group}" for length, group in columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for name in sorted({name for arms in by_length.values() for name in arms}):
        cells = [
            [x for task, each in by_length[length][name].items() if TASKS[task].group == group for x in each]
            for length, group in columns
        ]
        print(f"| {' '.join(name)} | " + " | ".join(map(_median, cells)) + " |")


def _median(runs: Sequence[float]) -> str:
    if len(runs) < 2:
        return "-"
    low, middle, high = (100 * each for each in statistics.quantiles(runs, n=4))
    return f"{middle:+.0f} ({low:+.0f}, {high:+.0f}), {len(runs)}"


def _summary(by_task: dict[str, list[float]]) -> str:
    if not by_task:
        return "-"
    mean = statistics.fmean(statistics.fmean(each) for each in by_task.values())
    return f"{100 * mean:+.1f}, {100 * statistics.median(x for each in by_task.values() for x in each):+.1f}"


def _cell(excesses: Sequence[float] | None) -> str:
    return f"{100 * statistics.fmean(excesses):+.1f}, {100 * max(excesses):+.1f}" if excesses else "-"


def main() -> None:
    commands = ("grid", "guess", "search", "rivals", "table")
    given = arguments(__doc__, commands, tasks=TASKS, steps=(300, 1000), seeds=(0, 1, 2))
    if given.what == "table":
        table(given.steps)
    else:
        run(given.what, given.tasks, given.steps, given.seeds, given.part)


if __name__ == "__main__":
    main()
