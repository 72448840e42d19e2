"""One job with `auto` beside baselines, as markdown: seconds to a loss, and paired ratios with their intervals."""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]
AUTO = "auto"
#: Validation losses that end a run, by task.
TARGETS = {"text-apart": 1.9, "images-apart": 0.42}
#: Hosts, and Mbit/s.
NETWORKS = ("2x100", "2x1000", "4x100", "4x1000")
SEEDS = (0, 1, 2)


def missing(rows: Sequence[Json]) -> Iterator[str]:
    """Yield the networks and tasks without a race of `auto` with every seed."""
    raced = {(f"{row['hosts']}x{row['mbps']:g}", row["task"], row["seed"]) for row in rows if is_race_of_auto(row)}
    for place in NETWORKS:
        for task in TARGETS:
            if any((place, task, seed) not in raced for seed in SEEDS):
                yield f"races to a loss: `python benchmarks/time_to_loss.py run --networks {place} --tasks {task}`"


def is_race_of_auto(row: Json) -> bool:
    return bool(row["kind"] == "race" and row["arm"] == AUTO)


def later(rows: Sequence[Json]) -> Iterator[str]:
    """Yield a sentence for each task and network where baselines are at the loss sooner than one job with `auto`."""
    races = [row for row in rows if row["kind"] == "race"]
    for place in dict.fromkeys((row["task"], row["hosts"], row["mbps"]) for row in races):
        own = [row for row in races if (row["task"], row["hosts"], row["mbps"]) == place]
        ratios = {arm: paired(own, arm) for arm in dict.fromkeys(row["arm"] for row in own if row["arm"] != AUTO)}
        ahead = {arm: each for arm, each in ratios.items() if each and verdict(bootstrap(each)) == "later"}
        if ahead:
            task, hosts, mbps = place
            told = ", ".join(f"`{arm}` ({statistics.median(each):.2f} of its time)" for arm, each in ahead.items())
            yield (
                f"One job with `auto` is at the loss of `{task}` with {hosts} hosts at {mbps:g} Mbit/s later than "
                f"{told}, at the best rates of an uncharged grid."
            )


def table(rows: Sequence[Json]) -> Iterator[str]:
    """Yield a table for each task and network: seconds to the loss, and how much sooner `auto` is there."""
    races = [row for row in rows if row["kind"] == "race"]
    for place in dict.fromkeys((row["task"], row["hosts"], row["mbps"]) for row in races):
        own = [row for row in races if (row["task"], row["hosts"], row["mbps"]) == place]
        seeds = sorted({row["seed"] for row in own})
        loads = [row["load"] for row in own]
        yield from ("", f"### {place[0]}, {place[1]} hosts, {place[2]:g} Mbit/s, to loss {own[0]['target']:g}", "")
        yield "| arm | rate | s | steps | MB | arm / auto (95 %) | auto is | its grid took |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        yield from (f"| {' | '.join(line(arm, own, rows))} |" for arm in dict.fromkeys(row["arm"] for row in own))
        yield from ("", f"Seeds {', '.join(map(str, seeds))}, load {min(loads):.1f} to {max(loads):.1f}.")


def line(arm: str, own: Sequence[Json], rows: Sequence[Json]) -> list[str]:
    mine = [row for row in own if row["arm"] == arm]
    grid = [row for row in rows if is_at(row, "grid", mine[0]["task"], mine[0]["hosts"]) and row["arm"] == arm]
    ratios = paired(own, arm)
    interval = bootstrap(ratios) if ratios and arm != AUTO else None
    return [
        arm,
        f"{mine[0]['rate']:g}" if arm != AUTO else "searched",
        middle([row["seconds"] for row in mine]),
        middle([row["steps"] for row in mine], digits=0),
        f"{statistics.median(row['bytes_sent'] for row in mine) / 1e6:.1f}",
        f"{statistics.median(ratios):.2f} ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "-",
        verdict(interval) if interval else "-",
        f"{sum(row['seconds_taken'] for row in grid):.0f} s, not charged" if grid else "-",
    ]


def middle(values: Sequence[float | None], digits: int = 1) -> str:
    """Return the median, where a run that did not get there is endless."""
    found = statistics.median(math.inf if each is None else each for each in values)
    return "not reached" if math.isinf(found) else f"{found:.{digits}f}"


def paired(own: Sequence[Json], arm: str) -> list[float]:
    """Return the arm's seconds in those of `auto`, seed by seed; endless where the arm alone did not get there."""
    took = {(row["arm"], row["seed"]): row["seconds"] for row in own}
    pairs = [(took.get((arm, row["seed"])), row) for row in own if row["arm"] == AUTO and (arm, row["seed"]) in took]
    return [math.inf if theirs is None else theirs / row["seconds"] for theirs, row in pairs if row["seconds"]]


def bootstrap(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the interval that has 95 % of the medians of resampled ratios."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def verdict(interval: tuple[float, float]) -> str:
    low, high = interval
    return "sooner" if low > 1 else "later" if high < 1 else "a tie"


def is_at(row: Json, kind: str, task: str, num_hosts: int) -> bool:
    return bool((row["kind"], row["task"], row["hosts"]) == (kind, task, num_hosts))
