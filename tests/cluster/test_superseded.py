"""A search is reported whole each time: of what waits to be sent the newest is enough."""

import threading
from typing import Any

from service.cluster.reporter import Reporter
from service.wire.records import Acknowledgement, Batch, Bill, Billed, Control, Searched
from tests.support.patience import PATIENCE_S

TRIAL = "job.tuned.0"


class SlowDoor:
    """Tells when the first batch has come, and answers it when it is let go."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.has_come, self.may_go = threading.Event(), threading.Event()

    def post(self, batch: Batch) -> Acknowledgement:
        self.has_come.set()
        assert self.may_go.wait(PATIENCE_S)
        self.batches.append(batch)
        return Acknowledgement(sequence=batch.sequence, control=Control.RUN)


def _searched(num_probes: int) -> Searched:
    probes = tuple(f"0-{number}" for number in range(num_probes))
    return Searched(trial_id=TRIAL, stage=0, step=0, probes=probes, bill=Bill(), resume={})


def test_of_the_searches_that_wait_the_newest_is_sent_and_nothing_else_is_lost() -> None:
    door: Any = SlowDoor()
    reporter = Reporter(door, TRIAL, max_silence_s=60)
    reporter.report(_searched(1))
    assert door.has_come.wait(PATIENCE_S)

    for number in (2, 3, 4):
        reporter.report(Billed(trial_id=TRIAL, bill=Bill(steps=number)), _searched(number))
    door.may_go.set()
    reporter.flush()
    reporter.close()

    records = [record for batch in door.batches for record in batch.records]
    assert [len(record.probes) for record in records if isinstance(record, Searched)] == [1, 4]
    assert [record.bill.steps for record in records if isinstance(record, Billed)] == [2, 3, 4]
