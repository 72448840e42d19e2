"""Ray's Jobs API over plain HTTP, so that the service need not match Ray's version. Paths as of Ray 2.60."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import httpx2

from service.control.queue.capacity import Node
from service.errors import Unavailable

_TIMEOUT_S = 10.0
_LOG_S = 30.0
_LOG_PATH = "/api/v0/logs/file"
_NO_FILE = "A file is not found"  # an agent's words; the head answers 500
#: How Ray writes memory, and begins the name of the resource that tells the kind of a node's GPUs.
_UNITS, _KIND = ("B", "KiB", "MiB", "GiB"), "accelerator_type:"
T = TypeVar("T")


class RayStatus(StrEnum):
    """The status of a submission by Ray; the last two are ours."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    MISSING = "MISSING"  # never submitted, or its head is gone
    UNREACHABLE = "UNREACHABLE"


class Machine(NamedTuple):
    """A living node."""

    id: str
    name: str
    address: str
    is_head: bool
    cpus: float
    gpus: float
    memory_gb: float | None = None  # for tasks and actors; None: Ray does not say
    accelerator: str = ""  # the kind of its GPUs, in Ray's words; empty: none


class Workers(NamedTuple):
    """Living workers of one job on one node."""

    job_id: str
    node_id: str
    num: int


#: Our worker's class, as Ray names it; it runs in a namespace that is the job's id.
_WORKER_CLASS = "RankActor"
#: Its driver runs, or will.
LIVE = frozenset({RayStatus.PENDING, RayStatus.RUNNING})


class RayJobs:
    """The Jobs server of one cluster. Every method raises Unavailable if it does not answer as expected."""

    def __init__(
        self, address: str, token: str | None = None, *, transport: httpx2.BaseTransport | None = None
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.address = address
        self._client = httpx2.Client(
            base_url=address, headers=headers, timeout=_TIMEOUT_S, transport=transport, trust_env=False
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def version(self) -> str:
        """Return the version of Ray there."""
        return self._read(self._send("GET", "/api/version"), lambda body: str(body["ray_version"]))

    def has_package(self, name: str) -> bool:
        """Return whether the head has the package. If so, the head keeps it for some minutes until a driver uses it."""
        answer = self._send("GET", f"/api/packages/gcs/{name}")
        if answer.is_error and answer.status_code != 404:
            raise self._refusal(answer)
        return answer.is_success

    def upload(self, name: str, content: bytes) -> None:
        """Upload a zip to the head, which sends it to every node with a driver or worker that uses it."""
        answer = self._send("PUT", f"/api/packages/gcs/{name}", content=content)
        if answer.is_error:
            raise self._refusal(answer)

    def submit(
        self, submission_id: str, *, entrypoint: str, env_vars: Mapping[str, str], package: str | None = None
    ) -> None:
        """Start a driver. An existing submission counts as success, since the caller made this id for this submission.

        The driver and its workers run in the unpacked `package`, and import from it first.
        """
        place = {} if package is None else {"working_dir": f"gcs://{package}"}
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "entrypoint_num_cpus": 0,
            "runtime_env": {"env_vars": dict(env_vars), **place},
        }
        answer = self._send("POST", "/api/jobs/", json=body)
        if answer.is_error and "already exists" not in answer.text:
            raise self._refusal(answer)

    def status(self, submission_id: str) -> RayStatus:
        """Return the status of the submission."""
        answer = self._send("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == 404:
            return RayStatus.MISSING
        return self._read(answer, lambda body: RayStatus(body["status"]))

    def reason(self, submission_id: str) -> str:
        """Return Ray's reason why the submission failed, such as a failed environment; else ""."""
        answer = self._send("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == 404:
            return ""
        return self._read(answer, lambda body: str(body["message"] or "") if body["status"] == RayStatus.FAILED else "")

    def live(self) -> tuple[str, ...]:
        """Return the ids of all submissions that have not ended, whoever made them."""
        return tuple(submission_id for submission_id, status in self.statuses().items() if status in LIVE)

    def statuses(self) -> dict[str, RayStatus]:
        """Return the status of every submission that Ray knows, whoever made it."""

        def statuses(found: Any) -> dict[str, RayStatus]:
            return {each["submission_id"]: RayStatus(each["status"]) for each in found if each["submission_id"]}

        return self._read(self._send("GET", "/api/jobs/"), statuses)

    def stop(self, submission_id: str) -> None:
        """End the driver by SIGTERM, and by SIGKILL some seconds later. A missing driver counts as stopped."""
        answer = self._send("POST", f"/api/jobs/{submission_id}/stop")
        if answer.is_error and answer.status_code != 404:
            raise self._refusal(answer)

    def delete(self, submission_id: str) -> None:
        """Delete an ended driver from Ray's list. An unknown driver counts as deleted."""
        answer = self._send("DELETE", f"/api/jobs/{submission_id}")
        if answer.is_error and answer.status_code != 404:
            raise self._refusal(answer)

    def log(self, submission_id: str, *, lines: int | None = None) -> Iterator[bytes]:
        """Yield the driver's output in pieces, or only its last `lines`; nothing where there is none yet.

        The pieces are the bytes that were printed. Raises Unavailable on the way, too: then the rest is missing.
        """
        node = self._driver_node(submission_id)
        if node is None:
            return
        query: dict[str, str | int] = {
            "node_id": node,
            "filename": log_name(submission_id),
            "lines": lines or -1,
            "timeout": math.ceil(_LOG_S),
        }
        with self._reaching(), self._client.stream("GET", _LOG_PATH, params=query, timeout=_LOG_S) as answer:
            if answer.is_success:
                yield from self._in_time(answer.iter_bytes())
                return
            answer.read()
        if _NO_FILE not in self._allowed(answer).text:
            raise self._refusal(answer)

    def _driver_node(self, submission_id: str) -> str | None:
        """Return the node whose disk has the driver's output; None before the driver has one, and if Ray forgot it."""
        answer = self._send("GET", f"/api/jobs/{submission_id}")
        return None if answer.status_code == 404 else self._read(answer, lambda body: body["driver_node_id"])

    def _in_time(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        deadline = time.monotonic() + _LOG_S
        for chunk in chunks:
            if time.monotonic() > deadline:
                raise Unavailable(f"Ray at {self.address} took longer than {_LOG_S:g} s to give a log")
            yield chunk

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes' logical resources; a new head may have none yet (Unavailable)."""
        return tuple(map(_node, self.machines()))

    def machines(self) -> tuple[Machine, ...]:
        """Return the living nodes; a new head may have none yet (Unavailable)."""
        found = self._listed(
            "/api/v0/nodes?limit=10000", lambda rows: tuple(_machine(row) for row in rows if row["state"] == "ALIVE")
        )
        if not found:
            raise Unavailable(f"Ray at {self.address} has no living node yet")
        return found

    def workers(self) -> tuple[Workers, ...]:
        """Return how many training workers of each job live on each node, whichever service's they are."""
        conditions = {"state": "ALIVE", "class_name": _WORKER_CLASS}
        filters = "".join(
            f"&filter_keys={key}&filter_predicates=%3D&filter_values={value}" for key, value in conditions.items()
        )
        counted = self._listed(
            f"/api/v0/actors?limit=10000{filters}",
            lambda rows: Counter((row["ray_namespace"], row["node_id"]) for row in rows if row["node_id"]),
        )
        return tuple(Workers(job_id, node_id, num) for (job_id, node_id), num in sorted(counted.items()))

    def _listed(self, path: str, read: Callable[[Any], T]) -> T:
        return self._read(self._send("GET", path), lambda body: read(body["data"]["result"]["result"]))

    def _send(self, method: str, path: str, **content: Any) -> httpx2.Response:
        with self._reaching():
            answer = self._client.request(method, path, **content)
        return self._allowed(answer)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.HTTPError, RuntimeError) as error:  # the latter: closed meanwhile, Ray is being stopped
            raise Unavailable(f"Ray at {self.address} does not answer: {error or type(error).__name__}") from error

    def _allowed(self, answer: httpx2.Response) -> httpx2.Response:
        if answer.status_code in (401, 403):
            raise Unavailable(f"Ray at {self.address} refuses our token; check WIRETUNE_RAY_TOKEN_PATH")
        return answer

    def _read(self, answer: httpx2.Response, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the answer's JSON; it may not be Ray's but a proxy's, or of another release."""
        if answer.is_error:
            raise self._refusal(answer)
        try:
            return read(answer.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise Unavailable(f"Ray at {self.address} gave an answer that is not Ray's ({what[:300]})") from error

    def _refusal(self, answer: httpx2.Response) -> Unavailable:
        last = answer.text.strip().splitlines()[-1:] or [""]
        return Unavailable(f"Ray at {self.address} answered {answer.status_code}: {last[0][:300]}")


def log_name(submission_id: str) -> str:
    """Return the name of the file with a driver's output, among the logs of its node's Ray."""
    return f"job-driver-{submission_id}.log"


def _machine(row: Mapping[str, Any]) -> Machine:
    total = row["resources_total"]
    return Machine(
        id=row["node_id"],
        name=row.get("node_name") or row["node_ip"],
        address=row["node_ip"],
        is_head=bool(row.get("is_head_node")),
        cpus=total.get("CPU", 0.0),
        gpus=total.get("GPU", 0.0),
        memory_gb=None if "memory" not in total else _gigabytes(total["memory"]),
        accelerator=next((name.removeprefix(_KIND) for name in total if name.startswith(_KIND)), ""),
    )


def _gigabytes(memory: float | str) -> float:
    """Return Ray's amount of memory, in bytes or as `29.802 GiB`, in GB; text is rounded, so at worst too little."""
    if not isinstance(memory, str):
        return memory / 1e9
    number, unit = memory.split()
    return max(0.0, float(number) - 0.0005) * 1024.0 ** _UNITS.index(unit) / 1e9


def _node(machine: Machine) -> Node:
    memory_gb = math.inf if machine.memory_gb is None else machine.memory_gb
    return Node(cpus=machine.cpus, gpus=machine.gpus, memory_gb=memory_gb, accelerator=machine.accelerator)
