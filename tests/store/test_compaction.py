"""A SQLite file shrinks once its rows are deleted, and only if nobody uses it."""

import json
from pathlib import Path

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from api.cli.main import app
from service.control.database.compaction import compact
from service.control.database.engine import is_there
from service.control.store import Store
from service.errors import Unavailable
from tests.store.conftest import only


@only("sqlite")
def test_a_compacted_database_has_lost_its_free_pages_and_nothing_else(settings, clock, make_spec):
    store = Store.open(settings, clock=clock)
    large = make_spec(labels={f"label-{number}": "x" * 100 for number in range(60)})
    ids = [store.add_job(large)[0].id for _ in range(40)]
    for job_id in ids[1:]:
        store.cancel(job_id)
        store.delete(job_id)
    store.close()

    done = CliRunner().invoke(app, ["compact", "--json"], env={"WIRETUNE_STATE_DIR": str(settings.state_dir)})

    made = json.loads(done.stdout)
    assert made["bytes_after"] < 0.7 * made["bytes_before"]
    reopened = Store.open(settings, clock=clock)
    assert [job.id for job in reopened.jobs().jobs] == ids[:1]
    reopened.close()


def test_a_database_in_use_or_of_a_server_is_not_compacted(settings, store, database_url):
    with pytest.raises(Unavailable, match="VACUUM FULL" if database_url else "in use by process"):
        compact(settings)


@only("sqlite")
def test_a_database_that_is_not_there_is_not_made(settings):
    Path(make_url(settings.resolved_database_url).database).unlink()

    with pytest.raises(Unavailable, match="no database yet"):
        compact(settings)

    assert not is_there(settings.resolved_database_url)
