"""The server as a process: found, started, stopped; ports, keys, and how long it lingers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api import cli
from api.client import Client
from api.local import LocalServerError, running_server, start_server, stop_server
from api.server import Linger, PortBusy, bind, ensure_key
from service.control.store import Store
from service.settings import Settings
from service.spec import JobSpec


def test_a_started_server_is_found_answers_and_is_stopped(settings: Settings) -> None:
    started = start_server(settings.model_copy(update={"port": 0}))

    found = running_server(settings)
    with Client(*started) as client:
        page = client.jobs()
    listed = CliRunner().invoke(cli.app, ["list"])
    told = stop_server(settings)

    assert found == started
    assert page.jobs == ()
    assert listed.exit_code == 0, listed.stderr
    assert started.url in told
    assert running_server(settings) is None
    assert not (settings.state_dir / "server.json").exists()


def test_a_server_that_cannot_start_shows_its_log(settings: Settings, store: Store) -> None:
    with pytest.raises(LocalServerError, match=r"exit code 1(.|\n)*database"):
        start_server(settings.model_copy(update={"port": 0}))


def test_what_a_dead_server_left_is_not_taken_for_a_server(settings: Settings, tmp_path: Path) -> None:
    settings.state_dir.mkdir()
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    content = {"url": "http://127.0.0.1:9", "pid": int(done.stdout)}
    (settings.state_dir / "server.json").write_text(json.dumps(content))

    assert running_server(settings) is None
    with pytest.raises(LocalServerError, match="running"):
        stop_server(settings)


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(PortBusy, match=rf"port {port}.*--port"), bind("127.0.0.1", port):
            pass


def test_the_first_key_is_kept_private_and_used_again(settings: Settings, store: Store) -> None:
    first, second = (ensure_key(store, settings.state_dir) for _ in range(2))

    assert first == second and store.check_key(first)
    assert (settings.state_dir / "api_key").stat().st_mode & 0o777 == 0o600


def test_a_key_that_the_database_does_not_know_is_replaced(settings: Settings, store: Store) -> None:
    (settings.state_dir / "api_key").write_text("wt_of_another_database\n")

    assert store.check_key(ensure_key(store, settings.state_dir))


def test_a_server_lingers_from_its_last_request(store: Store) -> None:
    linger = Linger(store, linger_s=10, now=0.0)

    assert not linger.is_over(0, now=9.0)
    assert not linger.is_over(1, now=9.5)
    assert not linger.is_over(1, now=19.0)
    assert linger.is_over(1, now=19.6)


def test_a_server_does_not_leave_an_active_job(store: Store, job: JobSpec) -> None:
    linger = Linger(store, linger_s=10, now=0.0)
    job_id = store.add_job(job)[0].id

    stays = not linger.is_over(0, now=11.0)
    store.cancel(job_id)

    assert stays
    assert not linger.is_over(0, now=20.0)
    assert linger.is_over(0, now=22.0)


def test_the_application_loads_neither_ray_nor_torch() -> None:
    code = "import sys, api.app, api.server, api.cli; print({'ray', 'torch', 'plotly'} & set(sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "set()"
