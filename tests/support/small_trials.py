"""Small trials, and sinks that keep their reports."""

from pathlib import Path
from typing import Any

from service.cluster import trial
from service.cluster.reporter import Stopped
from service.cluster.sink import MemorySink
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import AnyRecord, Checkpointed, Control, TrialFinished
from trainers.training.process_group import ProcessGroup


def digits_trial(**fields: Any) -> TrialSpec:
    """Return the first trial of a job on digits with these fields; it exports what it ends with.

    Unless they say else, it has 900 steps of Schedule-Free SGD.
    """
    fields["checkpoint"] = {"export": "last"} | fields.get("checkpoint", {})
    job = {"workload": {"kind": "digits-mlp"}, "optimizer": {"kind": "schedulefree_sgd"}, "budget": {"steps": 900}}
    return next(JobSpec.model_validate(job | fields).trials())


class Memory(MemorySink):
    """Keeps the records, and tells of the end."""

    @property
    def finished(self) -> TrialFinished:
        """The only report of an end."""
        [found] = self.of(TrialFinished)
        assert isinstance(found, TrialFinished)
        return found

    @property
    def end(self) -> tuple[Any, ...]:
        """All of the end that clocks do not change: outcome, loss, schedule, and what it took."""
        found = self.finished
        bill = found.bill
        spent = (bill.bytes_sent, bill.bytes_search, bill.steps, bill.steps_search, bill.steps_insurance)
        return found.outcome, found.validation_loss, found.schedule, spent


class Stopping(Memory):
    """Ends the run at the first checkpoint after a committed step."""

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if any(isinstance(record, Checkpointed) and record.step for record in records):
            raise Stopped(Control.CANCEL, "told to cancel")


def train(
    spec: TrialSpec, folder: Path, sink: Memory, resume: dict[str, Any] | None = None, *, num_workers: int
) -> TrialFinished:
    """Train the trial in processes of its own, with its checkpoints in `folder`; it goes on from `resume`."""
    with ProcessGroup(spec.replica, num_workers) as group:
        trial.train(spec, group, sink, trial_id="t", storage_url=str(folder), resume=resume)
    return sink.finished
