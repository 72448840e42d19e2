"""The migrations and the models describe one schema, on SQLite and on PostgreSQL."""

import json
import sys
from contextlib import ExitStack, closing
from subprocess import PIPE, Popen

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, text

from service.control.access import keys
from service.control.database.engine import connect
from service.control.database.schema import migrate
from service.control.models import Base, IdempotencyRow, JobRow, JobTextRow, PointRow, TrialRow
from service.control.store import Store
from service.errors import Unavailable
from service.settings import Settings

# SQLite does not tell what an index of an expression is of; `tests/store/test_reads.py` shows that it is used.
pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")
OPEN = """
import sys
from pathlib import Path
from service.control.store import Store
from service.settings import Settings
print("ready", flush=True)
sys.stdin.read()
Store.open(Settings(state_dir=Path(sys.argv[1]), database_url=sys.argv[2])).close()
"""


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def engine(url):
    engine = connect(url)
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata)


def test_a_migrated_database_is_what_the_models_say(engine):
    migrate(engine)

    assert differences(engine) == []


def test_migrating_twice_changes_nothing(engine):
    migrate(engine)
    migrate(engine)

    assert differences(engine) == []


def test_the_way_down_leaves_nothing_and_the_way_up_works_again(engine):
    migrate(engine)

    migrate(engine, revision="base")
    assert set(inspect(engine).get_table_names()) <= {"alembic_version"}

    migrate(engine)
    assert differences(engine) == []


def test_a_database_of_a_later_release_is_refused_and_left_alone(tmp_path, url, engine):
    settings = Settings(state_dir=tmp_path, database_url=url)
    Store.open(settings).close()
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(Unavailable, match="9999, made by a newer release: install that one, or restore a backup"):
        Store.open(settings)

    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == ["9999"]


def test_a_service_whose_database_a_newer_release_has_migrated_is_not_ready(tmp_path, url, engine):
    with closing(Store.open(Settings(state_dir=tmp_path, database_url=url))) as store:
        store.answer()
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

        with pytest.raises(Unavailable, match="9999, made by a newer release"):
            store.answer()


def test_replicas_that_start_at_once_on_an_empty_database_all_open_it(tmp_path, empty_postgres_url):
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(
                Popen([sys.executable, "-c", OPEN, tmp_path / name, empty_postgres_url], stdin=PIPE, stdout=PIPE)
            )
            for name in ("one", "two", "three")
        ]
        assert [replica.stdout.readline() for replica in replicas] == [b"ready\n"] * 3
        for replica in replicas:
            replica.stdin.close()
        assert [replica.wait(60) for replica in replicas] == [0] * 3

    engine = connect(empty_postgres_url)
    assert differences(engine) == []
    engine.dispose()


@pytest.mark.parametrize("url", ["sqlite_url"], indirect=True)
def test_commits_reach_the_disk_and_foreign_keys_hold(engine):
    with engine.connect() as connection:
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in _PRAGMAS}

    assert pragmas == _PRAGMAS


_PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_accuracy_of_old_trials_becomes_a_metric_and_their_stages_stay(engine):
    migrate(engine, revision="0001")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into jobs (id, name, state, reason, spec, attempt, version, created_at, not_before) "
            "values ('job-1', 'old', 'succeeded', '', '{}', 1, 1, 0, 0)"
        )
        connection.exec_driver_sql(
            "insert into trials (id, job_id, position, arm, seed, step, seconds, validation_accuracy, bill) "
            "values ('job-1-0', 'job-1', 0, 'tuned', 0, 10, 1.0, 0.75, '{}')"
        )
        connection.exec_driver_sql(
            "insert into metric_points (trial_id, name, step, seconds, value) values ('job-1-0', 'loss', 0, 0.1, 2.0)"
        )

    migrate(engine)

    with engine.connect() as connection:
        (trial,) = connection.execute(select(TrialRow.validation_metrics, TrialRow.metric_directions)).all()
        points = connection.execute(select(PointRow.value)).scalars().all()
    assert trial == ({"accuracy": 0.75}, {"accuracy": "max"})
    assert points == [2.0]


def test_old_keys_become_admins_old_jobs_the_first_keys_and_their_idempotency_keys_stay(tmp_path, url, engine):
    secret = "wt_of-before"
    migrate(engine, revision="0009")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into jobs (id, name, state, reason, spec, attempt, version, created_at, not_before) "
            "values ('job-1', 'old', 'succeeded', '', '{}', 1, 1, 0, 0)"
        )
        connection.exec_driver_sql("insert into idempotency_keys (key, job_id, created_at) values ('k', 'job-1', 0)")
        connection.exec_driver_sql(
            f"insert into api_keys (digest, name, created_at) values ('{keys.digest(secret)}', 'first', 7)"
        )

    migrate(engine)

    store = Store.open(Settings(state_dir=tmp_path, database_url=url))
    holder = store.keyring.holder(secret)
    assert (holder.name, holder.role, holder.project) == ("first", "admin", "default")
    assert store.owner_of("job-1") == ("first", "default", "viewer")
    store.close()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into idempotency_keys (owner, key, job_id, created_at) values ('another', 'k', 'job-1', 0)"
        )
        known = connection.exec_driver_sql("select owner, key, job_id from idempotency_keys order by owner").all()
    assert [tuple(row) for row in known] == [("another", "k", "job-1"), ("first", "k", "job-1")]

    migrate(engine, revision="0009")

    with engine.connect() as connection:
        assert connection.exec_driver_sql("select name, created_at from api_keys").all() == [("first", 7.0)]


def test_idempotency_keys_of_an_older_schema_are_of_their_jobs_project(engine):
    migrate(engine, revision="0018")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into jobs (id, name, project, state, reason, spec, attempt, version, created_at, not_before) "
            "values ('job-1', 'old', 'red', 'succeeded', '', '{}', 1, 1, 0, 0)"
        )
        connection.exec_driver_sql(
            "insert into idempotency_keys (owner, key, job_id, created_at) values ('ci', 'k', 'job-1', 0)"
        )

    migrate(engine)

    with engine.begin() as connection:
        row = "('blue', 'ci', 'k', 'job-1', 0)"  # another project's
        connection.exec_driver_sql(
            f"insert into idempotency_keys (project, owner, key, job_id, created_at) values {row}"
        )
        known = connection.execute(select(IdempotencyRow.project, IdempotencyRow.owner, IdempotencyRow.key)).all()
    assert sorted(map(tuple, known)) == [("blue", "ci", "k"), ("red", "ci", "k")]


def test_words_are_found_in_jobs_of_an_older_schema(engine):
    migrate(engine, revision="0017")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into jobs (id, name, state, reason, spec, attempt, version, created_at, not_before, notes) "
            "values ('job-1', 'An Old One', 'succeeded', '', '{}', 1, 1, 0, 0, 'Ärger')"
        )
        connection.exec_driver_sql("insert into job_labels (job_id, name, value) values ('job-1', 'team', 'Red')")

    migrate(engine)

    with engine.connect() as connection:
        (words,) = connection.execute(select(JobTextRow.text)).scalars()
    assert sorted(words.strip().split("\n")) == ["an old one", "red", "team", "ärger"]


def test_results_and_methods_of_jobs_of_an_older_schema_are_known(tmp_path, url, engine):
    spec = {
        "workload": {"kind": "digits-mlp"},
        "exchange": {"kind": "powersgd", "rank": 2},
        "arms": [{"name": "tuned"}, {"name": "other", "exchange": {"kind": "topk"}, "sync": None}],
        "objective": {"metric": "accuracy"},
    }
    migrate(engine, revision="0023")
    with engine.begin() as connection:
        for job_id, state in (("job-1", "succeeded"), ("job-2", "failed")):
            connection.execute(
                text(
                    "insert into jobs (id, name, owner, project, state, reason, spec, attempt, version, created_at, "
                    "not_before, notes) values (:id, 'An Old One', 'a', 'b', :state, '', :spec, 1, 1, 0, 0, '')"
                ),
                {"id": job_id, "state": state, "spec": json.dumps(spec)},
            )
            connection.execute(text("insert into job_texts (job_id, text) values (:id, 'an old one')"), {"id": job_id})
            connection.execute(
                text("insert into job_labels (job_id, name, value) values (:id, 'team', 'Red')"), {"id": job_id}
            )
            for position, accuracy in enumerate((0.75, 0.95)):
                connection.execute(
                    text(
                        "insert into trials (id, job_id, position, arm, seed, step, seconds, outcome, bill, "
                        "validation_loss, validation_metrics, metric_directions) values "
                        "(:id, :job_id, :position, 'tuned', 0, 1, 1, 'completed', '{}', 0.1, :metrics, :directions)"
                    ),
                    {
                        "id": f"{job_id}-{position}",
                        "job_id": job_id,
                        "position": position,
                        "metrics": json.dumps({"accuracy": accuracy}),
                        "directions": json.dumps({"accuracy": "max"}),
                    },
                )

    migrate(engine)

    with engine.connect() as connection:
        results = connection.execute(select(JobRow.result, JobRow.score).order_by(JobRow.id)).all()
        words = connection.execute(select(JobTextRow.text)).scalars().first()
    assert [tuple(row) for row in results] == [(0.95, -0.95), (None, None)]
    assert set(words.split("\n")) >= {"an old one", "team", "red", "digits-mlp", "powersgd", "topk"}
