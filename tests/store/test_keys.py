"""Keys, codes, sessions and the audit log, on either database."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from service.control.access import keyring
from service.control.access.audit import AuditFilter
from service.control.access.keyring import CODE_S, MAX_SESSION_S, SESSION_S
from service.control.access.rules import LOCAL, Principal
from service.control.expiry import Expiry
from service.control.models import Base, SessionRow
from service.control.processes import wait_until
from service.errors import Forbidden, InvalidJob, KeyGone, NotFound, Unauthorized
from service.wire.access import IssuedKey, NewKey, Role
from tests.store.conftest import only
from tests.support.patience import PATIENCE_S
from tests.support.read_only import read_only

ANNA = Principal(name="anna", role=Role.SUBMITTER, project="red", key_id="key-1", address="192.0.2.1")
BERT = Principal(name="bert", role=Role.SUBMITTER, project="blue", key_id="key-2", address="192.0.2.2")


def make(store, **changes) -> IssuedKey:
    return store.keyring.create(NewKey(**({"name": "anna", "project": "red"} | changes)), by=LOCAL)


@pytest.mark.parametrize("owner", ["anna", "oidc:auth0|0123", f"oidc:https://id.example/~a{'=' * 272}"])
def test_a_key_names_its_owner_role_and_project(store, owner):
    issued = make(store, name="ci", owner=owner, role="operator")

    holder = store.keyring.holder(issued.secret)

    assert (holder.name, holder.role, holder.project, holder.key_id) == (owner, "operator", "red", issued.key.id)


def test_a_revoked_key_and_its_sessions_open_nothing_at_once(store):
    issued = make(store)
    code = store.keyring.add_code(by=store.keyring.holder(issued.secret)).code
    session = store.keyring.open_session(code, address="")
    late = store.keyring.add_code(by=store.keyring.holder(issued.secret)).code
    assert store.keyring.visitor(session).name == "anna"

    first, again = (store.keyring.revoke(issued.key.id, by=LOCAL) for _ in range(2))

    assert first == again and first.revoked_at is not None
    with pytest.raises(Unauthorized, match="was revoked"):
        store.keyring.holder(issued.secret)
    with pytest.raises(Unauthorized):
        store.keyring.visitor(session)
    with pytest.raises(Unauthorized):
        store.keyring.open_session(late, address="")
    with pytest.raises(KeyGone, match="was revoked"):
        store.keyring.rotate(issued.key.id, by=LOCAL)


def test_a_rotated_key_keeps_its_id_and_ends_its_old_secret_and_sessions(store):
    issued = make(store)
    session = store.keyring.open_session(
        store.keyring.add_code(by=store.keyring.holder(issued.secret)).code, address=""
    )

    rotated = store.keyring.rotate(issued.key.id, by=LOCAL)

    assert rotated.key.id == issued.key.id
    assert store.keyring.holder(rotated.secret).name == "anna"
    for opens, secret in ((store.keyring.holder, issued.secret), (store.keyring.visitor, session)):
        with pytest.raises(Unauthorized):
            opens(secret)


def test_an_expired_key_opens_nothing_and_cannot_be_renewed(store, clock):
    ends = datetime.now(UTC) + timedelta(days=10_000)
    issued = make(store, expires_at=ends)
    session = store.keyring.open_session(
        store.keyring.add_code(by=store.keyring.holder(issued.secret)).code, address=""
    )

    clock.now = ends.timestamp()

    with pytest.raises(Unauthorized, match="has expired"):
        store.keyring.holder(issued.secret)
    with pytest.raises(Unauthorized):
        store.keyring.visitor(session)
    with pytest.raises(KeyGone, match="has expired"):
        store.keyring.rotate(issued.key.id, by=LOCAL)


def test_the_last_use_of_a_key_is_known_to_the_minute(store, clock):
    issued = make(store)

    def last_used() -> datetime | None:
        return store.keyring.get(issued.key.id).last_used_at

    store.keyring.holder(issued.secret)
    assert wait_until(last_used, timeout_s=PATIENCE_S)
    first = last_used()
    store.keyring.holder(issued.secret)
    clock.now += 61
    store.keyring.holder(issued.secret)

    assert wait_until(lambda: last_used() > first + timedelta(seconds=60), timeout_s=PATIENCE_S)


def test_the_last_use_of_a_key_is_known_though_the_clock_was_set_back(store, clock):
    issued = make(store)
    store.keyring.holder(issued.secret)
    clock.now -= 3600

    store.keyring.holder(issued.secret)

    def last_used() -> datetime | None:
        return store.keyring.get(issued.key.id).last_used_at

    assert wait_until(
        lambda: last_used() and last_used() <= datetime.fromtimestamp(clock.now, UTC), timeout_s=PATIENCE_S
    )


def test_a_key_is_good_while_the_database_takes_no_writes(store):
    issued = make(store)

    with read_only(store):
        assert store.keyring.holder(issued.secret).name == "anna"


def test_a_wrong_code_is_refused_without_a_write(store):
    with read_only(store), pytest.raises(Unauthorized, match="ask for another"):
        store.keyring.open_session("wrong", address="")


def test_a_code_opens_one_session_however_many_ask_at_once(store):
    code = store.keyring.add_code(by=store.keyring.holder(make(store).secret)).code

    def ask(_: int) -> str | None:
        try:
            return store.keyring.open_session(code, address="")
        except Unauthorized:
            return None

    with ThreadPoolExecutor(8) as pool:
        opened = [session for session in pool.map(ask, range(8)) if session is not None]

    assert len(opened) == 1 and store.keyring.visitor(opened[0]).name == "anna"


def test_codes_and_sessions_end_and_are_removed(store, clock):
    holder = store.keyring.holder(make(store).secret)
    late, code = (store.keyring.add_code(by=holder).code for _ in range(2))
    session = store.keyring.open_session(code, address="")
    clock.now += CODE_S
    with pytest.raises(Unauthorized, match="too old"):
        store.keyring.open_session(late, address="")
    assert replace(store.keyring.visitor(session), ends_at=None) == holder
    clock.now += SESSION_S
    with pytest.raises(Unauthorized):
        store.keyring.visitor(session)

    store.keyring.add_code(by=holder)

    with store._db.engine.connect() as connection:
        rows = {
            name: connection.execute(select(Base.metadata.tables[name])).all() for name in ("sessions", "sign_in_codes")
        }
    assert [len(found) for found in rows.values()] == [0, 1]


def sessions(store):
    with store._db.engine.connect() as connection:
        return connection.execute(select(SessionRow.expires_at)).scalars().all()


def use_for(store, clock, session, *, hours):
    """Use the session every half an hour; return the hours that it lasted."""
    for half in range(2 * hours):
        clock.now += 1800.0
        try:
            store.keyring.visitor(session)
        except Unauthorized:
            return half / 2
        store._db.write(lambda _: None)  # a renewal is stored behind the answer
    return hours


def test_a_session_of_a_key_goes_on_while_it_is_used_for_a_week_at_most(store, clock):
    code = store.keyring.add_code(by=store.keyring.holder(make(store).secret)).code
    session = store.keyring.open_session(code, address="")

    assert use_for(store, clock, session, hours=8 * 24) == pytest.approx(MAX_SESSION_S / 3600, abs=2)


def test_a_session_is_renewed_once_an_hour(store, clock):
    code = store.keyring.add_code(by=store.keyring.holder(make(store).secret)).code
    session, (first,) = store.keyring.open_session(code, address=""), sessions(store)

    for _ in range(50):
        clock.now += 60.0
        store.keyring.visitor(session)
    store._db.write(lambda _: None)
    assert sessions(store) == [first]
    use_for(store, clock, session, hours=1)

    assert sessions(store)[0] > first + 3600.0


def test_a_session_of_which_is_only_asked_whether_it_holds_is_not_renewed(store, clock):
    code = store.keyring.add_code(by=store.keyring.holder(make(store).secret)).code
    session, (first,) = store.keyring.open_session(code, address=""), sessions(store)

    clock.now += 2 * 3600.0
    store.keyring.visitor(session, renews=False)
    store._db.write(lambda _: None)
    assert sessions(store) == [first]
    store.keyring.visitor(session)
    store._db.write(lambda _: None)

    assert sessions(store)[0] > first


def test_a_visitor_of_the_issuer_has_a_session_for_half_a_day_however_much_it_is_used(store, clock):
    visitor = Principal(name="oidc:anna", role=Role.SUBMITTER, project="red", address="192.0.2.1")
    session = store.keyring.open_session_of(visitor)

    assert replace(store.keyring.visitor(session), ends_at=None) == replace(visitor, address="")
    assert [(entry.name, entry.action) for entry in store.keyring.audit(limit=1).entries] == [
        ("oidc:anna", "createSession")
    ]
    assert use_for(store, clock, session, hours=24) == pytest.approx(SESSION_S / 3600, abs=1)


def test_a_session_that_was_closed_opens_nothing(store):
    session = store.keyring.open_session(
        store.keyring.add_code(by=store.keyring.holder(make(store).secret)).code, address=""
    )

    store.keyring.close_session(session)

    with pytest.raises(Unauthorized):
        store.keyring.visitor(session)


def test_only_the_holder_of_a_key_gets_a_code(store):
    with pytest.raises(Forbidden):
        store.keyring.add_code(by=LOCAL)


def test_no_secret_is_stored(store):
    issued = make(store)
    code = store.keyring.add_code(by=store.keyring.holder(issued.secret)).code
    session = store.keyring.open_session(code, address="192.0.2.1")
    rotated = store.keyring.rotate(issued.key.id, by=LOCAL).secret

    with store._db.engine.connect() as connection:
        stored = repr([connection.execute(select(table)).all() for table in Base.metadata.sorted_tables])

    assert not [secret for secret in (issued.secret, code, session, rotated) if secret in stored]


def test_owners_see_their_own_keys_that_are_no_stronger_and_admins_all(store):
    mine, strong, other = make(store), make(store, role="operator"), make(store, name="bert", owner="bert")

    assert [view.id for view in store.keyring.list(by=ANNA)] == [mine.key.id]
    assert [view.id for view in store.keyring.list(by=LOCAL)] == [mine.key.id, strong.key.id, other.key.id]
    with pytest.raises(NotFound):
        store.keyring.get("key-none")


def test_jobs_are_of_their_owner_and_listed_in_his_project_alone(store, spec):
    red, blue = store.add_job(spec, by=ANNA)[0], store.add_job(spec, by=BERT)[0]

    assert (red.owner, red.project) == ("anna", "red")
    assert store.owner_of(red.id) == ("anna", "red", Role.VIEWER)
    assert [job.id for job in store.jobs(by=ANNA).jobs] == [red.id]
    assert [job.id for job in store.jobs(by=BERT).jobs] == [blue.id]
    assert len(store.jobs().jobs) == 2


def test_an_idempotency_key_is_its_owners(store, make_spec):
    first, _ = store.add_job(make_spec(name="one"), idempotency_key="k", by=ANNA)

    other, is_new = store.add_job(make_spec(name="two"), idempotency_key="k", by=BERT)

    assert is_new and other.id != first.id
    assert store.add_job(make_spec(name="one"), idempotency_key="k", by=ANNA) == (first, False)


def test_an_idempotency_key_is_of_one_project_whatever_its_owners_are_called(store, make_spec):
    red, blue = (Principal(name="ci", role=Role.SUBMITTER, project=project) for project in ("red", "blue"))
    first, _ = store.add_job(make_spec(), idempotency_key="nightly-1", by=red)

    other, is_new = store.add_job(make_spec(), idempotency_key="nightly-1", by=blue)

    assert is_new and (first.project, other.project) == ("red", "blue")
    assert store.add_job(make_spec(), idempotency_key="nightly-1", by=red) == (first, False)


def test_a_job_of_another_project_cannot_be_learned_from_and_is_as_if_it_were_not(store, make_spec):
    past = store.add_job(make_spec(), by=ANNA)[0].id
    said = {}
    for job_id, by in ((past, BERT), ("job-0", BERT), (past, ANNA)):
        learner = make_spec(controller={"kind": "bo", "transfer": {"jobs": [job_id]}})
        with pytest.raises(InvalidJob) as refusal:
            store.prior_jobs(learner, by=by)
        (said[job_id, by.name],) = (problem.message for problem in refusal.value.problems)

    assert said[past, "bert"] == said["job-0", "bert"].replace("job-0", past)
    assert said[past, "anna"] != said[past, "bert"]


def test_every_change_is_written_down_with_who_when_and_from_where(store, spec, clock):
    job_id = store.add_job(spec, idempotency_key="k", by=ANNA)[0].id
    store.add_job(spec, idempotency_key="k", by=ANNA)  # changes nothing
    store.cancel(job_id, by=BERT)
    key_id = make(store).key.id
    store.keyring.rotate(key_id, by=LOCAL)
    store.keyring.revoke(key_id, by=LOCAL)

    entries = store.keyring.audit(limit=50).entries

    assert [(each.action, each.target, each.name) for each in reversed(entries)] == [
        ("createJob", job_id, "anna"),
        ("cancelJob", job_id, "bert"),
        ("createKey", key_id, "first"),
        ("rotateKey", key_id, "first"),
        ("revokeKey", key_id, "first"),
    ]
    assert (entries[-1].address, entries[-1].key, entries[-1].outcome) == ("192.0.2.1", "key-1", "done")
    assert all(abs(clock.now - each.at.timestamp()) < 1 for each in entries)


def test_a_change_that_is_refused_leaves_no_entry_of_a_change(store, spec):
    job_id = store.add_job(spec, by=ANNA)[0].id
    store.cancel(job_id, by=ANNA)

    with pytest.raises(Exception, match="cancelled"):
        store.cancel(job_id, by=ANNA)

    assert [each.action for each in store.keyring.audit(limit=50).entries] == ["cancelJob", "createJob"]


def test_pages_of_the_audit_log_follow_each_other_without_gap_or_double(store, spec):
    for _ in range(5):
        store.add_job(spec, by=ANNA)

    ids, cursor = [], None
    while True:
        page = store.keyring.audit(limit=2, cursor=cursor)
        ids += [each.id for each in page.entries]
        if (cursor := page.next_cursor) is None:
            break

    assert len(ids) == 5 and ids == sorted(ids, reverse=True)


@only("postgresql")
def test_of_replicas_that_start_at_once_one_makes_the_key_that_all_are_given(replicas, pool):
    given = "wt_" + "5" * 64
    store, other = replicas
    list(pool.map(lambda replica: replica.adopt_key("first", given), [store, other] * 8))

    [made] = [each for each in store.keyring.audit(limit=50).entries if each.action == "createKey"]
    assert store.keyring.holder(given).key_id == made.target


def test_of_refusals_alike_one_a_minute_is_in_the_audit_log(store, clock):
    def refuse(action="getMetrics", target="", by=BERT):
        store.keyring.note_refusal(action, target, by=by)

    for _ in range(3):
        refuse()
    refuse(action="listAudit")
    refuse(target="job-1")
    refuse(by=ANNA)
    refuse(by=replace(BERT, address="198.51.100.9"))
    clock.now += 60.0
    refuse()
    store.add_key("next")  # writes are in order

    entries = store.keyring.audit(AuditFilter(outcome="refused"), limit=50).entries
    assert [(each.name, each.action, each.target) for each in entries] == [
        ("bert", "getMetrics", ""),
        ("bert", "getMetrics", ""),
        ("anna", "getMetrics", ""),
        ("bert", "getMetrics", "job-1"),
        ("bert", "listAudit", ""),
        ("bert", "getMetrics", ""),
    ]
    assert [each.address for each in entries[:2]] == ["192.0.2.2", "198.51.100.9"]


def test_entries_of_the_audit_log_stay_for_as_many_days_as_are_kept(store, clock):
    def kept(*, days, **options):
        settings = store.settings.model_copy(update={"audit_days": days})
        expiry = Expiry(store._db, store.storage, settings, store.code, mark=store.attempts.mark)
        expiry.remove_expired(clock.now, **options)
        return [each.target for each in store.keyring.audit(limit=10).entries]

    first = make(store).key.id
    clock.now += 86_400.0
    second = make(store).key.id

    assert kept(days=None) == kept(days=2.0) == kept(days=0.1, is_clock_steady=False) == [second, first]
    assert kept(days=0.5) == [second]
    clock.now += 86_400.0
    assert kept(days=0.5) == []


def test_the_audit_log_is_narrowed_by_who_did_what_to_what(store, spec):
    first, _ = (store.add_job(spec, by=by)[0].id for by in (ANNA, BERT))
    store.keyring.note_refusal("deleteJob", first, by=BERT)
    store.cancel(first, by=ANNA)

    def found(**where):
        return [(each.name, each.action) for each in store.keyring.audit(AuditFilter(**where), limit=10).entries]

    assert found(name="anna") == [("anna", "cancelJob"), ("anna", "createJob")]
    assert found(action="createJob", name="bert") == [("bert", "createJob")]
    assert found(target=first, outcome="done") == [("anna", "cancelJob"), ("anna", "createJob")]
    assert found(name="carl") == []


def test_a_rotated_keys_old_secrets_are_accepted_until_their_grace_is_over(store, clock):
    first = make(store)

    second = store.keyring.rotate(first.key.id, by=LOCAL, grace_s=60)
    third = store.keyring.rotate(first.key.id, by=LOCAL, grace_s=3600)  # as if the answer before had been lost

    assert second.old_until.timestamp() == pytest.approx(clock.now + 60, abs=1)
    for each in (first, second, third):
        assert store.keyring.holder(each.secret).key_id == first.key.id
    clock.now += 60
    with pytest.raises(Unauthorized):
        store.keyring.holder(first.secret)
    assert store.keyring.holder(second.secret).key_id == first.key.id


@pytest.mark.parametrize("end", ["rotate", "revoke"])
def test_no_grace_outlasts_the_end_of_its_key_nor_a_rotation_without_one(store, end):
    first = make(store)
    store.keyring.rotate(first.key.id, by=LOCAL, grace_s=60)

    getattr(store.keyring, end)(first.key.id, by=LOCAL)

    with pytest.raises(Unauthorized):
        store.keyring.holder(first.secret)


def test_a_caller_makes_keys_of_their_own_that_are_no_stronger_and_last_no_longer(store):
    ends = datetime.now(UTC) + timedelta(days=10_000)
    anna = store.keyring.holder(make(store, expires_at=ends).secret)
    own = {"name": "ci", "owner": "anna", "project": "red", "expires_at": ends}

    made = store.keyring.create(NewKey(**own, role="viewer"), by=anna)

    assert store.keyring.holder(made.secret).role is Role.VIEWER
    for wrong in (
        {"owner": "bert"},
        {"project": "blue"},
        {"role": "operator"},
        {"expires_at": None},
        {"expires_at": ends + timedelta(days=1)},
    ):
        with pytest.raises(Forbidden):
            store.keyring.create(NewKey(**own | wrong), by=anna)
    with pytest.raises(Forbidden, match="ask an admin"):
        store.keyring.create(NewKey(**own), by=replace(anna, key_id=None))


def test_what_a_session_or_a_rotated_secret_makes_ends_with_it_at_the_latest(store, clock):
    first = make(store)
    second = store.keyring.rotate(first.key.id, by=LOCAL, grace_s=3600)
    code = store.keyring.add_code(by=store.keyring.holder(second.secret)).code
    rotated = store.keyring.holder(first.secret), clock.now + 3600
    visitor = store.keyring.visitor(store.keyring.open_session(code, address="")), clock.now + MAX_SESSION_S

    for by, ends in (rotated, visitor):
        own = {"name": "ci", "owner": "anna", "project": "red"}
        for late in (None, datetime.fromtimestamp(ends + 10, UTC)):
            with pytest.raises(Forbidden, match="lasts longer"):
                store.keyring.create(NewKey(**own, expires_at=late), by=by)
        with pytest.raises(Forbidden, match="key itself"):
            store.keyring.add_code(by=by)
        assert store.keyring.create(NewKey(**own, expires_at=datetime.fromtimestamp(ends - 10, UTC)), by=by)
    assert store.keyring.create(NewKey(**own), by=store.keyring.holder(second.secret))


def test_an_owner_has_so_many_valid_keys_in_a_project_unless_an_admin_makes_more(store, monkeypatch):
    monkeypatch.setattr(keyring, "MAX_OWN_KEYS", 2)
    anna = store.keyring.holder(make(store).secret)
    own = NewKey(name="ci", owner="anna", project="red")
    last = store.keyring.create(own, by=anna)

    with pytest.raises(Forbidden, match="you have 2 keys"):
        store.keyring.create(own, by=anna)

    make(store)
    bert = store.keyring.holder(make(store, name="bert").secret)
    assert store.keyring.create(NewKey(name="ci", owner="bert", project="red"), by=bert)
    for each in store.keyring.list(by=LOCAL):
        if each.owner == "anna" and each.id != last.key.id:
            store.keyring.revoke(each.id, by=LOCAL)
    assert store.keyring.create(own, by=store.keyring.holder(last.secret))


def test_of_a_keys_rotated_secrets_those_that_end_last_are_accepted(store, monkeypatch):
    monkeypatch.setattr(keyring, "MAX_RETIRED_SECRETS", 2)
    issued = [make(store)]
    for grace_s in (60, 3600, 600, 30):
        issued.append(store.keyring.rotate(issued[0].key.id, by=LOCAL, grace_s=grace_s))

    def is_accepted(secret):
        try:
            return bool(store.keyring.holder(secret))
        except Unauthorized:
            return False

    assert [is_accepted(each.secret) for each in issued] == [False, True, False, True, True]
