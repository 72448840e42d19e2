"""Do short probes choose the exchange that the whole run wants, and what may be expected of it before any probe?

    make bench-suite      installs the data; PYTHONPATH=benchmarks for each by itself:
    python benchmarks/suite/option_probes.py run    [--tasks ...] [--seeds 0] [--part 1.0] [--steps 800]
    python benchmarks/suite/option_probes.py table
    python benchmarks/suite/option_probes.py densities

Two real processes exchange over gloo. They train every option from the same state, with the same batches, at a `part`
of the task's right guess of the rate. That gives losses by step. `table` first says what a step of each option
*teaches*: its run has the loss that dense training had after that share of the steps, mean over the second half of the
run. Under local updates that is the loss of the average, which is what a job exports: of a round the first block
counts. It is what `auto` expects (`Competing` in `trainers/spec/method.py`), of nets with BatchNorm to another power.

Then each way to choose is judged on links where a dense exchange takes `TRANSFERS` times as long as a step computes. No
clock is read: a step computes for `WORK` and sends `SENT`, as shares of what a dense one does. A choice is *behind* by
how much sooner the best option is where the chosen one ends, and by how far the loss ends above the best one's. What is
expected of a task is the mean over tasks with other data.

`densities` says the same of the densities of one exchange: what a step at each teaches, the powers that follow with
one family of data left out at a time, and how far behind a density is by which what was expected of other families
costs least. A line of `option_probes.jsonl` is an option of a task, with its date; what is in it is not run again.
"""

import argparse
import itertools
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rows import append, read

from search.bayesian.rewards import PROBED_PART
from search.budget.link import KNEE
from service.job.spec import JobSpec
from suite.tasks import TASKS
from trainers.methods.exchange.auto.spec import LOCAL, WITH_BATCH_NORM, Option
from trainers.segment import Segment
from trainers.training.model import norms_that_track
from trainers.training.process_group import ProcessGroup

HERE = Path(__file__).parent
ROWS = HERE / "option_probes.jsonl"
#: What a step sends, as a share of dense gradients, and how long it computes beside a dense step.
SENT = {
    "none": 1.0,
    "local_sgd 4": 0.25,
    "local_sgd 16": 0.0625,
    "powersgd 4": 0.06,
    "powersgd 1": 0.02,
    "threshold 0.01": 0.0125,
    "local_sgd 16 blockwise": 0.008,
    "local_sgd 16 sparse_loco": 0.0018,
    "threshold 0.001": 0.0013,
}
#: Densities of one exchange, those among the options included.
DENSITIES = {f"threshold {density:g}": density for density in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)}
WORK = {"powersgd 4": 1.25, "powersgd 1": 1.2, "threshold 0.01": 1.15, "threshold 0.001": 1.15}
TASKS_HERE = (
    "digits-conv-norm",
    "mnist-conv",
    "mnist-perceptron-free",
    "mnist-lenet-adamw",
    "fashion-perceptron",
    "fashion-conv-norm",
    "textures-conv-norm",
    "photo-denoise",
    "source-transformer",
    "source-transformer-free",
    "characters-transformer",
    "characters-gru",
    "phones-transformer",
    "phones-neighbours",
    "words-gru",
    "words-embedding",
    "diamonds-perceptron",
    "houses-adamw",
    "tumours-perceptron",
    "weather-perceptron",
)
#: How many times as long as a step computes a dense exchange takes.
TRANSFERS = (0.2, 0.4, 0.6, 1.0, 4.0, 12.0, 40.0)
#: The same, of the links on which densities are compared.
LINKS = (0.2, 0.5, 1.0, 2.0, 4.0, 12.0, 40.0, 150.0)
#: A probe's share of the budget, and the fewest steps of one.
SHARES, FEWEST = (0.02, 0.025, 0.05, 0.1), 16
#: What the probe counts beside what is expected.
PARTS = {"probes alone": 1.0, "both alike": 0.5, "both, as the search does": PROBED_PART, "what is expected alone": 0.0}
#: Steps of which a row holds the mean loss.
BLOCK = 4
Row = dict[str, Any]
Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """A task, a seed and a rate: the losses of each option, means of blocks of steps."""

    task: str
    losses: Mapping[str, Losses]

    @cached_property
    def teaches(self) -> dict[str, float]:
        """The logarithm of what a step of each option teaches, as a share of what a dense one does."""
        whole = len(self.losses["none"])
        return {option: self.teaches_by(option, whole // 2, whole) for option in self.losses}

    def teaches_by(self, option: str, first: int, last: int) -> float:
        """Return the same of an option by the blocks from `first` to `last`: the mean of five places."""
        if option == "none":
            return 0.0
        dense, ends = self.losses["none"], np.linspace(first, last, 5)
        levels = np.array([_tail(dense, end, 0.2) for end in range(1, len(dense) + 1)])
        as_low = [np.flatnonzero(levels <= _tail(self.losses[option], end, 0.2)) for end in ends]
        found = [each[0] + 1 if len(each) else len(dense) for each in as_low]
        return float(np.mean(np.log(found / ends)))


def _tail(losses: Losses, end: float, share: float) -> float:
    """Return the mean of the last `share` of the blocks before `end`."""
    last = min(len(losses), max(1, int(end)))
    return float(losses[last - max(1, round(share * last)) : last].mean())


# -- measuring ---------------------------------------------------------------------------------------------


def measure(task: str, seed: int, part: float, steps: int, options: Sequence[str]) -> list[Row]:
    """Train each of `options` from the same state, and return a row of each that did not diverge."""
    known = TASKS[task]
    rate = part * known.guess
    job = {
        "workload": {"factory": "suite.tasks:workload", "path": str(HERE.parent), "params": {"task": task}},
        "optimizer": {"kind": known.optimizer, "learning_rate": rate, "weight_decay": known.weight_decay},
        "arms": [{"name": "run", "exchange": {"kind": "auto", "options": [*options]}}],
        "seeds": [seed],
        "budget": {"bytes": 10**12},
    }
    found = []
    with ProcessGroup(next(JobSpec.model_validate(job).trials()).replica, 2, device="cpu") as group:
        group.snapshot("start")
        for option in options:
            _, *level = option.split()
            group.restore("start")
            asked = Segment(
                num_steps=steps, learning_rate=rate, level=float(level[0]) if level else None, option=option
            )
            result = group.run(asked)
            if not result.diverged:
                found.append(row(task, seed, part, option, result.losses))
    return found


def of_average(option: str, losses: Losses) -> Losses:
    """Return the losses of the workers' average: those of a round's first block, and straight lines in between."""
    kind, level, _ = Option.parse(option)
    blocks = np.arange(len(losses))
    met = blocks[:: max(1, int(level or 1) // BLOCK)] if kind == LOCAL else blocks
    return np.interp(blocks, met, losses[met])


def row(task: str, seed: int, part: float, option: str, losses: Sequence[float]) -> Row:
    blocks = np.reshape(losses[: len(losses) // BLOCK * BLOCK], (-1, BLOCK)).mean(axis=1)
    means = [float(f"{loss:.4g}") for loss in blocks]
    date = datetime.now(UTC).date().isoformat()
    return {"task": task, "seed": seed, "part": part, "option": option, "losses": means, "date": date}


def run_all(tasks: Sequence[str], seeds: Sequence[int], part: float, steps: int) -> None:
    """Run what the file does not hold yet, and append each task's rows at once."""
    done = {(each["task"], each["seed"], each["part"], each["option"] in SENT) for each in read(ROWS)}
    further = [option for option in DENSITIES if option not in SENT]
    for seed in seeds:
        for task, options in itertools.product(tasks, ([*SENT], further)):
            if (task, seed, part, options[0] in SENT) not in done:
                found = measure(task, seed, part, steps, options)
                append(ROWS, *found)
                print(f"{task}, seed {seed}: {[each['losses'][-1] for each in found]}", flush=True)


# -- the tables --------------------------------------------------------------------------------------------


@cache
def cells(options: tuple[str, ...] = tuple(SENT)) -> tuple[Cell, ...]:
    """Return each task of which dense training and some of `options` are recorded, with these."""
    by_cell: dict[tuple[str, int, float], dict[str, Losses]] = defaultdict(dict)
    for each in read(ROWS):
        if each["option"] in options or each["option"] == "none":
            losses = of_average(each["option"], np.array(each["losses"]))
            by_cell[each["task"], each["seed"], each["part"]][each["option"]] = losses
    return tuple(Cell(task, losses) for (task, _, _), losses in by_cell.items() if "none" in losses and len(losses) > 1)


@cache
def has_batch_norm(task: str) -> bool:
    return bool(norms_that_track(TASKS[task].model()))


@cache
def taught(option: str, *, besides: str = "") -> float:
    """Return the mean logarithm of what a step teaches, over tasks with other data than the task `besides`.

    It is that of nets without BatchNorm, and to the power `WITH_BATCH_NORM` for a task whose net has it.
    """
    family = TASKS[besides].family if besides else ""
    others = [each for each in _with(option) if TASKS[each.task].family != family and not has_batch_norm(each.task)]
    power = WITH_BATCH_NORM if besides and has_batch_norm(besides) else 1.0
    return float(power * np.mean([each.teaches[option] for each in others]))


def _with(option: str) -> list[Cell]:
    return [each for each in cells() if option in each.losses]


def cost(option: str, transfer: float) -> float:
    """Return what a step costs; a dense one computes for 1 and sends for `transfer`."""
    sent = _sent(DENSITIES[option]) if option in DENSITIES else SENT[option]
    return WORK.get(option, WORK["threshold 0.01"] if option in DENSITIES else 1.0) + transfer * sent


Choose = Callable[[Cell, float], str]


def by_probes(share: float, part: float) -> Choose:
    """Choose by probes that may spend `share` of the budget each; they count `part`, what is expected the rest."""

    def choose(cell: Cell, transfer: float) -> str:
        costs = {option: cost(option, transfer) for option in cell.losses}
        whole = BLOCK * len(cell.losses["none"]) * min(costs.values())
        spent = min(max(FEWEST * each, share * whole) for each in costs.values())
        ends = {option: max(1.0, spent / each / BLOCK) for option, each in costs.items()}
        seen = {option: -math.log(_tail(cell.losses[option], end, 0.5)) for option, end in ends.items()}
        best = max(seen, key=lambda option: seen[option])
        climb = max(0.0, seen[best] + math.log(_tail(cell.losses[best], ends[best] / 2, 0.5))) / math.log(2)
        expected = {option: taught(option, besides=cell.task) - math.log(each) for option, each in costs.items()}
        if not part:
            return max(expected, key=lambda option: expected[option])
        return max(seen, key=lambda option: part * seen[option] + (1 - part) * climb * expected[option])

    return choose


def behind(cell: Cell, transfer: float, choose: Choose) -> tuple[float, float]:
    """Return by what the choice is behind the best one: the logarithms of the time, and of the loss in the end."""
    costs = {option: cost(option, transfer) for option in cell.losses}
    budget = len(cell.losses["none"]) * min(costs.values())
    ahead = {option: cell.teaches[option] - math.log(each) for option, each in costs.items()}
    ends = {option: math.log(_tail(cell.losses[option], budget / each, 0.1)) for option, each in costs.items()}
    chosen = choose(cell, transfer)
    return max(ahead.values()) - ahead[chosen], ends[chosen] - min(ends.values())


def table() -> None:
    """Print what each option teaches, and how far behind each way to choose is."""
    print("| option | runs without BatchNorm | a step teaches | scatter of the logarithm | runs with it | teaches |")
    print("| --- |" + " --- |" * 5)
    for option in SENT:
        plain, normed = (
            [each.teaches[option] for each in _with(option) if has_batch_norm(each.task) is normed]
            for normed in (False, True)
        )
        told = f"{len(plain)} | {math.exp(np.mean(plain)):.2f} | {np.std(plain):.2f}"
        print(f"| `{option}` | {told} | {len(normed)} | {math.exp(np.mean(normed)):.2f} |")
    print(f"\n| {len(cells())} runs | time | loss |\n| --- | --- | --- |")
    for share in SHARES:
        for name, part in PARTS.items():
            _print_behind(f"{name}, of {100 * share:.3g} % of the budget each", by_probes(share, part))
    for option in SENT:
        _print_behind(f"always `{option}`", lambda cell, _, option=option: option)


def _print_behind(name: str, choose: Choose) -> None:
    found = []
    for cell in cells():
        for transfer in TRANSFERS:
            if choose(cell, transfer) in cell.losses:
                found.append(behind(cell, transfer, choose))
    time, loss = np.expm1(np.mean(found, axis=0))
    print(f"| {name} | +{100 * time:.0f} % | +{100 * loss:.0f} % |")


# -- densities ---------------------------------------------------------------------------------------------


def density_cells() -> list[Cell]:
    """Return the tasks of which every density is recorded."""
    return [each for each in cells(tuple(DENSITIES)) if each.losses.keys() >= DENSITIES.keys()]


def powers(*, besides: str = "") -> tuple[float, float]:
    """Return the powers of the density by which a step teaches, below and above `KNEE`.

    They are fitted to the mean over tasks of other families than that of the task `besides`.
    """
    family = TASKS[besides].family if besides else ""
    found = [each.teaches for each in density_cells() if TASKS[each.task].family != family]
    means = {density: np.mean([each[option] for each in found]) for option, density in DENSITIES.items()}
    below = {density: mean for density, mean in means.items() if density <= KNEE}
    return float(np.polyfit(np.log([*below]), [*below.values()], 1)[0]), float(means[KNEE] / math.log(KNEE))


def by_powers(cell: Cell, transfer: float) -> str:
    """Choose the density that costs least for what it teaches, as tasks of other families say."""
    below, above = powers(besides=cell.task)
    candidates = np.geomspace(min(DENSITIES.values()), 1.0, 200)
    taught = [(density / KNEE) ** (below if density < KNEE else above) for density in candidates]
    costs = [WORK["threshold 0.01"] + transfer * _sent(density) for density in candidates]
    return nearest(candidates[int(np.argmax(np.array(taught) / costs))])


def by_quarter(_cell: Cell, transfer: float) -> str:
    """Choose the density at which sending takes a quarter of the compute time."""
    return nearest(0.25 / (transfer * SENT["threshold 0.01"] / 0.01))


def nearest(density: float) -> str:
    """Return the recorded density that is nearest on a logarithmic scale."""
    return min(DENSITIES, key=lambda option: abs(math.log(DENSITIES[option] / density)))


def _sent(density: float) -> float:
    """Return what a step at a density sends, as a share of dense gradients: values with their places."""
    return min(1.0, density * SENT["threshold 0.01"] / 0.01)


def table_of_densities() -> None:
    """Print what a step at each density teaches, and how far behind each way to choose one is."""
    print("| density | a step teaches, of a dense one | scatter of the logarithm |\n| --- | --- | --- |")
    for option, density in DENSITIES.items():
        found = [each.teaches[option] for each in density_cells()]
        print(f"| {density:g} | {math.exp(np.mean(found)):.2f} | {np.std(found):.2f} |")
    left_out = [powers(besides=each.task) for each in density_cells()]
    for name, whole, parts in zip(("below", "above"), powers(), zip(*left_out, strict=True), strict=True):
        print(f"\nPower {name} {KNEE:g}: {whole:.2f}, left out in turn {min(parts):.2f} to {max(parts):.2f}.")
    print(f"\n| {len(density_cells())} runs, {len(LINKS)} links | time | loss |\n| --- | --- | --- |")
    ways: dict[str, Choose] = {
        "what others' powers expect": by_powers,
        "sending takes a quarter of compute": by_quarter,
    }
    ways |= {f"always {density:g}": lambda cell, _, option=option: option for option, density in DENSITIES.items()}
    for name, choose in ways.items():
        found = [behind(cell, each, choose) for cell in density_cells() for each in LINKS]
        time, loss = np.expm1(np.mean(found, axis=0))
        print(f"| {name} | +{100 * time:.0f} % | +{100 * loss:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "densities"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=TASKS_HERE)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--part", type=float, default=1.0, help="of the right guess of the rate")
    parser.add_argument("--steps", type=int, default=800)
    given = parser.parse_args()
    if given.what == "table":
        table()
    elif given.what == "densities":
        table_of_densities()
    else:
        # Ranks are forked with the data's packages imported, or each run would wait for them.
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            ["trainers.training.rank", "numba", "suite.tasks"]
        )
        run_all(given.tasks, given.seeds, given.part, given.steps)


if __name__ == "__main__":
    main()
