"""The table over all methods, and what the papers claim beside what was measured, as markdown."""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from races.methods import ALWAYS, FAMILIES

Json = dict[str, Any]
#: Looks at the models whose mean is the loss in the end: one alone depends on its last batches.
LAST_LOOKS = 3


def final_loss(row: Json) -> float:
    """Return the validation loss in the end, of the hosts' own models or of their mean, whichever is lower."""
    losses = [min(own, mean) if math.isfinite(own) else math.inf for _, _, own, mean in row["validations"]]
    return statistics.fmean(losses[-LAST_LOOKS:]) if len(losses) >= LAST_LOOKS else math.inf


def print_all(rows: Sequence[Json]) -> None:
    results = Results(rows)
    for task in results.tasks:
        print_task(task, results)
    print("\n### What the papers claim\n\n| claim | measured |\n| --- | --- |")
    for claim, measured in claims(results):
        print(f"| {claim} | {measured} |")


def print_task(task: str, results: "Results") -> None:
    """Print a task's methods by family, medians over the seeds."""
    print(f"\n### {task}\n")
    print("| method | rate | loss | above dense | kB a step and host | of dense | step ms | of dense | run s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys([*ALWAYS, *(name for family in FAMILIES.values() for name in family)]):
        with contextlib.suppress(LookupError):
            print(f"| {name} | {' | '.join(cells(task, name, results))} |")


def cells(task: str, name: str, results: "Results") -> list[str]:
    """Return what the table says of a method; raises LookupError if it was not run."""
    loss, kilobytes = results.loss(task, name), results.kilobytes(task, name)
    return [
        f"{results.of(task, name, lambda row: float(row['rate'])):g}",
        f"{loss:.3f}",
        f"{loss - results.loss(task, 'dense'):+.3f}",
        f"{kilobytes:.1f}",
        f"{100 * kilobytes / results.kilobytes(task, 'dense'):.1f} %",
        or_blank(lambda: f"{results.step(task, name):.0f}"),
        or_blank(lambda: f"{results.over('dense', task, name):.2f}"),
        or_blank(lambda: f"{results.seconds(task, name):.1f}"),
    ]


def or_blank(cell: Callable[[], str]) -> str:
    """Return the cell, which is empty where nobody raced."""
    try:
        return cell()
    except LookupError:
        return ""


def _run_of(row: Json) -> tuple[str, str, int]:
    return row["task"], row["arm"], row["seed"]


def step_ms(row: Json) -> float:
    """Return the median over the turns, but for the first."""
    return 1e3 * statistics.median(row["block_seconds"][1:]) / float(row["block_steps"])


class Results:
    """What was measured of a method on a task, medians over the seeds: what it learnt and sent when it ran, and what a
    step took when it was paced beside others."""

    def __init__(self, rows: Sequence[Json]) -> None:
        # The last one of each: a better rate was found since the others.
        self._runs = [*{_run_of(row): row for row in rows if row["kind"] == "run"}.values()]
        self._paces = [row for row in rows if row["kind"] == "pace"]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row["task"] for row in self._runs))

    def of(self, task: str, method: str, number: Callable[[Json], float]) -> float:
        """Return a number of the method's runs; raises LookupError if there is none."""
        return _median(self._runs, task, method, number)

    def loss(self, task: str, method: str) -> float:
        return self.of(task, method, final_loss)

    def kilobytes(self, task: str, method: str) -> float:
        return self.of(task, method, lambda row: row["wire_bytes"] / 1e3)

    def saved(self, task: str, method: str) -> float:
        """Return the kB that a step keeps for backward."""
        return self.of(task, method, lambda row: (row["saved_bytes"] or math.nan) / 1e3)

    def step(self, task: str, method: str) -> float:
        """Return a step's milliseconds."""
        return _median(self._paces, task, method, step_ms)

    def seconds(self, task: str, method: str) -> float:
        """Return what all steps of a run take, by the mean of the race's steps and what the run sent more in one, or
        less: what comes once in many steps, as the meetings of LIEC-SGD, a race may miss, and what begins slowly, as
        Accordion, weighs more in it. A task without a race takes that of its model on shared data.
        """
        has_raced = any(row["task"] == task for row in self._paces)
        course = task if has_raced else task.removesuffix("-apart")
        raced = _median(self._paces, course, method, lambda row: row["wire_bytes"] / 1e3)
        megabits = (self.kilobytes(task, method) - raced) * 8 / 1e3
        step_s = _median(
            self._paces, course, method, lambda row: statistics.fmean(row["block_seconds"]) / row["block_steps"]
        )
        seconds = step_s + megabits / self.of(task, method, lambda row: row["mbps"])
        return seconds * self.of(task, method, lambda row: row["steps_taken"])

    def over(self, other: str, task: str, method: str) -> float:
        """Return a step's time in steps of the method `other`, of the same race, turn by turn."""
        beside = {row["race"]: row for row in self._paces if row["arm"] == other and row["task"] == task}
        return _median(self._paces, task, method, lambda row: over(row, beside[row["race"]]))


def over(row: Json, other: Json) -> float:
    """Return the median quotient of the turns' times, but for the first turn."""
    turns = zip(row["block_seconds"], other["block_seconds"], strict=True)
    return statistics.median(own / beside for own, beside in list(turns)[1:])


def _median(rows: Sequence[Json], task: str, method: str, number: Callable[[Json], float]) -> float:
    numbers = [number(row) for row in rows if row["task"] == task and row["arm"] == method]
    if not numbers:
        raise LookupError(f"{method} was not run on {task}")
    return statistics.median(numbers)


def claims(results: Results) -> Iterator[tuple[str, str]]:
    """Yield each claim with its numbers; those that lack a run are left out."""
    for claim, measure in CLAIMS.items():
        try:
            yield claim, measure(results)
        except LookupError as error:
            yield claim, f"not measured: {error}"


def _accordion(results: Results) -> str:
    task, names = "images", ("powersgd 4", "powersgd, accordion 1-4", "powersgd 1")
    losses = ", ".join(f"{results.loss(task, name):.3f}" for name in names)
    kilobytes = ", ".join(f"{results.kilobytes(task, name):.1f}" for name in names)
    return f"rank 4, Accordion, rank 1: losses {losses}; {kilobytes} kB a step"


def _hard_threshold(results: Results) -> str:
    def told(task: str) -> str:
        hard, top = ("threshold, hold: run", "topk 1 %, exact")
        return (
            f"{task}: losses {results.loss(task, hard):.3f} and {results.loss(task, top):.3f} at "
            f"{results.kilobytes(task, hard):.1f} and {results.kilobytes(task, top):.1f} kB a step"
        )

    return f"threshold and top-k, {told('images')}; {told('images-apart')}"


def _vrl(results: Results) -> str:
    tasks = ("images-apart", "text-apart")
    pairs = [(results.loss(task, "vrl_sgd 8"), results.loss(task, "local_sgd 8")) for task in tasks]
    return "; ".join(
        f"{task}: {vrl:.3f}, local SGD {local:.3f}" for task, (vrl, local) in zip(tasks, pairs, strict=True)
    )


def _cocod(results: Results) -> str:
    return "; ".join(
        f"{task}: {results.over('nosync', task, 'cocod_sgd 8'):.2f} times a step without an exchange, local SGD "
        f"{results.over('nosync', task, 'local_sgd 8'):.2f} times"
        for task in ("images", "text")
    )


def _liec(results: Results) -> str:
    names = ("dense, no momentum", "liec_sgd, 100", "doublesqueeze")
    losses = ", ".join(f"{results.loss('images-apart', name):.3f}" for name in names)
    bits = 32 * results.kilobytes("images-apart", "liec_sgd, 100") / results.kilobytes("images-apart", names[0])
    return f"dense, LIEC, DoubleSqueeze on images-apart: losses {losses}; LIEC {bits:.2f} bits for dense training's 32"


def _jointspar(results: Results) -> str:
    drawn, dense = results.over("nosync", "images", "jointspar 50 %"), results.over("nosync", "images", "dense")
    return f"a step is {drawn:.2f} times one without an exchange, dense training's {dense:.2f} times"


def _dropit(results: Results) -> str:
    dropped, kept = results.saved("images", "dropit 80 %"), results.saved("images", "dense")
    losses = [results.loss("images", name) for name in ("dropit 80 %", "dense")]
    return f"{dropped:.0f} kB kept for backward, {kept:.0f} without; losses {losses[0]:.3f} and {losses[1]:.3f}"


CLAIMS: dict[str, Callable[[Results], str]] = {
    "Accordion: near the quality of low compression at nearly the bytes of high compression": _accordion,
    "A hard threshold needs fewer bytes than top-k at equal loss, and does not mind that data differ": _hard_threshold,
    "VRL-SGD learns more than local SGD where data differ": _vrl,
    "CoCoD-SGD hides its communication (a step within 10 % of one without)": _cocod,
    "LIEC-SGD is between DoubleSqueeze and dense training, at about 3.3 bits a parameter": _liec,
    "JointSpar saves computation in every step": _jointspar,
    "DropIT keeps fewer bytes for backward": _dropit,
}
