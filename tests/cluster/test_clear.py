"""A run that reports all the time still checkpoints: only a checkpoint that is not stored yet holds up the next."""

import threading
from collections.abc import Iterator

import pytest

from service.cluster.reporter import Door, Reporter
from service.control.processes import wait_until
from service.wire.records import Acknowledgement, Batch, Bill, Checkpointed, Control, MetricPoints
from tests.support.patience import PATIENCE_S

STREAM = "job.tuned.0"
POINT = MetricPoints(trial_id=STREAM, name="loss", steps=(0,), seconds=(0.1,), values=(0.5,))
CHECKPOINT = Checkpointed(trial_id=STREAM, stage=0, step=10, bill=Bill(), resume={})


class SlowDoor(Door):
    """Takes a batch when `opened` is set, and notes that one has come."""

    def __init__(self) -> None:
        super().__init__(api_url="http://127.0.0.1:1", job_id="job", attempt=1, token="t")
        self.came, self.opened, self.num_taken = threading.Event(), threading.Event(), 0

    def post(self, batch: Batch) -> Acknowledgement:
        self.came.set()
        assert self.opened.wait(PATIENCE_S)
        self.num_taken += len(batch.records)
        return Acknowledgement(sequence=batch.sequence, control=Control.RUN)


@pytest.fixture
def door() -> Iterator[SlowDoor]:
    door = SlowDoor()
    yield door
    door.close()


@pytest.fixture
def reporter(door: SlowDoor) -> Iterator[Reporter]:
    reporter = Reporter(door, STREAM, max_silence_s=60)
    yield reporter
    door.opened.set()
    reporter.close()


def test_points_that_wait_do_not_hold_up_a_checkpoint(door: SlowDoor, reporter: Reporter) -> None:
    reporter.report(POINT)
    assert door.came.wait(PATIENCE_S)

    assert reporter.is_clear() and door.num_taken == 0


def test_a_checkpoint_holds_up_the_next_until_it_is_stored_whatever_follows_it(
    door: SlowDoor, reporter: Reporter
) -> None:
    reporter.report(POINT, CHECKPOINT)
    assert door.came.wait(PATIENCE_S)
    assert not reporter.is_clear()

    reporter.report(POINT)
    door.opened.set()

    assert wait_until(reporter.is_clear, timeout_s=PATIENCE_S)
    assert door.num_taken >= 2
