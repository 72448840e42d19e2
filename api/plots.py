"""Plots as files: the page's own modules, the answers that they ask for, and plotly.js, all in one HTML file.

The figures are declared once, in `api/dashboard/`. A picture is the same file, drawn by the machine's Chromium.
"""

import base64
import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from api.assets import DASHBOARD, plotly_source
from api.calls import Call
from api.client import Client
from service.wire.views import EventKind, EventPage

Picture = Literal["png", "svg"]
#: Points of a series, as the page asks for them.
_MAX_POINTS = 2000
_START = "offline.js"
_PREFIX = "wiretune/"
_IMPORTED = re.compile(r'(?:\bfrom |^import )"(\.[^"]*)"', re.MULTILINE)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Pictures of a job with many stages take a minute; a browser that hangs is ended.
_DRAWING_S = 300.0
_VIRTUAL_MS = 120_000


class NoBrowser(Exception):
    """This machine has no Chromium, or it drew nothing."""


class Plot(NamedTuple):
    """A page to write: which one, of what, and the answers of the service that it is made of."""

    page: Literal["job", "compare"]
    of: str
    title: str
    answers: Mapping[str, Any]


def plot(client: Client, job_ids: Sequence[str]) -> Plot:
    """Return the page of the one job, or that of several jobs beside one another. Raises what `Client` raises."""
    answers: dict[str, Any] = {"/v1/me": {"role": "viewer"}}  # whoever opens the file has no buttons
    snapshots = [client.snapshot(each, max_points=_MAX_POINTS) for each in job_ids]
    for job_id, snapshot in zip(job_ids, snapshots, strict=True):
        answers[f"/v1/jobs/{job_id}/snapshot"] = _plain(snapshot)
    first, *others = job_ids
    if others:
        answers[f"/v1/jobs/{first}/comparison"] = _plain(client.comparison(first, others))
        return Plot("compare", ",".join(job_ids), "Comparison", answers)
    stages = client.stages(first, with_posterior=True)
    sent = client.metrics(first, "bytes_sent", max_points=_MAX_POINTS)
    answers[f"/v1/jobs/{first}/stages"] = [_plain(each) for each in stages]
    answers[f"/v1/jobs/{first}/metrics/bytes_sent"] = [_plain(each) for each in sent]
    answers[f"/v1/jobs/{first}/events"] = _plain(client.send(_told(first)))
    job = snapshots[0].job
    return Plot("job", first, first if job is None else job.name, answers)


def _told(job_id: str) -> Call[EventPage]:
    """Return what asks for the events of the job's timeline, as far as there are."""
    asked = {"kind": [EventKind.JOB, EventKind.REPAIR], "after": 0, "limit": 500}
    return Call("GET", f"/v1/jobs/{job_id}/events", EventPage.model_validate_json, params=asked)


def html(plot: Plot, *, now: datetime | None = None) -> str:
    """Return the file, which any browser opens without a service. Nothing that a job is called is markup in it."""
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    held = json.dumps({"page": plot.page, "of": plot.of, "made": made, "answers": plot.answers})
    imports = json.dumps({"imports": {f"{_PREFIX}{path}": _data_url(source) for path, source in _modules().items()}})
    start = f'import "{_PREFIX}{_START}";'
    parts = {
        "policy": _policy(imports, start),
        "title": f"{escape(plot.title)} – Wiretune",
        "style": (DASHBOARD / "style.css").read_text("utf-8"),
        "imports": imports,
        "held": held.replace("<", "\\u003c"),  # no text of a job ends the element
        "start": start,
        "plotly": _data_url(plotly_source()),
    }
    frame = (DASHBOARD / "offline.html").read_text("utf-8")
    # In one pass: what is put in may look like a place itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def pictures(content: str, kind: Picture) -> dict[str, bytes]:
    """Return the file's charts by their names, in the order of the page; two of one name are numbered.

    Raises:
        NoBrowser: there is no Chromium here, or it drew nothing.
    """
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        raise NoBrowser(
            f"a {kind} is drawn by Chromium, which is not on the PATH of this machine (on Debian: apt-get install "
            "chromium); `--format html` needs none, and its charts have a menu that saves them"
        )
    with tempfile.TemporaryDirectory(prefix="wiretune-plot-") as folder:
        page = Path(folder) / "page.html"
        page.write_text(content, "utf-8")
        drawn = _drawn(program, f"{page.as_uri()}#{kind}", Path(folder) / "profile")
    found: dict[str, bytes] = {}
    for each in drawn:
        name = each["name"]
        same = sum(other == name or other.startswith(f"{name}-no-") for other in found)
        found[f"{name}-no-{same + 1}" if same else name] = _content(each["url"])
    return found


def _drawn(program: str, url: str, profile: Path) -> list[dict[str, str]]:
    flags = ["--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses to start one as root
    command = [program, *flags, "--window-size=1280,1000", f"--virtual-time-budget={_VIRTUAL_MS}", "--dump-dom", url]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DRAWING_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoBrowser(f"{program} has not drawn the charts within {_DRAWING_S:g} s; try `--format html`") from error
    found = re.search(rb'<pre id="pictures">([A-Za-z0-9+/=]*)</pre>', done.stdout)
    if found is None:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoBrowser(f"{program} drew no charts: {said[-1] if said else 'it said nothing'}")
    drawn: list[dict[str, str]] = json.loads(base64.b64decode(found[1]))
    return drawn


def _content(url: str) -> bytes:
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)


def _plain(view: BaseModel) -> Any:
    return view.model_dump(mode="json")


def _modules() -> dict[str, str]:
    """Return every module that the file needs, by its path; what one imports is named by its path too.

    A module out of a `data:` URL has no folder that a relative path could start from.
    """
    found: dict[str, str] = {}
    due = [_START]
    while due:
        path = due.pop()
        folder = posixpath.dirname(path)
        source = (DASHBOARD / path).read_text("utf-8")
        named = {each: posixpath.normpath(posixpath.join(folder, each)) for each in _IMPORTED.findall(source)}
        for relative, absolute in named.items():
            source = source.replace(f'"{relative}"', f'"{_PREFIX}{absolute}"')
        found[path] = source
        due += [each for each in named.values() if each not in found]
    return found


def _policy(*scripts: str) -> str:
    """Return what the file may load: its own scripts, and nothing from anywhere else."""
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    hashes = " ".join(f"'sha256-{each}'" for each in digests)
    return (
        f"default-src 'none'; script-src {hashes} data:; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_url(source: str | bytes) -> str:
    content = source.encode() if isinstance(source, str) else source
    return f"data:text/javascript;base64,{base64.b64encode(content).decode()}"
