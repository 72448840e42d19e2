"""Apply the reports of an attempt: each batch once, in order, and only from the attempt that owns the job."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control import attempts, events, jobs, steers, sweeps
from service.control.metrics import points
from service.control.metrics.columns import Point
from service.control.models import AttemptRow, JobRow, ProbeRow, StageRow, StreamRow, TrialRow
from service.control.storage import Storage
from service.errors import InvalidJob, OutOfSequence
from service.job.problems import Problem
from service.job.states import JobState
from service.wire.events import EventKind
from service.wire.records import (
    DRIVER_STREAM,
    INSURANCE_PREFIX,
    Acknowledgement,
    AttemptFinished,
    Batch,
    Bill,
    Billed,
    Checkpointed,
    Control,
    MetricPoints,
    ProbeDone,
    RunEnd,
    RungReached,
    SampleDrawn,
    Searched,
    StageClosed,
    StageDecided,
    TrialFailed,
    TrialFinished,
    TrialStarted,
)
from trainers.spec.refusals import pointer_to

#: Series whose newest value is repeated in the trial's row.
_HEADLINES = ("learning_rate", "validation_loss")
#: Fields of `service.cluster.resume.Resume`, at any depth, that hold places on storage.
_PLACES = ("checkpoint", "checkpoints", "steady")


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """The handling of one batch."""

    session: Session
    job: JobRow
    number: int
    now: float
    lease_s: float
    max_attempts: int
    storage: Storage

    def take(self, batch: Batch) -> tuple[Acknowledgement, bool]:
        """Store `batch` unless it was stored before. The flag says whether it is new.

        Raises Fenced, OutOfSequence, InvalidJob (foreign trials, places).
        """
        stream = self.session.get(StreamRow, (self.job.id, self.number, batch.stream))
        stream = stream or StreamRow(job_id=self.job.id, number=self.number, stream=batch.stream, last_sequence=0)
        if batch.sequence <= stream.last_sequence:
            return self._answer(batch.stream, stream.last_sequence), False
        attempt = attempts.require_owner(self.session, self.job, self.number)
        if batch.sequence > stream.last_sequence + 1:
            raise OutOfSequence(
                f"stream `{batch.stream}` of attempt {self.number} expects batch {stream.last_sequence + 1}, "
                f"got {batch.sequence}"
            )
        self._check(batch)
        self.session.add(stream)
        stream.last_sequence = batch.sequence
        if batch.stream == DRIVER_STREAM:
            attempt.lease_expires = self.now + self.lease_s
        for record in batch.records:
            self._apply(record, attempt)
        return self._answer(batch.stream, batch.sequence), True

    def _answer(self, stream: str, sequence: int) -> Acknowledgement:
        heard = steers.of_trial(self.session, self.job, stream)
        return Acknowledgement(sequence=sequence, control=self._control(stream), steers=heard)

    def _control(self, stream: str) -> Control:
        if self.number != self.job.attempt:
            return Control.FENCED
        asked = attempts.control(self.job)
        trial = self.session.get(TrialRow, stream) if asked is Control.RUN else None
        return Control.STOP if trial is not None and self._is_to_end(trial) else asked

    def _is_to_end(self, trial: TrialRow) -> bool:
        """Return whether a person has stopped the trial, or it is pruned at a rung."""
        if trial.stopped_by is not None or trial.sample is None:
            return trial.stopped_by is not None
        return sweeps.is_to_end(trial, sweeps.pruned_trials(self.session, self.job))

    def _check(self, batch: Batch) -> None:
        known = set(self.session.scalars(select(TrialRow.id).where(TrialRow.job_id == self.job.id)))
        problems = []
        if batch.stream not in {DRIVER_STREAM, *known}:
            problems.append(_foreign("/stream", batch.stream))
        for index, record in enumerate(batch.records):
            trial_id = getattr(record, "trial_id", None)
            if trial_id is not None and trial_id not in known:
                problems.append(_foreign(f"/records/{index}/trial_id", trial_id))
            if isinstance(record, MetricPoints) and not (
                len(record.steps) == len(record.seconds) == len(record.values)
            ):
                message = f"`steps`, `seconds` and `values` of `{record.name}` differ in length"
                problems.append(Problem(pointer=f"/records/{index}", message=message))
            for pointer, url in places(getattr(record, "resume", None), f"/records/{index}/resume"):
                if not self.storage.is_in_folder(self.job.id, url):
                    message = f"must be a place in the job's folder, {self.storage.job_url(self.job.id)}, got {url!r}"
                    problems.append(Problem(pointer=pointer, message=message, value=url))
        if problems:
            raise InvalidJob(problems)

    def _apply(self, record: Any, attempt: AttemptRow) -> None:
        if isinstance(record, AttemptFinished):
            self._finish_attempt(record)
            return
        trial = self.session.get_one(TrialRow, record.trial_id)
        match record:
            case TrialStarted():
                trial.backend, trial.device = record.backend, record.device
                trial.metric_directions = dict(record.metrics)
                if self.job.job_state is JobState.STARTING:
                    attempts.run(self.job, now=self.now)
                    attempt.lease_expires = self.now + self.lease_s
                started = record.model_dump(include={"trial_id", "backend", "device"})
                events.tell(trial, EventKind.TRIAL_STARTED, **started)
            case MetricPoints():
                self._add_points(trial, record)
            case ProbeDone():
                self._add_probe(record)
                shown = record.model_dump(include={"trial_id", "stage", "probe_id", "learning_rate", "loss", "status"})
                events.tell(trial, EventKind.PROBE, **shown)
            case StageDecided():
                self._decide_stage(trial, record)
            case Billed():
                self._bill(trial, record.bill)
                events.tell_progress(trial)
            case StageClosed():
                self._close_stage(trial, record)
            case Checkpointed():
                self._keep(trial, self._decided(trial, record.stage), record)
                if record.steady:
                    trial.steady = record.model_dump(mode="json")
                events.tell(trial, EventKind.CHECKPOINT, **record.model_dump(include={"trial_id", "stage", "step"}))
            case Searched():
                self._note_search(trial, record)
            case RungReached():
                sweeps.reached(self.session, self.job, trial, record)
            case SampleDrawn():
                sweeps.drawn(self.session, self.job, trial, record)
            case TrialFinished():
                self._finish_trial(trial, record)
            case TrialFailed():
                self._fail_trial(trial, record)

    def _add_points(self, trial: TrialRow, record: MetricPoints) -> None:
        if not record.steps:
            return
        received = list(map(Point, record.steps, record.seconds, record.values))
        points.add(self.session, points.Key(trial.id, record.name), received)
        if not record.name.startswith(INSURANCE_PREFIX):
            trial.step = max(trial.step, *record.steps)
        trial.seconds = max(trial.seconds, *record.seconds)
        if record.name in _HEADLINES:
            setattr(trial, record.name, record.values[-1])
        metric = record.name.removeprefix("validation_")
        if metric != record.name and metric in trial.metric_directions:  # a training series may share its name
            trial.validation_metrics = {**trial.validation_metrics, metric: record.values[-1]}
        loss = record.values[-1] if record.name == "loss" else None
        events.tell_progress(trial, first_step=min(record.steps), loss=loss)

    def _bill(self, trial: TrialRow, bill: Bill) -> None:
        """Update the trial's bill. Add an event if workers were replaced or absent since the last one."""
        before, trial.bill = Bill.model_validate(trial.bill, extra="ignore"), bill.model_dump(mode="json")
        missed = [sum(each.absences.values()) for each in (before, bill)]
        if before.repairs != bill.repairs or missed[0] != missed[1]:
            told = {"repairs": bill.repairs, "absences": trial.bill["absences"], "seconds": bill.seconds_training}
            events.tell(trial, EventKind.REPAIR, trial_id=trial.id, **told)

    def _add_probe(self, record: ProbeDone) -> None:
        fields = record.model_dump(exclude={"kind"})
        key = {name: fields[name] for name in ("trial_id", "stage", "probe_id")}
        row = self.session.scalars(select(ProbeRow).filter_by(**key)).first()
        if row is None:
            self.session.add(ProbeRow(**fields))
            self.session.flush()  # ids are given in order of arrival
            return
        for name, value in fields.items():
            setattr(row, name, value)

    def _decide_stage(self, trial: TrialRow, record: StageDecided) -> None:
        fields = record.model_dump(exclude={"kind", "decision"})
        decision = json.loads(record.decision.model_dump_json())  # NaN and infinity as words
        posterior = decision.pop("posterior")
        self.session.merge(StageRow(**fields, decision=decision, posterior=posterior, closed=False))
        trial.learning_rate, trial.level = record.learning_rate, record.level
        told = {"trial_id", "stage", "first_step", "learning_rate", "level", "reason"}
        events.tell(trial, EventKind.STAGE_DECIDED, **record.model_dump(include=told))

    def _close_stage(self, trial: TrialRow, record: StageClosed) -> None:
        stage = self._decided(trial, record.stage)
        stage.closed, stage.num_steps = True, record.num_steps
        stage.density, stage.threshold, stage.loss = record.density, record.threshold, record.loss
        if record.num_steps == 0:  # its commit was rolled back
            attempts.forget_beyond(self.session, trial, record.step)
            attempts.take_back_stages(self.session, trial, record.step)
            if trial.steady is not None and trial.steady["stage"] == record.stage:
                trial.steady = None
        self._keep(trial, stage, record)
        told = {"trial_id", "stage", "step", "num_steps", "loss"}
        events.tell(trial, EventKind.STAGE_CLOSED, **record.model_dump(include=told))

    def _keep(self, trial: TrialRow, stage: StageRow, record: StageClosed | Checkpointed) -> None:
        """Store the point from which a later attempt resumes."""
        before = attempts.last_resumable(self.session, trial.id)
        if record.step > (0 if before is None else before.resume_step or 0):  # before the row below loses its step
            self._get_further()
        if before is not None and before.stage < stage.stage:
            attempts.drop_resumes(self.session, trial.id, before=stage.stage)
        stage.resume, stage.resume_step = record.resume, record.step
        stage.bill = record.bill.model_dump(mode="json")
        trial.searching = None
        if isinstance(record, StageClosed) or record.step >= trial.step:  # else training went on meanwhile
            attempts.keep(trial, record.step, record.bill)

    def _note_search(self, trial: TrialRow, record: Searched) -> None:
        """Store the search, which a later attempt continues after its ended probes."""
        known = () if trial.searching is None else trial.searching["probes"]
        if len(record.probes) > len(known):
            self._get_further()
        trial.searching = record.model_dump(mode="json")

    def _finish_trial(self, trial: TrialRow, record: TrialFinished) -> None:
        if trial.outcome is None:
            self._get_further()
        trial.outcome = record.outcome
        if not record.stopped:  # it had ended by itself before it heard of a stop
            trial.stopped_by = None
        trial.validation_loss, trial.validation_metrics = record.validation_loss, dict(record.validation_metrics)
        trial.bill = record.bill.model_dump(mode="json")
        trial.step, trial.seconds = record.bill.steps, record.bill.seconds_training
        kept = {"line", "origin", *RunEnd.model_fields}
        entries = [entry.model_dump(mode="json") for entry in record.schedule]
        trial.schedule = record.model_dump(mode="json", include=kept) | {"entries": entries}
        trial.weights_url = record.weights_url
        told = {"trial_id", "outcome", "validation_loss"}
        events.tell(trial, EventKind.TRIAL_FINISHED, **record.model_dump(include=told))

    def _fail_trial(self, trial: TrialRow, record: TrialFailed) -> None:
        """End a sample whose failure would repeat. The other trials go on, and its last reported bill stays."""
        if trial.outcome is not None:
            return
        self._get_further()
        trial.outcome, trial.schedule = "failed", {"entries": [], "failure": record.reason}
        trial.validation_loss, trial.validation_metrics = None, {}
        events.tell(trial, EventKind.TRIAL_FINISHED, trial_id=trial.id, outcome=trial.outcome, validation_loss=None)

    def _get_further(self) -> None:
        """Note progress: earlier attempts no longer count for the back-off and the limit of attempts."""
        if self.job.attempts_before < self.number - 1:
            self.job.attempts_before = self.number - 1
            jobs.change(self.job)  # it shows no lost attempt any more

    def _decided(self, trial: TrialRow, number: int) -> StageRow:
        stage = self.session.get(StageRow, (trial.id, number))
        if stage is None:
            message = f"stage {number} of `{trial.id}` is kept before it is decided"
            raise InvalidJob([Problem(pointer="/records", message=message)])
        return stage

    def _finish_attempt(self, record: AttemptFinished) -> None:
        if record.outcome == "succeeded":
            attempts.succeed(self.session, self.job, now=self.now)
            return
        reason = record.reason or f"the driver reported `{record.outcome}` without a reason"
        most = self.max_attempts if record.retry else 0
        attempts.lose(self.session, self.job, reason=reason, now=self.now, max_attempts=most)


def places(content: Any, pointer: str, *, are_these: bool = False) -> Iterator[tuple[str, str]]:
    """Yield every place on storage that a `resume` names, with its JSON pointer."""
    if isinstance(content, dict):
        for name, each in content.items():
            yield from places(each, pointer + pointer_to([name]), are_these=are_these or name in _PLACES)
    elif isinstance(content, list | tuple):
        for index, each in enumerate(content):
            yield from places(each, f"{pointer}/{index}", are_these=are_these)
    elif are_these and content is not None:
        yield pointer, str(content)


def _foreign(pointer: str, trial_id: str) -> Problem:
    return Problem(pointer=pointer, message=f"`{trial_id}` is no trial of this job", value=trial_id)
