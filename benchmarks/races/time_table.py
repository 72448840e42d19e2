"""One job with `auto` beside baselines, as markdown: seconds to a loss, and paired ratios with their spread."""

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from races import rates
from races.auto_table import elapsed
from races.book import num_commits
from races.links_table import newest

Json = dict[str, Any]
AUTO = "auto"
#: Validation losses that end a run, by task.
TARGETS = {"text-apart": 1.9, "images-apart": 0.42}
#: Hosts, and Mbit/s.
NETWORKS = ("2x100", "2x1000", "4x100", "4x1000")
SEEDS = (0, 1, 2)
#: With fewer seeds a bootstrap's interval of a median is their range, which is then shown as such.
MANY_SEEDS = 6
#: With fewer seeds nothing is said to be sooner or later.
LEAST_SEEDS = 3
LEGEND = f"""\
Seconds `s` count from the first discarded step to the loss, with all that `auto` tries. `arm / auto` is the median of
`n` ratios, each of two runs with one seed. Where the arm missed the loss, the ratio is endless: *not reached*. Where
`auto` missed it, the ratio is 0. A seed with which both missed it has none. Beside the median stands the range of the
seeds, or, from {MANY_SEEDS} seeds on, the interval that has 95 % of the medians of a bootstrap.

`auto` is *sooner* or *later* where all seeds agree and there are at least {LEAST_SEEDS}. Where they do not agree, it is
*a tie*. If neither were faster, three seeds would still all agree in one case of four, by chance.

A baseline's rate is from a grid, which is not charged. *Edge*: it is the best one, but the lowest or highest
tried, so a better one may lie beyond it. Where another rate *is better*, the arm was not raced at the best one."""


def missing(rows: Sequence[Json]) -> Iterator[str]:
    """Yield the networks and tasks without a race of `auto` with every seed."""
    raced = {(f"{row['hosts']}x{row['mbps']:g}", row["task"], row["seed"]) for row in rows if is_race_of_auto(row)}
    for place in NETWORKS:
        for task in TARGETS:
            if any((place, task, seed) not in raced for seed in SEEDS):
                yield f"races to a loss: `python benchmarks/time_to_loss.py run --networks {place} --tasks {task}`"


def is_race_of_auto(row: Json) -> bool:
    return bool(row["kind"] == "race" and row["arm"] == AUTO)


def races(rows: Sequence[Json]) -> Iterator[list[Json]]:
    """Yield the races of each task and network. Of two of an arm with one seed, the later one has the better rate."""
    raced = [row for row in rows if row["kind"] == "race"]
    for place in dict.fromkeys((row["task"], row["hosts"], row["mbps"]) for row in raced):
        yield newest([row for row in raced if (row["task"], row["hosts"], row["mbps"]) == place])


def later(rows: Sequence[Json]) -> Iterator[str]:
    """Yield a sentence for each task and network where baselines are at the loss sooner than one job with `auto`."""
    for own in races(rows):
        ratios = {arm: paired(own, arm) for arm in dict.fromkeys(row["arm"] for row in own if row["arm"] != AUTO)}
        ahead = {arm: each for arm, each in ratios.items() if verdict(each) == "later"}
        if ahead:
            task, hosts, mbps = own[0]["task"], own[0]["hosts"], own[0]["mbps"]
            seeds = either(len(each) for each in ahead.values())
            merits = {arm: tried(rows, task, hosts, arm) for arm in ahead}
            raced = {(row["arm"], row["rate"]) for row in own if row["arm"] in ahead}
            choice = "the best" if raced == {(arm, best_rate(merits[arm])) for arm in ahead} else "one"
            yield (
                f"One job with `auto` is at the loss of `{task}` with {hosts} hosts at {mbps:g} Mbit/s later than "
                f"{', '.join(f'`{arm}` ({lead(each)})' for arm, each in ahead.items())}, with each of {seeds} seeds, "
                f"at {choice} of {either(map(len, merits.values()))} rates, uncharged."
            )


def lead(ratios: Sequence[float]) -> str:
    """Say how far ahead of `auto` a baseline is, which is endlessly far where `auto` missed the loss."""
    missed = ratios.count(0.0)
    share = f"{statistics.median(ratios):.2f} of its time"
    return f"`auto` missed it with {missed} of {len(ratios)} seeds" if missed else share


def either(counts: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(set(counts))))


def table(rows: Sequence[Json]) -> Iterator[str]:
    """Yield a table for each task and network: seconds to the loss, and how much sooner `auto` is there."""
    for own in races(rows):
        task, hosts, mbps = own[0]["task"], own[0]["hosts"], own[0]["mbps"]
        seeds = sorted({row["seed"] for row in own})
        loads = [row["load"] for row in own]
        yield from ("", f"### {task}, {hosts} hosts, {mbps:g} Mbit/s, to loss {own[0]['target']:g}", "")
        yield "| arm | rate | s | steps | MB | n | arm / auto | auto is | its grid took |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        yield from (f"| {' | '.join(line(arm, own, rows))} |" for arm in dict.fromkeys(row["arm"] for row in own))
        yield from ("", f"Seeds {', '.join(map(str, seeds))}, load {min(loads):.1f} to {max(loads):.1f}.")


def line(arm: str, own: Sequence[Json], rows: Sequence[Json]) -> list[str]:
    mine = [row for row in own if row["arm"] == arm]
    task, hosts = mine[0]["task"], mine[0]["hosts"]
    grid = grid_of(rows, task, hosts, arm)
    ratios = paired(own, arm) if arm != AUTO else []
    commits = num_commits([row for row in own if row["arm"] in (arm, AUTO)])
    num_seeds = len(mine if arm == AUTO else ratios)
    return [
        arm,
        rates_told(mine, tried(rows, task, hosts, arm)) if arm != AUTO else "searched",
        seconds_told([elapsed(row) for row in mine]),
        middle([row["steps"] for row in mine], digits=0),
        f"{statistics.median(row['bytes_sent'] for row in mine) / 1e6:.1f}",
        f"{num_seeds}, {commits} commits" if commits > 1 else str(num_seeds),
        ratio_told(ratios),
        verdict(ratios),
        f"{sum(row['seconds_before'] + row['seconds_taken'] for row in grid):.0f} s, not charged" if grid else "-",
    ]


# -- rates -------------------------------------------------------------------------------------------------


def grid_of(rows: Sequence[Json], task: str, num_hosts: int, arm: str) -> list[Json]:
    return [row for row in rows if is_at(row, "grid", task, num_hosts) and row["arm"] == arm]


def is_at(row: Json, kind: str, task: str, num_hosts: int) -> bool:
    return bool((row["kind"], row["task"], row["hosts"]) == (kind, task, num_hosts))


def tried(rows: Sequence[Json], task: str, num_hosts: int, arm: str) -> dict[float, rates.Merit]:
    """Return how good each rate of the arm's grid was."""
    return {
        row["rate"]: rates.merit(row | {"best_loss": lowest_loss(row)}) for row in grid_of(rows, task, num_hosts, arm)
    }


def lowest_loss(row: Json) -> float | None:
    return min((loss for *_, loss in row["validations"] if math.isfinite(loss)), default=None)


def best_rate(merits: Mapping[float, rates.Merit]) -> float | None:
    """Return the rate with the fewest steps to the loss, or with the lowest loss where none got there."""
    return min(merits, key=merits.__getitem__, default=None)


def rates_told(mine: Sequence[Json], merits: Mapping[float, rates.Merit]) -> str:
    """Say at which rates an arm was raced, and whether a better one is known, or may lie beyond those tried."""
    best = best_rate(merits)
    edges = {min(merits), max(merits)} if merits else set()

    def told(rate: float) -> str:
        if best not in (None, rate):
            return f"{rate:g} ({best:g} is better)"
        return f"{rate:g} (edge)" if rate in edges else f"{rate:g}"

    return ", ".join(map(told, sorted({row["rate"] for row in mine})))


# -- times -------------------------------------------------------------------------------------------------


def seconds_told(took: Sequence[float | None]) -> str:
    """Say the median, and how many runs did not get there."""
    missed = f"not reached, {took.count(None)} of {len(took)}"
    found = middle(took)
    return found if None not in took else missed if found == "-" else f"{found} ({missed})"


def middle(values: Sequence[float | None], digits: int = 1) -> str:
    """Return the median, where a run that did not get there is endless."""
    found = statistics.median(math.inf if each is None else each for each in values)
    return "-" if math.isinf(found) else f"{found:.{digits}f}"


def paired(own: Sequence[Json], arm: str) -> list[float]:
    """Return the arm's seconds in those of `auto`, seed by seed.

    Where only the arm got there the ratio is 0, where only `auto` did it is endless, and where neither did is none.
    """
    took = {(row["arm"], row["seed"]): elapsed(row) for row in own}
    pairs = [(took[arm, seed], mine) for (name, seed), mine in took.items() if name == AUTO and (arm, seed) in took]
    return [
        math.inf if theirs is None else 0.0 if mine is None else theirs / mine
        for theirs, mine in pairs
        if (theirs, mine) != (None, None)
    ]


def ratio_told(ratios: Sequence[float]) -> str:
    """Say the median ratio and its spread: the range of a few seeds, a bootstrap's interval of many."""
    if math.isinf(min(ratios, default=math.inf)):
        return "-"
    is_many = len(ratios) >= MANY_SEEDS
    name, ends = ("95 %", bootstrap(ratios)) if is_many else ("range", (min(ratios), max(ratios)))
    median, low, high = (
        "not reached" if math.isinf(each) else f"{each:.2f}" for each in (statistics.median(ratios), *ends)
    )
    return f"{median} ({name} {low} to {high})" if len(ratios) > 1 else median


def bootstrap(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the interval that has 95 % of the medians of resampled ratios."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def verdict(ratios: Sequence[float]) -> str:
    """Say where `auto` is, if there are enough seeds."""
    if len(ratios) < LEAST_SEEDS:
        return "-"
    return "sooner" if min(ratios) > 1 else "later" if max(ratios) < 1 else "a tie"
