"""Steers reach their trials until they are withdrawn, whatever crashes, and each counts once."""

import pytest

from search.config import Budget
from search.types import Allowance, Band, Steer, Tax
from service.control import steers
from service.control.access.rules import LOCAL, Principal
from service.errors import InvalidJob
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.records import AttemptFinished, Bill, Checkpointed, TrialFinished
from service.wire.steering import SteerRequest
from tests.store.conftest import only
from tests.support.decisions import decision

ADA = Principal(name="ada", role=Role.OPERATOR, project="default", key_id="key-1")
PIN = SteerRequest(pin={"learning_rate": 0.05})


def heed(driver, stage, *steers):
    """Decide and close a stage in which these held."""
    driver.decide(stage, first_step=10 * stage, decision=decision(stage).model_copy(update={"steers": steers}))
    driver.close(stage, step=10 * stage + 10, num_steps=10, bill=Bill(), resume={})


def test_every_answer_to_the_trial_says_what_holds_until_it_is_withdrawn(store, driver):
    assert driver.send(stream=driver.trial_id).steers == ()
    store.steer(driver.job_id, PIN, by=ADA)
    said = (Steer(id=1, by="ada", pin={"learning_rate": 0.05}),)

    assert [driver.send(stream=driver.trial_id).steers for _ in range(2)] == [said, said]
    assert driver.send().steers == ()  # the driver's own stream has no controller
    store.steer(driver.job_id, SteerRequest(clear=True), by=ADA)
    assert driver.send(stream=driver.trial_id).steers == ()
    [view] = store.steering(driver.job_id).steers
    assert (view.in_force, view.by, view.withdrawn_by) == (False, "ada", "ada")


def test_it_outlives_its_driver_until_a_decision_names_it(store, driver, begin):
    store.steer(driver.job_id, PIN, by=ADA)
    store.attempts.lose(driver.job_id, 1, reason="lost")
    again = begin(driver.job_id)

    [point] = store.attempts.brief(driver.job_id, 2).trials
    [said] = point.steers
    assert said.pin == PIN.pin
    again.start()
    heed(again, 0)
    assert store.steering(driver.job_id).steers[0].first_stages == {}
    heed(again, 1, said)
    heed(again, 2, said)
    assert store.steering(driver.job_id).steers[0].first_stages == {again.trial_id: 1}


def test_an_attempt_that_goes_on_from_before_it_was_heeded_hears_it_again(store, driver, begin):
    heed(driver, 0)
    store.steer(driver.job_id, SteerRequest(search_now=True), by=ADA)
    [said] = driver.send(stream=driver.trial_id).steers
    driver.decide(1, first_step=10, decision=decision(1).model_copy(update={"steers": (said,)}))
    assert not store.steering(driver.job_id).steers[0].in_force  # done
    store.attempts.lose(driver.job_id, 1, reason="lost")  # before a checkpoint of stage 1
    begin(driver.job_id)

    assert store.attempts.brief(driver.job_id, 2).trials[0].steers == (said,)
    assert store.steering(driver.job_id).steers[0].in_force


def test_what_is_said_twice_while_it_holds_counts_once(store, driver):
    first = store.steer(driver.job_id, PIN, by=ADA)
    assert store.steer(driver.job_id, PIN, by=ADA) == first
    assert len(store.steering(driver.job_id).steers) == 1

    replaced = PIN.model_copy(update={"clear": True})
    assert store.steer(driver.job_id, replaced, by=ADA).version == first.version + 1
    assert [each.in_force for each in store.steering(driver.job_id).steers] == [False, True]


@pytest.mark.parametrize("beside", [{}, {"veto": {"learning_rate": Band(above=0.5)}}])
def test_a_search_that_was_made_does_not_stand_for_the_next(store, driver, beside):
    asked = SteerRequest(search_now=True, **beside)
    store.steer(driver.job_id, asked, by=ADA)
    heed(driver, 0, *driver.send(stream=driver.trial_id).steers)

    for _ in range(2):  # the third says the same as the second, which nobody has heard yet
        store.steer(driver.job_id, asked, by=ADA)

    assert [each.id for each in driver.send(stream=driver.trial_id).steers] == [1, 2]
    assert [each.in_force for each in store.steering(driver.job_id).steers] == [bool(beside), True]


@pytest.mark.parametrize("beside", [{}, {"veto": {"learning_rate": Band(above=0.5)}}])
def test_a_search_that_waits_holds_until_it_is_made(store, driver, beside):
    asked = SteerRequest(search_now=True, **beside)
    store.steer(driver.job_id, asked, by=ADA)
    [said] = driver.send(stream=driver.trial_id).steers
    waits = said.model_copy(update={"search_now": False})
    heed(driver, 0, *([waits] if beside else []))

    store.steer(driver.job_id, asked, by=ADA)

    [view] = store.steering(driver.job_id).steers
    assert (view.in_force, view.first_stages) == (True, {driver.trial_id: 0} if beside else {})
    heed(driver, 1, said)
    store.steer(driver.job_id, asked, by=ADA)
    assert [each.in_force for each in store.steering(driver.job_id).steers] == [bool(beside), True]


def test_a_pinned_rate_that_failed_neither_forbids_a_search_nor_stands_for_the_same_pin(store, driver):
    store.steer(driver.job_id, PIN, by=ADA)
    heed(driver, 0, *driver.send(stream=driver.trial_id).steers)
    assert store.steering(driver.job_id).steers[0].in_force
    heed(driver, 1)  # the rate failed

    store.steer(driver.job_id, SteerRequest(search_now=True), by=ADA)
    store.steer(driver.job_id, SteerRequest(clear=(2,), **PIN.model_dump(include={"pin"})), by=ADA)

    assert [each.in_force for each in store.steering(driver.job_id).steers] == [False, False, True]


@only("sqlite")
def test_searches_that_were_made_leave_room_for_other_steers(store, driver, monkeypatch):
    monkeypatch.setattr(steers, "MAX_IN_FORCE", 1)
    store.steer(driver.job_id, SteerRequest(search_now=True), by=ADA)
    with pytest.raises(InvalidJob, match="1 steers hold"):
        store.steer(driver.job_id, PIN, by=ADA)
    heed(driver, 0, *driver.send(stream=driver.trial_id).steers)

    store.steer(driver.job_id, PIN, by=ADA)

    assert [each.in_force for each in store.steering(driver.job_id).steers] == [False, True]


@only("sqlite")
def test_a_steer_is_an_event_and_in_the_audit_log(store, driver):
    before = store.newest_event()
    store.steer(driver.job_id, PIN, by=ADA)
    store.steer(driver.job_id, SteerRequest(clear=(1,)), by=ADA)

    told = [event.data for event in store.events(before).events if event.kind is EventKind.STEERED]
    assert told == [{"steer": 1, "withdrawn": [], "by": "ada"}, {"steer": None, "withdrawn": [1], "by": "ada"}]
    assert [entry.action for entry in store.keyring.audit(limit=2, cursor=None).entries] == ["steerJob"] * 2


@only("sqlite")
@pytest.mark.parametrize(
    ("said", "pointer", "fault"),
    [
        ({"pin": {"learning_rate": 2e3}}, "/pin/learning_rate", r"a number in \[1e-08, 1000\], got 2000.0"),
        ({"pin": {"learning_rate": True}}, "/pin/learning_rate", "must be a number in"),
        ({"pin": {"density": 0.5}}, "/pin/density", r"in \[0.003, 0.1\], got 0.5"),
        ({"pin": {"momentum": 0.5}}, "/pin/momentum", "not searched by this job; it may be one of `learning_rate`, "),
        ({"veto": {"density": {"below": 0.2}}}, "/veto/density", r"nothing of \[0.003, 0.1\] is left"),
        ({"veto": {"learning_rate": ["0.1"]}}, "/veto/learning_rate", "veto those `above` or `below`"),
        ({"pin": {"density": 0.05}, "veto": {"density": {"above": 0.01}}}, "/veto/density", "0.05, pinned by this req"),
        ({"veto": {"learning_rate": {"below": 0.02}}}, "/veto/learning_rate", r"0.01, pinned by ada \(steer 1\)"),
        ({"search_now": True}, "/search_now", r"pinned \(ada \(steer 1\)\) nothing is searched"),
        ({"pin": {"learning_rate": 1.0}, "trials": ["other"]}, "/trials/0", "is no trial of this job"),
        ({"clear": [7]}, "/clear/0", "no steer 7 holds; those that do: 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field_value_and_range(store, make_spec, said, pointer, fault):
    exchange = {"kind": "threshold", "density": [0.003, 0.1]}
    job_id = store.add_job(make_spec(exchange=exchange, budget={"seconds": 60}))[0].id
    store.steer(job_id, SteerRequest(pin={"learning_rate": 0.01}), by=ADA)

    with pytest.raises(InvalidJob, match=fault) as refusal:
        store.steer(job_id, SteerRequest.model_validate(said), by=ADA)

    assert [problem.pointer for problem in refusal.value.problems] == [pointer]
    assert len(store.steering(job_id).steers) == 1


@only("sqlite")
def test_options_and_choices_are_steered_by_name(store, make_spec):
    optimizer = {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9, "nesterov": [False, True]}
    job_id = store.add_job(make_spec(optimizer=optimizer, exchange={"kind": "auto"}))[0].id

    store.steer(job_id, SteerRequest(pin={"nesterov": True}, veto={"option": ("none",)}), by=ADA)
    for said, fault in (
        ({"pin": {"option": "none"}}, r"none, pinned by this request, is vetoed by ada \(steer 1\)"),
        ({"pin": {"option": "morse"}}, "`option` must be one of none, "),
        ({"veto": {"nesterov": [True]}}, r"true, pinned by ada \(steer 1\), is vetoed by this request"),
        ({"veto": {"option": {"above": 1}}}, "is no number: list what is vetoed of none, "),
    ):
        with pytest.raises(InvalidJob, match=fault):
            store.steer(job_id, SteerRequest.model_validate(said), by=ADA)


@only("sqlite")
def test_vetoes_leave_a_whole_number_where_only_those_are_used(store, make_spec):
    sync = {"kind": "local_sgd", "period": [8, 64]}
    job_id = store.add_job(make_spec(sync=sync, budget={"seconds": 60}))[0].id
    store.steer(job_id, SteerRequest(veto={"period": Band(below=32.1)}), by=ADA)

    with pytest.raises(InvalidJob, match=r"nothing of \[8, 64\] is left") as refusal:
        store.steer(job_id, SteerRequest(veto={"period": Band(above=32.9)}), by=ADA)

    assert [problem.pointer for problem in refusal.value.problems] == ["/veto/period"]
    store.steer(job_id, SteerRequest(veto={"period": Band(above=33.9)}), by=ADA)


@only("sqlite")
@pytest.mark.parametrize("kind", ["fixed", "cosine", "autolrs", "off", "schedule"])
def test_a_job_that_does_not_search_offers_no_steering_and_refuses_it(store, make_spec, kind):
    schedule = {"format": "wiretune.schedule/1", "optimizer": "adamw", "num_steps": 1}
    entries = [{"step": 0, "num_steps": 1, "learning_rate": 0.1}]
    controller = {"kind": kind, **({"schedule": {**schedule, "entries": entries}} if kind == "schedule" else {})}
    job = store.add_job(make_spec(controller=controller))[0]

    assert "steer" not in job.verbs
    with pytest.raises(InvalidJob, match=f"has `controller: {kind}`: only `bo`, `sobol` or `local` can be steered"):
        store.steer(job.id, PIN, by=LOCAL)


@only("sqlite")
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"controller": {"kind": "sobol"}},
        {"controller": {"kind": "local"}},
        {"controller": {"kind": "off"}},
        {"controller": {"kind": "off"}, "arms": [{"name": "a"}, {"name": "b", "controller": {"kind": "bo"}}]},
        {"arms": [{"name": "a", "controller": {"kind": "fixed"}}]},
        {"arms": [{"name": "a", "controller": {"kind": "off"}}], "params": {"clip": {"uniform": [1, 2]}}},
    ],
)
def test_a_list_offers_steering_where_the_job_itself_does(store, make_spec, parts):
    job = store.add_job(make_spec(**parts))[0]

    assert store.jobs().jobs[0].verbs == job.verbs


def test_arms_that_do_not_search_are_left_out_and_so_are_those_that_have_finished(store, make_spec):
    arms = [{"name": "tuned"}, {"name": "dense", "controller": {"kind": "fixed"}}]
    job_id = store.add_job(make_spec(arms=arms, seeds=[0, 1]))[0].id

    store.steer(job_id, PIN, by=ADA)

    [view] = store.steering(job_id).steers
    assert view.trials == (f"{job_id}.tuned.0", f"{job_id}.tuned.1")
    with pytest.raises(InvalidJob, match="arm `dense` has `controller: fixed`"):
        store.steer(job_id, PIN.model_copy(update={"trials": (f"{job_id}.dense.0",)}), by=ADA)


def test_a_veto_is_read_back_as_it_was_said(store, driver):
    store.steer(driver.job_id, SteerRequest(veto={"learning_rate": Band(above=0.5)}), by=ADA)

    [said] = driver.send(stream=driver.trial_id).steers
    assert said.veto == {"learning_rate": Band(above=0.5)} == store.steering(driver.job_id).steers[0].veto


@only("sqlite")
def test_what_may_be_steered_is_told_with_its_range_and_what_is_used_now(store, make_spec, begin):
    exchange = {"kind": "threshold", "density": [0.003, 0.1]}
    driver = begin(store.add_job(make_spec(exchange=exchange, budget={"seconds": 60}))[0].id)
    driver.start()
    driver.decide(0, first_step=0)

    rate, density = store.steering(driver.job_id).steerable

    assert (rate.name, rate.low, rate.high, rate.current) == ("learning_rate", 1e-8, 1e3, 0.1)
    assert (density.name, density.low, density.high, density.current) == ("density", 0.003, 0.1, None)
    assert rate.trials == density.trials == (driver.trial_id,)


@only("sqlite")
def test_a_trial_in_its_last_stage_is_named(store, driver):
    driver.decide(0, first_step=0, decision=decision(0).model_copy(update={"commit_until": Allowance(steps=50)}))
    assert store.steering(driver.job_id).notes == ()
    driver.decide(1, first_step=50, decision=decision(1).model_copy(update={"commit_until": Allowance(steps=100)}))

    assert store.steering(driver.job_id).notes == (
        "`tuned.0` is in its last stage: what is said now holds only if something ends that early",
    )


@only("sqlite")
@pytest.mark.parametrize(
    ("until", "cap_share", "larger", "is_last"),
    [(100, None, 300, True), (60, None, 300, False), (100, 0.5, 200, True), (100, 0.5, 300, False)],
    ids=["one stage", "ended before", "doubled", "further stages follow"],
)
def test_a_stage_that_an_extended_job_opens_again_is_the_last_if_it_lasted_to_the_end(
    store, driver, begin, until, cap_share, larger, is_last
):
    tax = Tax(budget_share=0.0, cap_share=cap_share)
    decided = decision(0).model_copy(update={"commit_until": Allowance(steps=until), "tax": tax})
    driver.decide(0, first_step=0, decision=decided, forecast=0.5, forecast_std=0.1)
    steady = Checkpointed(trial_id=driver.trial_id, stage=0, step=50, bill=Bill(), resume={}, steady=True)
    driver.send(steady, stream=driver.trial_id)
    driver.close(0, step=until, num_steps=until, bill=Bill(), resume={})
    finished = TrialFinished(
        trial_id=driver.trial_id, outcome="completed", validation_loss=None, schedule=(), bill=Bill(), weights_url=None
    )
    driver.send(finished, stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    store.extend(driver.job_id, Budget(steps=larger))
    begin(driver.job_id)

    assert bool(store.steering(driver.job_id).notes) == is_last
    assert (store.stages(driver.job_id)[0].forecast is None) == (until == 100)  # it was of the old end
