"""The table over all methods, and what the papers claim beside what was measured, as markdown."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contest.methods import ALWAYS, FAMILIES

Json = dict[str, Any]
#: Looks at the models whose mean is the loss in the end: one alone depends on its last batches.
LAST_LOOKS = 3


def final_loss(row: Json) -> float:
    """Return the validation loss in the end, of the hosts' own models or of their mean, whichever is lower."""
    losses = [min(own, mean) if math.isfinite(own) else math.inf for _, _, own, mean in row["validations"]]
    return statistics.fmean(losses[-LAST_LOOKS:]) if len(losses) >= LAST_LOOKS else math.inf


def print_all(rows: Sequence[Json]) -> None:
    runs = [row for row in rows if row["kind"] == "run"]
    for task in dict.fromkeys(row["task"] for row in runs):
        print_task([row for row in runs if row["task"] == task])
    print("\n### What the papers claim\n\n| claim | measured |\n| --- | --- |")
    for claim, measured in claims(Results(runs)):
        print(f"| {claim} | {measured} |")


def print_task(rows: Sequence[Json]) -> None:
    """Print a task's methods by family, medians over the seeds."""
    first = rows[0]
    print(f"\n### {first['task']}: {first['hosts']} hosts, {first['mbps']:g} Mbit/s, {first['steps_taken']} steps\n")
    print("| method | rate | loss | above dense | kB a step and host | of dense | step ms | of dense |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys([*ALWAYS, *(name for family in FAMILIES.values() for name in family)]):
        own = [row for row in rows if row["arm"] == name]
        if own:
            print(f"| {name} | {' | '.join(cells(own, rows))} |")


def cells(own: Sequence[Json], rows: Sequence[Json]) -> list[str]:
    pairs = [(row, dense_of(row, rows)) for row in own]
    loss = statistics.median(final_loss(row) for row in own)
    return [
        ", ".join(sorted({f"{row['rate']:g}" for row in own})),
        f"{loss:.3f}",
        f"{statistics.median(final_loss(row) - final_loss(dense) for row, dense in pairs):+.3f}",
        f"{statistics.median(row['wire_bytes'] for row in own) / 1e3:.1f}",
        f"{100 * statistics.median(row['wire_bytes'] / dense['wire_bytes'] for row, dense in pairs):.1f} %",
        f"{statistics.median(step_ms(row) for row in own):.0f}",
        f"{statistics.median(step_ms(row) / step_ms(dense) for row, dense in pairs):.2f}",
    ]


def dense_of(row: Json, rows: Sequence[Json]) -> Json:
    """Return dense training of the race of `row`."""
    return next(each for each in rows if each["arm"] == "dense" and each["race"] == row["race"])


def step_ms(row: Json) -> float:
    """Return the median over the turns, but for the first."""
    return 1e3 * statistics.median(row["block_seconds"][1:]) / float(row["block_steps"])


class Results:
    """What was measured of a method on a task: medians over the seeds, beside dense training of the same race."""

    def __init__(self, runs: Sequence[Json]) -> None:
        self._runs = runs

    def of(self, task: str, method: str, number: Callable[[Json], float]) -> float:
        """Return a number of the method's runs; raises LookupError if there is none."""
        own = [number(row) for row in self._runs if row["task"] == task and row["arm"] == method]
        if not own:
            raise LookupError(f"{method} was not run on {task}")
        return statistics.median(own)

    def loss(self, task: str, method: str) -> float:
        return self.of(task, method, final_loss)

    def kilobytes(self, task: str, method: str) -> float:
        return self.of(task, method, lambda row: row["wire_bytes"] / 1e3)

    def step(self, task: str, method: str) -> float:
        """Return a step's milliseconds."""
        return self.of(task, method, step_ms)

    def over_nosync(self, task: str, method: str) -> float:
        """Return a step's time in steps without any exchange, of the same race."""
        nosync = {row["race"]: row for row in self._runs if row["arm"] == "nosync" and row["task"] == task}
        return self.of(task, method, lambda row: step_ms(row) / step_ms(nosync[row["race"]]))

    def saved(self, task: str, method: str) -> float:
        """Return the kB that a step keeps for backward."""
        return self.of(task, method, lambda row: (row["saved_bytes"] or math.nan) / 1e3)


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
        f"{task}: {results.over_nosync(task, 'cocod_sgd 8'):.2f} times a step without an exchange, local SGD "
        f"{results.over_nosync(task, 'local_sgd 8'):.2f} times"
        for task in ("images", "text")
    )


def _liec(results: Results) -> str:
    names = ("dense, no momentum", "liec_sgd, 100", "doublesqueeze")
    losses = ", ".join(f"{results.loss('images-apart', name):.3f}" for name in names)
    bits = 32 * results.kilobytes("images-apart", "liec_sgd, 100") / results.kilobytes("images-apart", names[0])
    return f"dense, LIEC, DoubleSqueeze on images-apart: losses {losses}; LIEC {bits:.2f} bits for dense training's 32"


def _jointspar(results: Results) -> str:
    drawn, dense = results.over_nosync("images", "jointspar 50 %"), results.over_nosync("images", "dense")
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
