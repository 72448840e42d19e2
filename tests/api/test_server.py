"""The server as a process: how it is found, started and stopped; ports, keys, and lingering."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import local, main
from api.cli.local import StartedElsewhere, start_server, stop_server
from api.client import Client
from api.http.server import Linger, PortBusy, _announced, bind, ensure_key
from api.local_service import LocalServerError, Server, running_server
from service.control import processes
from service.control.access.rules import LOCAL
from service.control.database.locks import lock_service, prepare_state_dir
from service.control.store import Store
from service.errors import KeyGone, Unavailable
from service.job.spec import JobSpec
from service.settings import SECRETS_DIR, Settings
from service.wire.access import Role
from tests.support.patience import PATIENCE_S


def test_a_started_server_is_found_answers_and_is_stopped(settings: Settings) -> None:
    started = start_server(settings.model_copy(update={"port": 0}))

    found = running_server(settings)
    with Client(*started) as client:
        page = client.jobs()
    listed = CliRunner().invoke(main.app, ["list"])
    told = stop_server(settings)

    assert found == started
    assert page.jobs == ()
    assert listed.exit_code == 0, listed.stderr
    assert started.url in told
    assert running_server(settings) is None
    assert not (settings.state_dir / "server.json").exists()
    assert f"Wiretune is at {started.url}" in (settings.state_dir / "server.log").read_text()
    assert (settings.state_dir / "server.out").read_text() == ""


def test_a_server_starts_in_a_folder_with_modules_of_the_same_names(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("api", "search", "service", "trainers"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user, who is here')")
    monkeypatch.chdir(tmp_path)

    started = start_server(settings.model_copy(update={"port": 0}))

    assert running_server(settings) == started
    stop_server(settings)


def test_a_server_that_cannot_start_shows_its_log(settings: Settings, store: Store) -> None:
    with pytest.raises(LocalServerError, match=r"exit code 1(.|\n)*is in use by process"):
        start_server(settings.model_copy(update={"port": 0}))


def test_of_two_that_start_a_service_at_once_one_does_and_the_other_uses_it(settings: Settings) -> None:
    def start(_: int) -> Server | StartedElsewhere:
        try:
            return start_server(settings.model_copy(update={"port": 0}))
        except StartedElsewhere as other:
            return other

    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(start, range(2)))
    finally:
        if running_server(settings) is not None:
            stop_server(settings)

    (own,) = (each for each in found if isinstance(each, Server))
    (other,) = (each for each in found if isinstance(each, StartedElsewhere))
    assert other.server == own


def test_where_the_service_that_was_in_the_way_has_ended_another_starts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_state_dir(settings)
    with lock_service(settings) as held:
        holders = iter(["process 1"])

        def holder(_: Path) -> str:
            found = next(holders, "")
            if not found:
                held.close()
            return found

        monkeypatch.setattr(local, "_holder", holder)
        started = start_server(settings.model_copy(update={"port": 0}))
    try:
        assert running_server(settings) == started
    finally:
        stop_server(settings)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_service_that_keeps_the_state_dir_without_an_answer_is_named(
    settings: Settings, silent: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(local, "START_S", 0.0)
    (settings.state_dir / "service.lock").write_text(f"{silent.pid}" if is_known else "")
    printed = settings.state_dir / "server.out"
    printed.touch()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    who = f"process {silent.pid}" if is_known else "a process that starts"
    with pytest.raises(LocalServerError, match=f"{who}, which has locked .* did not answer within"):
        local._await_answer(settings, ended, printed)


def test_a_log_that_is_full_is_put_aside_and_the_oldest_is_removed(tmp_path: Path) -> None:
    program = """
import logging, sys
from pathlib import Path
from api.cli import main
main.LOG_BYTES = 1000
main.configure_logging(Path(sys.argv[1]))
for number in range(100):
    logging.getLogger("wiretune").info("line %d %s", number, "x" * 50)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "server.log")]
    printed = subprocess.run(command, capture_output=True, check=True)

    logs = sorted(path.name for path in tmp_path.iterdir())
    assert logs == ["server.log", *(f"server.log.{number}" for number in range(1, main.NUM_OLD_LOGS + 1))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 99 " in (tmp_path / "server.log").read_text()
    assert printed.stdout == printed.stderr == b""


@pytest.fixture
def silent(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is announced as the state dir's server, and never answers."""
    settings.state_dir.mkdir()
    program = "import time; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program, "serve"], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"  # it has its own command line by now
    announce(settings, process.pid, processes.started_at(process.pid))
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def announce(settings: Settings, pid: int, started_at: int | None, *, port: int = 9) -> None:
    content = {"url": f"http://127.0.0.1:{port}", "pid": pid, "started_at": started_at}
    (settings.state_dir / "server.json").write_text(json.dumps(content))


def test_a_live_server_that_is_too_busy_to_answer_is_stopped(
    settings: Settings, silent: "subprocess.Popen[bytes]"
) -> None:
    found = running_server(settings)

    told = stop_server(settings)

    assert found is None
    assert f"process {silent.pid}" in told and "stopped" in told
    assert silent.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_live_server_that_does_not_answer_in_time_is_not_taken_for_none(
    settings: Settings, silent: "subprocess.Popen[bytes]", busy_machine: str
) -> None:
    with bind("127.0.0.1", 0) as deaf:
        deaf.listen()
        announce(settings, silent.pid, processes.started_at(silent.pid), port=deaf.getsockname()[1])

        with pytest.raises(LocalServerError, match="is up and did not answer within") as late:
            running_server(settings, timeout_s=0.05)

    assert str(late.value).endswith(busy_machine)


def test_a_stranger_with_the_pid_of_a_dead_server_is_left_alone(
    settings: Settings, silent: "subprocess.Popen[bytes]"
) -> None:
    started_at = processes.started_at(silent.pid)
    assert started_at is not None
    announce(settings, silent.pid, started_at - 1)

    with pytest.raises(LocalServerError, match="running"):
        stop_server(settings)

    assert silent.poll() is None


def test_what_a_dead_server_left_is_not_taken_for_a_server(settings: Settings) -> None:
    settings.state_dir.mkdir()
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    announce(settings, int(done.stdout), 1)

    assert running_server(settings) is None
    with pytest.raises(LocalServerError, match="running"):
        stop_server(settings)


def test_a_server_that_ends_removes_its_own_announcement_and_not_that_of_another(settings: Settings) -> None:
    settings.state_dir.mkdir()
    announcement = settings.state_dir / "server.json"

    with _announced(settings.state_dir, "http://127.0.0.1:9"):
        pass
    assert not announcement.exists()

    with _announced(settings.state_dir, "http://127.0.0.1:9"):
        announce(settings, 1, 1)
    assert json.loads(announcement.read_text())["pid"] == 1


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(PortBusy, match=rf"port {port}.*--port"), bind("127.0.0.1", port):
            pass


def test_an_answer_of_two_parts_is_not_held_back() -> None:
    """Nagle's algorithm keeps the second part until the first is acknowledged, which takes 40 ms."""
    held: asyncio.Future[int]

    class Answers(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            held.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def connect() -> int:
        nonlocal held
        held = asyncio.get_running_loop().create_future()
        with bind("127.0.0.1", 0) as bound:
            server = await asyncio.get_running_loop().create_server(Answers, sock=bound)
            _, writer = await asyncio.open_connection(*bound.getsockname())
            nodelay = await asyncio.wait_for(held, PATIENCE_S)
            writer.close()
            server.close()
        return nodelay

    assert asyncio.run(connect()) == 1


def test_the_first_key_is_kept_private_and_used_again(settings: Settings, store: Store) -> None:
    first, second = (ensure_key(store, settings.state_dir) for _ in range(2))

    assert first == second and store.check_key(first)
    assert (settings.state_dir / "api_key").stat().st_mode & 0o777 == 0o600


def test_a_key_that_the_database_does_not_know_is_replaced(settings: Settings, store: Store) -> None:
    (settings.state_dir / "api_key").write_text("wt_of_another_database\n")

    assert store.check_key(ensure_key(store, settings.state_dir))


@pytest.fixture
def secrets_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv(SECRETS_DIR, str(folder))
    return folder


def test_replicas_share_the_key_that_they_are_given_and_a_revoked_one_stays_revoked(
    store: Store, settings: Settings, secrets_dir: Path
) -> None:
    given = "wt_" + "5" * 64
    (secrets_dir / "wiretune_api_key").write_text(f"{given}\n")
    ensure_key(store, settings.state_dir)
    known = store.keyring.list(by=LOCAL)

    assert ensure_key(store, secrets_dir) == (secrets_dir / "api_key").read_text().strip() == given
    assert store.keyring.list(by=LOCAL) == known
    holder = store.keyring.holder(given)
    assert (holder.name, holder.role) == ("first", Role.ADMIN)

    assert holder.key_id is not None
    store.keyring.revoke(holder.key_id, by=LOCAL)
    ensure_key(store, settings.state_dir)
    assert not store.check_key(given) and len(store.keyring.list(by=LOCAL)) == len(known)


def test_a_given_key_is_not_rotated_as_the_next_start_would_make_it_again(
    store: Store, settings: Settings, secrets_dir: Path
) -> None:
    for given in ("wt_" + "5" * 64, "wt_" + "6" * 64):  # the second is in the first one's place
        (secrets_dir / "wiretune_api_key").write_text(given)
        ensure_key(store, settings.state_dir)
    first, second = (key.id for key in store.keyring.list(by=LOCAL)[-2:])

    with pytest.raises(KeyGone, match="file `wiretune_api_key`: put another into the file, restart, and revoke"):
        store.keyring.rotate(second, by=LOCAL)
    assert store.check_key("wt_" + "6" * 64)
    store.keyring.rotate(first, by=LOCAL)
    assert not store.check_key("wt_" + "5" * 64)


@pytest.mark.parametrize("text", ["", "wt_short", "5" * 64])
def test_a_given_key_that_others_could_guess_or_take_for_a_token_is_refused(
    store: Store, settings: Settings, secrets_dir: Path, text: str
) -> None:
    (secrets_dir / "wiretune_api_key").write_text(text)

    with pytest.raises(Unavailable, match="wiretune_api_key holds no key; allowed: `wt_` and at least 32"):
        ensure_key(store, settings.state_dir)


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
    code = (
        "import sys, api.http.app, api.http.server, api.cli.main; print({'ray', 'torch', 'plotly'} & set(sys.modules))"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "set()"
