"""Compare one job with its alternatives at an equal number of steps, tuning included, from the rows of suite/.

    python benchmarks/equal_cost.py run   [--tasks ...] [--steps 300 1000] [--seeds 0 1 2]    what is missing; hours
    python benchmarks/equal_cost.py table                                                     writes equal_cost.md
    python benchmarks/equal_cost.py table --without TASK ...                                  prints its first table

A budget is a number of optimizer steps, and everything an arm tries is charged to it. `suite/rivals.py` describes the
rivals. An arm that begins with a guess has three: right, ten times too low, ten times too high. Losses are those of the
validation set, in % above the best of a grid that is not charged. A run that ends 50 % above or worse counts as lost,
and as 50 %. Arms are compared where all of them have a run with the same task, seed and budget.

The result is the state that a job would export: for a run, the best state that was evaluated, the end included; for a
study, the end of its best trial. The samples that choose it flatter it, that of every arm alike. Beside it stands what
one job's state loses on samples that did not choose it (docs/decisions/0051). Evaluations are not charged. The tasks of
`HELD_OUT`, on which no setting of the controller was tuned, are also shown separately.
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rows import read
from suite.excess import LOST, OPTIMIZER_ROWS, ROWS, Row, above, references, summarised

PAGE = Path(__file__).parent / "equal_cost.md"
OURS, OURS_END = "one job (`bo`)", "the same job, at its end"
OURS_UNSEEN = "the same job, on samples that did not choose its state"
#: It is told neither a rate nor the task's optimizer.
OURS_AUTO = "one job, `optimizer: auto`"
OWN = (OURS, OURS_END, OURS_UNSEEN, OURS_AUTO)
GUESS = "one guess, with a decay"
GUESSES = ("10x low", "right", "10x high")
#: Rows' names of arms that begin with a guess, and of those that take none.
GUESSED = ("Optuna", "ASHA", "PBT", "PB2", "GreedyLR")
BLIND = {"AutoLRS": "AutoLRS", "Prodigy, cosine": "Prodigy", "Schedule-Free": "Schedule-Free, default rate"}
#: Of a whole comparison.
SEEDS = (0, 1, 2)
#: Tasks that no setting of the controller was tuned on: those that `suite/tasks.py` added as unseen.
HELD_OUT = (
    "fashion-perceptron",
    "fashion-conv",
    "fashion-conv-norm",
    "fashion-residual-adamw",
    "characters-transformer",
    "characters-gru",
    "weather-perceptron",
    "docstrings-gpt",
    "textures-vit",
    "phones-gru-deep",
    "diamonds-deep",
)
#: How much more than the best rival of a task one job may lose, of the mean loss.
GOAL = 0.03


class Cell(NamedTuple):
    """A task and a seed, from one guess: arms are compared there."""

    task: str
    seed: int
    guess: str


Losses = dict[str, dict[Cell, float]]  # by arm, in shares above the reference


def rows() -> list[Row]:
    """Return the rows of the suite, and those of jobs with `optimizer: auto`."""
    auto = [row | {"what": "auto"} for row in read(OPTIMIZER_ROWS) if row["arm"] == "auto"]
    return [*read(ROWS), *auto]


def losses(known: Sequence[Row], steps: int) -> Losses:
    """Return each arm's losses; an arm without a guess has the same one for all three."""
    reference, found = references(known, steps), dict[str, dict[Cell, float]]()
    for row in known:
        if row["steps"] == steps and row["task"] in reference and (named := _arm(row)):
            arm, guesses = named
            told = {arm: row.get("flattered", row["loss"])}
            if arm == OURS:
                told |= {OURS_END: row["loss"]} | ({OURS_UNSEEN: row["exported"]} if "exported" in row else {})
            for name, loss in told.items():
                share = min(above(loss, reference[row["task"]]), LOST)
                found.setdefault(name, {}).update({Cell(row["task"], row["seed"], guess): share for guess in guesses})
    return _met(found)


def _arm(row: Row) -> tuple[str, Sequence[str]] | None:
    """Return the arm of a row and the guesses that it stands for; None for the grid, and what is no arm here."""
    if row["what"] == "search":
        return OURS, (row["arm"],)
    if row["what"] == "guess":
        return GUESS, (row["arm"],)
    if row["what"] == "auto":
        return OURS_AUTO, GUESSES
    if row["what"] == "rival" and row["arm"] in BLIND:
        return BLIND[row["arm"]], GUESSES
    name, _, guess = row["arm"].partition(", ")
    return (name, (guess,)) if row["what"] == "rival" and name in GUESSED else None


def _met(found: Losses) -> Losses:
    """Return the losses of the cells that all arms share; an arm of fewer than half the most cells waits.

    Without a rival there is nothing to compare.
    """
    most = max((len(cells) for arm, cells in found.items() if arm not in (*OWN, GUESS)), default=0)
    if not most:
        return {}
    arms = {arm: cells for arm, cells in found.items() if len(cells) >= most / 2}
    shared = set.intersection(*(set(cells) for cells in arms.values())) if arms else set()
    return {arm: {cell: cells[cell] for cell in sorted(shared)} for arm, cells in arms.items()}


class Standing(NamedTuple):
    """Results of an arm at a budget: shares above the reference."""

    arm: str
    mean: float
    ours: float  # the mean of one job in the same cells
    lost: int
    runs: int
    beaten: float  # share of runs in which one job (`bo`) ends lower


def standings(found: Losses) -> list[Standing]:
    """Return how each arm did, the lowest mean first; one guess stands there once for each guess."""
    arms = dict(found)
    for cells in [arms.pop(GUESS)] if GUESS in arms else []:
        for guess in GUESSES:
            arms[f"{GUESS}, {guess}"] = {cell: loss for cell, loss in cells.items() if cell.guess == guess}
    return sorted((_standing(arm, cells, found[OURS]) for arm, cells in arms.items()), key=lambda each: each.mean)


def _standing(arm: str, cells: Mapping[Cell, float], ours: Mapping[Cell, float]) -> Standing:
    ends = summarised(cells.values())
    return Standing(
        arm,
        ends.mean,
        statistics.fmean(ours[cell] for cell in cells),
        ends.lost,
        ends.num_runs,
        math.nan if arm in OWN else statistics.fmean(ours[cell] < loss for cell, loss in cells.items()),
    )


def by_task(found: Losses, own: str = OURS) -> dict[str, tuple[float, str, float]]:
    """Return for each task the mean of one job, by which arm is ours, and its best rival with the mean of that."""
    means: dict[str, dict[str, float]] = {}
    for arm, cells in found.items():
        for task in {cell.task for cell in cells}:
            inside = [loss for cell, loss in cells.items() if cell.task == task]
            means.setdefault(task, {})[arm] = statistics.fmean(inside)
    rivals = {task: {arm: mean for arm, mean in arms.items() if arm not in OWN} for task, arms in means.items()}
    best = {task: min(arms, key=arms.__getitem__) for task, arms in rivals.items()}
    return {task: (means[task][own], best[task], rivals[task][best[task]]) for task in sorted(means)}


def behind(found: Losses, own: str = OURS) -> dict[str, tuple[float, str]]:
    """Return the tasks on which one job ends more than the goal above the best rival: by how much, and which."""
    gaps = {task: ((1 + ours) / (1 + best) - 1, rival) for task, (ours, rival, best) in by_task(found, own).items()}
    return {task: gap for task, gap in gaps.items() if gap[0] > GOAL}


# -- the page ----------------------------------------------------------------------------------------------


def verdict(known: Sequence[Row], steps: int) -> str:
    """Return in a few sentences what one job loses at a budget."""
    found = losses(known, steps)
    standing = standings(found)
    lower = [each.arm for each in standing if each.mean < each.ours and each.arm not in OWN]
    often = [f"{each.arm} ({1 - each.beaten:.0%})" for each in standing if each.beaten < 1 / 2]
    who = f"{_and(lower)} {'ends' if len(lower) == 1 else 'end'} lower" if lower else "nothing ends lower"
    mostly = f" In more than half of the runs one job ends higher than {_and(often)}." if often else ""
    worse, tasks = behind(found), by_task(found)
    return (
        f"At {steps:,} steps {who} on the mean than one job from the same guesses.{mostly} On {len(worse)} of "
        f"{len(tasks)} tasks the best rival of that task is more than {GOAL:.0%} better.{_of_auto(found, standing)}"
    )


def _of_auto(found: Losses, standing: Sequence[Standing]) -> str:
    """Return how a job ends that is told no optimizer; nothing where it was not run."""
    mean = next((each.mean for each in standing if each.arm == OURS_AUTO), None)
    if mean is None:
        return ""
    lower = [each.arm for each in standing if each.mean < mean and each.arm not in OWN]
    who = f"{_and(lower)} {'ends' if len(lower) == 1 else 'end'} lower" if lower else "no rival ends lower"
    return (
        f" Told neither a rate nor an optimizer (`auto`), one job ends {abs(mean):.1%} "
        f"{'below' if mean < 0 else 'above'} the grid, and {who}; on {len(behind(found, OURS_AUTO))} tasks the best "
        f"rival is more than {GOAL:.0%} better."
    )


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def summary(known: Sequence[Row], all_steps: Sequence[int]) -> Iterator[str]:
    """Yield a table with an arm per line: at each budget its mean, lost runs, and how often `bo` ends lower."""
    met = {steps: losses(known, steps) for steps in all_steps}
    found = {steps: {each.arm: each for each in standings(arms)} for steps, arms in met.items() if arms}
    yield "| | " + " | ".join(f"{steps:,} steps: mean, lost, `bo` lower" for steps in found) + " |"
    yield "| --- |" + " --- |" * len(found)
    arms = dict.fromkeys(arm for standings in found.values() for arm in standings)
    for arm in arms:
        name = f"**{arm}**" if arm == OURS else arm
        yield f"| {name} | " + " | ".join(_told(arms.get(arm)) for arms in found.values()) + " |"


def in_short(known: Sequence[Row], all_steps: Sequence[int]) -> Iterator[str]:
    """Yield the lines of `summary` of one job, with and without `auto`, and of the best rival at each budget."""
    rivals = (_best_rival(standings(found)) for steps in all_steps if (found := losses(known, steps)))
    shown = {OURS_AUTO, f"**{OURS}**", OURS_UNSEEN, *rivals}
    heading, rule, *lines = summary(known, all_steps)
    yield from (heading, rule, *(line for line in lines if line.split(" | ")[0].removeprefix("| ") in shown))


def _told(standing: Standing | None) -> str:
    if standing is None:
        return "not run"
    beaten = "" if math.isnan(standing.beaten) else f", {standing.beaten:.0%}"
    return f"{100 * standing.mean:+.1f} %, {standing.lost} of {standing.runs}{beaten}"


def held_out(known: Sequence[Row], all_steps: Sequence[int]) -> Iterator[str]:
    """Yield in a few sentences how one job and the best rival end on the tasks that no setting was tuned on."""
    own = [row for row in known if row["task"] in HELD_OUT]
    met = {steps: standings(found) for steps in all_steps if (found := losses(own, steps))}
    if met:
        yield f"No setting of the controller was tuned on {len(HELD_OUT)} of the tasks."
        yield from (f"At {steps:,} steps {_beside_the_best(standing)} there." for steps, standing in met.items())
        yield from _exception(own)


def _beside_the_best(standing: Sequence[Standing]) -> str:
    """Return the means of one job, with `auto` and with the task's optimizer, and of the best rival."""
    means = {each.arm: f"{100 * each.mean:+.1f} %" for each in standing}
    best = _best_rival(standing)
    auto = f"`auto` ends at {means[OURS_AUTO]}, " if OURS_AUTO in means else ""
    return f"{auto}`bo` at {means[OURS]}, and the best rival ({best}) at {means[best]}"


def _best_rival(standing: Sequence[Standing]) -> str:
    return next(each.arm for each in standing if each.arm not in OWN)


def _exception(own: Sequence[Row]) -> Iterator[str]:
    """Yield what is tuned on some of these tasks all the same."""
    if any(row["what"] == "auto" for row in own):
        yield (
            f"Exception: Muon's default rate was tuned on 7 of these {len(HELD_OUT)} tasks, in runs of 300 steps, so "
            "the result of `auto` is not fully held out."
        )


def held_out_table(known: Sequence[Row], all_steps: Sequence[int]) -> Iterator[str]:
    """Yield the table of all arms for the tasks that no setting was tuned on."""
    own = [row for row in known if row["task"] in HELD_OUT]
    if told := rests_on(own, all_steps):
        heading = f"The {len(HELD_OUT)} tasks that no setting of the controller was tuned on"
        yield from (f"{heading}; {told}:", "", *summary(own, all_steps), "", *_exception(own))


def rests_on(known: Sequence[Row], all_steps: Sequence[int]) -> str:
    """Return how much a table of all budgets rests on; empty: on nothing."""
    met = {steps: losses(known, steps) for steps in all_steps}
    return "; ".join(f"at {steps:,} steps {extent(found)}" for steps, found in met.items() if found)


def tasks_table(known: Sequence[Row], steps: int) -> Iterator[str]:
    """Yield a table with a task per line: one job, the best of the rivals there, and by how much one job loses."""
    found = losses(known, steps)
    own = [arm for arm in (OURS, OURS_AUTO) if arm in found]
    means = {arm: by_task(found, arm) for arm in own}
    yield f"| task | best rival there | its loss | {' | '.join(f'{arm} | it loses by' for arm in own)} |"
    yield "| --- | --- | --- |" + " --- | --- |" * len(own)
    for task, (_, rival, best) in means[OURS].items():
        cells = [f"{100 * means[arm][task][0]:+.1f} % | {_lost_by(means[arm][task][0], best)}" for arm in own]
        yield f"| {task} | {rival} | {100 * best:+.1f} % | {' | '.join(cells)} |"


def _lost_by(ours: float, best: float) -> str:
    gap = (1 + ours) / (1 + best) - 1
    return f"**{100 * gap:.1f} %**" if gap > GOAL else (f"{100 * gap:.1f} %" if gap > 0 else "-")


def missing(known: Sequence[Row], all_steps: Sequence[int]) -> list[str]:
    """Return what has no row yet, so that a reader knows what a table leaves out."""
    wanted, found = {OURS, OURS_AUTO, GUESS, *GUESSED, *BLIND.values()}, []
    for steps in all_steps:
        run = {named[0] for row in known if row["steps"] == steps and (named := _arm(row))}
        found += [f"{arm} at {steps:,} steps" for arm in sorted(wanted - run)]
        met = {task for task, _ in _seeds(losses(known, steps))}
        if left_out := sorted({row["task"] for row in known if row["what"] == "search"} - met):
            found.append(f"rivals at {steps:,} steps on {len(left_out)} of our tasks: {', '.join(left_out)}")
        if few := [task for task, seeds in _seeds(losses(known, steps)) if len(seeds) < len(SEEDS)]:
            found.append(f"further seeds at {steps:,} steps on {len(few)} tasks: {', '.join(few)}")
    return found


def _seeds(found: Losses) -> list[tuple[str, set[int]]]:
    """Return the tasks on which arms met, each with its seeds."""
    seeds: dict[str, set[int]] = {}
    for cell in found.get(OURS, {}):
        seeds.setdefault(cell.task, set()).add(cell.seed)
    return sorted(seeds.items())


def extent(found: Losses) -> str:
    """Return how much a table rests on."""
    numbers = Counter(len(seeds) for _, seeds in _seeds(found))
    told = [f"{count} with {'one seed' if each == 1 else f'{each} seeds'}" for each, count in sorted(numbers.items())]
    return f"{sum(numbers.values())} tasks ({', '.join(told)}), three guesses: {len(found[OURS])} runs an arm"


def page(known: Sequence[Row], all_steps: Sequence[int]) -> Iterator[str]:
    """Yield the lines of equal_cost.md."""
    yield "# Equal cost: what one would do instead"
    yield ""
    yield " ".join(verdict(known, steps) for steps in all_steps if losses(known, steps))
    yield "A best rival is chosen afterwards, task by task; nobody knows it before."
    yield (
        "The docstring of `equal_cost.py` has the rules. `python benchmarks/equal_cost.py table` writes this page from "
        "`suite/rows.jsonl`."
    )
    above_what = "Validation loss in % above the best of a grid that nobody is charged for"
    yield from ("", f"{above_what}; {rests_on(known, all_steps)}.")
    yield from ("The last figure is the share of an arm's runs in which `bo` ends lower:", "")
    yield from summary(known, all_steps)
    yield from ("", *held_out_table(known, all_steps))
    for steps in all_steps:
        if found := losses(known, steps):
            yield from (
                "",
                f"## {steps:,} steps, task by task",
                "",
                f"{extent(found)}.",
                "",
                *tasks_table(known, steps),
            )
    yield from ("", "## What is missing", "", *(f"- {each}" for each in missing(known, all_steps) or ["nothing"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--without", nargs="+", default=())
    parser.add_argument("--steps", nargs="+", type=int, default=(300, 1000))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    given = parser.parse_args()
    if given.what == "run":
        from suite.run import TASKS, run  # torch and the rivals, which a table needs not

        for what in ("grid", "grid", "guess", "search", "rivals"):
            run(what, given.tasks or tuple(TASKS), given.steps, given.seeds, (0, 1))
    if not given.without:
        PAGE.write_text("\n".join(page(rows(), given.steps)) + "\n")
    print("\n".join(summary([row for row in rows() if row["task"] not in given.without], given.steps)))


if __name__ == "__main__":
    main()
