"""Small trials, and a sink that keeps what they report."""

from typing import Any

from search.types import Steer
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import AnyRecord, Control


def digits_trial(**fields: Any) -> TrialSpec:
    """Return the first trial of a job on digits with these fields; it exports what it ends with.

    Unless they say else, it has 900 steps of Schedule-Free SGD.
    """
    fields["checkpoint"] = {"export": "last"} | fields.get("checkpoint", {})
    job = {"workload": {"kind": "digits-mlp"}, "optimizer": {"kind": "schedulefree_sgd"}, "budget": {"steps": 900}}
    return next(JobSpec.model_validate(job | fields).trials())


class Memory:
    """Keeps the records, whichever thread they come from."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def report(self, *records: AnyRecord) -> None:
        self.records.extend(records)

    def flush(self, *records: AnyRecord) -> None:
        self.report(*records)

    def is_clear(self) -> bool:
        return True

    def asked(self) -> Control:
        return Control.RUN

    def steers(self) -> tuple[Steer, ...]:
        return ()

    def of(self, *kinds: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kinds)]
