"""The newcomers' pages do what they say, with a service whose jobs are run by a fake."""

import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import save
from typer.testing import CliRunner

from api.cli.main import app
from api.client import Client
from api.http.examples import EXAMPLE_JOB
from service.control.listing import JobFilter
from service.control.store import Store
from service.job.states import JobState
from tests.api.conftest import Reporting
from tests.support.docs_pages import ROOT, run_console, run_python
from trainers.spec.workloads import DigitsMlp
from trainers.workloads import registry


@pytest.fixture
def replaced(live_url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "api_key").write_text(f"{store.add_key('first')}\n")  # as a service's first start names it
    return {"http://127.0.0.1:8470": live_url, "~/.wiretune/api_key": str(tmp_path / "api_key")}


class Trained(Reporting):
    """Leaves weights of the workload that the page names, where a page loads them."""

    def weights(self, arm: str) -> bytes:
        return _weights()


@cache
def _weights() -> bytes:
    return save(registry.build(DigitsMlp()).model().state_dict())


@pytest.fixture(autouse=True)
def _driver(store: Store) -> Iterator[None]:
    """Runs every job of the pages' name to its end."""
    is_over = threading.Event()

    def drive() -> None:
        while not is_over.wait(0.02):
            for job in store.jobs(JobFilter(states=[JobState.QUEUED]), limit=10).jobs:
                if job.name == EXAMPLE_JOB["name"]:
                    Trained(store, store.job(job.id).spec, job.id).run_to_the_end()

    thread = threading.Thread(target=drive)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl and jq are not installed")
def test_the_page_for_curl_does_what_it_says(replaced: dict[str, str], tmp_path: Path) -> None:
    run_console("rest.md", tmp_path, replaced)


def test_the_page_for_python_does_what_it_says(replaced: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    url, key_file = replaced.values()
    monkeypatch.setenv("WIRETUNE_URL", url)
    monkeypatch.setenv("WIRETUNE_API_KEY_FILE", key_file)

    run_python("python.md", {})


#: Commands of docs/faq.md that this service cannot answer, and the tests that run them.
ELSEWHERE = {
    "wiretune doctor --ray": "tests/end_to_end/test_doctor.py",
    "wiretune predict JOB --mbps 100": "tests/api/test_predict.py: the stand-in times no step",
    "wiretune logs JOB --follow": "tests/api/cli/test_log_following.py",
    "wiretune logs JOB": "tests/api/cli/test_cli.py: the stand-in prints nothing",
    "wiretune steer JOB --pin learning_rate=0.002": "tests/api/test_steering.py: this job is over",
    "wiretune clean": "tests/api/cli/test_clean.py: it asks",
    "wiretune doctor": "tests/api/cli/test_cli_first_day.py: it looks at the whole machine",
}
WORDS = {"KIND": "topk", "WORKLOAD": "digits-mlp"}


def test_the_commands_of_the_failures_find_out(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)
    with Client(live_url, key) as client:
        job, other = client.submit(EXAMPLE_JOB), client.submit(EXAMPLE_JOB)
        for each in (job, other):
            each.wait(timeout_s=60)
    page = (ROOT / "docs" / "faq.md").read_text()
    commands = set(re.findall(r"^\$ (wiretune .*)$", page, re.M))
    assert commands >= ELSEWHERE.keys()

    for command in sorted(commands - ELSEWHERE.keys()):
        words = [(WORDS | {"JOB": job.id, "OTHER": other.id}).get(word, word) for word in shlex.split(command)[1:]]
        done = CliRunner().invoke(app, words)

        assert done.exit_code == 0, f"{command}: {done.output}"
        assert done.output.strip()
