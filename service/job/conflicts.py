"""Conflicts of a job: parts that are valid by themselves but do not work together.

`trainers` checks the parts of a replica against each other (`ReplicaConfig.conflicts`). Every arm is resolved first,
so each check runs once, on everything that the arm trains with.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from search.config import (
    MAX_DIMENSIONS,
    BoConfig,
    ControllerConfig,
    RateRange,
    ScheduleConfig,
    SobolConfig,
    range_conflict,
)
from search.schedule_file import ScheduleFile
from service.job.parts import BEST_TRIAL, JobParts, TrialSpec
from trainers.methods.exchange.auto.spec import AutoConfig
from trainers.methods.optimizer.spec import AutoOptimizerConfig, contenders
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.link import MeasureLink
from trainers.spec.ranges import Conflict
from trainers.spec.workloads import OwnWorkload


def conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield every conflict of `job`, with its place in the job."""
    yield from _repeated(job)
    yield from _password_of_the_weights(job)
    yield from _bytes_that_nobody_sends(job)
    yield from _steps_beyond_the_data(job)
    yield from _labels_that_are_not_there(job)
    yield from _metric_that_is_not_measured(job)
    yield from _of_arms(job)


def _repeated(job: JobParts) -> Iterator[Conflict]:
    names = [arm.name for arm in job.arms]
    if len(set(names)) < len(names):
        yield Conflict("/arms", names, f"arms need distinct names, got {names}")
    if len(set(job.seeds)) < len(job.seeds):
        yield Conflict("/seeds", list(job.seeds), f"seeds must be distinct, got {list(job.seeds)}")


def taken_names(job: JobParts) -> Iterator[Conflict]:
    """Yield the arms that have the name of the best trial. Those of earlier releases keep it."""
    for index, arm in enumerate(job.arms):
        if arm.name == BEST_TRIAL:
            message = f"`{BEST_TRIAL}` means the best trial where an arm is named, so call the arm something else"
            yield Conflict(f"/arms/{index}/name", arm.name, message)


def _password_of_the_weights(job: JobParts) -> Iterator[Conflict]:
    if re.search(r"://[^/]*@", job.workload.weights or ""):
        message = "`weights` holds a password or a key, which jobs may not; allowed: a URL without one"
        yield Conflict("/workload/weights", None, message)


def _bytes_that_nobody_sends(job: JobParts) -> Iterator[Conflict]:
    if job.budget.counts_bytes_alone and job.workers.least == job.workers.placed_together:
        yield Conflict(
            "/budget/bytes",
            job.budget.bytes,
            "one node sends nothing, so `budget.bytes` alone would never end the job: add `seconds` or `steps`",
        )


def _steps_beyond_the_data(job: JobParts) -> Iterator[Conflict]:
    samples = job.workload.num_samples
    if samples is None or isinstance(job.workload, OwnWorkload):
        return  # the workers find out
    given = job.workload.batch_size
    own, scheduled = given if isinstance(given, int) else max(given), max(_scheduled_sizes(job), default=0)
    step, batch_size = "a step of a schedule" if scheduled > own else "a step", max(own, scheduled)
    joined = job.lanes.count if job.lanes.after == "batch" else 1
    lanes = f" of {joined} lanes" if joined > 1 else ""
    most = samples // (batch_size * job.accumulate * joined)
    if job.workers.count > most:
        yield Conflict(
            "/workers/count",
            job.workers.count,
            f"`count` must be in [1, {most}], got {job.workers.count}: {step} takes {batch_size} samples x "
            f"{job.accumulate} micro-batches per worker{lanes}, and `{job.workload.kind}` has {samples}",
        )


def _scheduled_sizes(job: JobParts) -> Iterator[int]:
    """Yield every batch size that the arms' schedules set."""
    for controller in (arm.controller or job.controller for arm in job.arms):
        if isinstance(controller, ScheduleConfig):
            yield from (int(entry.values.get("batch_size", 0)) for entry in controller.schedule.entries)


def _labels_that_are_not_there(job: JobParts) -> Iterator[Conflict]:
    kind = job.partition.kind
    if kind != "iid" and job.workload.has_labels is False:
        yield Conflict(
            "/partition",
            kind,
            f"`partition` {kind} divides samples by their labels, and those of `{job.workload.kind}` have none: "
            "give `partition: {kind: iid}`, or a workload that classifies",
        )


def _metric_that_is_not_measured(job: JobParts) -> Iterator[Conflict]:
    metrics = job.workload.metrics
    if metrics is not None and (conflict := job.objective.conflict(metrics)):  # otherwise the workers find out
        yield conflict


def _of_arms(job: JobParts) -> Iterator[Conflict]:
    """Yield the conflicts of each arm, at the arm's own part or else at the job's. Shared conflicts appear once."""
    found: dict[tuple[str, str], tuple[Conflict, list[str]]] = {}
    for index, arm in enumerate(job.arms):
        for conflict in arm_conflicts(job.trial(arm, job.seeds[0])):
            part = conflict.pointer.split("/")[1]
            pointer = f"/arms/{index}{conflict.pointer}" if getattr(arm, part, None) else conflict.pointer
            placed = conflict._replace(pointer=pointer)
            found.setdefault((pointer, conflict.message), (placed, []))[1].append(arm.name)
    for conflict, names in found.values():
        yield conflict if len(names) == len(job.arms) else conflict._replace(arms=tuple(names))


def arm_conflicts(trial: TrialSpec) -> Iterator[Conflict]:
    """Yield the conflicts of one arm, as if the job had no other."""
    yield from trial.replica.conflicts()
    yield from _workers_that_cannot_be_away(trial)
    yield from _nodes_that_cannot_change(trial)
    yield from _clock_without_seconds(trial)
    yield from _ranges_that_are_not_searched(trial)
    yield from _guess_out_of_range(trial)
    if isinstance(trial.replica.exchange, AutoConfig):
        yield from _exchanges_that_cannot_compete(trial)
    if isinstance(trial.replica.optimizer, AutoOptimizerConfig):
        yield from _optimizers_that_cannot_compete(trial.replica.optimizer, trial.controller)
    if isinstance(trial.controller, ScheduleConfig):
        yield from _schedule_of_other_parts(trial.controller.schedule, trial.replica)


def _workers_that_cannot_be_away(trial: TrialSpec) -> Iterator[Conflict]:
    """Yield the choices that do not let workers leave and come back."""
    replica, workers, message = trial.replica, trial.workers, ""
    if workers.min is None:
        return
    if not trial.trains_in_rounds:  # fewer go on from a checkpoint, which each of these can be shared out from
        if workers.pace == "own":
            message = "`pace: own` is for workers that train by themselves between averages: give `sync`, or leave out"
            yield Conflict("/workers/pace", workers.pace, f"{message} `pace`")
        return
    if conflict := replica.sync.absence_conflict():
        message = conflict
    elif not replica.exchange.is_elastic:
        message = (
            f"what `{replica.exchange.kind}` keeps depends on the number of workers: leave out `workers.min`, or give "
            "`exchange: {kind: sparse_loco}` or `{kind: none}`"
        )
    elif workers.per_node != 1:
        message = (
            f"workers can be away where each is a node, and `workers.per_node` is {workers.per_node}: leave it out"
        )
    elif trial.lanes.count > 1:
        message = f"lanes start from equal states of all workers, and there are {trial.lanes.count}: leave out `lanes`"
    if message:
        yield Conflict("/workers/min", workers.min, message)


def _nodes_that_cannot_change(trial: TrialSpec) -> Iterator[Conflict]:
    """Yield a conflict if a later placement may change nodes whose state other nodes cannot take over."""
    if trial.workers.per_node == "auto" and (kinds := trial.replica.apart_under):
        yield Conflict(
            "/workers/per_node",
            "auto",
            f"under `{kinds[0]}` a checkpoint goes on with the same nodes alone, and `auto` may find others in a later "
            "attempt: give a number of workers per node, as 1",
        )


def _clock_without_seconds(trial: TrialSpec) -> Iterator[Conflict]:
    """Yield a conflict if the exchange measures the link although no decision may depend on a clock."""
    exchange = trial.replica.exchange
    if exchange.reads_clock and trial.budget.seconds is None and isinstance(trial.replica.link, MeasureLink):
        yield Conflict(
            "/exchange/levels/cost",
            "link",
            f"`{exchange.kind}` here measures what the link takes, which a budget without `seconds` does not allow: "
            "give `cost: {kind: packet}`, `budget.seconds`, or `link: {mode: emulate}`",
        )


def _ranges_that_are_not_searched(trial: TrialSpec) -> Iterator[Conflict]:
    for number, each in enumerate(trial.replica.ranges(), start=1):
        if reason := range_conflict(trial.controller, each.name, number):
            message = f"{reason}: give one number, got {json.dumps(each.pair)}"
            yield Conflict(f"/{each.field}", list(each.pair), message)


def _guess_out_of_range(trial: TrialSpec) -> Iterator[Conflict]:
    if not isinstance(trial.controller, RateRange) or trial.controller.stated_rates is None:
        return
    (low, high), guess = trial.controller.stated_rates, trial.replica.optimizer.learning_rate
    if not low <= guess <= high:
        yield Conflict(
            "/optimizer/learning_rate",
            guess,
            "the guess must be within `min_learning_rate` and `max_learning_rate` of the controller, "
            f"[{low:g}, {high:g}], got {guess:g}",
        )


def _exchanges_that_cannot_compete(trial: TrialSpec) -> Iterator[Conflict]:
    num_ranges = sum(1 for _ in trial.replica.ranges())
    message = ""
    if not isinstance(trial.controller, BoConfig | SobolConfig | ScheduleConfig):
        message = (
            "`auto` needs a controller that searches it (`bo`, `sobol`), or a `schedule` of one that has, got "
            f"`{trial.controller.kind}`: give one exchange, as `{{kind: threshold, density: 0.01}}`"
        )
    elif num_ranges >= MAX_DIMENSIONS - 1:
        message = (
            f"at most {MAX_DIMENSIONS - 1} values are searched beside the learning rate, and there are {num_ranges} "
            "ranges besides `auto`: give one number for one of them, or one exchange"
        )
    if message:
        yield Conflict("/exchange", "auto", message)


def _optimizers_that_cannot_compete(optimizer: AutoOptimizerConfig, controller: ControllerConfig) -> Iterator[Conflict]:
    message = ""
    if isinstance(controller, RateRange) and controller.stated_rates is not None:
        low, high = controller.stated_rates
        message = (
            f"learning rates in [{low:g}, {high:g}] mean something else to each optimizer: leave out "
            "`min_learning_rate` and `max_learning_rate`, and give each option its own guess"
        )
    elif isinstance(controller, BoConfig) and controller.transfer is not None:
        message = (
            "past jobs say at which rate one optimizer was best, and here several compete: leave out `transfer`, or "
            "give one optimizer"
        )
    if message:
        yield Conflict("/optimizer", optimizer.kind, message)


def _schedule_of_other_parts(schedule: ScheduleFile, replica: ReplicaConfig) -> Iterator[Conflict]:
    """Yield the values that the schedule sets but the replica does not have."""
    exchange, kinds = replica.exchange, [contender.kind for contender in contenders(replica.optimizer)]
    options = [option.name for option in replica.menu]
    if schedule.optimizer not in kinds:
        yield Conflict(
            "/controller/schedule/optimizer",
            schedule.optimizer,
            f"the schedule was learned by `{schedule.optimizer}`, so its rates mean nothing to "
            f"{' or '.join(f'`{kind}`' for kind in kinds)}: give `optimizer: {{kind: {schedule.optimizer}}}`",
        )
    seen = set[frozenset[tuple[str, Any]]]()  # values: many entries have the same
    for number, entry in enumerate(schedule.entries):
        place, option = f"/controller/schedule/entries/{number}", entry.values.get("option")
        if entry.level is not None and exchange.level is not None and (wrong := exchange.level_conflict(entry.level)):
            message = f"`level` is the exchange's `{exchange.level_name}` here and {wrong}, got {entry.level:g}"
            yield Conflict(f"{place}/level", entry.level, message)
        key = frozenset(entry.values.items())
        is_new = schedule.optimizer in kinds and key not in seen
        if is_new and (wrong := replica.setting_conflict(entry.values, optimizer=schedule.optimizer)):
            yield Conflict(f"{place}/values", entry.values, f"the schedule's `values` do not fit: {wrong}")
        seen.add(key)
        if option is not None and option not in options:
            yield Conflict(
                f"{place}/values/option",
                option,
                f"the schedule exchanges by `{option}`, and here there is {options or 'one kind of exchange'}: give "
                "`exchange: {kind: auto, options: [...]}` with those of the schedule",
            )
