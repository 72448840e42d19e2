"""A run on several machines: its requirements for each, and the error that names the one that fails."""

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.cluster import group, shared_folder
from service.cluster.group import RankActor, RayGroup, interface_of, require_same_versions, versions
from service.control.storage import Storage
from service.job.spec import JobSpec
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training.call_results import Outcome
from trainers.workload import WorkloadError

HERE = {"Python": "3.11", "ray": "2.60.0", "torch": "2.13.0", "wiretune": "0.1.0"}


class Worker:
    """A rank that answers at once, on a machine that has the folder `there` in the place of `here`."""

    def __init__(self, here: Path, there: Path) -> None:
        self._here, self._there, self._actor = here, there, object.__new__(RankActor)
        self._actor.address = "10.0.0.4"

    def __getattr__(self, method: str) -> Any:
        def remote(*urls: str) -> Callable[[], Any]:
            found = [url.replace(str(self._here), str(self._there)) for url in urls]
            return partial(getattr(self._actor, method), *found)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def group_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayGroup]:
    """Return a group of workers of a service whose storage has this mark."""
    monkeypatch.setattr("ray.wait", lambda calls, **_: (calls, []))
    monkeypatch.setattr("ray.get", lambda call, **_: call())
    monkeypatch.setattr(shared_folder, "_PATIENCE_S", 0.0)

    def make(mark: str | None, *workers: Worker) -> RayGroup:
        made = object.__new__(RayGroup)
        made.config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())
        made._mark, made._actors = mark, dict(enumerate(workers))
        return made

    return make


def mark_in(folder: Path) -> str:
    """Leave a service's mark in a folder, and return its URL."""
    storage = Storage(f"file://{folder}")
    mark = storage.mark_url("of-this-service")
    assert mark is not None
    storage.write(mark, b"")
    return mark


def test_machines_of_the_same_versions_train_together():
    require_same_versions({"a": HERE, "b": dict(HERE)}, HERE)


def test_a_machine_of_another_version_is_named_with_both_versions():
    with pytest.raises(WorkloadError, match=r"machine b has ray 2\.59\.0, and 2\.60\.0 here; torch 2\.12\.1, and"):
        require_same_versions({"a": HERE, "b": HERE | {"torch": "2.12.1", "ray": "2.59.0"}}, HERE)


def test_the_build_of_a_version_for_a_gpu_is_the_same_version():
    assert set(versions()) == set(HERE)
    assert "+" not in "".join(versions().values())


def test_a_process_keeps_the_versions_that_it_began_with(monkeypatch: pytest.MonkeyPatch):
    before = versions()

    monkeypatch.setattr(group, "version", lambda _: "99.0")  # what `pip install` leaves on the disk

    assert versions() == before


def test_machines_that_see_the_services_folder_train_together(group_of, tmp_path: Path):
    group_of(mark_in(tmp_path), *[Worker(tmp_path, tmp_path)] * 2).await_places([0, 1])


def test_a_machine_that_has_a_folder_of_its_own_for_the_shared_one_is_named_before_the_first_step(
    group_of, tmp_path: Path
):
    shared, own = tmp_path / "shared", tmp_path / "own"
    workers = group_of(mark_in(shared), Worker(shared, shared), Worker(shared, own))

    with pytest.raises(
        WorkloadError, match=rf"10\.0\.0\.4\) does not see the same file://{shared} as the service: one"
    ):
        workers.await_places([0, 1])

    workers.await_places([0])  # one that is replaced is asked by itself
    with pytest.raises(WorkloadError):
        workers.await_places([1])


def test_a_trial_whose_machine_has_a_folder_of_its_own_is_told_from_the_service_before_it_starts_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_folder, "_PATIENCE_S", 0.0)
    mark = mark_in(tmp_path / "shared")
    shared_folder.require(mark)
    shared_folder.require(None)  # an older service has not said

    (tmp_path / "shared").rename(tmp_path / "not mounted here")

    with pytest.raises(WorkloadError, match="does not see the same"):
        shared_folder.require(mark)


def test_a_bucket_which_is_one_for_all_machines_gets_no_mark(group_of, tmp_path: Path):
    mark = Storage("s3://bucket").mark_url("of-this-service")
    assert mark is None

    group_of(mark, Worker(tmp_path, tmp_path)).await_places([0])


@pytest.mark.parametrize(
    ("kind", "num_nodes", "is_named"),
    [("no_data", 2, True), ("refused", 2, True), ("error", 2, True), ("answer", 2, False), ("refused", 1, False)],
)
def test_what_a_machine_lacks_is_told_with_its_name_and_address_where_there_are_several(
    kind, num_nodes, is_named, monkeypatch
):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}] * num_nodes + [{"Alive": False}])
    actor = object.__new__(RankActor)
    actor.address = "10.0.0.3"

    content = actor._placed(Outcome(kind, "this machine lacks the data `x`")).content

    assert content.endswith("this machine lacks the data `x`")
    assert ("10.0.0.3" in content) == is_named


def test_the_interface_of_any_address_that_it_has_is_found(monkeypatch: pytest.MonkeyPatch):
    addresses = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.4", "10.0.1.4", "fd00::4"]}
    own = {name: [SimpleNamespace(address=each) for each in found] for name, found in addresses.items()}
    monkeypatch.setattr(group.psutil, "net_if_addrs", lambda: own)

    assert [interface_of(each) for each in ("10.0.1.4", "fd00::4", "::1")] == ["eth0", "eth0", "lo"]
    assert interface_of("10.0.0.40") is None


@pytest.mark.parametrize(("address", "url"), [("10.0.0.4", "tcp://10.0.0.4:7"), ("fd00::4", "tcp://[fd00::4]:7")])
def test_workers_meet_at_an_address_of_either_kind(address: str, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group, "TCPStore", lambda *_, **__: SimpleNamespace(port=7))
    actor = object.__new__(RankActor)
    actor.address = address

    assert actor.rendezvous() == url


def test_nobody_can_take_the_port_before_the_workers_meet():
    actor = object.__new__(RankActor)  # whose own work is to ask Ray, and to build a replica
    actor.address = "127.0.0.1"

    first, second = (urlsplit(actor.rendezvous()) for _ in range(2))

    assert first.port != second.port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", second.port))


def test_a_run_among_fewer_workers_is_the_same_run():
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": {"count": 4, "min": 2}}
    (spec,) = JobSpec.model_validate(body).trials()

    fewer = spec.among(3)

    assert (fewer.workers.count, fewer.among(4)) == (3, spec)
