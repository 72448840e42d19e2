"""A SQLite file shrinks once its rows are deleted, and only if nobody uses it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from api.cli.main import app
from service.control.database import compaction
from service.control.database.compaction import compact
from service.control.database.engine import is_there
from service.control.store import Store
from service.errors import Unavailable
from service.settings import Settings
from tests.store.conftest import only


def half_empty(settings: Settings, clock, make_spec) -> str:
    """Leave a database with many free pages; return the id of the job that it keeps."""
    large = make_spec(labels={f"label-{number}": "x" * 100 for number in range(60)})
    with closing(Store.open(settings, clock=clock)) as store:
        kept, *deleted = [store.add_job(large)[0].id for _ in range(40)]
        for job_id in deleted:
            store.cancel(job_id)
            store.delete(job_id)
    return kept


@only("sqlite")
def test_a_compacted_database_has_lost_its_free_pages_and_nothing_else(settings, clock, make_spec):
    kept = half_empty(settings, clock, make_spec)

    done = CliRunner().invoke(app, ["compact", "--json"], env={"WIRETUNE_STATE_DIR": str(settings.state_dir)})

    made = json.loads(done.stdout)
    assert made["bytes_after"] < 0.7 * made["bytes_before"]
    reopened = Store.open(settings, clock=clock)
    assert [job.id for job in reopened.jobs().jobs] == [kept]
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


@only("sqlite")
def test_a_database_that_another_program_reads_keeps_its_size_and_the_command_says_so(
    settings, clock, make_spec, monkeypatch
):
    half_empty(settings, clock, make_spec)
    monkeypatch.setattr(compaction, "_FOR_OTHERS_S", 0.0)
    file = Path(make_url(settings.resolved_database_url).database)
    before = file.stat().st_size

    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        with pytest.raises(Unavailable, match=r"another program reads .* end that program, .*compact` again"):
            compact(settings)
        assert file.stat().st_size == before

    compact(settings)
    assert file.stat().st_size < 0.7 * before


@only("sqlite")
def test_a_state_dir_that_is_not_there_is_named_by_its_variable(settings, tmp_path):
    other = settings.model_copy(
        update={"state_dir": tmp_path / "mistyped", "database_url": settings.resolved_database_url}
    )

    with pytest.raises(Unavailable, match=r"mistyped/service\.lock: No such file .* check WIRETUNE_STATE_DIR"):
        compact(other)
