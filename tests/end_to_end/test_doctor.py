"""`wiretune doctor` against an external cluster."""

from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from api.cli import doctor
from service.control.ray_cluster.clusters import RemoteCluster
from service.control.ray_cluster.node_reports import ask_nodes
from service.settings import Settings
from tests.end_to_end.conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def settings(cluster: Cluster, tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, ray_address=cluster.ray_url, ray_token_path=cluster.ray_token)


@pytest.fixture(autouse=True)
def _however_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MOST_LOAD", float("inf"))


def test_each_node_of_the_cluster_tells_what_it_has(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()

    found = doctor.ray(settings, may_start=True)

    assert found.verdict == "ok", found.text
    assert "2 nodes" in found.text and "each has the versions of this machine and sees its storage" in found.text


def test_a_file_that_is_on_this_machine_alone_is_seen_by_no_node(settings: Settings) -> None:
    with closing(RemoteCluster(settings)) as cluster:
        reports = ask_nodes(cluster.connect(), cluster.python, packages=["ray"], file="/nowhere/of-this-machine")

    assert [report.sees for report in reports] == [False, False]
    assert all(report.cores and report.versions["ray"] == version("ray") for report in reports)


@pytest.mark.parametrize(("may_start", "package"), [(True, "torch"), (True, "python"), (False, "ray")])
def test_a_version_that_differs_is_named_with_both(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, may_start: bool, package: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "9.9.9" if name == package else version(name))
    if package == "python":
        monkeypatch.setattr(doctor.platform, "python_version", lambda: "9.9.9")

    found = doctor.ray(settings, may_start=may_start)

    assert found.verdict == "warn" and "same versions" in found.fix
    differing = [each for each in found.text.split("; ") if "there" in each]
    assert len(differing) == 1 and f"{package} " in differing[0] and "9.9.9 here" in differing[0]
    assert differing[0].count(" (") == (2 if may_start else 0)  # each node with its address


def test_a_wrong_token_names_the_setting(settings: Settings, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)

    found = doctor.ray(settings.model_copy(update={"ray_token_path": wrong}), may_start=True)

    assert found.verdict == "fail" and "WIRETUNE_RAY_TOKEN_PATH" in found.fix
