"""Sweeps: samples are stored before training, a rung is announced once, and rankings follow from the rows."""

from typing import Any

import pytest
from sqlalchemy import event

from search.config import Budget
from search.sweep.propose import Seen, propose
from service.control.models import TrialRow
from service.control.store import Store
from service.errors import CheckpointGone
from service.job.spec import JobSpec
from service.job.states import JobState
from service.job.sweep import at
from service.wire.events import EventKind
from service.wire.records import (
    AttemptFinished,
    Bill,
    Control,
    MetricPoints,
    RungReached,
    SampleDrawn,
    TrialFailed,
    TrialStarted,
)
from service.wire.sweeps import SampleStatus
from tests.store.conftest import only
from tests.support.reported import finished

SGD = {"kind": "sgd"}
PARAMS = {"optimizer.momentum": {"uniform": [0.5, 0.95]}, "workload.batch_size": {"choice": [16, 32]}}


@pytest.fixture
def swept(store: Store, make_spec: Any) -> Any:
    """Store a job with a sweep, and return its id."""

    def add(**sweep: Any) -> str:
        spec: JobSpec = make_spec(optimizer=SGD, params=PARAMS, sweep={"samples": 6} | sweep)
        return store.add_job(spec)[0].id

    return add


def rung(trial_id: str, number: int, value: float | None, *, bytes_sent: int = 100) -> RungReached:
    return RungReached(trial_id=trial_id, rung=number, step=10, seconds=1.0, bytes_sent=bytes_sent, value=value)


def start(driver: Any, trial_id: str) -> None:
    record = TrialStarted(trial_id=trial_id, arm="a", seed=0, backend="gloo", device="cpu", metrics={"accuracy": "max"})
    driver.send(record, stream=trial_id)


def ids(store: Store, job_id: str) -> list[str]:
    return [trial.trial_id for trial in store.trials(job_id)]


def test_samples_are_drawn_and_stored_with_the_job(store: Store, swept: Any) -> None:
    job_id = swept()

    arm, *samples = store.trials(job_id)

    assert arm.sample is None
    assert [each.arm for each in samples] == [f"sample-{number}" for number in range(6)]
    assert all(each.sample.values.keys() == PARAMS.keys() and each.sample.drawn_by == "sobol" for each in samples)
    again = [each.sample for each in store.trials(swept()) if each.sample]
    assert again == [each.sample for each in samples]


def test_a_sample_that_is_behind_at_a_rung_is_told_to_stop_and_an_arm_is_not(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept())
    arm, first, second, third, *_ = ids(store, job_id)
    for each in (arm, first, second, third):
        start(driver, each)

    answers = [
        driver.send(rung(trial, 0, value), stream=trial).control
        for trial, value in ((first, 0.5), (arm, 0.9), (second, 0.7), (third, 0.4))
    ]

    assert answers == [Control.RUN, Control.RUN, Control.STOP, Control.RUN]
    assert driver.send(stream=second).control is Control.STOP
    brief = store.attempts.brief(job_id, 1)
    assert {point.trial_id for point in brief.trials if point.pruned} == {second}


def test_a_batch_of_a_sample_reads_no_other_trials_row(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept())
    _, first, second, *_ = ids(store, job_id)
    for each, value in ((first, 0.5), (second, 0.7)):
        start(driver, each)
        driver.send(rung(each, 0, value), stream=each)
    read: list[str] = []

    def note(row: TrialRow, _: Any) -> None:
        read.append(row.id)

    event.listen(TrialRow, "load", note)
    try:
        answer = driver.send(stream=second)
    finally:
        event.remove(TrialRow, "load", note)

    assert answer.control is Control.STOP and set(read) == {second}


def test_a_driver_is_not_given_what_a_finished_trial_went_on_from(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept())
    _, first, second, *_ = ids(store, job_id)
    for each in (first, second):
        driver.trial_id = each
        start(driver, each)
        driver.decide(0, first_step=0)
        driver.close(0, step=5, num_steps=5, bill=Bill(), resume={"progress": {"num_rungs": 0}})
    driver.send(finished(first), stream=first)

    resumes = {point.trial_id: point.resume for point in store.attempts.brief(job_id, 1).trials}

    assert resumes[first] is None and resumes[second] is not None


def test_a_rung_that_is_told_again_after_a_crash_changes_nothing(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept())
    _, first, second, third, *_ = ids(store, job_id)
    for each in (first, second, third):
        start(driver, each)
    driver.send(rung(first, 0, 0.5), stream=first)
    driver.send(rung(second, 0, 0.7), stream=second)
    driver.send(rung(third, 0, 0.4), stream=third)
    before = store.report(job_id).sweep

    store.attempts.lose(job_id, 1, reason="lost")
    again = begin(job_id)
    start(again, first)
    answer = again.send(rung(first, 0, 0.9), stream=first)  # others that came later are no reason to end it now

    assert answer.control is Control.RUN
    after = store.report(job_id).sweep
    assert before is not None and after is not None
    assert [(each.arm, each.value) for each in after.ranking] == [(each.arm, each.value) for each in before.ranking]


def test_a_sample_that_a_crash_puts_back_before_its_last_rung_trains_up_to_it_again(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept())
    _, first, second, *_ = ids(store, job_id)
    for trial, value in ((first, 0.5), (second, 0.7)):
        start(driver, trial)
        driver.send(rung(trial, 0, value), stream=trial)

    store.attempts.lose(job_id, 1, reason="lost")  # `second` was told to end, and has not kept a checkpoint
    again = begin(job_id)
    start(again, second)

    assert not any(point.pruned for point in store.attempts.brief(job_id, 2).trials)
    assert again.send(stream=second).control is Control.RUN
    assert again.send(rung(second, 0, 0.7), stream=second).control is Control.STOP
    assert [point.trial_id for point in store.attempts.brief(job_id, 2).trials if point.pruned] == [second]


def test_a_sample_that_rolled_back_behind_its_last_rung_ends_there_after_a_crash(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept())
    _, first, second, *_ = ids(store, job_id)
    driver.trial_id = second
    for trial in (first, second):
        start(driver, trial)
    driver.send(rung(first, 0, 0.5), stream=first)
    driver.decide(0, first_step=0)
    driver.send(rung(second, 0, 0.7), stream=second)
    driver.close(0, step=0, num_steps=0, bill=Bill(), resume={"progress": {"num_rungs": 1}})

    store.attempts.lose(job_id, 1, reason="lost")
    begin(job_id)

    assert [point.trial_id for point in store.attempts.brief(job_id, 2).trials if point.pruned] == [second]


def test_the_report_ranks_what_got_further_first_and_names_front_rungs_and_what_was_saved(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(cost="bytes"))
    arm, first, second, third, *_ = ids(store, job_id)
    for each in (arm, first, second, third):
        start(driver, each)
    for trial, value, sent in ((arm, 0.9, 500), (first, 0.5, 400), (second, 0.6, 450), (third, 0.4, 900)):
        driver.send(rung(trial, 0, value, bytes_sent=sent), stream=trial)
    for trial, loss, sent in ((arm, 0.30, 5000), (first, 0.20, 4000), (second, 0.6, 450), (third, 0.10, 9000)):
        ended = finished(trial, validation_loss=loss, bill=Bill(bytes_sent=sent))
        driver.send(ended, stream=trial)

    found = store.report(job_id).sweep

    assert found is not None
    assert [(each.arm, each.status, each.on_front) for each in found.ranking[:4]] == [
        ("sample-2", SampleStatus.COMPLETED, True),
        ("sample-0", SampleStatus.COMPLETED, True),
        ("tuned", SampleStatus.COMPLETED, False),
        ("sample-1", SampleStatus.PRUNED, False),
    ]
    assert (found.ranking[3].value, found.ranking[3].share) == (0.6, pytest.approx(1 / 9))
    assert {each.status for each in found.ranking[4:]} == {SampleStatus.WAITING}
    assert [(each.num_reached, each.num_kept) for each in found.rungs] == [(4, 3), (0, 0)]
    assert found.saved_share == pytest.approx((8 / 9) / 7)


def test_a_sample_that_was_stopped_on_the_way_is_ranked_by_the_last_rung_that_it_reached(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(cost="bytes"))
    _, whole, stopped, *_ = ids(store, job_id)
    for trial in (whole, stopped):
        start(driver, trial)
        driver.send(rung(trial, 0, 0.5, bytes_sent=100), stream=trial)
    driver.send(finished(whole, validation_loss=0.4, bill=Bill(bytes_sent=5000)), stream=whole)
    driver.send(finished(stopped, validation_loss=0.3, bill=Bill(bytes_sent=200), stopped=True), stream=stopped)

    found = store.report(job_id).sweep

    assert found is not None
    assert [(each.arm, each.value, each.cost, each.on_front) for each in found.ranking[:2]] == [
        ("sample-0", 0.4, 5000.0, True),
        ("sample-1", 0.5, 100.0, False),
    ]


def test_samples_on_their_way_are_ranked_by_their_last_evaluation_behind_those_that_ended(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(scheduler="none"))
    arm, first, second, *_ = ids(store, job_id)
    for trial, loss in ((arm, 0.5), (first, 0.4), (second, 0.2)):
        start(driver, trial)
        reached = MetricPoints(trial_id=trial, name="validation_loss", steps=(9,), seconds=(1.0,), values=(loss,))
        driver.send(reached, stream=trial)
    driver.send(finished(arm, validation_loss=0.45), stream=arm)

    found = store.report(job_id).sweep

    assert found is not None
    assert [(each.trial_id, each.share, each.value) for each in found.ranking[:3]] == [
        (arm, 1.0, 0.45), (second, 0.0, 0.2), (first, 0.0, 0.4),
    ]  # fmt: skip


def test_a_job_whose_samples_no_trial_can_have_is_read_nevertheless(store: Store, make_spec: Any) -> None:
    spec = make_spec(params={"accumulate": {"uniform": [1, 8]}}, sweep={"samples": 2})  # as earlier releases took it
    job_id = store.add_job(spec)[0].id

    assert [each.arm for each in store.report(job_id).trials] == ["tuned", "sample-0", "sample-1"]
    assert len(store.schedules(job_id)) == 3


def test_a_schedule_that_is_shared_holds_no_webhook(store: Store, make_spec: Any) -> None:
    url = "https://hooks.example/T/B/SECRET"
    job_id = store.add_job(make_spec(webhook={"url": url}))[0].id

    [schedule] = store.schedules(job_id)

    assert schedule.provenance is not None and schedule.provenance.job["workload"]
    assert "SECRET" not in schedule.model_dump_json()


def test_the_schedule_of_a_sample_says_what_it_set(store: Store, swept: Any) -> None:
    job_id = swept()

    arm, first, *_ = store.schedules(job_id)

    assert arm.provenance.sample is None
    assert first.provenance.sample == store.trials(job_id)[1].sample.values


def test_a_schedule_is_read_without_a_look_at_what_other_samples_set(
    store: Store, swept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = swept()
    looked_at: list[Any] = []

    def note(job: Any, values: Any) -> Any:
        looked_at.extend([values] if values else [])
        return at(job, values)

    monkeypatch.setattr("service.job.spec.at", note)
    (found,) = store.schedules(job_id, arm="sample-1")

    assert looked_at == [found.provenance.sample] and found.optimizer == "sgd"


def test_a_metric_that_is_better_high_ranks_so(store: Store, make_spec: Any, begin: Any) -> None:
    spec = make_spec(optimizer=SGD, params=PARAMS, sweep={"samples": 2}, objective={"metric": "accuracy"})
    job_id = store.add_job(spec)[0].id
    driver = begin(job_id)
    _, first, second = ids(store, job_id)
    for trial, value in ((first, 0.7), (second, 0.9)):
        start(driver, trial)
        driver.send(rung(trial, 0, value), stream=trial)

    found = store.report(job_id).sweep

    assert found is not None and found.direction == "max"
    assert [(each.arm, each.value) for each in found.ranking[:2]] == [("sample-1", 0.9), ("sample-0", 0.7)]


def test_a_learned_sample_is_stored_once_and_the_next_learns_from_what_is_stored(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(sampler="bo"))
    drawn, late = ids(store, job_id)[1], ids(store, job_id)[-1]
    assert store.trials(job_id)[-1].sample.values is None
    start(driver, drawn)
    driver.send(rung(drawn, 0, 0.5), stream=drawn)
    values: dict[str, Any] = {"optimizer.momentum": 0.6, "workload.batch_size": 16}

    driver.send(SampleDrawn(trial_id=late, values=values, drawn_by="qLogNEI"), stream=late)
    driver.send(SampleDrawn(trial_id=late, values=values | {"optimizer.momentum": 0.9}, drawn_by="sobol"), stream=late)

    brief = store.attempts.brief(job_id, 1)
    assert [(each.share, each.value) for each in brief.seen] == [(pytest.approx(1 / 9), 0.5)]
    assert brief.trials[-1].sample.values == values
    store.attempts.lose(job_id, 1, reason="lost")
    begin(job_id)
    assert store.attempts.brief(job_id, 2).trials[-1].sample.values == values
    told = store.events(job_id=job_id, after=0, limit=500).events
    [sample] = [event.data for event in told if event.kind == EventKind.SAMPLE]
    assert sample == {"trial_id": late, "values": values, "drawn_by": "qLogNEI"}
    assert EventKind.RUNG in [event.kind for event in told]


def test_later_samples_hear_of_those_that_diverged_or_measured_nothing_finite(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(sampler="bo", cost="bytes"))
    arm, first, second, *_ = ids(store, job_id)
    for each in (arm, first, second):
        start(driver, each)
    driver.send(rung(first, 0, 0.5), stream=first)
    driver.send(rung(second, 0, None), stream=second)
    for each in (arm, first):
        driver.send(finished(each, outcome="diverged", validation_loss=None), stream=each)

    seen = store.attempts.brief(job_id, 1).seen

    known = {trial.trial_id: trial.sample.values for trial in store.trials(job_id) if trial.sample}
    assert [(each.values, each.value, each.cost) for each in seen] == [
        (known[first], 0.5, 100.0), (known[second], None, 100.0), (known[first], None, None),
    ]  # fmt: skip
    assert [each.share for each in seen] == pytest.approx([1 / 9, 1 / 9, 1.0])


def test_a_sample_that_fails_ends_alone_and_ranks_last_with_its_reason(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept(sampler="bo"))
    arm, first, second, *_ = ids(store, job_id)
    for each in (arm, first, second):
        start(driver, each)
    driver.send(rung(first, 0, 0.5), stream=first)
    driver.send(TrialFailed(trial_id=first, reason="out of memory"), stream=first)

    assert store.job(job_id).state is JobState.RUNNING
    failed = store.trials(job_id)[1]
    assert (failed.outcome, failed.failure, failed.validation_loss) == ("failed", "out of memory", None)
    brief = store.attempts.brief(job_id, 1)
    assert [point.trial_id for point in brief.trials if point.finished] == [first]
    assert [(each.values, each.value) for each in brief.seen] == [
        (failed.sample.values, 0.5), (failed.sample.values, None),
    ]  # fmt: skip
    for each in (arm, second):
        driver.send(finished(each), stream=each)
    driver.send(AttemptFinished(outcome="succeeded"))
    report = store.report(job_id)
    assert report.sweep.ranking[-1].arm == "sample-0" and report.sweep.ranking[-1].status is SampleStatus.FAILED
    assert report.trials[1].notes == ("failed: out of memory",) and report.state is JobState.SUCCEEDED


def test_a_job_whose_every_sample_failed_has_failed_and_a_retry_trains_them_again(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(samples=2))
    arm, *samples = ids(store, job_id)
    start(driver, arm)
    driver.send(finished(arm), stream=arm)
    for each in samples:
        driver.send(TrialFailed(trial_id=each, reason="no such width"), stream=each)
    driver.send(AttemptFinished(outcome="succeeded"))

    job = store.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "every sample failed; `sample-0`: no such width")
    assert store.retry(job_id).state is JobState.QUEUED
    assert [(each.outcome, each.failure) for each in store.trials(job_id)] == [("completed", None), *[(None, None)] * 2]


def test_a_retry_of_a_stopped_sweep_goes_on_with_what_the_stop_ended_and_with_no_pruned_sample(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(samples=3))
    _, first, second, third = ids(store, job_id)
    for each in (first, second, third):
        start(driver, each)
    for each, value in ((first, 0.1), (second, 0.9)):
        driver.send(rung(each, 0, value), stream=each)
    store.stop(job_id)
    for each in (first, second):
        driver.send(finished(each, stopped=True), stream=each)
    store.attempts.lose(job_id, 1, reason="lost")
    begin(job_id)
    assert store.attempts.lose(job_id, 2, reason="lost").state is JobState.FAILED

    store.retry(job_id)

    assert [each.outcome for each in store.trials(job_id)] == [None, None, "completed", None]


def test_a_pruned_and_a_failed_sample_without_checkpoints_do_not_keep_the_others_from_more_budget(
    store: Store, swept: Any, begin: Any
) -> None:
    driver = begin(job_id := swept(samples=3))
    arm, first, second, third = ids(store, job_id)
    folder = store.storage.attempt_url(job_id, 1)
    for number, (each, value) in enumerate([(arm, 0.3), (first, 0.1), (second, 0.2), (third, 0.4)]):
        driver.trial_id = each
        start(driver, each)
        driver.decide(0, first_step=0)
        resume = {"checkpoint": f"{folder}/{number}", "progress": {"num_rungs": 1}}
        driver.close(0, step=20, num_steps=20, bill=Bill(), resume=resume)
        driver.send(rung(each, 0, value), stream=each)
    for each in (arm, first, second):  # the last one is pruned
        driver.send(finished(each), stream=each)
    store.storage.write(f"{folder}/0/manifest.json", b"{}")
    driver.send(TrialFailed(trial_id=third, reason="out of memory"), stream=third)
    driver.send(AttemptFinished(outcome="succeeded"))
    assert [each.trial_id for each in store.report(job_id).sweep.ranking if each.status is SampleStatus.PRUNED] == [
        second
    ]

    with pytest.raises(CheckpointGone, match=f"{folder}/1 is not in"):
        store.extend(job_id, Budget(steps=300))
    store.storage.write(f"{folder}/1/manifest.json", b"{}")
    assert store.extend(job_id, Budget(steps=300)).state is JobState.QUEUED


def test_a_trial_trains_only_while_its_job_does(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept(samples=2))
    _, begun, _ = ids(store, job_id)
    start(driver, begun)

    def status() -> SampleStatus:
        sweep = store.report(job_id).sweep
        assert sweep is not None
        return next(each.status for each in sweep.ranking if each.trial_id == begun)

    assert status() is SampleStatus.TRAINING
    store.attempts.lose(job_id, 1, reason="lost")
    assert status() is SampleStatus.WAITING
    store.pause(job_id)
    assert status() is SampleStatus.PAUSED
    store.cancel(job_id)
    assert status() is SampleStatus.NOT_FINISHED


def test_of_samples_that_draw_the_same_at_once_the_first_has_it(store: Store, swept: Any, begin: Any) -> None:
    driver = begin(job_id := swept(sampler="bo"))
    *_, first, second = ids(store, job_id)
    values = {"optimizer.momentum": 0.6, "workload.batch_size": 16}

    def told(trial_id: str, *, only_if_new: bool) -> list[Any]:
        drawn = SampleDrawn(trial_id=trial_id, values=values, drawn_by="qLogNEI", only_if_new=only_if_new)
        driver.send(drawn, stream=trial_id)
        return [each.sample.values for each in store.attempts.brief(job_id, 1).trials[-2:]]

    assert told(first, only_if_new=True) == [values, None]
    assert told(second, only_if_new=True) == [values, None]
    assert told(second, only_if_new=False) == [values, values]  # there are no others, or an earlier release says so


class Died(Exception):
    """The driver was killed here."""


class Trainer:
    """Goes through a sweep as a driver does, one trial after another; its `die_at`-th report is its last."""

    def __init__(self, store: Store, begin: Any, job_id: str, *, die_at: int | None = None) -> None:
        self._driver, self._store, self._left = begin(job_id), store, die_at
        self.job_id = job_id

    def run(self) -> None:
        while True:
            brief = self._store.attempts.brief(self.job_id, self._driver.number)
            todo = [point for point in brief.trials if not point.finished]
            if not todo:
                return
            self._train(brief, todo[0])

    def _train(self, brief: Any, point: Any) -> None:
        values = point.sample.values if point.sample else {"optimizer.momentum": 0.9, "workload.batch_size": 32}
        if values is None:
            seen = [Seen(each.values, each.share, each.value, each.cost) for each in brief.seen]
            found = propose(brief.spec.params, brief.spec.sweep_config, point.sample.number, seen=seen)
            values = found.values
            self._send(SampleDrawn(trial_id=point.trial_id, values=values, drawn_by=found.drawn_by))
        start(self._driver, point.trial_id)
        is_over = point.pruned
        for number, share in enumerate(brief.spec.sweep_config.rungs()):
            if not is_over:
                loss, sent = _measured(values, share)
                is_over = self._send(rung(point.trial_id, number, loss, bytes_sent=sent)) is Control.STOP
        loss, sent = _measured(values, 1.0)
        self._send(finished(point.trial_id, validation_loss=loss, bill=Bill(bytes_sent=sent)))

    def _send(self, record: Any) -> Control:
        answer: Control = self._driver.send(record, stream=record.trial_id).control
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Died
        return answer


def _measured(values: Any, share: float) -> tuple[float, int]:
    """Return a loss that falls with the budget, and bytes, both by the values alone."""
    distance = abs(values["optimizer.momentum"] - 0.83) + 0.1 * (values["workload.batch_size"] == 16)
    return 0.1 + distance + 0.5 * (1 - share), int(1e6 * share * (2 - values["optimizer.momentum"]))


@pytest.mark.long
@only("sqlite")
@pytest.mark.parametrize("kills", [(4, 9), (20, 11)])
def test_a_search_of_sixteen_samples_whose_driver_dies_twice_ends_with_the_ranking_of_an_undisturbed_one(
    store: Store, swept: Any, begin: Any, kills: tuple[int, int]
) -> None:
    sweep = {"samples": 16, "sampler": "bo", "cost": "bytes", "at_once": 1}
    alone, killed = swept(**sweep), swept(**sweep)
    Trainer(store, begin, alone).run()

    for number, die_at in enumerate(kills, start=1):
        with pytest.raises(Died):
            Trainer(store, begin, killed, die_at=die_at).run()
        store.attempts.lose(killed, number, reason="killed")
    Trainer(store, begin, killed).run()

    one, other = ([_shown(each) for each in store.report(job_id).sweep.ranking] for job_id in (alone, killed))
    assert one == other
    assert {"sobol", "qLogNEHVI"} <= {each.sample.drawn_by for each in store.trials(killed) if each.sample}


def _shown(ranked: Any) -> Any:
    return ranked.model_dump(exclude={"trial_id"})
