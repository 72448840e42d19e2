"""`auto` beside options of its own alone, as markdown: times to a loss, and whether it is as fast as their best."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from races.book import num_commits
from races.links_table import told as interval
from races.race import Validation, crossing

Json = dict[str, Any]
AUTO = "auto"
#: What is claimed: `auto` takes at most so many times as long as the best option.
CLAIM = 1.05
#: A run with more than this at its end was disturbed: two workers and what drives them make up to 3. Runs take turns,
#: so a little more changes no ratio.
MAX_LOAD = 6.0


def print_all(rows: Sequence[Json]) -> None:
    """Print a table per link and loss, and then what became of the claim."""
    races = all_races(rows)
    for own in races:
        print_race(own)
    print("\n| link | raced alone | the best of them | auto used | auto / best | as its option alone |")
    print("| --- | --- | --- | --- | --- | --- |")
    for own in races:
        print(f"| {' | '.join(verdict(own))} |")
    print("\n".join(("", *notes(rows))))


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


def is_disturbed(row: Json) -> bool:
    return bool(row["load"] > MAX_LOAD)


def all_races(rows: Sequence[Json]) -> list[list[Json]]:
    """Return the runs of each race that were not disturbed, as it is judged."""
    calm = [row for row in rows if not is_disturbed(row)]
    return [judged([row for row in calm if race_of(row) == key]) for key in dict.fromkeys(map(race_of, calm))]


def notes(rows: Sequence[Json]) -> Iterator[str]:
    """Yield what is to be known beside the verdicts: what was left out, or not raced, or is of several commits."""
    for row in filter(is_disturbed, rows):
        run = f"{link_name(row['mbps'])}: `{row['arm']}` with seed {row['seed']}"
        yield f"- {run} is left out. The load was {row['load']:.1f}, above {MAX_LOAD:g}."
    for race in all_races(rows):
        link, raced = link_name(race[0]["mbps"]), options_raced(race)
        for option in raced:
            if option not in options_compared(race):
                lacking = f"`{option}` is not compared, since it lacks a seed"
                shared = f"`auto` took {interval(quotients_with(option, race), digits=2)} of its time"
                yield f"- {link}: {lacking}. With the others {shared}."
        for option in sorted({*options_used(race)} - {*raced}):
            yield f"- {link}: `{option}` was not raced alone, though `auto` used it."
        if num_commits(race) > 1:
            yield f"- {link}: its runs are of {num_commits(race)} commits."


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


def options_raced(rows: Sequence[Json]) -> list[str]:
    """Return the options that were raced alone."""
    return list(dict.fromkeys(row["arm"] for row in rows if row["arm"] != AUTO))


def beside_auto(option: str, rows: Sequence[Json]) -> list[Json]:
    """Return an option's runs with the seeds of `auto`."""
    seeds = {row["seed"] for row in rows if row["arm"] == AUTO}
    return [row for row in rows if row["arm"] == option and row["seed"] in seeds]


def options_compared(rows: Sequence[Json]) -> list[str]:
    """Return the options that were raced alone with all seeds of `auto`: medians over others do not compare."""
    num_seeds = len({row["seed"] for row in rows if row["arm"] == AUTO})
    return [option for option in options_raced(rows) if 0 < num_seeds <= len(beside_auto(option, rows))]


def best_option(rows: Sequence[Json]) -> str | None:
    """Return the compared option that reached the loss soonest, by medians over the seeds; None: none did."""
    own = {option: beside_auto(option, rows) for option in options_compared(rows)}
    best = min(own, key=lambda option: middle(own[option]), default=None)
    return best if best is not None and reached(own[best]) else None


def verdict(rows: Sequence[Json]) -> list[str]:
    """Return the link, what was raced alone, the best of it, what `auto` trained by, and both in comparison."""
    best, used = best_option(rows), options_used(rows)
    quotients = [] if best is None else quotients_with(best, rows)
    worst = max(quotients, default=math.inf)
    holds = "holds" if worst <= CLAIM else "holds for the median" if median(quotients) <= CLAIM else "does not hold"
    choice = [each for option in set(used) for each in quotients_with(option, rows)]
    return [
        f"{link_name(rows[0]['mbps'])}, to {rows[0]['target']:g}",
        ", ".join(options_raced(rows)),
        f"{best} ({interval(map(elapsed, beside_auto(best, rows)))} s)" if best else "-",
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
