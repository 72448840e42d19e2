"""The store's promises to users: idempotency, legal transitions, complete pages."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from service.control import jobs
from service.control.access.rules import LOCAL
from service.control.listing import JobFilter
from service.errors import IllegalTransition, InvalidRequest, KeyReused, NotFound
from service.job.spec import JobSpec
from service.job.states import RULES, TERMINAL, JobState, may_follow
from tests.store.conftest import Group
from tests.support.patience import PATIENCE_S

STATES = list(JobState)


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_reached_by_the_stores_own_verbs(store, job_in, state):
    assert store.job(job_in(state)).state is state


def test_a_job_comes_back_as_it_was_posted(store, make_spec):
    spec = make_spec(name="a name", labels={"team": "demo"}, seeds=[0, 1], arms=[{"name": "a"}, {"name": "b"}])

    job, created = store.add_job(spec)

    assert created
    assert store.job(job.id) == job
    assert job.spec == spec
    assert [(trial.arm, trial.seed) for trial in store.trials(job.id)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_same_key_and_job_make_one_job(store, spec):
    first, created = store.add_job(spec, idempotency_key="k")
    again, created_again = store.add_job(spec, idempotency_key="k")

    assert (created, created_again) == (True, False)
    assert again == first
    assert len(store.jobs().jobs) == 1


def test_a_key_outlives_a_release_that_gives_jobs_new_fields(store, spec):
    first, _ = store.add_job(spec, idempotency_key="k")

    def forget_a_default(session: Session) -> None:
        job = jobs.locked(session, first.id)
        job.spec = {name: value for name, value in job.spec.items() if name != "link"}

    store._db.write(forget_a_default)

    assert store.add_job(spec, idempotency_key="k")[0].id == first.id


def test_a_key_with_another_job_is_refused_and_stores_nothing(store, make_spec):
    store.add_job(make_spec(name="one"), idempotency_key="k")

    with pytest.raises(KeyReused):
        store.add_job(make_spec(name="two"), idempotency_key="k")

    assert [job.name for job in store.jobs().jobs] == ["one"]


@pytest.mark.parametrize("current", STATES)
def test_a_transition_is_allowed_exactly_where_the_table_allows_it(store, job_in, clock, current):
    def move(job_id: str, to: JobState) -> None:
        store._db.write(lambda session: jobs.transition(jobs.locked(session, job_id), to, now=clock()))

    before = store.job(job_in(current))
    for refused in [state for state in STATES if not may_follow(current, state)]:
        with pytest.raises(IllegalTransition, match=current):
            move(before.id, refused)
    assert store.job(before.id) == before

    for following in RULES[current].next:
        job_id = job_in(current)
        move(job_id, following)
        assert (store.job(job_id).state, store.job(job_id).version) == (following, before.version + 1)


def test_a_job_has_a_new_version_with_every_state_and_every_new_reason(store, job_in):
    job_id = job_in(JobState.STARTING)
    before = store.job(job_id).version

    for reason in ("Ray is starting", "Ray is starting", ""):
        store.work.explain(job_id, state=JobState.STARTING, reason=reason)

    assert before == 2  # queued, starting
    assert store.job(job_id).version == before + 2


@pytest.mark.parametrize("state", STATES)
def test_the_deadline_of_a_state_is_that_of_the_table(store, job_in, clock, state):
    job_id = job_in(state)
    work = {work.job_id: work for work in (*store.work.owned(), *store.work.backlog().waiting)}

    deadline_s = RULES[state].deadline_s
    if state in TERMINAL or state is JobState.PAUSED:  # its user's, until the deadline
        assert job_id not in work
    elif deadline_s is None:
        assert work[job_id].deadline is None
    else:
        assert work[job_id].deadline == pytest.approx(clock.now + deadline_s, abs=1.0)


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_pages_hold_every_job_once_newest_first(store, make_spec, limit):
    added = [store.add_job(make_spec(name=f"job {number}"))[0].id for number in range(7)]

    found, cursor = [], None
    while True:
        page = store.jobs(limit=limit, cursor=cursor)
        found += [job.id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert found == added[::-1]


def test_a_page_is_not_shifted_by_jobs_added_meanwhile(store, make_spec):
    old = [store.add_job(make_spec())[0].id for _ in range(4)]
    first = store.jobs(limit=2)
    store.add_job(make_spec())

    second = store.jobs(limit=2, cursor=first.next_cursor)

    assert [job.id for job in (*first.jobs, *second.jobs)] == old[::-1]


def test_jobs_are_found_by_state_and_by_label(store, make_spec):
    red, blue = (store.add_job(make_spec(labels={"team": team}))[0].id for team in ("red", "blue"))
    store.cancel(blue)

    assert [job.id for job in store.jobs(JobFilter(labels=[("team", "red")])).jobs] == [red]
    assert [job.id for job in store.jobs(JobFilter(states=[JobState.CANCELLED])).jobs] == [blue]
    assert store.jobs(JobFilter(states=[JobState.QUEUED], labels=[("team", "blue")])).jobs == ()


def test_a_job_is_found_by_a_part_of_its_id_and_by_its_name(store, make_spec):
    ids = [store.add_job(make_spec(name=name))[0].id for name in ("cafe", "100%", "x")]

    def found(ref):
        return [job.id for job in store.jobs(JobFilter(ref=ref)).jobs]

    assert [found(ref) for ref in (ids[0], ids[1][4:], ids[2][-10:])] == [[each] for each in ids]
    assert found("100%") == [ids[1]] and ids[0] in found("cafe")
    assert found("job-") == found("1%") == found("%") == found("a\0b") == []


@pytest.mark.parametrize("of_the_id", [slice(-8, None), slice(0, 12), slice(4, 12)])
def test_a_name_that_is_a_part_of_another_jobs_id_means_neither_job_alone(store, make_spec, of_the_id):
    other = store.add_job(make_spec(name="other"))[0].id
    named = store.add_job(make_spec(name=other[of_the_id]))[0].id

    found = {job.id for job in store.jobs(JobFilter(ref=other[of_the_id])).jobs}

    assert found == {other, named}


@pytest.mark.parametrize("begin_at", [0, 4])
def test_a_whole_id_means_its_own_job_whatever_the_names_of_others(store, make_spec, begin_at):
    other = store.add_job(make_spec())[0].id
    store.add_job(make_spec(name=other[begin_at:]))

    assert [job.id for job in store.jobs(JobFilter(ref=other[begin_at:])).jobs] == [other]


@pytest.mark.parametrize("cursor", ["", "%%%", "bm9uc2Vuc2U", "é"])
def test_a_cursor_from_elsewhere_is_refused_by_name(store, cursor):
    with pytest.raises(InvalidRequest) as refusal:
        store.jobs(cursor=cursor)

    assert [problem.pointer for problem in refusal.value.problems] == ["/cursor"]


def test_a_name_and_labels_hold_any_text(store, make_spec):
    spec = make_spec(name="größer \0 ✓", labels={"team": "\0%_'"})

    job, _ = store.add_job(spec)

    assert store.job(job.id).spec == spec
    assert [found.id for found in store.jobs(JobFilter(labels=[("team", "\0%_'")])).jobs] == [job.id]


def test_an_id_with_a_nul_is_not_found(store):
    with pytest.raises(NotFound):
        store.job("job-\0")


@pytest.mark.parametrize("read", ["job", "trials", "stages", "schedules", "cancel"])
def test_an_unknown_job_is_not_found(store, read):
    with pytest.raises(NotFound, match="job-0"):
        getattr(store, read)("job-0")


def test_jobs_added_from_many_threads_are_all_there(store, make_spec):
    def add(number: int) -> str:
        return store.add_job(make_spec(name=f"job {number}"), idempotency_key=f"key {number % 40}")[0].id

    with ThreadPoolExecutor(8) as pool:
        unique = set(pool.map(add, range(40)))

    assert {job.id for job in store.jobs(limit=100).jobs} == unique
    assert len(unique) == 40


def test_one_key_from_many_threads_makes_one_job(store, spec):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: store.add_job(spec, idempotency_key="k"), range(16)))

    assert len({job.id for job, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


def test_jobs_that_are_added_together_share_their_statements(store, make_spec, pool):
    def num_inserts(count: int) -> int:
        inserts = []

        def note(_connection, _cursor, statement, *_):
            if statement.startswith("INSERT"):
                inserts.append(statement)

        event.listen(store._db.engine, "before_cursor_execute", note)
        group = Group(store, pool)
        specs = [make_spec(labels={"number": str(number)}) for number in range(count)]
        added = [group.add(partial(add, spec)) for spec in specs]
        group.release()
        assert [future.result(PATIENCE_S) for future in added] == specs
        event.remove(store._db.engine, "before_cursor_execute", note)
        return len(inserts)

    def add(spec, session):
        job, _ = jobs.add(session, spec, by=LOCAL, key=spec.labels["number"], now=0.0, key_s=3600.0, quotas={})
        return JobSpec.model_validate(job.spec)

    assert num_inserts(1) == num_inserts(3)
