"""Rows that a later release has written are read by this one, if it has the same schema."""

from typing import Any

import pytest
from sqlalchemy import insert, select

from service.control.models import EventRow, StageRow, TrialRow
from service.wire.events import EventKind
from service.wire.records import AttemptFinished, Checkpointed, OptionBill, Searched
from tests.support.reported import BILL, finished

PAID = BILL.model_copy(update={"by_option": {"topk": OptionBill(steps=3)}})
NEWS = {"of_a_later_release": {"new": 1}}


def newer_bill(bill: dict[str, Any]) -> dict[str, Any]:
    options = {name: each | NEWS for name, each in bill["by_option"].items()}
    return bill | NEWS | {"by_option": options}


@pytest.fixture
def rewrite(store):
    """Rewrite the rows of every trial as a later release would have written them."""

    def rewrite():
        with store._db.engine.begin() as connection:
            for row in connection.execute(select(TrialRow.__table__)).all():
                values = {"bill": newer_bill(row.bill)}
                if row.schedule is not None:
                    entries = [each | NEWS for each in row.schedule["entries"]]
                    values["schedule"] = row.schedule | NEWS | {"entries": entries}
                for name in ("searching", "steady"):
                    if (kept := getattr(row, name)) is not None:
                        values[name] = kept | NEWS | {"bill": newer_bill(kept["bill"])}
                connection.execute(TrialRow.__table__.update().where(TrialRow.id == row.id).values(values))
            for row in connection.execute(select(StageRow.__table__)).all():
                until = row.decision["commit_until"] | NEWS
                values = {"bill": newer_bill(row.bill), "decision": row.decision | NEWS | {"commit_until": until}}
                same = (StageRow.trial_id == row.trial_id) & (StageRow.stage == row.stage)
                connection.execute(StageRow.__table__.update().where(same).values(values))

    return rewrite


def test_a_result_of_a_later_release_is_shown_and_extended(store, driver, begin, rewrite):
    driver.decide(0, first_step=0)
    steady = Checkpointed(trial_id=driver.trial_id, stage=0, step=5, bill=PAID, resume={}, steady=True)
    driver.send(steady, stream=driver.trial_id)
    driver.close(0, num_steps=10, step=10, bill=PAID, resume={})
    driver.send(finished(driver.trial_id, bill=PAID), stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))
    rewrite()

    assert store.trials(driver.job_id)[0].bill == PAID
    assert store.report(driver.job_id).trials[0].validation_loss == 0.5
    assert store.snapshot(driver.job_id).stages
    assert store.comparison([driver.job_id]).jobs
    assert store.schedules(driver.job_id)[0].num_steps == 30
    store.extend(driver.job_id, store.job(driver.job_id).spec.budget.model_copy(update={"steps": 200}))
    begin(driver.job_id)
    assert store.stages(driver.job_id)[0].num_steps is None


@pytest.mark.parametrize("is_searching", [False, True])
def test_a_trial_of_a_later_release_is_resumed_and_billed_on(store, driver, begin, rewrite, is_searching):
    driver.decide(0, first_step=0)
    driver.close(0, num_steps=10, step=10, bill=PAID, resume={})
    if is_searching:
        search = Searched(trial_id=driver.trial_id, stage=1, step=10, probes=(), bill=PAID, resume={})
        driver.send(search, stream=driver.trial_id)
    rewrite()

    store.attempts.lose(driver.job_id, 1, reason="lost")
    again = begin(driver.job_id)
    again.start()
    rewrite()
    again.decide(1, first_step=10)
    again.close(1, num_steps=5, step=15, bill=PAID.model_copy(update={"repairs": 1}), resume={})

    assert store.trials(driver.job_id)[0].bill.repairs == 1


def test_events_of_a_kind_that_only_a_later_release_knows_are_left_out(store, spec):
    store.add_job(spec)
    before = store.newest_event()
    of_job = {"job_id": "job-1", "project": "default", "at": 0.0, "data": {}}
    with store._db.engine.begin() as connection:
        connection.execute(insert(EventRow), {**of_job, "kind": "of_a_later_release"})
    last, _ = store.add_job(spec)

    page = store.events(before)

    assert [(event.kind, event.job_id) for event in page.events] == [(EventKind.JOB, last.id)]
    assert (page.next_after, page.gap) == (store.newest_event(), False)
