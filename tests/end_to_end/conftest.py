"""The processes of docker-compose.yml on this host: the same commands, with other ports and folders."""

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from api.client import Client
from service.control.ray_cluster.ray_jobs import RayJobs
from service.errors import Unavailable

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Cluster:
    """A running service on a Ray head without work on it and one Ray worker."""

    url: str
    key: str
    results: Path
    ray_url: str
    ray_token: Path

    def client(self) -> Client:
        return Client(self.url, self.key)


def command_of(service: str, **options: object) -> list[str]:
    """Return the compose file's command for `service`, with `options` replaced or added."""
    words = shlex.split(COMPOSE["services"][service]["command"])
    words[0] = str(BIN / words[0])
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        split = [index for index, word in enumerate(words) if word == option]
        words = [word for word in words if not word.startswith(f"{option}=")]
        if split:
            words[split[0] + 1] = str(value)
        else:
            words.append(f"{option}={value}")
    return words


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, is_so: Callable[[], bool], *, within_s: float) -> None:
    """Poll until `is_so`; fail with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {within_s:g} s")
        time.sleep(0.2)


class Processes:
    """Host processes that end with the fixture."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self.logs, self.environment = logs, os.environ | environment
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: list[str]) -> None:
        with (self.logs / f"{name}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )

    def stop(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.running):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2).status_code < 500
    except httpx2.HTTPError:
        return False


def _holds_cores(ray: RayJobs) -> bool:
    try:
        return any(node.cpus for node in ray.nodes())
    except Unavailable:
        return False


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Poll until something is so, or fail."""
    return wait_until


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    token = folder / "ray_token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    short = tempfile.mkdtemp(prefix="wt-")  # Ray's sockets need a short path
    gcs, dashboard, api = free_port(), free_port(), free_port()
    environment = {
        **COMPOSE["services"]["head"]["environment"],
        "PATH": f"{BIN}:{os.environ['PATH']}",  # as in the image: `python` has everything
        "RAY_AUTH_TOKEN_PATH": str(token),
        "WIRETUNE_STATE_DIR": str(folder / "state"),
        "WIRETUNE_STORAGE_URL": f"file://{folder / 'results'}",
        "WIRETUNE_RAY_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "WIRETUNE_RAY_TOKEN_PATH": str(token),
        "WIRETUNE_API_URL": f"http://127.0.0.1:{api}",
        "WIRETUNE_DATABASE_URL": "",
        "WIRETUNE_USER_CODE": "true",
        "WIRETUNE_QUEUE_MIN_RUN_S": "1",
    }
    processes = Processes(folder, environment)
    memory = {"object_store_memory": 200_000_000}
    head = {"port": gcs, "dashboard_port": dashboard, "dashboard_host": "127.0.0.1", "temp_dir": short}
    try:
        processes.start("head", command_of("head", **head, ray_client_server_port=free_port(), **memory))
        wait_until("the Ray head", lambda: _answers(f"http://127.0.0.1:{dashboard}/api/version"), within_s=90)
        processes.start("worker", command_of("worker", address=f"127.0.0.1:{gcs}", num_cpus=2, **memory))
        with closing(RayJobs(f"http://127.0.0.1:{dashboard}", token.read_text())) as ray:
            wait_until("the Ray worker", lambda: _holds_cores(ray), within_s=60)  # else a job may be refused
        processes.start("api", command_of("api", host="127.0.0.1", port=api))
        wait_until("the API", lambda: _answers(f"http://127.0.0.1:{api}/healthz"), within_s=30)
        key = (folder / "state" / "api_key").read_text().strip()
        yield Cluster(
            url=f"http://127.0.0.1:{api}",
            key=key,
            results=folder / "results",
            ray_url=environment["WIRETUNE_RAY_ADDRESS"],
            ray_token=token,
        )
    finally:
        processes.stop()
        shutil.rmtree(short, ignore_errors=True)
