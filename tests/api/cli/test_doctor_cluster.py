"""`wiretune doctor --ray` reports how each node of a cluster differs from this machine."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.cli import doctor
from service.control.queue.capacity import Node
from service.control.ray_cluster import node_reports
from service.control.ray_cluster.node_reports import NodeReport
from service.errors import Unavailable
from service.settings import Settings

HERE = {"python": platform.python_version()} | {name: version(name) for name in ("wiretune", "torch", "ray")}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    address, api = "http://10.0.0.1:8265", "http://10.0.0.1:8470"
    return Settings(state_dir=tmp_path, ray_address=address, api_url=api, storage_url=f"file://{tmp_path}")


@pytest.fixture
def found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the doctor finds where these are the nodes' reports; `found.asked` has the files that it left."""
    asked = list[str]()

    def found(*reports: NodeReport, **changes: Any) -> doctor.Found:
        api = SimpleNamespace(nodes=lambda: [Node(cpus=4, gpus=0)] * len(reports), version=lambda: version("ray"))
        cluster = SimpleNamespace(python="python", connect=lambda: api, close=lambda: None)
        monkeypatch.setattr(doctor, "RemoteCluster", lambda settings: cluster)

        def ask(ray: Any, python: str, *, packages: Sequence[str], file: str) -> Sequence[NodeReport]:
            asked.append(file)
            assert not file or Path(file).is_file()
            return reports

        monkeypatch.setattr(doctor, "ask_nodes", ask)
        return doctor.ray(settings.model_copy(update=changes), may_start=True)

    found.asked = asked  # type: ignore[attr-defined]
    return found


def node(name: str, **changes: Any) -> NodeReport:
    return NodeReport.model_validate({"machine": name, "versions": HERE, "sees": True} | changes)


def test_nodes_that_are_as_this_machine_are_fine(found: Any) -> None:
    said = found(node("head"), node("node1"))

    assert said.verdict == "ok" and not said.fix
    assert "2 nodes, 8 CPUs on 2 of them; each has the versions of this machine and sees its storage" in said.text


@pytest.mark.parametrize(
    ("changes", "verdict", "words", "fix"),
    [
        ({"versions": HERE | {"torch": "2.0.0"}}, "warn", "node2: torch 2.0.0 there, ", "same versions on every node"),
        ({"versions": HERE | {"torch": "missing"}}, "fail", "node2: torch missing there", "install torch "),
        ({"sees": False}, "fail", "node2: it does not see the storage", "mount the folder of WIRETUNE_STORAGE_URL"),
        ({"load": 31.0, "cores": 4}, "warn", "node2: overloaded, load 31.0 on 4 cores", "end other work there"),
        ({"versions": {}, "error": "no answer in 90 s"}, "fail", "node2: no answer in 90 s", "see that node"),
    ],
)
def test_a_node_that_is_not_as_this_machine_is_named(
    found: Any, changes: dict[str, Any], verdict: str, words: str, fix: str
) -> None:
    said = found(node("head"), node("node1"), node("node2", **changes))

    assert said.verdict == verdict
    assert words in said.text and "node1" not in said.text
    assert fix in said.fix


def test_what_many_nodes_have_is_said_once(found: Any) -> None:
    said = found(*(node(f"node{number}", versions=HERE | {"ray": "1.0"}) for number in range(5)))

    assert f"; node0, node1, node2 and 2 more: ray 1.0 there, {HERE['ray']} here" in said.text
    assert said.text.count("1.0 there") == 1


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("torch", f"{version('torch').partition('+')[0]}+cu130"), ("python", f"{platform.python_version()}1")],
)
def test_another_build_of_the_same_version_is_the_same(found: Any, name: str, theirs: str) -> None:
    assert found(node("node1", versions=HERE | {name: theirs})).verdict == "ok"


def test_nodes_look_for_a_file_in_a_storage_that_is_a_folder_and_it_is_gone_afterwards(
    found: Any, tmp_path: Path
) -> None:
    found(node("node1"))
    found(node("node1", sees=None), storage_url="s3://bucket/results")

    in_folder, in_bucket = found.asked
    assert in_folder.startswith(f"{tmp_path}/.doctor-") and in_bucket == ""
    assert not [*tmp_path.glob(".doctor-*")]


def test_a_driver_that_fails_is_not_blamed_on_the_address_of_a_cluster_that_answers(
    found: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(node("head"))

    def ask(*_: Any, **__: Any) -> Any:
        raise Unavailable("the driver wiretune-doctor-1 did not end in 180 s")

    monkeypatch.setattr(doctor, "ask_nodes", ask)
    said = doctor.ray(settings, may_start=True)

    assert said.verdict == "fail" and "1 nodes" in said.text and "did not end in 180 s" in said.text
    assert said.fix == "see that driver in Ray's dashboard"


class _Ray:
    """Takes a driver that has ended."""

    def __init__(self, *, status: str, logs: str) -> None:
        self.submit = self.delete = self._note
        self.status, self.log = lambda _: status, lambda _: [logs.encode()]
        self.kept = set[str]()

    def _note(self, name: str, **_: Any) -> None:
        self.kept ^= {name}


def test_a_driver_that_has_reported_is_forgotten_and_one_that_failed_is_there_to_look_at() -> None:
    done: Any = _Ray(status="SUCCEEDED", logs='wiretune-doctor {"machine": "head"}\n')
    failed: Any = _Ray(status="FAILED", logs="Traceback\nNo module named ray\n")

    [report] = node_reports.ask_nodes(done, "python", packages=["torch"])
    with pytest.raises(Unavailable, match="ended as FAILED: No module named ray") as refused:
        node_reports.ask_nodes(failed, "python", packages=["torch"])

    assert report.machine == "head" and not done.kept
    assert [name for name in failed.kept if name in str(refused.value)]
