"""By what share of a task's reference recorded runs end above it. Reads rows alone: no torch, no rival."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parent / "rows.jsonl"
#: A loss that is not finite, or absurd, counts as this many times the reference.
LOST = 100.0
Row = dict[str, Any]
Excesses = dict[tuple[str, str], dict[str, list[float]]]  # by arm and task, of each run


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def references(known: Sequence[Row], steps: int) -> dict[str, float]:
    """Return each task's loss with the schedule and rate of the grid that are best on the mean of its seeds."""
    losses: dict[str, dict[tuple[str, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in known:
        if row["what"] == "grid" and row["steps"] == steps:
            losses[row["task"]][row["arm"], round(math.log10(row["rate"]), 3)].append(row["loss"])
    whole = {task: max(map(len, arms.values())) for task, arms in losses.items()}
    return {
        task: min(statistics.fmean(each) for each in arms.values() if len(each) == whole[task])
        for task, arms in losses.items()
    }


def above(loss: float, reference: float) -> float:
    """Return the share of the reference that a loss is above it, `LOST` at most."""
    excess = loss / reference - 1
    return excess if excess < LOST else LOST


def excesses(known: Sequence[Row], steps: int) -> Excesses:
    """Return by what share of the reference each run that is no part of the grid ends above it."""
    reference = references(known, steps)
    arms: Excesses = defaultdict(lambda: defaultdict(list))
    for row in known:
        if row["steps"] == steps and row["what"] != "grid" and row["task"] in reference:
            for loss, suffix in (("loss", ""), ("exported", ", exported")):
                if loss in row:
                    arms[row["what"], row["arm"] + suffix][row["task"]].append(above(row[loss], reference[row["task"]]))
    return arms
