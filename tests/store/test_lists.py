"""Lists of jobs: every filter, every order, and pages that contain each job once."""

import math
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select

from search.config import Budget
from service.control.access.rules import Principal
from service.control.listing import JobFilter
from service.control.models import JobTextRow
from service.errors import InvalidRequest
from service.job.states import JobState
from service.wire.access import Role
from service.wire.jobs import JobEdit, JobOrder
from service.wire.records import AttemptFinished, Bill, TrialStarted
from tests.support.reported import finished


def ids(store, where=None, **options):
    return [job.id for job in store.jobs(where or JobFilter(), **options).jobs]


@pytest.fixture
def make(store, make_spec):
    def make(name="x", *, owner="anna", project="default", **labels):
        by = Principal(name=owner, role=Role.SUBMITTER, project=project)
        return store.add_job(make_spec(name=name, labels=labels), by=by)[0].id

    return make


def test_of_several_labels_a_job_has_all(store, make):
    make(team="red")
    both = make(team="red", paper="2", draft="no")
    make(paper="2")

    labels = [("team", "red"), ("paper", "2"), ("draft", "no")]

    assert [ids(store, JobFilter(labels=some, states=[JobState.QUEUED])) for some in (labels, labels[::-1])] == [
        [both],
        [both],
    ]
    assert ids(store, JobFilter(labels=labels), order=JobOrder.NAME) == [both]
    assert ids(store, JobFilter(labels=[*labels, ("team", "blue")])) == []


@pytest.mark.parametrize("place", ["another project", "the archive"])
def test_a_name_that_is_the_end_of_an_id_elsewhere_finds_its_job(store, make, job_in, place):
    if place == "the archive":
        hidden, where = job_in(JobState.CANCELLED), {}
        store.edit(hidden, JobEdit(archived=True))
    else:
        hidden, where = make(project="blue"), {"project": "default"}
    named = make(hidden[-8:])

    assert ids(store, JobFilter(ref=hidden[-8:], **where)) == [named]
    reader = Principal(name="anna", role=Role.SUBMITTER, project="default")
    assert ids(store, JobFilter(ref=hidden[-8:]), by=reader) == [named]
    assert set(ids(store, JobFilter(ref=hidden[-8:], archived=None))) == {hidden, named}


def test_of_several_states_a_job_has_one(store, job_in):
    queued, cancelled, _ = [job_in(state) for state in (JobState.QUEUED, JobState.CANCELLED, JobState.PAUSED)]

    assert ids(store, JobFilter(states=[JobState.QUEUED, JobState.CANCELLED])) == [cancelled, queued]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SLOW", ["digits over a slow link"]),
        ("link digits", ["digits over a slow link"]),
        ("paper", ["another", "noted"]),  # a label's name, and a note
        ("vision", ["another"]),  # a label's value
        ("100%", ["noted"]),
        ("äRGER", ["noted"]),
        ("1_0", []),
        ("slow vision", []),
        ("\0", []),
    ],
)
def test_words_are_looked_for_in_name_notes_and_labels_and_all_are_found(store, make, text, names):
    make("digits over a slow link")
    store.edit(make("noted"), JobEdit(notes="The one for the Paper: 100% Ärger"))
    make("another", paper="vision")

    assert [job.name for job in store.jobs(JobFilter(text=text)).jobs] == names


@pytest.mark.parametrize(
    ("trains", "words"),
    [
        ({"exchange": {"kind": "powersgd", "rank": 2}}, "PowerSGD digits-mlp"),
        ({"arms": [{"name": "one"}, {"name": "two", "exchange": {"kind": "powersgd", "rank": 2}}]}, "powersgd none"),
        ({"exchange": {"kind": "auto", "options": ["none", "powersgd 4"]}}, "auto powersgd"),
        ({"sync": {"kind": "diloco"}, "optimizer": {"kind": "adamw"}}, "diloco adamw"),
        ({"optimizer": {"kind": "auto", "options": ["muon", "adamw"]}}, "muon"),
        ({"workload": {"factory": "vision.models:resnet"}}, "vision.models:resnet"),
        (
            {
                "exchange": {"kind": "topk", "density": 0.01},
                "params": {"exchange": {"choice": [{"kind": "topk", "density": 0.1}, {"kind": "powersgd", "rank": 2}]}},
                "sweep": {"samples": 2},
            },
            "powersgd",
        ),
    ],
)
def test_a_job_is_found_by_what_it_trains_before_and_after_an_edit(store, make, make_spec, trains, words):
    make("another")
    job_id = store.add_job(make_spec(**trains))[0].id
    assert ids(store, JobFilter(text=words)) == [job_id]

    store.edit(job_id, JobEdit(notes="edited"))

    assert ids(store, JobFilter(text=f"{words} edited")) == [job_id]


@pytest.fixture
def succeed(store, begin):
    """Train every trial of a job to its end, one value of the objective's metric each; return the job's id."""

    def succeed(spec, *values, outcome="completed"):
        driver = begin(store.add_job(spec)[0].id)
        for trial, value in zip(store.trials(driver.job_id), values, strict=True):
            driver.send(
                TrialStarted(
                    trial_id=trial.trial_id, arm=trial.arm, seed=trial.seed, backend="gloo", device="cpu",
                    metrics={"accuracy": "max"},
                ),
                finished(
                    trial.trial_id, outcome=outcome, bill=Bill(),
                    **({"validation_loss": value} if spec.objective.metric == "loss" else
                       {"validation_metrics": {"accuracy": value}}),
                ),
            )  # fmt: skip
        driver.send(AttemptFinished(outcome="succeeded"))
        return driver.job_id

    return succeed


def test_the_best_job_is_first_however_old_it_is(store, make_spec, succeed):
    best = succeed(make_spec(), 0.05)
    others = [succeed(make_spec(), 0.1 + 0.01 * number) for number in range(24)]
    waiting = store.add_job(make_spec())[0].id

    page = store.jobs(order=JobOrder.RESULT, limit=20)
    rest = store.jobs(order=JobOrder.RESULT, limit=20, cursor=page.next_cursor)

    assert [job.id for job in (*page.jobs, *rest.jobs)] == [best, *others, waiting]
    assert (page.jobs[0].metric, page.jobs[0].result) == ("loss", 0.05)


def test_a_jobs_result_is_the_best_of_its_trials_by_its_own_metric(store, make_spec, succeed):
    arms = [{"name": "one"}, {"name": "two"}]
    low = succeed(make_spec(objective={"metric": "accuracy"}, arms=arms), 0.6, 0.7)
    high = succeed(make_spec(objective={"metric": "accuracy"}, arms=arms), 0.9, None)

    listed = store.jobs(order=JobOrder.RESULT).jobs

    assert [(job.id, job.metric, job.result) for job in listed] == [(high, "accuracy", 0.9), (low, "accuracy", 0.7)]
    assert ids(store, order=JobOrder.RESULT_DOWN) == [low, high]


def test_a_jobs_result_is_the_mean_of_its_best_arm_and_not_its_luckiest_trial(store, make_spec, succeed):
    arms = [{"name": "steady"}, {"name": "lucky"}]

    job_id = succeed(make_spec(arms=arms, seeds=[0, 1]), 0.2, 0.4, 0.1, 0.9)

    (job,) = (each for each in store.jobs().jobs if each.id == job_id)
    assert job.result == pytest.approx(0.3)


def test_a_job_that_goes_on_or_failed_has_no_result(store, make_spec, succeed, begin):
    extended = succeed(make_spec(), 0.05)
    store.extend(extended, caps=Budget(steps=200))
    begin(extended)
    failed = succeed(make_spec(), 0.05, outcome="diverged")

    assert {job.id: job.result for job in store.jobs().jobs} == {extended: None, failed: None}


def test_words_that_an_edit_took_away_are_found_no_more(store, make):
    job_id = make("x", team="red")
    store.edit(job_id, JobEdit(notes="hard", labels={"team": "blue"}))
    store.edit(job_id, JobEdit(notes=None))

    assert [ids(store, JobFilter(text=text)) for text in ("red", "hard", "blue x")] == [[], [], [job_id]]


def test_a_deleted_job_leaves_no_words(store, make):
    job_id = make("x")
    store.cancel(job_id)

    store.delete(job_id)

    with store._db.reading() as session:
        assert session.scalar(select(func.count()).select_from(JobTextRow)) == 0


def test_a_job_is_found_by_its_owner_and_its_project_where_the_caller_sees_it(store, make):
    annas, berts, carls = make(owner="anna"), make(owner="bert"), make(owner="carl", project="blue")
    viewer = Principal(name="bert", role=Role.VIEWER, project="default")

    assert ids(store, JobFilter(owner="bert")) == [berts]
    assert ids(store, JobFilter(project="blue")) == [carls]
    assert ids(store, JobFilter(project="blue"), by=viewer) == []
    assert ids(store, JobFilter(owner="carl"), by=viewer) == []
    assert ids(store, by=viewer) == [berts, annas]


def test_a_job_is_found_by_when_it_was_submitted(store, make, clock):
    first, moments = make(), []
    for _ in range(2):
        clock.now += 60
        moments.append(datetime.fromtimestamp(clock.now, UTC))
        clock.now += 60
        last = make()
    second = next(each for each in ids(store) if each not in (first, last))

    assert ids(store, JobFilter(created_after=moments[0])) == [last, second]
    assert ids(store, JobFilter(created_before=moments[1])) == [second, first]
    assert ids(store, JobFilter(created_after=moments[0], created_before=moments[1])) == [second]
    everything = JobFilter(
        created_after=datetime.min.replace(tzinfo=UTC), created_before=datetime.max.replace(tzinfo=UTC)
    )
    assert ids(store, everything) == [last, second, first]


@pytest.fixture
def mixed(store, make, clock):
    """Jobs with names and states in common, of which some are over."""
    for number in range(9):
        job_id = make(f"name {number % 3}")
        if number % 2:
            store.cancel(job_id)
    return store


@pytest.mark.parametrize("order", JobOrder)
@pytest.mark.parametrize("limit", [1, 2, 4, 20])
def test_pages_hold_every_job_once_in_the_order_that_is_asked_for(mixed, order, limit):
    found, cursor = [], None
    while True:
        page = mixed.jobs(order=order, limit=limit, cursor=cursor)
        found += page.jobs
        if (cursor := page.next_cursor) is None:
            break

    keys = {
        "created": lambda job: job.id,
        "name": lambda job: (job.name, job.id),
        "state": lambda job: (job.state, job.id),
        "finished": lambda job: (job.finished_at or datetime.max.replace(tzinfo=UTC), job.id),
        "result": lambda job: (math.inf if job.result is None else job.result, job.id),
    }
    assert len(found) == 9
    assert found == sorted(found, key=keys[order.field], reverse=order.is_down)


def test_a_page_is_not_shifted_by_a_job_that_is_deleted_or_leaves_the_list(mixed):
    every = ids(mixed, order=JobOrder.STATE)
    first = mixed.jobs(order=JobOrder.STATE, limit=3)
    mixed.delete(every[2])
    mixed.edit(every[0], JobEdit(archived=True))

    rest = ids(mixed, order=JobOrder.STATE, cursor=first.next_cursor)

    assert rest == every[3:]


def test_a_cursor_of_another_order_is_refused(mixed):
    cursor = mixed.jobs(order=JobOrder.NAME, limit=1).next_cursor

    with pytest.raises(InvalidRequest, match="is of `order_by=name`, this list of `order_by=-created`"):
        mixed.jobs(cursor=cursor)


def test_the_total_is_counted_over_all_pages_where_it_is_asked_for(mixed):
    first = mixed.jobs(limit=2)
    second = mixed.jobs(limit=2, cursor=first.next_cursor, count=True)

    assert (first.total, second.total) == (None, 9)
    assert mixed.jobs(JobFilter(states=[JobState.CANCELLED]), limit=1, count=True).total == 4
    assert mixed.jobs(JobFilter(labels=[("team", "nobody")]), count=True).total == 0
