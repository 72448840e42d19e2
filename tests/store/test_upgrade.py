"""A job that runs through an upgrade of the service continues, whatever schema it began under."""

from pathlib import Path

import pytest

from service.control.database.engine import connect
from service.control.database.schema import migrate
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from service.wire.records import AttemptFinished, Batch, Control, TrialStarted

VERSIONS = Path(__file__).parents[2] / "service/control/migrations/versions"
BEFORE = sorted(path.name[:4] for path in VERSIONS.glob("0*.py"))[:-1]
SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


@pytest.mark.parametrize("revision", BEFORE)
def test_a_job_that_runs_under_an_older_schema_goes_on_and_knows_every_verb(tmp_path, revision):
    settings = Settings(state_dir=tmp_path)
    engine = connect(settings.resolved_database_url)
    migrate(engine, revision=revision)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into jobs (id, name, state, reason, spec, attempt, version, created_at, not_before) "
            "values ('job-1', 'old', 'running', '', ?, 1, 3, 0, 0)",
            (SPEC.model_dump_json(),),
        )
        connection.exec_driver_sql(
            "insert into attempts (job_id, number, submission_id, began_at, lease_expires, reason) "
            "values ('job-1', 1, 'wiretune-job-1-a1', 0, 0, '')"
        )
        connection.exec_driver_sql(
            "insert into trials (id, job_id, position, arm, seed, step, seconds, bill) "
            "values ('job-1.tuned.0', 'job-1', 0, 'tuned', 0, 10, 1.0, '{}')"
        )
    engine.dispose()

    store = Store.open(settings)
    assert store.attempts.renew("job-1", 1).control is Control.RUN
    assert store.pause("job-1").state is JobState.PAUSING
    assert store.attempts.lose("job-1", 1, reason="its driver ended").state is JobState.PAUSED
    store.resume("job-1")
    number = store.attempts.begin("job-1").attempt
    started = TrialStarted(trial_id="job-1.tuned.0", arm="tuned", seed=0, backend="gloo", device="cpu")
    ended = AttemptFinished(outcome="succeeded")
    store.attempts.ingest("job-1", number, Batch(stream="driver", sequence=1, records=(started, ended)))
    assert store.job("job-1").state is JobState.SUCCEEDED
    store.close()
