"""Tables of what was raced, as markdown: medians over seeds with their range; quotients within a race only."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from races.arms import CONTROLS, NOSYNC, OURS, PLAIN, RIVAL

Json = dict[str, Any]
Interval = tuple[float, float, float]  # low, median, high
#: A density within this factor of its plan is as planned.
AS_PLANNED = 2.0
#: How sure an interval of a median is to cover it.
COVERAGE = 0.95


def print_all(rows: Sequence[Json]) -> None:
    """Print a table for each task and network of `reach` and `pace`, and one for `bytes`."""
    for kind, show in (("reach", print_reach), ("pace", print_pace)):
        chosen = [row for row in rows if row["kind"] == kind]
        for cell in dict.fromkeys((row["task"], row["hosts"], row["mbps"], row["target"]) for row in chosen):
            own = [row for row in chosen if (row["task"], row["hosts"], row["mbps"], row["target"]) == cell]
            print(f"\n### {kind}: {title(own[0])}\n")
            show(own)
    print_bytes([row for row in rows if row["kind"] == "bytes"])


def title(row: Json) -> str:
    rate = "no limit" if row["mbps"] is None else f"{row['mbps']:g} Mbit/s"
    return f"{row['task']}, {row['hosts']} hosts, {rate}" + (f", to loss {row['target']:g}" if row["target"] else "")


# -- to a loss ---------------------------------------------------------------------------------------------


def print_reach(rows: Sequence[Json]) -> None:
    """Print the arms' times to the loss beside the limit, the rival and plain DDP."""
    latest = newest(rows)
    headings = ("arm", "rate", "steps", "s", "step ms", "step / nosync", "MB a step", "s / plain", "s / PowerSGD")
    print(f"| {' | '.join((*headings, 'the same, start-up left out', 'closeness'))} |\n{11 * '| --- '}|")
    print(f"| physical limit | | | {told([limit(rows, row) for row in latest if row['arm'] == PLAIN])} {7 * '| '}0 |")
    for arm in dict.fromkeys(row["arm"] for row in latest):
        print(f"| {' | '.join(reach_cells([row for row in latest if row['arm'] == arm], rows))} |")
    loads = [row["load"] for row in latest]
    print(f"\nSeeds {sorted({row['seed'] for row in latest})}, load {min(loads):.1f} to {max(loads):.1f}.")
    for control in CONTROLS:
        print(verdict([row for row in latest if row["arm"] == control], rows))


def reach_cells(own: Sequence[Json], rows: Sequence[Json]) -> list[str]:
    mark = "*" if any(row["is_computed"] for row in own) else ""
    return [
        own[0]["arm"],
        ", ".join(sorted({f"{row['rate']:g}" for row in own})),
        told([row["steps"] for row in own], digits=0),
        told([row["seconds"] for row in own]) + mark,
        told([1e3 * step_seconds(row) for row in own], digits=0),
        told([turn_quotients(row, among(rows, row, NOSYNC))[1] for row in own], digits=2),
        f"{statistics.median(row['wire_bytes'] for row in own) / 1e6:.3f}",
        *(
            told([quotient(row["seconds"], among(rows, row, other)["seconds"]) for row in own], digits=2)
            for other in (PLAIN, RIVAL)
        ),
        told([quotient(row["seconds"], without_start_up(among(rows, row, RIVAL))) for row in own], digits=2),
        told([closeness(row, rows) for row in own], digits=2),
    ]


def verdict(own: Sequence[Json], rows: Sequence[Json]) -> str:
    """Say whether a control stays away from the loss for twice the steps of plain DDP, as it must."""
    if not own:
        return ""
    lead = [quotient(row["steps"] or row["steps_taken"], among(rows, row, PLAIN)["steps"]) for row in own]
    least = min((each for each in lead if each is not None), default=math.nan)
    says = "did not reach it" if all(row["steps"] is None for row in own) else "reached it"
    best = min(row["best_loss"] for row in own)
    return f"Control {own[0]['arm']}: {says} in {least:.1f} times plain DDP's steps; lowest loss {best:.3f}."


def newest(rows: Sequence[Json]) -> list[Json]:
    """Return the last row of each arm and seed: what others are compared with is raced again with late arms."""
    return list({(row["arm"], row["seed"]): row for row in rows}.values())


def among(rows: Sequence[Json], row: Json, arm: str) -> Json:
    """Return the row of `arm` in the race of `row`."""
    return next(each for each in rows if each["arm"] == arm and each["race"] == row["race"])


def step_seconds(row: Json) -> float:
    return float(statistics.fmean(row["block_seconds"])) / row["block_steps"]


def without_start_up(row: Json) -> float | None:
    """Return the seconds to the loss if the first block had taken as long as the median one.

    torch's PowerSGD must take its first two steps dense. A race of a hundred steps pays for them, a long run hardly.
    """
    blocks = row["block_seconds"]
    return None if row["seconds"] is None else float(row["seconds"] - (blocks[0] - statistics.median(blocks)))


def limit(rows: Sequence[Json], row: Json) -> float | None:
    """Return the seconds of the exact gradient's steps without any exchange, in the race of `row`.

    Bytes that are few enough to hide behind the computation cost nothing, so no exchange is below it at equal steps.
    """
    steps = among(rows, row, PLAIN)["steps"]
    return None if steps is None else steps * step_seconds(among(rows, row, NOSYNC))


def closeness(row: Json, rows: Sequence[Json]) -> float | None:
    """Return where the arm lies between the limit (0) and torch's PowerSGD (1)."""
    least, rival = limit(rows, row), among(rows, row, RIVAL)["seconds"]
    if least is None or rival is None or row["seconds"] is None or rival <= least:
        return None
    return float((row["seconds"] - least) / (rival - least))


def quotient(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value / other


# -- step times --------------------------------------------------------------------------------------------


def print_pace(rows: Sequence[Json]) -> None:
    """Print each arm's quotients of step times with plain DDP's and with no exchange, over all turns."""
    print("| arm | step ms | step / plain | step / nosync | turns |\n| --- | --- | --- | --- | --- |")
    latest = newest(rows)
    for arm in dict.fromkeys(row["arm"] for row in latest):
        own = [row for row in latest if row["arm"] == arm]
        cells = [told([1e3 * step_seconds(row) for row in own], digits=0)]
        for other in (PLAIN, NOSYNC):
            pairs = [pair for row in own for pair in turn_pairs(row, among(rows, row, other))]
            cells.append(interval_told(median_interval([mine / theirs for mine, theirs in pairs])))
        print(f"| {arm} | {' | '.join(cells)} | {len(pairs)} |")


def turn_pairs(row: Json, other: Json) -> list[tuple[float, float]]:
    """Return the seconds of both arms' blocks, turn by turn, as far as both took part.

    The first turn is left out: dense first steps and caches are in it.
    """
    return list(zip(row["block_seconds"], other["block_seconds"], strict=False))[1:]


def turn_quotients(row: Json, other: Json) -> Interval:
    return median_interval([mine / theirs for mine, theirs in turn_pairs(row, other)])


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median between the order statistics that cover it with 95 %; between all values if these are few.

    The number of values below the median is binomial (n, 1/2), whatever their distribution.
    """
    if not values:
        return (math.nan, math.nan, math.nan)
    ordered, n = sorted(values), len(values)
    outside, cut = 0.0, 0
    while cut < n // 2 and outside + math.comb(n, cut) * 0.5**n <= (1 - COVERAGE) / 2:
        outside += math.comb(n, cut) * 0.5**n
        cut += 1
    cut = max(cut - 1, 0)
    return (ordered[cut], statistics.median(ordered), ordered[n - 1 - cut])


# -- bytes -------------------------------------------------------------------------------------------------


def print_bytes(rows: Sequence[Json]) -> None:
    """Print what the product says it sends, beside a ring's ideal and the interface's counters."""
    if not rows:
        return
    print("\n### bytes a step and host\n")
    print("| arm | hosts | useful | padded | counted | ledger / counted | useful / ring | padded / ring | as planned |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['task']} | {row['arm']} | {row['hosts']} | {' | '.join(byte_cells(row, rows))} |")


def byte_cells(row: Json, rows: Sequence[Json]) -> list[str]:
    useful, everything = row["ledger"]["gradient"], sum(row["ledger"].values())
    ideal, plan = ring_bytes(row, rows), OURS[row["arm"]]["exchange"].get("density")
    return [
        *(f"{value / 1e3:.1f}" for value in (useful, everything, row["payload_bytes"])),
        f"{everything / row['payload_bytes']:.4f}",
        *(f"{value / ideal:.2f}" if ideal else "" for value in (useful, everything)),
        f"{100 * share_as_planned(row['densities'], plan):.0f} % of steps" if plan else "",
    ]


def ring_bytes(row: Json, rows: Sequence[Json]) -> float | None:
    """Return 2(N-1)/N payloads: what a ring all-reduce sends of a dense vector as large as one host's payload.

    A payload is what the gathered arm with the same number of hosts sends to each of the N - 1 others.
    """
    base = row["arm"].partition(",")[0]
    cell = {"arm": f"{base}, gathered", "hosts": row["hosts"], "task": row["task"]}
    gathered = [each for each in rows if all(each[name] == value for name, value in cell.items())]
    if not gathered:
        return None
    payload = gathered[-1]["ledger"]["gradient"] / (row["hosts"] - 1)
    return float(2 * (row["hosts"] - 1) / row["hosts"] * payload)


def share_as_planned(densities: Sequence[float], plan: float) -> float:
    """Return the share of steps whose density is within a factor of 2 of `plan`."""
    near = [plan / AS_PLANNED <= density <= plan * AS_PLANNED for density in densities]
    return sum(near) / len(near)


# -- words -------------------------------------------------------------------------------------------------


def told(values: Iterable[float | None], *, digits: int = 1) -> str:
    """Say the median and range of `values`; what never happened is infinite."""
    numbers = sorted(math.inf if value is None else value for value in values)
    if not numbers or numbers[len(numbers) // 2] == math.inf:
        return "-"
    middle = statistics.median(numbers)
    if len(numbers) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} [{numbers[0]:.{digits}f}, {numbers[-1]:.{digits}f}]"


def interval_told(interval: Interval) -> str:
    low, middle, high = interval
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"
