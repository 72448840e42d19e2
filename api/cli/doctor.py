"""`wiretune doctor`: check this machine for what the service needs; each finding has its remedy."""

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import uuid4

import httpx2
import psutil
import typer
from packaging.requirements import Requirement
from pydantic import BaseModel, TypeAdapter

from api.cli.rehearsal import CannotTrain, answers
from api.cli.sheet import Sheet
from api.cli.terminal import FAILED, AsJson, Key, Url, console, print_json, read_settings
from api.client import Client
from api.connection import is_loopback, with_scheme
from api.failures import ApiError, Unreachable
from api.local_service import LocalServerError, running_server
from service.control.database.engine import is_sqlite, is_there
from service.control.database.schema import MADE_BY_NEWER, is_newer, revisions
from service.control.ray_cluster import embedded
from service.control.ray_cluster.clusters import RayApi, RemoteCluster
from service.control.ray_cluster.node_reports import MISSING, NodeReport, ask_nodes
from service.control.storage import Storage
from service.control.storage_mark import lost, remembered
from service.errors import Unavailable, WiretuneError
from service.settings import Settings
from trainers.spec.workloads import OwnWorkload, WorkloadConfig

app = typer.Typer()

Verdict = Literal["ok", "warn", "fail"]
#: Free bytes below which a service should not start, and below which it may soon stop.
_LEAST_FREE, _LITTLE_FREE = 500_000_000, 5_000_000_000
#: The largest allowed difference between two clocks, in seconds.
_MOST_SKEW_S = 2.0
#: Runnable processes per core above which workers wait for each other.
_MOST_LOAD = 1.5
#: Timeout for all built-in data sets, in seconds.
_DATA_S = 120.0
_PINNED = ("wiretune", "torch", "ray")
_SAME_VERSIONS = "install the same versions on every node as here"
#: The most machines that a finding names.
_MOST_NAMED = 3


class Found(NamedTuple):
    """The result of a check in a sentence, and its remedy."""

    verdict: Verdict
    text: str
    fix: str = ""


class Finding(BaseModel):
    """The result of a check, with its name."""

    check: str
    verdict: Verdict
    text: str
    fix: str


class Service(NamedTuple):
    """The service to check."""

    url: str
    key: str


Check = Callable[[], Found]


def examine(checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Run the checks and return their findings. A check that raises is a finding too."""
    return [Finding(check=name, **_found(check)._asdict()) for name, check in checks]


def _found(check: Check) -> Found:
    try:
        return check()
    except (ApiError, Unreachable, WiretuneError) as error:
        return Found("fail", str(error))
    except Exception as error:  # the other checks must still run
        return Found("fail", f"{type(error).__name__}: {' '.join(str(error).split())}")


def versions() -> Found:
    """Check that the installed packages are those that wiretune requires."""
    wrong = []
    for each in map(Requirement, requires("wiretune") or ()):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        try:
            if not each.specifier.contains(version(each.name), prereleases=True):
                wrong.append(f"{each.name} {version(each.name)} (needed: {each.specifier})")
        except PackageNotFoundError:
            wrong.append(f"no {each.name} (needed: {each.specifier or 'any'})")
    if wrong:
        fix = "pip install --constraint constraints.txt wiretune-VERSION.whl, or `make setup` in a checkout"
        return Found("fail", ", ".join(wrong), fix=fix)
    here = ", ".join(f"{name} {version(name)}" for name in _PINNED)
    return Found("ok", here)


def state_dir(settings: Settings) -> Found:
    """Check that the service can write its state."""
    folder = settings.state_dir
    nearest = _nearest(folder)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        fix = "give another folder in WIRETUNE_STATE_DIR, or the right to write there"
        return Found("fail", f"{nearest} cannot be written to", fix=fix)
    made = "" if folder.exists() else ", made at the first start"
    return Found("ok", f"{folder}{made}")


def disk(settings: Settings) -> Found:
    """Check that there is room for checkpoints."""
    free = shutil.disk_usage(_nearest(settings.state_dir)).free
    verdict: Verdict = "fail" if free < _LEAST_FREE else "warn" if free < _LITTLE_FREE else "ok"
    fix = "" if verdict == "ok" else "`wiretune clean` removes what finished jobs left"
    return Found(verdict, f"{free / 1e9:.1f} GB are free", fix=fix)


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def database(settings: Settings) -> Found:
    """Check that the database answers and has this version's tables."""
    url = settings.resolved_database_url
    if not is_there(url):
        return Found("ok", "none yet; made at the first start")
    found, newest = revisions(url)
    if is_newer(found):
        return Found("fail", f"its tables are at {found}: {MADE_BY_NEWER}")
    if found != newest:
        fix = "start this version's service once: it brings the tables up to date; make a backup before"
        text = f"its tables are at {found or 'nothing'}, this version's at {newest}"
        return Found("warn", text, fix=fix)
    kind = "SQLite" if is_sqlite(url) else "PostgreSQL"
    return Found("ok", f"{kind} answers, with tables at {newest}")


def storage(settings: Settings) -> Found:
    """Check that results can be written and read."""
    url = settings.resolved_storage_url
    if not settings.storage_url and not settings.state_dir.exists():
        return Found("ok", "in the state dir, made at the first start")
    try:
        results = Storage(url)
        if settings.storage_url and (why := lost(results, _marks(settings))):
            return Found("fail", why)
        results.require_writable()
    except Unavailable as error:
        return Found("fail", str(error), fix="see that the URL and its keys are right")
    return Found("ok", f"{url} takes and gives a file")


def _marks(settings: Settings) -> list[str]:
    """Return the service's marks on the storage; empty if the database, which has its own check, cannot tell."""
    url = settings.resolved_database_url
    with suppress(Unavailable):
        if is_there(url):
            found, newest = revisions(url)
            return remembered(url) if found == newest else []
    return []


def ray(settings: Settings, *, may_start: bool) -> Found:
    """Check that Ray answers. Only if `may_start`, start an embedded Ray, or ask each node of a cluster."""
    if settings.ray_address:
        return _cluster(settings, may_start=may_start)
    if embedded.head_status(settings) is not None:
        return Found("ok", "the embedded Ray runs")
    if (stale := embedded.stale_dir(settings)) is not None:
        return Found("warn", f"a killed Ray left {stale}", fix="`wiretune clean` removes it")
    if not may_start:
        return Found("ok", "embedded, starts with the first job; --ray tries that")
    started = time.monotonic()
    try:
        embedded.ensure_head(settings).owner.close()
    except Unavailable as error:
        return Found("fail", str(error), fix="read that log")
    embedded.stop_head(settings)
    return Found("ok", f"an embedded Ray started in {time.monotonic() - started:.0f} s")


def _cluster(settings: Settings, *, may_start: bool) -> Found:
    try:
        with closing(RemoteCluster(settings)) as cluster:
            api = cluster.connect()
            nodes, version_there = api.nodes(), api.version()
            training = [node for node in nodes if node.cpus or node.gpus]
            cpus = f"{sum(node.cpus for node in training):g} CPUs on {len(training)} of them"
            text = f"{settings.ray_address} answers: {len(nodes)} nodes, {cpus}"
            if may_start:
                return _each_node(settings, api, cluster.python, text)
    except Unavailable as error:
        fix = "check WIRETUNE_RAY_ADDRESS, and that WIRETUNE_RAY_TOKEN_PATH holds the cluster's token"
        return Found("fail", str(error), fix=fix)
    if version_there != version("ray"):
        return Found("warn", f"{text}; ray {version_there} there, {version('ray')} here", fix=_SAME_VERSIONS)
    return Found("ok", f"{text}; --ray asks each node for its versions, load and storage")


def _each_node(settings: Settings, api: RayApi, python: str, text: str) -> Found:
    """Check each node of the cluster; `text` describes the cluster."""
    with _left_in_storage(settings) as file:
        try:
            reports = ask_nodes(api, python, packages=_PINNED, file=file)
        except Unavailable as error:
            return Found("fail", f"{text}; {error}", fix="see that driver in Ray's dashboard")
    if faults := [*_faults(reports)]:
        verdict: Verdict = "fail" if any(fault.verdict == "fail" for fault in faults) else "warn"
        fixes = dict.fromkeys(fault.fix for fault in faults)
        return Found(verdict, f"{text}; {_by_machine(faults)}", fix="; ".join(fixes))
    sees = " and sees its storage" if file else ""
    return Found("ok", f"{text}; each has the versions of this machine{sees}")


@contextmanager
def _left_in_storage(settings: Settings) -> Iterator[str]:
    """Leave a file in the storage for nodes to look for, and give its path; empty if the storage is no folder."""
    scheme, _, folder = settings.resolved_storage_url.rpartition("://")
    if scheme not in ("", "file") or not Path(folder).is_dir():
        yield ""
        return
    file = Path(folder) / f".doctor-{uuid4().hex}"
    try:
        file.touch()
    except OSError:  # the storage has its own check
        yield ""
        return
    try:
        yield str(file)
    finally:
        file.unlink(missing_ok=True)


class _Fault(NamedTuple):
    verdict: Verdict
    machine: str
    text: str
    fix: str


def _faults(reports: Iterable[NodeReport]) -> Iterator[_Fault]:
    """Yield each node's differences from this machine."""
    here = {"python": platform.python_version()} | {name: version(name) for name in _PINNED}
    for node in reports:
        if node.error:
            yield _Fault("fail", node.machine, node.error, "see that node in Ray's dashboard")
        for name, theirs in node.versions.items():
            if theirs == MISSING:
                yield _Fault("fail", node.machine, f"{name} {theirs} there", f"install {name} {here[name]} there")
            elif _compared(name, theirs) != _compared(name, here[name]):
                yield _Fault("warn", node.machine, f"{name} {theirs} there, {here[name]} here", _SAME_VERSIONS)
        if node.sees is False:
            fix = "mount the folder of WIRETUNE_STORAGE_URL on the service's machine and on every node"
            yield _Fault("fail", node.machine, "it does not see the storage of this machine", fix)
        if node.load > _MOST_LOAD * node.cores:
            text = f"overloaded, load {node.load:.1f} on {node.cores} cores"
            yield _Fault("warn", node.machine, text, "end other work there: workers that are late may pass for lost")


def _compared(package: str, found: str) -> str:
    """Return the part of a version that must match: two numbers for Python, all but the build for packages."""
    return ".".join(found.split(".")[:2]) if package == "python" else found.partition("+")[0]


def _by_machine(faults: Iterable[_Fault]) -> str:
    """Return the faults as text, each with its machines."""
    machines: dict[str, list[str]] = {}
    for fault in faults:
        machines.setdefault(fault.text, []).append(fault.machine)
    return "; ".join(f"{_named(those)}: {text}" for text, those in machines.items())


def _named(machines: Sequence[str]) -> str:
    others = f" and {len(machines) - _MOST_NAMED} more" if len(machines) > _MOST_NAMED else ""
    return f"{', '.join(machines[:_MOST_NAMED])}{others}"


def _located(settings: Settings, url: str | None, key: str | None) -> tuple[Service | None, Found | None]:
    """Return the service to check (None if there is none), and a finding if this machine's cannot be asked."""
    if url is not None:
        return Service(url, key or ""), None
    try:
        server = running_server(settings)
    except LocalServerError as error:
        return None, Found("fail", str(error))
    return server and Service(server.url, key or server.key), None


def service(at: Service | None) -> Found:
    """Check that the service answers, accepts this key, and has this version."""
    if at is None:
        return Found("ok", "none runs here; `wiretune serve` starts one")
    with Client(at.url, at.key, retry_s=0.0) as client:  # no retries: a passing refusal is a finding, too
        try:
            client.jobs(limit=1)
        except ApiError as error:
            fix = "give a key with --key or WIRETUNE_API_KEY" if error.status == 401 else "see the service's log"
            return Found("fail", f"{client.url}: {error.detail}", fix=fix)
    theirs = _get(at, "openapi.json").json()["info"]["version"]
    if theirs != version("wiretune"):
        fix = "install the same version on both sides"
        text = f"{at.url} is version {theirs}, this command {version('wiretune')}"
        return Found("warn", text, fix=fix)
    return Found("ok", f"{at.url} answers, version {theirs}")


def _get(at: Service, path: str) -> httpx2.Response:
    url = f"{with_scheme(at.url)}/{path}"
    return httpx2.get(url, timeout=10.0, trust_env=not is_loopback(url))


def clock(at: Service | None) -> Found:
    """Check that the service's clock agrees with this one."""
    if at is None:
        return Found("ok", "no service to compare with")
    told = _get(at, "healthz").headers["date"]
    skew = abs((datetime.now(UTC) - parsedate_to_datetime(told)).total_seconds())
    if skew > _MOST_SKEW_S:
        fix = "have both machines follow NTP"
        return Found("warn", f"the service's differs by {skew:.0f} s", fix=fix)
    return Found("ok", "the service's agrees with this one")


def interfaces(settings: Settings) -> Found:
    """Check the address that workers announce: their Ray node's in jobs, else that of the host name."""
    found = _interface_here()
    if not settings.ray_address:
        return found
    verdict: Verdict = "ok" if found.verdict == "ok" else "warn"
    text = f"workers of jobs use the address of their node in Ray; here: {found.text}"
    return Found(verdict, text, fix=found.fix)


def _interface_here() -> Found:
    if chosen := os.environ.get("GLOO_SOCKET_IFNAME"):
        if chosen in psutil.net_if_addrs():
            return Found("ok", f"workers use {chosen}, as GLOO_SOCKET_IFNAME says")
        fix = f"name one of {', '.join(psutil.net_if_addrs())}"
        return Found("fail", f"GLOO_SOCKET_IFNAME names no interface: {chosen}", fix=fix)
    name, fix = socket.gethostname(), "put its address in /etc/hosts, or name an interface in GLOO_SOCKET_IFNAME"
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return Found("warn", f"{name} has no address ({error.strerror}); only workers without Ray use it", fix=fix)
    return Found("ok", f"workers without Ray use {address}, the address of {name}")


def data_sets() -> Found:
    """Check which built-in workloads find their data here."""
    described = TypeAdapter[Any](WorkloadConfig).json_schema()["$defs"].values()
    named = [each["properties"]["kind"]["const"] for each in described if "kind" in each.get("properties", ())]
    kinds = [kind for kind in named if kind != OwnWorkload.model_fields["kind"].default]
    try:
        found = answers({"built_in": [{"kind": kind} for kind in kinds]}, timeout_s=_DATA_S)
    except CannotTrain as error:
        return Found("fail", str(error))
    if lacking := [kind for kind, problem in found.items() if problem]:
        fix = str(found[lacking[0]])
        return Found("warn", f"missing for {', '.join(lacking)}", fix=fix)
    return Found("ok", f"all are here: {', '.join(found)}")


def load() -> Found:
    """Check that the machine is not too busy for workers."""
    runnable, cores = os.getloadavg()[0], os.cpu_count() or 1
    text = f"load {runnable:.1f} on {cores} cores"
    if runnable > _MOST_LOAD * cores:
        fix = "wait, or end other work: workers that wait for each other may pass for lost"
        return Found("warn", f"the machine is overloaded, {text}", fix=fix)
    return Found("ok", text)


@app.command()
def doctor(
    may_start_ray: Annotated[
        bool, typer.Option("--ray", help="start the embedded Ray, or ask each node of the cluster")
    ] = False,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check what the service needs: versions, database, storage, Ray, network, data sets, clocks, load.

    Exits with 1 if anything fails.
    """
    settings = read_settings()
    at, unknown = _located(settings, url, key)
    checks: list[tuple[str, Check]] = [
        ("versions", versions),
        ("state dir", lambda: state_dir(settings)),
        ("disk", lambda: disk(settings)),
        ("database", lambda: database(settings)),
        ("storage", lambda: storage(settings)),
        ("ray", lambda: ray(settings, may_start=may_start_ray)),
        ("network", lambda: interfaces(settings)),
        ("service", lambda: unknown or service(at)),
        ("clock", lambda: clock(at)),
        ("data sets", data_sets),
        ("load", load),
    ]
    found = examine(checks)
    has_failed = any(each.verdict == "fail" for each in found)
    if as_json:
        print_json({"healthy": not has_failed, "findings": found})
    else:
        console().print(sheet(found))
    if has_failed:
        raise typer.Exit(FAILED)


def sheet(found: Iterable[Finding]) -> Sheet:
    """Return the findings as a table for a terminal, each remedy on a line of its own."""
    table = Sheet("check", "", "found", left=("check", "", "found"))
    for each in found:
        table.add_row(each.check, each.verdict, each.text, note=each.fix and f"-> {each.fix}")
    return table
