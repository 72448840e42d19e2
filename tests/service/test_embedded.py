"""The embedded Ray starts, is adopted, and leaves nothing behind."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from service.control import processes
from service.control.database.locks import lock
from service.control.ray_cluster import embedded
from service.control.ray_cluster.ray_jobs import RayJobs, RayStatus, log_name
from service.control.ray_cluster.watchdog import _start_ray, free_ports, is_owned
from service.errors import Unavailable
from service.settings import Settings
from tests.support.patience import PATIENCE_S


def test_a_lock_is_seen_while_its_holder_has_it(tmp_path):
    path = tmp_path / "owner.lock"
    with lock(path, purpose="the test"):
        assert is_owned(path)
        with pytest.raises(Unavailable, match=str(os.getpid())):
            lock(path, purpose="the test")

    assert not is_owned(path)


def test_a_lock_is_seen_on_nfs_which_shares_none_on_a_file_that_is_not_open_for_reading(tmp_path, monkeypatch):
    def flock_of_nfs(file, kind):
        if not (file.readable() if kind & fcntl.LOCK_SH else file.writable()):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)

    test_a_lock_is_seen_while_its_holder_has_it(tmp_path)


def test_the_logs_of_a_head_are_bounded_as_in_the_containers(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: begun.append(env) or SimpleNamespace(pid=1))

    _start_ray(embedded._launch(Settings(state_dir=tmp_path)), {})

    compose = yaml.safe_load(Path(__file__).parents[2].joinpath("docker-compose.yml").read_text())
    bounds = {name: text for name, text in compose["x-ray-environment"].items() if "ROTATION" in name}
    assert len(bounds) == 2 and begun[0] | bounds == begun[0]


def test_ports_are_distinct():
    assert len(set(free_ports(20))) == 20


def test_a_number_that_went_to_a_stranger_is_not_taken_for_ours():
    assert processes.is_running(os.getpid(), word="python")
    assert not processes.is_running(os.getpid(), word=embedded.ANY_WATCHDOG)


def test_the_watchdog_of_an_earlier_release_is_known_as_one():
    for module in ("service.control.watchdog", embedded._WATCHDOG):
        with subprocess.Popen([sys.executable, "-c", "input()", module], stdin=subprocess.PIPE) as started:
            assert processes.wait_until(
                lambda: processes.is_running(started.pid, word=embedded.ANY_WATCHDOG), timeout_s=PATIENCE_S
            )
            started.communicate(b"\n")


def test_no_head_is_no_status_and_nothing_to_stop(tmp_path):
    settings = Settings(state_dir=tmp_path)

    embedded.stop_head(settings)

    assert embedded.head_status(settings) is None


@pytest.mark.ray
def test_a_head_starts_runs_a_job_is_adopted_and_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / "service.py").write_text("raise ImportError('of the user, who is here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WIRETUNE_DATA_DIR", "/the/data")  # which workers read
    monkeypatch.setenv("WIRETUNE_SECRET", "of the service")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the service, too")
    monkeypatch.setenv("STORE_REGION", "north")
    with tempfile.TemporaryDirectory() as state_dir:
        settings = Settings(state_dir=Path(state_dir), num_cpus=2, num_gpus=0, worker_env="STORE_*")
        head = embedded.ensure_head(settings)
        ray = RayJobs(head.address, head.token_path.read_text())
        try:
            processes.wait_until(lambda: _submits(ray), timeout_s=PATIENCE_S)
            processes.wait_until(lambda: ray.status("one") is RayStatus.SUCCEEDED, timeout_s=PATIENCE_S)
            assert "7 /the/data None None north" in b"".join(ray.log("one")).decode()
            assert (head.log_dir / log_name("one")).exists()
            (node,) = ray.nodes()
            assert (node.cpus, node.gpus, node.accelerator) == (2, 0, "") and 0.1 < node.memory_gb < 1e5

            head.owner.close()
            adopted = embedded.ensure_head(settings)
            family = processes.descendants(head.pid)
            assert adopted.pid == head.pid
            adopted.owner.close()
        finally:
            ray.close()
            embedded.stop_head(settings)

        assert len(family) > 3
        assert [pid for pid in [head.pid, *family] if processes.is_running(pid, word="")] == []
        assert embedded.head_status(settings) is None
        assert not embedded._launch(settings).temp_dir.exists()


def _submits(ray: RayJobs) -> bool:
    names = ("NUMBER", "WIRETUNE_DATA_DIR", "WIRETUNE_SECRET", "AWS_SECRET_ACCESS_KEY", "STORE_REGION")
    code = f"import os; print(*map(os.environ.get, {names}))"
    try:
        ray.submit("one", entrypoint=f'{sys.executable} -c "{code}"', env_vars={"NUMBER": "7"})
    except Unavailable:  # Ray's job agent comes up last
        return False
    return True


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("end", ["nobody owns it", "its watchdog is killed"])
def test_a_head_does_not_outlive_its_owner_or_its_watchdog(end):
    with tempfile.TemporaryDirectory() as state_dir:
        settings = Settings(state_dir=Path(state_dir), num_cpus=2, num_gpus=0, embedded_idle_s=1.0)
        head = embedded.ensure_head(settings)
        family = processes.descendants(head.pid)
        try:
            if end == "nobody owns it":
                head.owner.close()
            else:
                os.kill(head.pid, signal.SIGKILL)

            assert processes.wait_until(
                lambda: not any(processes.is_running(pid, word="") for pid in family), timeout_s=PATIENCE_S
            )
        finally:
            head.owner.close()
            embedded.stop_head(settings)


def test_a_watchdog_whose_command_line_is_not_there_yet_is_not_gone():
    child = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)  # no watchdog's command line, as behind a start

    assert processes.is_own(child) and not embedded._is_gone(child)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not processes.is_own(child) and embedded._is_gone(child) and embedded._is_gone(child)
    assert not processes.is_own(child) and not processes.is_own(os.getpid())
