"""The newcomers' pages do what they say, in front of a service whose jobs are run by a stand-in."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.http.openapi import EXAMPLE_JOB
from service.control.listing import JobFilter
from service.control.store import Store
from service.job.states import JobState
from tests.api.conftest import Reporting
from tests.api.pages import run_console, run_python


@pytest.fixture
def replaced(live_url: str, key: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "api_key").write_text(f"{key}\n")
    return {"http://127.0.0.1:8470": live_url, "~/.wiretune/api_key": str(tmp_path / "api_key")}


@pytest.fixture(autouse=True)
def _driver(store: Store) -> Iterator[None]:
    """Runs every job of the pages' name to its end."""
    is_over = threading.Event()

    def drive() -> None:
        while not is_over.wait(0.02):
            for job in store.jobs(JobFilter(states=[JobState.QUEUED]), limit=10).jobs:
                if job.name == EXAMPLE_JOB["name"]:
                    Reporting(store, store.job(job.id).spec, job.id).run_to_the_end()

    thread = threading.Thread(target=drive)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl and jq are not installed")
def test_the_page_for_curl_does_what_it_says(replaced: dict[str, str], tmp_path: Path) -> None:
    run_console("rest.md", tmp_path, replaced)


def test_the_page_for_python_does_what_it_says(replaced: dict[str, str]) -> None:
    run_python("python.md", replaced)
