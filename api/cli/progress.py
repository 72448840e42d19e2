"""A job's progress as lines of text, from the public API alone."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError
from rich.console import Console

from api.calls import with_progress
from api.cli import figures
from api.cli.sheet import INDENT
from api.cli.terminal import say
from api.client import Client
from api.display import LONG_S, SPANS, duration, how_far, trial_name
from search.config import Budget
from search.types import Values
from service.job.spec import JobSpec
from service.job.states import JobState
from service.job.sweep import at
from service.wire.jobs import JobView
from service.wire.records import Bill
from service.wire.stored import UnreadJob
from service.wire.trials import AttemptView, ProbeView, StageView, TrialView

#: Training seconds between two lines about a trial without decisions, and their least share of the budget.
_QUIET_S, _QUIET_SHARE = 5.0, 0.01
#: Stages fetched per poll. A trial never decides more between two polls; the final poll would find the rest.
_NEW_STAGES = 20
#: The last attempt in which a job in this state has trained nothing.
_UNTRAINED = {JobState.QUEUED: 0, JobState.STARTING: 1}


class Progress:
    """The progress of a job as lines; each call of `lines` yields only what is new.

    Without the history, the first call yields only where each trial is.
    """

    def __init__(self, client: Client, job_id: str, *, with_history: bool = True) -> None:
        self._client, self._job_id = client, job_id
        self._tells_news = with_history
        self._told: set[tuple[str, ...]] = set()
        self._attempt = -1  # the last attempt whose stages were all fetched
        self._trials: dict[str, TrialView] = {}  # as of the last poll
        self._newest: dict[str, int] = {}  # known stage of each trial
        self._next_line_s: dict[str, float] = {}
        self._how_far = ""
        self.summary = "queued"

    def lines(self, job: JobView) -> Iterator[str]:
        """Yield the news about `job` since the last call."""
        where = (job.state, job.reason, str(job.attempt), "" if job.queue is None else job.queue.sentence)
        state = list(state_lines(job)) if self._is_new("state", *where) else []
        if not job.is_over:  # the trials' news comes before the job's end
            yield from state
        if job.attempt <= _UNTRAINED.get(job.state, -1):
            self.summary = job.state
            self._tells_news = True  # all that follows is new
            return
        trials = self._client.trials(self._job_id)
        if any(self._trials.get(trial.trial_id) != trial for trial in trials):
            self._how_far = self._asked_how_far()
        stages = self._stages(job, trials)
        for trial in trials:
            news = list(self._news(trial, stages.get(trial.trial_id, []), job.spec))
            yield from news if self._tells_news else ()
            yield from self._standing(trial, job.spec)
        self._tells_news = True
        live = next((trial for trial in trials if trial.backend and trial.outcome is None), None)
        self.summary = job.state if live is None else f"{live.arm}: {_where(live)}{self._how_far}"
        if job.is_over:
            yield from state

    def _stages(self, job: JobView, trials: Iterable[TrialView]) -> dict[str, list[StageView]]:
        """Return possibly new stages by trial. All stages of a job with their probes would be megabytes."""
        if job.attempt != self._attempt or job.is_over:  # a new attempt may roll back stages
            self._attempt = job.attempt
            self._newest.clear()
            found = list(self._client.stages(self._job_id))
        else:
            changed = [trial for trial in trials if self._trials.get(trial.trial_id) != trial]
            found = [stage for trial in changed for stage in self._last_stages(trial.trial_id)]
        self._trials = {trial.trial_id: trial for trial in trials}
        by_trial: dict[str, list[StageView]] = {}
        for stage in found:
            by_trial.setdefault(stage.trial_id, []).append(stage)
            self._newest[stage.trial_id] = stage.stage
        return by_trial

    def _last_stages(self, trial_id: str) -> tuple[StageView, ...]:
        """Return the trial's stages from the newest known one on, since that may have closed."""
        first = self._newest.get(trial_id, 0)
        return self._client.stages(self._job_id, trial=trial_id, stage=range(first, first + _NEW_STAGES))

    def _is_new(self, *what: str) -> bool:
        is_new = what not in self._told
        self._told.add(what)
        return is_new

    def _asked_how_far(self) -> str:
        """Return the share of the job's budget and the time left, as the end of a line."""
        far = "".join(map(how_far, self._client.send(with_progress(self._job_id)).jobs))
        return f"; job {far}" if far else ""

    def _news(self, trial: TrialView, stages: list[StageView], spec: JobSpec | UnreadJob) -> Iterator[str]:
        """Yield that the trial has begun, and its decisions and commits."""
        name = trial_name(trial, spec)
        if trial.backend and self._is_new("started", trial.trial_id):
            yield f"{name}: training on {trial.device} over {trial.backend}"
        for stage in stages:
            if self._is_new("decided", trial.trial_id, str(stage.stage), stage.reason):
                yield from _decision_lines(name, stage, level_name(spec, trial))
            if stage.closed and self._is_new("closed", trial.trial_id, str(stage.stage)):
                yield _closed_line(name, stage)

    def _standing(self, trial: TrialView, spec: JobSpec | UnreadJob) -> Iterator[str]:
        """Yield how the trial has ended, or now and then where it is; at once if its news is left out."""
        name = trial_name(trial, spec)
        if trial.outcome is not None:
            if self._is_new("finished", trial.trial_id):
                yield f"{name}: {trial.end} after {_where(trial)}; {_sent(trial.bill)}"
                if trial.failure:
                    yield f"{INDENT}{trial.failure}"
        elif trial.backend and trial.seconds >= self._next_line_s.get(trial.trial_id, _QUIET_S * self._tells_news):
            self._next_line_s[trial.trial_id] = trial.seconds + _quiet_s(trial, spec)
            yield f"{name}: {_where(trial)}{self._how_far}"


def follow(client: Client, job_id: str, console: Console, *, with_history: bool = True) -> JobView:
    """Print the job's progress until it is over, and return its last view.

    Without the history, begin with a line about each trial.
    """
    progress = Progress(client, job_id, with_history=with_history)
    with console.status("") as status:  # draws nothing without a terminal
        for view in client.watch(job_id):
            for line in progress.lines(view):
                say(console, line)
            status.update(progress.summary)
    return view


def _quiet_s(trial: TrialView, spec: JobSpec | UnreadJob) -> float:
    """Return the training seconds until the next line; without a budget in seconds, by those so far."""
    budget_s = spec.budget.seconds if isinstance(spec, JobSpec) else None
    return max(_QUIET_S, _QUIET_SHARE * (trial.seconds if budget_s is None else budget_s))


def level_name(spec: JobSpec | UnreadJob, trial: TrialView) -> str:
    """Return the name of the trial's level: density, rank or threshold, by its own exchange or the job's."""
    if isinstance(spec, UnreadJob):
        return "level"
    own = next((each.exchange for each in spec.arms if each.name == trial.arm), None)
    sampled = {} if trial.sample is None else trial.sample.values or {}
    if "exchange" in sampled:
        with suppress(ValidationError):  # another release stored it
            own = at(spec, {"exchange": sampled["exchange"]}).exchange
    return (own or spec.exchange).level_name


def where_it_is(job: JobView, attempts: Sequence[AttemptView]) -> Iterator[str]:
    """Yield the job's state, its reason, and the request; `attempts` are the job's own."""
    yield f"{job.id}  {job.name}"
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    yield f"{job.state}{_since(job, attempts)}{attempt}"
    yield from _why(job)
    if isinstance(job.spec, JobSpec):
        yield _asked_for(job.spec)
    if job.unread:
        yield f"another release has stored it, and it cannot be read here: {job.unread}"
    if isinstance(job.spec, UnreadJob):
        yield from json.dumps(job.spec.root, indent=len(INDENT)).splitlines()
    yield from _own_words(job)


def _asked_for(spec: JobSpec) -> str:
    arms, seeds = ", ".join(arm.name for arm in spec.arms), ", ".join(map(str, spec.seeds))
    lanes = f"{spec.lanes.count} lanes of " if spec.lanes.count > 1 else ""
    cost = f"{lanes}{spec.workers.count} workers, {_budget(spec.budget)} a trial"
    workload = getattr(spec.workload, "factory", spec.workload.kind)
    return f"{workload}, {cost}; arms: {arms}; seeds: {seeds}"


def _own_words(job: JobView) -> Iterator[str]:
    """Yield the labels and notes from its users."""
    if job.labels:
        yield f"labels: {', '.join(f'{name}={value}' for name, value in job.labels.items())}"
    if job.notes:
        yield "notes:"
        yield from (f"{INDENT}{line}" for line in job.notes.splitlines())
    if job.archived:
        yield "archived: `wiretune unarchive` has it in lists again"


def _budget(budget: Budget) -> str:
    limits = {
        "{}": None if budget.seconds is None else _given_s(budget.seconds),
        "{} steps": budget.steps,
        "{} sent": None if budget.bytes is None else figures.size(budget.bytes),
    }
    return " or ".join(text.format(limit) for text, limit in limits.items() if limit is not None)


def _given_s(seconds: float) -> str:
    """Return a given number of seconds as it was given, and from ten minutes on in all its units: `1 d 1 min 1 s`."""
    if seconds < LONG_S:
        return f"{seconds:.15g} s"
    parts = []
    for unit, length in SPANS[:-1]:
        count, seconds = divmod(seconds, length)
        parts += [f"{count:.0f} {unit}"] if count else []
    return " ".join([*parts, *([f"{seconds:.9g} s"] if seconds else [])])


def _since(job: JobView, attempts: Sequence[AttemptView]) -> str:
    """Return for how long an ended job held its workers, without pauses, or since when another has or lacks them.

    When a job with attempts was queued again is not known.
    """
    if job.seconds_held is not None:
        return f" after {duration(job.seconds_held, 0)}"
    if job.state is JobState.QUEUED and attempts:
        return ""
    moment = (attempts[-1].ended_at or attempts[-1].began_at) if attempts else job.finished_at or job.created_at
    return f" since {figures.moment(moment)}"


def state_lines(job: JobView) -> Iterator[str]:
    """Yield the job's state, and its reason on a line of its own."""
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    yield f"{job.id} is {job.state}{attempt}"
    yield from _why(job)


def _why(job: JobView) -> Iterator[str]:
    if job.reason:
        yield f"{INDENT}{job.reason}"
    if job.queue is not None:
        yield f"{INDENT}{job.queue.sentence}"


def _decision_lines(name: str, stage: StageView, level: str) -> Iterator[str]:
    if stage.probes:
        yield (
            f"{name}: stage {stage.stage} searched {duration(stage.search_seconds)}, {stage.search_steps} steps, "
            f"{figures.size(stage.search_bytes)}"
        )
    for probe in stage.probes:
        yield f"{INDENT}probe {_probe(probe, level)}"
    verb = "takes" if stage.switched or not stage.probes else "keeps"
    values = values_text(stage, level)
    yield f"{name}: stage {stage.stage} {verb} {values}"
    yield f"{INDENT}{stage.reason}"


def _probe(probe: ProbeView, level: str) -> str:
    text = values_text(probe, level)
    if probe.loss is None or probe.status == "diverged":
        return f"{text}, loss - ({probe.status})"
    text += f", loss {figures.loss(probe.loss)}"
    if probe.forecast is not None:
        text += f", forecast {figures.loss(probe.forecast)}"
        text += f" ± {figures.number(probe.forecast_std, 2)}" if probe.forecast_std is not None else ""
    return text if probe.status == "ok" else f"{text} ({probe.status.replace('_', ' ')})"


def values_text(given: StageView | ProbeView | Values, name: str) -> str:
    """Return used or tried values in words; `name` is the name of the level."""
    further = given.further if isinstance(given, Values) else given.values
    texts = [f"lr {figures.number(given.learning_rate)}"]
    if given.level is not None:
        texts.append(f"{name} {figures.share(given.level) if name == 'density' else figures.number(given.level)}")
    return ", ".join([*texts, *([figures.settings(further)] if further else [])])


def _closed_line(name: str, stage: StageView) -> str:
    if stage.num_steps == 0:
        return f"{name}: stage {stage.stage} kept no steps: they were rolled back, or its share was under a step"
    density = "" if stage.density is None else f" at density {figures.share(stage.density)}"
    so_far = "" if stage.bill is None else f"; so far {_sent(stage.bill)}"
    return f"{name}: stage {stage.stage} committed {stage.num_steps} steps{density}{so_far}"


def _sent(bill: Bill) -> str:
    """Return a worker's traffic, and the saving against dense gradients."""
    sent = f"sent {figures.size(bill.bytes_sent)}"
    saved = bill.bytes_dense - bill.bytes_sent
    return sent if saved <= 0 else f"{sent}, saved {figures.size(saved)} ({figures.share(saved / bill.bytes_dense)})"


def _where(trial: TrialView) -> str:
    found = "last validation loss" if trial.outcome is None else "validation loss"  # it may be from an earlier step
    text = f"{trial.step} steps, {duration(trial.seconds)}, {found} {figures.loss(trial.validation_loss)}"
    return ", ".join([text, *(f"{name} {figures.loss(value)}" for name, value in trial.validation_metrics.items())])
