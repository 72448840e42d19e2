"""Plots as files: they need nothing else, and they escape all text from jobs."""

import asyncio
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api import plots
from api.assets import DASHBOARD
from api.async_client import AsyncClient
from api.cli import main
from api.client import Client
from service.control.store import Store
from service.job.spec import JobSpec
from service.wire.events import EventKind
from service.wire.records import MetricPoints
from tests.api.conftest import Reporting
from tests.api.dashboard.browser import Tab

run_cli = CliRunner()
HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture
def hostile(store: Store, job: JobSpec) -> Reporting:
    reporting = Reporting(store, job.model_copy(update={"name": HOSTILE, "labels": {"of": HOSTILE}}))
    reporting.run_to_the_end()
    return reporting


def _held(content: str) -> Any:
    """Return what a file says that it shows."""
    [held] = re.findall(r'<script type="application/json" id="held">(.*?)</script>', content, re.DOTALL)
    return json.loads(held)


def test_a_file_holds_every_module_and_nothing_that_a_job_is_called_ends_an_element(
    client: Client, key: str, hostile: Reporting
) -> None:
    content = plots.html(plots.plot(client, [hostile.job_id]))

    assert content.count("</script>") == 4 and "alert(1)</script" not in content
    answers = _held(content)["answers"]
    assert answers[f"/v1/jobs/{hostile.job_id}/snapshot"]["job"]["name"] == HOSTILE
    assert f"/v1/jobs/{hostile.job_id}/metrics/validation_accuracy" in answers  # a reader may choose it
    assert key not in content and client.url not in content
    [imports] = re.findall(r'<script type="importmap">(.*?)</script>', content, re.DOTALL)
    modules = {name.removeprefix("wiretune/") for name in json.loads(imports)["imports"]}
    assert {"offline.js", "pages/job/job.js", "pages/compare/compare.js", "charts/panel.js"} <= modules
    assert all((DASHBOARD / name).is_file() for name in modules)
    assert not re.search(r'(?:src|href)="(?!data:)', content)


def test_a_file_holds_every_series_that_its_menu_offers(client: Client, reporting: Reporting) -> None:
    reporting.start("tuned")
    trial_id = reporting.trial("tuned")
    for name in ("loss", "own_aux"):
        reporting.post(MetricPoints(trial_id=trial_id, name=name, steps=(0,), seconds=(0.1,), values=(1.0,)))

    answers = plots.plot(client, [reporting.job_id]).answers

    metrics = f"/v1/jobs/{reporting.job_id}/metrics"
    assert {each["name"] for each in answers[metrics] if each["num_points"]} == {"loss", "own_aux"}
    assert answers[f"{metrics}/own_aux"][0]["values"] == [1.0]
    assert f"{metrics}/loss" not in answers  # the snapshot has it


@pytest.mark.parametrize("of_a_page", [1, 2, 500])
def test_a_file_holds_every_event_of_the_timeline_however_many_pages_they_fill(
    client: Client, key: str, hostile: Reporting, store: Store, monkeypatch: pytest.MonkeyPatch, of_a_page: int
) -> None:
    monkeypatch.setattr(plots, "_MAX_EVENTS", of_a_page)

    async def awaited() -> plots.Page:
        async with AsyncClient(client.url, key) as awaiting:
            return await (await awaiting.job(hostile.job_id)).plot()

    pages = [client.job(hostile.job_id).plot(), asyncio.run(awaited())]

    told = store.events(0, job_id=hostile.job_id, kinds=[EventKind.JOB, EventKind.REPAIR]).events
    assert len(told) > 2
    for page in pages:
        events = _held(page.html)["answers"][f"/v1/jobs/{hostile.job_id}/events"]["events"]
        assert [each["id"] for each in events] == [each.id for each in told]


def test_a_notebook_shows_the_page_of_a_job_and_keeps_it_as_a_file(
    client: Client, hostile: Reporting, tmp_path: Path
) -> None:
    page = client.job(hostile.job_id).plot()
    page.write_html(tmp_path / "job.html")

    shown = re.fullmatch(r'<iframe title="[^"]*" style="[^"]*" srcdoc="([^"]*)"></iframe>', page._repr_html_())
    assert shown is not None and unescape(shown[1]) == (tmp_path / "job.html").read_text() == page.html
    assert page.html.startswith("<!doctype html>") and len(page.html) < 3_000_000


def test_without_a_browser_a_picture_is_refused_with_what_helps(
    client: Client, hostile: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(plots.shutil, "which", lambda name: None)
    asked = ["plot", hostile.job_id, "--to", str(tmp_path / "out"), "--url", client.url, "--key", key]

    refused = run_cli.invoke(main.app, [*asked, "--format", "png"])
    written = run_cli.invoke(main.app, [*asked, "--json"])

    assert refused.exit_code == 1 and "apt-get install chromium" in refused.stderr
    assert json.loads(written.stdout) == {"files": [str(tmp_path / "out" / f"{hostile.job_id}.html")]}


@pytest.mark.long
def test_a_file_of_a_job_that_waits_says_so(
    browser: Tab, client: Client, store: Store, job: JobSpec, tmp_path: Path
) -> None:
    file = tmp_path / "job.html"
    file.write_text(plots.html(plots.plot(client, [store.add_job(job)[0].id])))
    browser.open(file.as_uri())

    assert "Waiting for its turn" in browser.wait_for("window.__ready && document.getElementById('page').innerText")
    assert browser.complaints == []


@pytest.mark.long
def test_a_file_is_the_page_and_asks_for_nothing(
    browser: Tab, client: Client, hostile: Reporting, tmp_path: Path
) -> None:
    file = tmp_path / "job.html"
    file.write_text(plots.html(plots.plot(client, [hostile.job_id])))
    browser.page.on("dialog", lambda dialog: browser.complaints.append(f"a script ran: {dialog.message}"))
    browser.open(file.as_uri())
    first_shown = "[...document.querySelectorAll('.chart')].find((each) => each.checkVisibility())"
    browser.wait_for(f"window.__ready && {first_shown}?._fullLayout")

    assert browser.value_of("document.querySelector('h1').textContent") == HOSTILE
    assert browser.value_of("document.querySelector('.controls').checkVisibility()") is False
    network = "performance.getEntriesByType('resource').map((each) => each.name).filter((name) => /^http/.test(name))"
    assert browser.value_of(network) == []
    assert browser.complaints == []


@pytest.mark.long
@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_pictures_are_those_of_the_page(
    browser: Tab, client: Client, hostile: Reporting, store: Store, job: JobSpec, kind: plots.Picture, begin: bytes
) -> None:
    other = Reporting(store, job)
    other.run_to_the_end()

    found = plots.pictures(plots.html(plots.plot(client, [hostile.job_id, other.job_id])), kind)

    assert list(found)[:2] == ["loss-of-all-jobs", "loss-against-its-cost"]
    assert all(content.startswith(begin) for content in found.values())
