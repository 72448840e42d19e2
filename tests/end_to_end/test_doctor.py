"""`wiretune doctor` against a cluster that somebody else runs."""

from importlib.metadata import version
from pathlib import Path

import pytest

from api.cli import doctor
from service.settings import Settings
from tests.end_to_end.conftest import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def settings(cluster: Cluster, tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, ray_address=cluster.ray_url, ray_token_path=cluster.ray_token)


def test_a_driver_on_the_cluster_tells_its_versions(settings: Settings) -> None:
    found = doctor.ray(settings, may_start=True)

    assert found.verdict == "ok", found.text
    assert "2 nodes" in found.text and "has the versions of this machine" in found.text


@pytest.mark.parametrize(("may_start", "package"), [(True, "torch"), (True, "python"), (False, "ray")])
def test_a_version_that_differs_is_named_with_both(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, may_start: bool, package: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "9.9.9" if name == package else version(name))
    if package == "python":
        monkeypatch.setattr(doctor.platform, "python_version", lambda: "9.9.9")

    found = doctor.ray(settings, may_start=may_start)

    assert found.verdict == "warn" and "same versions" in found.fix
    differing = [each for each in found.text.split("; ")[1].split(", ") if "there" in each]
    assert len(differing) == 1 and differing[0].startswith(f"{package} ")


def test_a_wrong_token_names_the_setting(settings: Settings, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)

    found = doctor.ray(settings.model_copy(update={"ray_token_path": wrong}), may_start=True)

    assert found.verdict == "fail" and "WIRETUNE_RAY_TOKEN_PATH" in found.fix
