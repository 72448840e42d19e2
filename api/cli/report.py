"""A job's result for terminals and scripts: schedules, bill, arms over seeds. All figures come from the API."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from api.cli import figures
from api.cli.sheet import INDENT, Sheet
from api.client import Client
from api.display import duration, trial_name
from api.failures import ApiError
from search.config import Budget
from service.job.parts import LOSS
from service.job.spec import JobSpec
from service.wire.jobs import JobView
from service.wire.records import Bill, Sample, ScheduleEntry
from service.wire.reports import ArmReport, Cost, Estimate, JobReport, Prices, TrialReport
from service.wire.stored import has_one_seed
from service.wire.sweeps import SampleStatus, SweepReport
from service.wire.trials import ScheduleView, TrialView


class Result(BaseModel):
    """The result of a job; scripts get it unchanged."""

    job: JobView
    trials: tuple[TrialView, ...]
    schedules: tuple[ScheduleView, ...]  # of the trials with decisions
    report: JobReport

    def name(self, trial: TrialView | TrialReport | ScheduleView) -> str:
        """Return the trial's name in this job."""
        return trial_name(trial, self.job.spec)


def result(client: Client, job: JobView, *, with_all_schedules: bool = False) -> Result:
    """Return the job's result, so far or final.

    For a sweep, only the best sample's schedule is fetched, unless `with_all_schedules`: each takes a request, there
    are hundreds, and nobody reads more.
    """
    trials, found = client.trials(job.id), client.report(job.id)
    best = None if found.sweep is None else found.sweep.ranking[0].arm
    wanted = [trial for trial in trials if with_all_schedules or trial.sample is None or trial.arm == best]
    schedules = tuple(each for trial in wanted if (each := _schedule(client, job.id, trial)) is not None)
    return Result(job=job, trials=trials, schedules=schedules, report=found)


def _schedule(client: Client, job_id: str, trial: TrialView) -> ScheduleView | None:
    try:
        return client.schedule(job_id, arm=trial.arm, seed=trial.seed)
    except ApiError as error:
        if error.status != 404:
            raise
        return None  # nothing is decided, or it ended before that


def summary(found: Result) -> dict[str, Any]:
    """Return the demonstration's result: the first trial's at the top level, then all trials' by name."""
    entries = {schedule.trial_id: schedule.entries for schedule in found.schedules}
    by_name = {
        found.name(trial): _trial_summary(trial, entries.get(trial.trial_id, ())) for trial in found.report.trials
    }
    return next(iter(by_name.values())) | {"arms": by_name}


def _trial_summary(trial: TrialReport, entries: Sequence[ScheduleEntry]) -> dict[str, Any]:
    bill = trial.bill
    return {
        "controller": trial.controller,
        "schedule": [entry.model_dump(mode="json") for entry in entries],
        "bytes_sent": bill.bytes_sent,
        "bytes_dense": bill.bytes_dense,
        "seconds_search": bill.seconds_search,
        "seconds_training": bill.seconds_training,
        "steps": bill.steps,
        "validation": {"loss": trial.validation_loss, **trial.validation_metrics},
        "test": trial.test,
        "crossing": None if trial.crossing is None else trial.crossing.model_dump(),
    }


def tables(found: Result) -> Iterator[Sheet]:
    """Yield the result for people: schedules, the bill, and with several seeds every arm's means."""
    spec, sweep = found.job.readable, found.report.sweep
    if sweep is not None:
        yield sweep_table(sweep, {trial.trial_id: found.name(trial) for trial in found.report.trials})
    for schedule in found.schedules:
        yield schedule_table(found.name(schedule), schedule)
    yield bill_table(found.report, spec)
    if any(trial.bill.by_option for trial in found.report.trials):
        yield options_table(found.report, spec)
    if len(spec.seeds) > 1:
        yield arms_table(found.report)


def sweep_table(sweep: SweepReport, names: Mapping[str, str]) -> Sheet:
    """Return a sweep's ranking with its trials' `names`, best first; a star marks those on the front."""
    write = figures.size if sweep.cost == "bytes" else duration
    costs = [f"{sweep.cost}"] if sweep.cost is not None else []
    title = f"Ranking by {sweep.metric}{f' and {sweep.cost} (* on the front)' if costs else ''}"
    if sweep.rungs:
        title += f"; {figures.share(sweep.saved_share)} of all budgets saved by ending samples at rungs"
    table = _table(title, "place", "trial", "state", "of its budget", sweep.metric, *costs, "values")
    for each in sweep.ranking:
        table.add_row(
            f"{each.place}{' *' if costs and each.on_front else ''}",
            names[each.trial_id],
            each.status,
            figures.share(each.share),
            figures.loss(each.value),
            *("-" if each.cost is None else write(each.cost) for _ in costs),
            _values(each.sample),
        )
    return table


def _values(sample: Sample | None) -> str:
    if sample is None:
        return "as the arm says"
    if sample.values is None:
        return "not drawn yet: it learns from the others"
    return ", ".join(f"{path} {_value(value)}" for path, value in sample.values.items())


def _value(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return figures.number(value, 4) if is_number else json.dumps(value)


def trials_table(found: Result) -> Sheet:
    """Return the progress of each trial."""
    level = " or ".join(sorted({trial.level_name for trial in found.report.trials}))
    table = _table("Trials", "trial", "state", "step", "training", "learning rate", level, "val. loss")
    ranking = found.report.sweep.ranking if found.report.sweep else ()
    pruned = {each.trial_id for each in ranking if each.status is SampleStatus.PRUNED}
    for trial in found.trials:
        table.add_row(
            found.name(trial),
            "pruned" if trial.trial_id in pruned else trial.phase(found.job.state),
            str(trial.step),
            duration(trial.seconds),
            figures.number(trial.learning_rate),
            figures.number(trial.level),
            figures.loss(trial.validation_loss),
        )
    return table


def schedule_table(name: str, schedule: ScheduleView) -> Sheet:
    """Return the learned schedule for a terminal. A stage's ramps are one row."""
    title = f"Schedule of {name}" if schedule.complete else f"Schedule of {name}, so far"
    if schedule.line == "insurance":
        title += ": your own, which did better than the searched one"
    has_more = any(entry.values for entry in schedule.entries)
    table = _table(title, "steps", "learning rate", "density", "threshold", *["besides"] * has_more)
    for _, group in groupby(schedule.entries, key=lambda entry: (entry.reason, entry.level, entry.values)):
        entries = list(group)
        first, last = entries[0], entries[-1]
        final = last.last_learning_rate
        rate = figures.number(first.learning_rate)
        table.add_row(
            f"{first.step}-{last.step + last.num_steps}",
            rate if final == first.learning_rate else f"{rate} -> {figures.number(final)}",
            figures.share(_mean_density(entries)),
            figures.number(last.threshold),
            *[figures.settings(first.values)] * has_more,
            note=first.reason,
        )
    return table


def _mean_density(entries: Sequence[ScheduleEntry]) -> float | None:
    known = [(entry.density, entry.num_steps) for entry in entries if entry.density is not None]
    total = sum(num_steps for _, num_steps in known)
    return sum(density * num_steps for density, num_steps in known) / total if total else None


def bill_table(report: JobReport, spec: JobSpec) -> Sheet:
    """Return every trial's bill for a terminal, with the bytes of one worker."""
    link = f"emulated {spec.link.mbps:g} Mbit link" if spec.link.mode == "emulate" else "the network as it is"
    columns = [(heading, cell) for heading, is_shown, cell in _bill_columns(report, spec) if is_shown]
    table = _table(f"Bill ({link})", *(heading for heading, _ in columns))
    for trial in report.trials:
        table.add_row(*(cell(trial, trial.bill) for _, cell in columns))
    return table


def _bill_columns(report: JobReport, spec: JobSpec) -> Iterator[tuple[str, bool, Callable[[TrialReport, Bill], str]]]:
    """Yield each column of the bill: its heading, whether any trial needs it, and its cell in a trial's row."""
    bills = [trial.bill for trial in report.trials]
    drops = any(each.replica.activations.kind != "keep" for each in spec.trials())
    yield "trial", True, lambda trial, _: trial_name(trial, spec)
    yield "sent", True, lambda _, bill: figures.size(bill.bytes_sent)
    yield "dense", True, lambda _, bill: figures.size(bill.bytes_dense)
    yield "ratio", True, lambda _, bill: f"{bill.bytes_dense / bill.bytes_sent:.1f}x" if bill.bytes_sent else "-"
    yield (
        "within nodes",
        any(bill.bytes_within_nodes for bill in bills),
        lambda _, bill: figures.size(bill.bytes_within_nodes),
    )
    yield "search", True, lambda _, bill: duration(bill.seconds_search)
    yield "training", True, lambda _, bill: duration(bill.seconds_training)
    yield "waited", any(bill.steps_timed for bill in bills), lambda _, bill: _waited(bill)
    yield "peak memory", any(bill.memory_bytes for bill in bills), lambda _, bill: figures.size(bill.memory_bytes)
    yield "kept for backward", drops, lambda _, bill: figures.size(bill.saved_bytes)
    yield "insurance", any(bill.steps_insurance for bill in bills), lambda _, bill: _insurance(bill)
    yield (
        "repairs",
        any(bill.repairs for bill in bills),
        lambda _, bill: f"{bill.repairs} ({duration(bill.seconds_recovery)})",
    )
    yield "averages missed", any(bill.absences for bill in bills), lambda _, bill: _absences(bill)
    yield "steps by workers", any(len(bill.steps_by_workers) > 1 for bill in bills), lambda _, bill: _by_workers(bill)
    yield "cost", report.prices is not None, lambda trial, _: _money(trial.cost, report.prices)
    yield "val. loss", True, lambda trial, _: figures.loss(trial.validation_loss)
    for name in sorted(report.metric_directions):
        yield name, True, _metric(name)
    for name in tested(report.trials):
        yield f"test {name}", True, _on_test(name)


def _metric(name: str) -> Callable[[TrialReport, Bill], str]:
    """Return the function that writes a trial's cell of the metric `name`."""
    return lambda trial, _: figures.loss(trial.validation_metrics.get(name))


def _on_test(name: str) -> Callable[[TrialReport, Bill], str]:
    """Return the function that writes a trial's cell of `name` on the test set."""
    return lambda trial, _: figures.loss(trial.test.get(name))


def tested(reports: Iterable[TrialReport | ArmReport]) -> list[str]:
    """Return what was measured on a test set, the loss first."""
    return sorted({name for each in reports for name in each.test}, key=lambda name: (name != LOSS, name))


def _waited(bill: Bill) -> str:
    """Return the share of timed steps in which training waited for the exchange."""
    steps_s = bill.seconds_compute + bill.seconds_exposed
    return figures.share(bill.seconds_exposed / steps_s) if steps_s else "-"


def _insurance(bill: Bill) -> str:
    """Return the steps and bytes of the user's own schedule, trained next to the search."""
    return f"{bill.steps_insurance} steps, {figures.size(bill.bytes_insurance)}"


def _money(cost: Cost | None, prices: Prices | None) -> str:
    return "-" if cost is None or prices is None else f"{cost.money:.2f} {prices.currency}".rstrip()


def _absences(bill: Bill) -> str:
    """Return the workers that missed averages, and how many each missed."""
    return ", ".join(f"worker {rank}: {missed}" for rank, missed in sorted(bill.absences.items())) or "-"


def _by_workers(bill: Bill) -> str:
    """Return the number of steps by number of workers, the most workers first."""
    return ", ".join(f"{num}: {steps}" for num, steps in sorted(bill.steps_by_workers.items(), reverse=True))


def options_table(report: JobReport, spec: JobSpec) -> Sheet:
    """Return the cost of each competing exchange, most steps first, with the bytes of one worker."""
    table = _table("Bill by option", "trial", "option", "steps", "of them probes", "sent", "in steps")
    for trial in report.trials:
        for option, took in sorted(trial.bill.by_option.items(), key=lambda each: -each[1].steps):
            table.add_row(
                trial_name(trial, spec),
                option,
                str(took.steps),
                str(took.steps_search),
                figures.size(took.bytes_sent),
                duration(took.seconds),
            )
    return table


def arms_table(report: JobReport) -> Sheet:
    """Return every arm's means over its finished seeds, with intervals; the best arm of several is marked."""
    metrics, on_test = sorted(report.metric_directions), tested(report.arms)
    what = "Arms" if report.sweep is None else "Baseline"
    best = "" if report.best_arm is None else f"; * best {report.metric}{_doubt(report)}"
    both = " or both seeds' values" if max(arm.num_trials for arm in report.arms) == 2 else ""
    title = f"{what} over seeds (mean and {report.confidence:.0%} interval{both}{best})"
    measured = ("val. loss", *metrics, *(f"test {name}" for name in on_test))
    table = _table(title, "arm", "seeds", *measured, "sent", "to target", "diverged")
    for arm in report.arms:
        table.add_row(
            f"{arm.arm} *" if arm.arm == report.best_arm else arm.arm,
            f"{arm.num_finished} of {arm.num_trials}",
            _interval(arm.validation_loss, figures.loss),
            *(_interval(arm.validation_metrics.get(name), figures.loss) for name in metrics),
            *(_interval(arm.test.get(name), figures.loss) for name in on_test),
            _interval(arm.bytes_sent, figures.size),
            _interval(arm.seconds_to_target, duration),
            str(arm.num_diverged),
        )
    return table


def _doubt(report: JobReport) -> str:
    """Return that another arm may be as good: the interval of their paired difference does not exclude 0."""
    return " (not clearly)" if report.best_is_clear is False else ""


def _interval(estimate: Estimate | None, write: Callable[[float], str]) -> str:
    if estimate is None:
        return "-"
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if low is None or high is None:
        return write(mean)
    if math.isclose(high - mean, mean - low, rel_tol=0.01):
        return f"{write(mean)} ± {write(high - mean)}"
    return f"{write(mean)} ({write(low)} to {write(high)})"


def headlines(found: Result) -> Iterator[str]:
    """Yield notes to read before the figures: what was not searched, and the command for that."""
    for trial in found.report.trials:
        yield from (f"{found.name(trial)}: {note}" for note in trial.notes)
    budgets = [trial.searching_budget for trial in found.report.trials if trial.searching_budget is not None]
    caps = {
        name: max(known)
        for name in Budget.model_fields
        if (known := [cap for budget in budgets if (cap := getattr(budget, name)) is not None])
    }
    if caps:
        settings = " ".join(f"--set budget.{name}={cap}" for name, cap in caps.items())
        yield "a budget with room for a search:"
        yield f"{INDENT}wiretune clone {found.job.id} {settings}"


def crossing_lines(found: Result) -> Iterator[str]:
    """Yield, for each other arm, when the first reached its final result; with several seeds, see the arms' table."""
    first = found.report.trials[0].arm
    for trial in found.report.trials:
        crossing = trial.crossing
        if crossing is None or not has_one_seed(found.job.spec):
            continue
        goal = f"the {found.report.metric} at which {found.name(trial)} ended ({figures.loss(crossing.value)})"
        if crossing.seconds is None:
            yield f"{first} did not reach {goal}"
        else:
            seconds = f"{duration(crossing.seconds)} instead of {duration(crossing.other_seconds)}"
            yield f"{first} reached {goal} after {seconds}"


def _table(title: str, *columns: str) -> Sheet:
    return Sheet(*columns, title=title, left=("trial", "arm", "state", "option", "besides", "values"))
