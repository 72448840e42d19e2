"""Lessons of recorded rows for the predictor: each method's own seconds of an exchange, and its steps to a loss."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from races import arms, models, ours, tasks
from races.methods import ALWAYS, METHODS
from scipy.optimize import nnls

from service.prediction.evidence import ANY, Lesson, Recorded, RecordedTask, cost_key
from service.prediction.model import OwnCost, Site, period_of, step
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import StdlibLm
from trainers.traffic.collectives import num_elements
from trainers.traffic.shapes import Shape, parameter_shapes

Json = dict[str, Any]
#: Cores of the machine that the rows are from: more workers share them.
NUM_CORES = 2
NOTHING = OwnCost(fixed_s=0.0, per_entry_s=0.0, per_round_s=0.0)
#: No limit; what the machine itself takes counts as the method's own.
UNLIMITED_MBPS = 1e5
#: What they send is not the plan of a step: it changes on the way, or is not known beforehand.
UNPLANNED = ("accordion", "cat", "warmup", "calibrated", "hold: run", "adacomp", "stl_sgd")
#: The same, by a name that the product does not have; and what is no exchange.
DENSE, NAMES = "dense", {"plain": "dense", "none": "dense"}
#: How strongly a method that is seldom timed is drawn to the usual costs, in milliseconds, nanoseconds, milliseconds.
RIDGE, SPREAD = 0.01, (1.0, 1.0, 0.3)
UNITS = (1e-3, 1e-9, 1e-3)
#: A loss that dense training has after so many of its 200 steps is what others are to reach.
REACHED_AT = 100
#: Kinds of rows whose steps were timed in turns.
TIMED = ("pace", "reach")
_SGD: Json = {"optimizer": {"kind": "sgd"}}
#: What a person knows a task by, and the parts of a job that are like it.
TASKS: dict[str, tuple[str, Json]] = {
    "images": ("convolutions, 0.25 million", {"workload": {"kind": "fashion-conv"}, **_SGD}),
    "text": ("transformer, 0.2 million", {"workload": {"kind": "stdlib-lm"}, **_SGD}),
    "residual-net": ("convolutions, 4.7 million", {"workload": {"kind": "fashion-conv"}, **_SGD}),
    "one-large-layer": ("one large layer, 4.9 million", {"workload": {"kind": "fashion-conv"}, **_SGD}),
    "transformer": (
        "transformer, 4.8 million",
        {"workload": {"kind": "stdlib-lm", "size": "5M"}, "optimizer": {"kind": "adamw"}},
    ),
}
#: Steps that differ by less than this factor are not ranked.
APART = 1.15


class Timed(NamedTuple):
    """A step as it was measured, and what is predicted of it but for the method's own work."""

    method: str
    key: str
    place: tuple[str, int, int, float | None]  # task, workers, workers of a host, rate
    seconds: float
    base_s: float  # computation and the link
    weight: float  # exchanges of a step, times as long as they take on shared cores
    num_entries: int
    rounds: float  # of an exchange

    def predicted(self, own: Mapping[str, OwnCost]) -> float:
        cost = own.get(self.key, own[ANY])
        return self.base_s + self.weight * cost.seconds(self.num_entries, self.rounds)


def shapes_of(task: str) -> tuple[Shape, ...]:
    """Return the shapes of a task's parameters, without its data."""
    if task in ("transformer", "text", "text-apart"):
        return parameter_shapes(StdlibLm(size="5M" if task == "transformer" else "0.2M")) or ()
    net = models.one_large_layer() if task == "one-large-layer" else models.residual_net()
    net = tasks.small_net() if task.startswith("images") else net
    return tuple(tuple(each.shape) for each in net.parameters())


def timed(races: Sequence[Sequence[Json]], step_of: Any) -> Iterator[Timed]:
    """Yield the steps of all races that have one without an exchange; `step_of` a row are its seconds."""
    for race in races:
        alone = [step_of(row) for row in race if row["arm"] == "nosync"]
        for row in race if alone else ():
            replica = replica_of(row)
            if replica is not None:
                yield _timed(row, replica, alone[0], step_of(row))


def replica_of(row: Json) -> ReplicaConfig | None:
    """Return the configuration of a row's arm; None: it is no method of a job, or what it sends is not planned."""
    name = NAMES.get(row["arm"], row["arm"])
    arm = METHODS.get(name) or ALWAYS.get(name) or arms.ARMS.get(name)
    if not isinstance(arm, dict) or any(word in name for word in UNPLANNED):
        return None
    try:
        per_host = row.get("per_host", 1)
        return ours.configuration(arm | ({"workers_per_node": per_host} if per_host > 1 else {}), row["task"], 0)
    except ValidationError:
        return None


def _timed(row: Json, replica: ReplicaConfig, alone_s: float, seconds: float) -> Timed:
    workers, per_host, shapes = row["hosts"], row.get("per_host", 1), shapes_of(row["task"])
    slowdown = max(1.0, workers / NUM_CORES)
    site = Site(
        mbps=row["mbps"] or UNLIMITED_MBPS,
        latency_ms=0.0,
        workers=workers,
        hosts=workers // per_host,
        compute_s=alone_s / slowdown,
        slowdown=slowdown,
    )
    parts, one_round = step(replica, shapes, site, NOTHING), NOTHING.model_copy(update={"per_round_s": 1.0})
    period = period_of(replica)
    rounds = step(replica, shapes, site, one_round).exchange_s * period / slowdown
    return Timed(
        method=NAMES.get(row["arm"], row["arm"]),
        key=cost_key(replica),
        place=(row["task"], workers, per_host, row["mbps"]),
        seconds=seconds,
        base_s=parts.seconds,
        weight=slowdown / period,
        num_entries=num_elements(shapes),
        rounds=rounds,
    )


def median_step(row: Json) -> float:
    """Return the seconds of a step, the first turn left out."""
    turns = row["block_seconds"][1:] or row["block_seconds"]
    return statistics.median(turns) / row["block_steps"]


def fastest_step(row: Json) -> float:
    """Return the seconds of a step in the turn that other work delayed least."""
    return min(row["block_seconds"]) / row["block_steps"]


def races_of(rows: Sequence[Json]) -> list[list[Json]]:
    """Return the rows that were timed in turns: of one moment, or from one dense arm to the next."""
    races: dict[Any, list[Json]] = defaultdict(list)
    number = 0
    for row in rows:
        if row["kind"] not in (*TIMED, "check"):
            continue
        number += row["arm"] == DENSE
        place = (row["kind"], row["task"], row["hosts"], row.get("per_host", 1), row["mbps"], row["seed"])
        races[*place, row.get("race", number)].append(row)
    return list(races.values())


def fit(steps: Sequence[Timed]) -> dict[str, OwnCost]:
    """Fit the three costs of each method to relative errors, by non-negative least squares.

    Those of methods that are seldom timed are drawn to the usual ones, which all methods share.
    """
    keys = sorted({each.key for each in steps})
    rows, wanted = [], []
    for each in steps:
        row, place = np.zeros(3 * (len(keys) + 1)), 3 * (1 + keys.index(each.key))
        parts = (1.0, each.num_entries, each.rounds)
        row[place : place + 3] = [each.weight * unit * part for unit, part in zip(UNITS, parts, strict=True)]
        rows.append(row / each.seconds)
        wanted.append((each.seconds - each.base_s) / each.seconds)
    for place, (index, spread) in ((3 * k + 3, each) for k in range(len(keys)) for each in enumerate(SPREAD)):
        row = np.zeros(3 * (len(keys) + 1))
        row[place + index], row[index] = RIDGE / spread, -RIDGE / spread
        rows.append(row)
        wanted.append(0.0)
    found, _ = nnls(np.array(rows), np.array(wanted))
    costs = [[float(f"{each:.3g}") for each in found[at : at + 3] * UNITS] for at in range(0, len(found), 3)]
    return {
        key: OwnCost(fixed_s=fixed, per_entry_s=entry, per_round_s=round_)
        for key, (fixed, entry, round_) in zip((ANY, *keys), costs, strict=True)
    }


def left_out(steps: Sequence[Timed]) -> list[tuple[Timed, float]]:
    """Return each step with what is predicted of it from the rows of all other places."""
    found = []
    for place in dict.fromkeys(each.place for each in steps):
        own = fit([each for each in steps if each.place != place])
        found += [(each, each.predicted(own)) for each in steps if each.place == place]
    return found


def errors(pairs: Sequence[tuple[Timed, float]]) -> list[float]:
    """Return the relative errors, the smallest first."""
    return sorted(abs(predicted / each.seconds - 1) for each, predicted in pairs)


def ranked(pairs: Sequence[tuple[Timed, float]]) -> tuple[int, int]:
    """Return how many pairs of steps at one place are apart, and how many of these are predicted in their order."""
    right = total = 0
    for (one, first), (other, second) in combinations(pairs, 2):
        if one.place == other.place and max(one.seconds, other.seconds) > APART * min(one.seconds, other.seconds):
            total += 1
            right += (first > second) == (one.seconds > other.seconds)
    return total, right


# -- steps to a loss --------------------------------------------------------------------------------------


def lessons(links: Sequence[Json], methods: Sequence[Json]) -> tuple[Lesson, ...]:
    """Return the steps to a loss as multiples of dense training's, of every method, task and number of hosts."""
    found: dict[tuple[str, str, int], list[float | None]] = defaultdict(list)
    for name, row, ratio in (*_of_links(links), *_of_methods(methods)):
        found[name, row["task"], row["hosts"]].append(ratio)
    return tuple(
        Lesson(
            method=method,
            task=task,  # type: ignore[arg-type]
            hosts=hosts,
            ratios=tuple(sorted(round(each, 3) for each in ratios if each is not None)),
            num_missed=ratios.count(None),
        )
        for (method, task, hosts), ratios in sorted(found.items())
    )


def _of_links(rows: Sequence[Json]) -> Iterator[tuple[str, Json, float | None]]:
    """Yield each race to a loss, beside plain DDP with the same seed; links change no loss, so one is enough."""
    dense = {_run(row): row["steps"] for row in rows if row["kind"] == "reach" and row["arm"] == "plain"}
    seen = set()
    for row in rows:
        key = (row["arm"], *_run(row))
        if row["kind"] != "reach" or row["arm"] in ("plain", "none", "nosync", "small-only") or key in seen:
            continue
        seen.add(key)
        if isinstance(arms.ARMS.get(row["arm"]), dict) and (steps := dense.get(_run(row))):
            yield row["arm"], row, row["steps"] and row["steps"] / steps


def _run(row: Json) -> tuple[str, int, int]:
    return row["task"], row["hosts"], row["seed"]


def _of_methods(rows: Sequence[Json]) -> Iterator[tuple[str, Json, float | None]]:
    """Yield each run of 200 steps: when it has the loss that dense training has halfway."""
    best: dict[tuple[str, str, int], Json] = {}
    for row in rows:
        if row["kind"] == "run":
            best[row["arm"], row["task"], row["seed"]] = row  # the last one is at the best rate that is known
    for (name, task, seed), row in best.items():
        dense = best.get((DENSE, task, seed))
        if dense is None or name in (DENSE, "nosync", "small-only"):
            continue
        goal = min(_loss(look) for look in dense["validations"] if look[0] <= REACHED_AT)
        mine, theirs = _reached(row, goal), _reached(dense, goal)
        yield name, row, mine and theirs and mine / theirs


def _loss(look: Sequence[float]) -> float:
    return min(look[2], look[3])


def _reached(row: Json, goal: float) -> float | None:
    """Return the step at which a run first has the loss `goal`, between looks by a straight line."""
    before: Sequence[float] | None = None
    for look in row["validations"]:
        if _loss(look) <= goal:
            if before is None:
                return look[0]
            share = (_loss(before) - goal) / (_loss(before) - _loss(look))
            return before[0] + share * (look[0] - before[0])
        before = look
    return None


def is_predictable(name: str, arm: str | Json) -> bool:
    """Return whether an arm is a way to exchange that sends as planned: not an optimizer, or activations."""
    if not isinstance(arm, dict) or any(word in name for word in UNPLANNED) or name in ("dense, no momentum", "none"):
        return False
    return "kind" not in arm.get("optimizer", {}) and "activations" not in arm


def _task(task: str, alone: Sequence[Json]) -> RecordedTask:
    """Return the task with what its steps compute, as on a core of its own."""
    model, job = TASKS[task]
    seconds = [median_step(row) / max(1.0, row["hosts"] / NUM_CORES) for row in alone]
    shapes = ",".join("x".join(map(str, shape)) for shape in shapes_of(task))
    return RecordedTask(
        model=model, job=job, shapes=shapes, compute_ms=float(f"{1e3 * statistics.median(seconds):.2g}")
    )


def recorded(links: Sequence[Json], methods: Sequence[Json]) -> Recorded:
    """Return all that is learnt from the rows of both benchmarks."""
    steps = [*timed(races_of(links), median_step), *timed(races_of(methods), median_step)]
    known = errors(left_out(steps))
    choices = {**METHODS, **arms.OURS, **ALWAYS}
    learnt = lessons(links, methods)
    named = {each.method for each in steps} | {each.method for each in learnt}
    alone = {
        task: [row for row in (*links, *methods) if (row["task"], row["arm"]) == (task, "nosync")] for task in TASKS
    }
    return Recorded(
        tasks={task: _task(task, [row for row in rows if row["kind"] in TIMED]) for task, rows in alone.items()},
        methods={name: arm for name, arm in choices.items() if name in named and is_predictable(name, arm)},
        own=fit(steps),
        lessons=learnt,
        usual_error=round(known[int(0.8 * len(known))], 3),
        num_rows=len(steps),
    )
