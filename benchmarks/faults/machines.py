"""Machines of a Ray cluster as network namespaces of this one: each has its own address, host name and cable.

Machine 0 has the API, Ray's head without cores, and Redis; the others have the cores. This process moves into machine
0's namespace, so that it reaches the API. Needs root, iproute2, and for the head's faults `redis-server`.
"""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import httpx2
from races import network

from api.client import Client
from service.control import processes
from service.control.ray_cluster.ray_jobs import RayJobs
from service.errors import Unavailable

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
HEAD = 0
GCS_PORT, JOBS_PORT, API_PORT, REDIS_PORT = 6379, 8265, 8470, 6380
START_S = 300.0
STOP_S = 20.0
MEMORY = 150_000_000  # bytes of each object store
_NEW_NETWORK = 0x40000000  # linux/sched.h


class NotReady(Exception):
    """Something of the cluster did not come up; the message says what."""


def await_that(what: str, is_so: Callable[[], bool], *, within_s: float = START_S, every_s: float = 0.3) -> float:
    """Return the seconds until `is_so`; raises NotReady with `what` after `within_s`."""
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > within_s:
            raise NotReady(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - started


class Machines:
    """`num_nodes` Ray nodes of `cpus` cores each, a head, and an API, on a network that is up."""

    def __init__(self, hosts: network.Network, folder: Path, *, cpus: float, **settings: str) -> None:
        self.hosts, self.folder, self._cpus = hosts, folder, cpus
        self.num_nodes = hosts.num_hosts - 1
        self._temp = mkdtemp(prefix="wtn-")  # Ray's sockets need a short path
        token = folder / "ray_token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        address = hosts.address(HEAD)
        self.jobs_url, self.api_url = f"http://{address}:{JOBS_PORT}", f"http://{address}:{API_PORT}"
        self._environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "WIRETUNE_STATE_DIR": str(folder / "state"),
            "WIRETUNE_STORAGE_URL": f"file://{folder}/state/results",
            "WIRETUNE_RAY_ADDRESS": self.jobs_url,
            "WIRETUNE_RAY_TOKEN_PATH": str(token),
            "WIRETUNE_API_URL": self.api_url,
            "WIRETUNE_HOST": address,
            "WIRETUNE_PORT": str(API_PORT),
            "WIRETUNE_ALLOW_PLAIN_HTTP": "true",
            "WIRETUNE_USER_CODE": "true",
            "WIRETUNE_MAX_ATTEMPTS": "20",
            "RAY_REDIS_ADDRESS": f"{address}:{REDIS_PORT}",
            "RAY_raylet_start_wait_time_s": "60",  # on a busy machine
        }  # fmt: skip
        self._environment |= settings
        self._token = token.read_text()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- what runs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and wait until jobs can be taken."""
        self._run("redis", HEAD, ["redis-server", "--port", str(REDIS_PORT), "--bind", self.hosts.address(HEAD),
                                  "--protected-mode", "no", "--save", "", "--dir", str(self.folder)])  # fmt: skip
        self.start_head()
        for node in range(1, self.num_nodes + 1):
            self.start_node(node)
            await_that(f"Ray node {node}", lambda: self.num_alive() == node)  # noqa: B023 (called at once)
        self.start_api()

    def start_head(self) -> None:
        address = self.hosts.address(HEAD)
        self._run("head", HEAD, [*_ray_start(address), "--head", f"--port={GCS_PORT}", "--num-cpus=0",
                                 "--dashboard-host=0.0.0.0", f"--dashboard-port={JOBS_PORT}",
                                 f"--temp-dir={self._temp}"])  # fmt: skip
        await_that("the Ray head", lambda: _answers(f"{self.jobs_url}/api/version"))

    def start_node(self, node: int) -> None:
        """Have the node join; it has done so when `num_alive` says so."""
        joins = f"--address={self.hosts.address(HEAD)}:{GCS_PORT}"
        self._run(f"node{node}", node, [*_ray_start(self.hosts.address(node)), joins, f"--num-cpus={self._cpus:g}"])

    def start_api(self) -> None:
        self._run("api", HEAD, ["wiretune", "serve"])
        await_that("the API", lambda: _answers(f"{self.api_url}/healthz"))

    def kill(self, name: str) -> None:
        """End `head`, `api`, or `node1`, and all that it has started, without a word."""
        process = self._processes.pop(name)
        victims = [process.pid, *processes.descendants(process.pid)]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in reversed(list(self._processes)):
            self.kill(name)
        shutil.rmtree(self._temp, ignore_errors=True)

    def _run(self, name: str, machine: int, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            # A host name and processes of its own, as machines have: Ray looks at both.
            # What ends is started again, as by systemd or Kubernetes: a node that Ray gave up ends by itself.
            script = f'hostname {self.host_name(machine)}; while true; do "$@"; sleep 1; done'
            named = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", *command]
            there = ["ip", "netns", "exec", self.hosts.host(machine), *named]
            self._processes[name] = subprocess.Popen(
                there, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    @staticmethod
    def host_name(machine: int) -> str:
        return "head" if machine == HEAD else f"node{machine}"

    # -- the cables --------------------------------------------------------------------------------------------

    def plug(self, node: int, *, is_in: bool) -> None:
        """Pull the node's cable out of the switch, or put it back in."""
        network.run("ip", "-n", self.hosts.switch, "link", "set", f"port{node}", "up" if is_in else "down")

    # -- by hand -----------------------------------------------------------------------------------------------

    def shell(self) -> int:
        """Run the user's shell where the API is, with its address and key; return its exit status."""
        key = (self.folder / "state" / "api_key").read_text().strip()
        print(f"{self.num_nodes} nodes; the service is at {self.api_url}; `exit` ends all", flush=True)
        environment = self._environment | {"WIRETUNE_URL": self.api_url, "WIRETUNE_API_KEY": key}
        return subprocess.run([os.environ.get("SHELL", "sh")], env=environment, check=False).returncode

    # -- what there is to see ----------------------------------------------------------------------------------

    def client(self) -> Client:
        return Client(self.api_url, (self.folder / "state" / "api_key").read_text().strip())

    def num_alive(self) -> int:
        """Return how many nodes with cores Ray has."""
        with closing(RayJobs(self.jobs_url, self._token)) as ray:
            try:
                return sum(node.cpus > 0 for node in ray.nodes())
            except Unavailable:
                return 0

    def workers(self) -> Mapping[str, int]:
        """Return how many ranks live on each address."""
        with closing(RayJobs(self.jobs_url, self._token)) as ray:
            names = {machine.id: machine.address for machine in ray.machines()}
            return {names.get(each.node_id, "?"): each.num for each in ray.workers()}


def _ray_start(address: str) -> list[str]:
    return ["ray", "start", f"--node-ip-address={address}", f"--object-store-memory={MEMORY}",
            "--disable-usage-stats", "--block"]  # fmt: skip


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2).status_code < 500
    except httpx2.HTTPError:
        return False


@contextmanager
def running(folder: Path, num_nodes: int, *, cpus: float, mbps: float | None, **settings: str) -> Iterator[Machines]:
    """Make machines and a network of `mbps` between them, and remove both in the end; raises NoNetwork, NotReady."""
    with network.made(num_nodes + 1) as hosts, inside(hosts.host(HEAD)):
        hosts.limit(mbps)
        machines = Machines(hosts, folder, cpus=cpus, **settings)
        try:
            machines.start()
            yield machines
        finally:
            machines.stop()


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have this thread, and what it starts, in the network `namespace` meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        _enter(libc, there.fileno())
        try:
            yield
        finally:
            _enter(libc, here.fileno())


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
