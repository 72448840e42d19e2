"""`auto` beside each of its options alone, as markdown: times to a loss, and whether it is as fast as the best."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from contest.race import Validation, crossing
from contest.table import told as interval

Json = dict[str, Any]
AUTO = "auto"
#: What is claimed: `auto` takes at most so many times as long as the best option.
CLAIM = 1.05


def print_all(rows: Sequence[Json]) -> None:
    """Print a table per link and loss, and then what became of the claim."""
    races = all_races(rows)
    for own in races:
        print_race(own)
    print("\n| link | best option | auto used | auto / best | as its option alone |\n| --- | --- | --- | --- | --- |")
    for own in races:
        print(f"| {' | '.join(verdict(own))} |")


def judged(race: Sequence[Json]) -> list[Json]:
    """Return a race's runs at its loss, or at the lowest hundredth above it that `auto` has reached with every seed."""
    lowest = [min(loss for *_, loss in row["validations"]) for row in race if row["arm"] == AUTO]
    target = max([race[0]["target"], *(math.ceil(100 * each) / 100 for each in lowest)])
    return [row if target == row["target"] else row | told_at(row, target) for row in race]


def told_at(row: Json, target: float) -> Json:
    """Return what the row says of its run at a loss above the one to which it went."""
    looks = [Validation(step, seconds, own=loss, mean=loss) for step, seconds, loss in row["validations"]]
    steps, seconds = crossing(looks, target) or (None, None)
    return {"target": target, "steps": steps, "seconds": seconds}


def race_of(row: Json) -> tuple[float | None, float, float]:
    """Return what the rows have in common that are compared: link, budget and loss."""
    return row["mbps"], row["budget_s"], row["target"]


def all_races(rows: Sequence[Json]) -> list[list[Json]]:
    """Return the runs of each race, as it is judged."""
    return [judged([row for row in rows if race_of(row) == key]) for key in dict.fromkeys(map(race_of, rows))]


def print_race(rows: Sequence[Json]) -> None:
    mbps, budget_s, target = race_of(rows[0])
    loads, seeds = [row["load"] for row in rows], sorted({row["seed"] for row in rows})
    print(f"\n### {link_name(mbps)}: to loss {target:g}, budget {budget_s:g} s\n")
    print("| exchange | s | of it searching | before the clock | steps | probed | MB | learning rate |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        print(f"| {arm} | {' | '.join(cells([row for row in rows if row['arm'] == arm]))} |")
    print(f"\nSeeds {seeds}, load {min(loads):.1f} to {max(loads):.1f}.")


def link_name(mbps: float | None) -> str:
    return "no limit" if mbps is None else f"{mbps:g} Mbit/s"


def cells(own: Sequence[Json]) -> list[str]:
    return [
        interval([elapsed(row) for row in own]) + ("" if reached(own) else longest(own)),
        interval([row["seconds_search"] for row in own]),
        interval([row["seconds_before"] for row in own]),
        interval([row["steps"] for row in own], digits=0),
        interval([row["steps_search"] for row in own], digits=0),
        interval([row["bytes_sent"] / 1e6 for row in own]),
        ", ".join(f"{row['decisions'][-1][0]:.2g}" for row in own if row["decisions"]),
    ]


def reached(own: Sequence[Json]) -> bool:
    """Return whether the loss was reached in most runs."""
    return middle(own) < math.inf


def longest(own: Sequence[Json]) -> str:
    """Say how long runs went on that did not get there."""
    return f" (not within {max(row['seconds_taken'] for row in own):.0f} s)"


def elapsed(row: Json) -> float | None:
    """Return the seconds to the loss from the first discarded step on: the training clock, and what is before it."""
    return None if row["seconds"] is None else float(row["seconds"] + row["seconds_before"])


def middle(own: Sequence[Json]) -> float:
    """Return the median time to the loss; endless if most runs did not reach it."""
    return statistics.median(math.inf if (took := elapsed(row)) is None else took for row in own)


def best_option(rows: Sequence[Json]) -> str | None:
    """Return the option that reached the loss soonest by itself, by medians over the seeds; None: none did."""
    own = {arm: [row for row in rows if row["arm"] == arm] for arm in {row["arm"] for row in rows} - {AUTO}}
    best = min(own, key=lambda arm: middle(own[arm]), default=None)
    return best if best is not None and reached(own[best]) else None


def verdict(rows: Sequence[Json]) -> list[str]:
    """Return the link, its best option, what `auto` trained by, and both in comparison."""
    best, used = best_option(rows), options_used(rows)
    quotients = [] if best is None else quotients_with(best, rows)
    worst = max(quotients, default=math.inf)
    holds = "holds" if worst <= CLAIM else "holds for the median" if median(quotients) <= CLAIM else "does not hold"
    choice = [each for option in set(used) for each in quotients_with(option, rows)]
    return [
        f"{link_name(rows[0]['mbps'])}, to {rows[0]['target']:g}",
        f"{best} ({interval([elapsed(row) for row in rows if row['arm'] == best])} s)" if best else "none got there",
        ", ".join(used),
        f"{interval(quotients, digits=2)}: {holds}",
        interval(choice, digits=2),
    ]


def median(quotients: Sequence[float]) -> float:
    return statistics.median(quotients) if quotients else math.inf


def options_used(rows: Sequence[Json]) -> list[str]:
    """Return what most steps that stayed were by, for each run of `auto`."""
    bills = [row["by_option"] for row in rows if row["arm"] == AUTO]
    return [max(bill, key=lambda option: bill[option]["steps"] - bill[option]["steps_search"]) for bill in bills]


def quotients_with(option: str, rows: Sequence[Json]) -> list[float]:
    """Return by how much longer `auto` took than the option alone, for each seed that both have."""
    alone = {row["seed"]: elapsed(row) for row in rows if row["arm"] == option}
    pairs = [(elapsed(row), alone.get(row["seed"])) for row in rows if row["arm"] == AUTO]
    return [math.inf if mine is None else mine / theirs for mine, theirs in pairs if theirs is not None]


def told(row: Json) -> str:
    """Say how a run went."""
    took = "not reached" if row["seconds"] is None else f"{elapsed(row):.1f} s, {row['steps']:.0f} steps"
    chosen = [" ".join(filter(None, [f"{rate:.3g}", option])) for rate, option, _ in row["decisions"]]
    return f"{took}, {row['seconds_search']:.1f} s searching; {', '.join(dict.fromkeys(chosen))}"
