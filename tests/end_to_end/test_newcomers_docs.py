"""The newcomers' pages that train jobs do what they say."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs_pages import run_console, run_python

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def replaced(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "api_key").write_text(f"{cluster.key}\n")
    return {"http://127.0.0.1:8470": cluster.url, "~/.wiretune/api_key": str(tmp_path / "api_key")}


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl and jq are not installed")
def test_the_page_for_curl_does_what_it_says(replaced: dict[str, str], tmp_path: Path) -> None:
    run_console("rest.md", tmp_path, replaced)


def test_the_page_for_python_does_what_it_says(replaced: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    url, key_file = replaced.values()
    monkeypatch.setenv("WIRETUNE_URL", url)
    monkeypatch.setenv("WIRETUNE_API_KEY_FILE", key_file)

    run_python("python.md", {})
