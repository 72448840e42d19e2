"""Plots as single HTML files: the page's own modules, the service's answers that they ask for, and plotly.js.

`api/dashboard/` declares the figures once. A picture is the same file, drawn by this machine's Chromium.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from api import calls
from api.assets import DASHBOARD, imported_by, modules, plotly_gzipped
from api.calls import Call, reading
from api.disclosure import without_secrets
from service.wire.events import EventKind, EventPage

T = TypeVar("T")
Picture = Literal["png", "svg"]
#: The points per series that the page asks for.
_MAX_POINTS = 2000
#: Events per request; the service gives no more.
_MAX_EVENTS = 500
#: The height of the page in a notebook's cell, where it scrolls.
_CELL_PX = 900
_START = "offline.js"
_PREFIX = "wiretune/"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Pictures of a job with many stages take a minute. A browser that hangs is killed after this.
_DRAWING_S = 300.0
_VIRTUAL_MS = 120_000


class NoBrowser(Exception):
    """This machine has no Chromium, or it drew nothing."""


class Sender(Protocol):
    """The part of `Client` that a plot needs."""

    def send(self, call: Call[T], /) -> T:
        """Make a call and return its answer."""


class Plot(NamedTuple):
    """A page to write: its kind, its jobs, and the service's answers for it."""

    page: Literal["job", "compare"]
    of: str
    title: str
    answers: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """A job's page in one file, which needs no service. A notebook shows it as a cell's result."""

    title: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_CELL_PX}px; border: 0"
        return f'<iframe title="{escape(self.title)}" style="{style}" srcdoc="{escape(self.html)}"></iframe>'

    def write_html(self, path: str | Path) -> None:
        """Write the file; any browser opens it."""
        Path(path).write_text(self.html, "utf-8")


def plot(client: Sender, job_ids: Sequence[str]) -> Plot:
    """Return the page of one job, or of several jobs side by side. Raises what `Client` raises."""
    answers: dict[str, Any] = {}
    while asked := calls_for(job_ids, answers):
        answers |= {path: client.send(call) for path, call in asked.items()}
    return answered(job_ids, answers)


def calls_for(job_ids: Sequence[str], answers: Mapping[str, Any]) -> dict[str, Call[Any]]:
    """Return the next calls that a page of these jobs needs, by path; empty once `answers` is complete."""
    if answers:
        measured = {path: call for each in job_ids for path, call in _measured(each, answers).items()}
        return measured if len(job_ids) > 1 else _more_told(job_ids[0], answers) | measured
    first, *others = (f"/v1/jobs/{each}" for each in job_ids)
    snapshots = {f"/v1/jobs/{each}/snapshot": calls.snapshot(each, max_points=_MAX_POINTS) for each in job_ids}
    if others:
        return {**snapshots, f"{first}/comparison": calls.comparison(job_ids[0], job_ids[1:])}
    return {
        **snapshots,
        first: calls.job(job_ids[0]),
        f"{first}/stages": calls.stages(job_ids[0], with_posterior=True),
        f"{first}/metrics": calls.recorded(job_ids[0]),
        f"{first}/metrics/bytes_sent": calls.metrics(job_ids[0], "bytes_sent", max_points=_MAX_POINTS),
        _events(job_ids[0]): _told(job_ids[0], after=0),
    }


def answered(job_ids: Sequence[str], answers: Mapping[str, Any]) -> Plot:
    """Return the page of these jobs from all the answers to `calls_for`, without secrets: others may read the file."""
    held = {path: without_secrets(_plain(answer)) for path, answer in answers.items()}
    held["/v1/me"] = {"role": "viewer"}  # the file shows no buttons
    if len(job_ids) > 1:
        return Plot("compare", ",".join(job_ids), "Comparison", held)
    [job_id] = job_ids
    told = [held.pop(path) for path in _told_in(job_id, answers)]
    held[_events(job_id)] = told[-1] | {"events": [event for page in told for event in page["events"]]}
    job = answers[f"/v1/jobs/{job_id}/snapshot"].job
    return Plot("job", job_id, job_id if job is None else job.name, held)


def page(plot: Plot) -> Page:
    """Return the page for a notebook."""
    return Page(plot.title, html(plot))


def _events(job_id: str) -> str:
    return f"/v1/jobs/{job_id}/events"


def _told_in(job_id: str, answers: Mapping[str, Any]) -> list[str]:
    """Return the paths of the answers that are pages of the job's events, oldest first."""
    return [path for path in answers if path.startswith(_events(job_id))]


def _told(job_id: str, *, after: int) -> Call[EventPage]:
    """Return the call for a page of the job's timeline events."""
    asked = {"kind": [EventKind.JOB, EventKind.REPAIR], "after": after, "limit": _MAX_EVENTS}
    return Call("GET", _events(job_id), reading(EventPage.model_validate_json), params=asked)


def _more_told(job_id: str, answers: Mapping[str, Any]) -> dict[str, Call[Any]]:
    """Return the call for the next page of events, if the last page is full."""
    pages: list[EventPage] = [answers[path] for path in _told_in(job_id, answers)]
    return {
        f"{_events(job_id)}?after={page.next_after}": _told(job_id, after=page.next_after)
        for page in pages[-1:]
        if len(page.events) >= _MAX_EVENTS
    }


def _measured(job_id: str, answers: Mapping[str, Any]) -> dict[str, Call[Any]]:
    """Return the calls for the curves of the trials' metrics that `answers` lacks."""
    trials = answers[f"/v1/jobs/{job_id}/snapshot"].trials
    names = {f"validation_{name}" for trial in trials for name in trial.metric_directions}
    # A comparison offers only what evaluations measure.
    recorded = (each.name for each in answers.get(f"/v1/jobs/{job_id}/metrics", ()) if each.num_points)
    # The snapshot has the losses, and the page does not offer the second line's series.
    names |= {name for name in recorded if name.partition("_")[0] not in ("loss", "validation", "insurance")}
    paths = {f"/v1/jobs/{job_id}/metrics/{name}": name for name in sorted(names)}
    return {
        path: calls.metrics(job_id, name, max_points=_MAX_POINTS) for path, name in paths.items() if path not in answers
    }


def html(plot: Plot, *, now: datetime | None = None) -> str:
    """Return the file, which any browser opens without a service. Texts of jobs are escaped."""
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    held = json.dumps({"page": plot.page, "of": plot.of, "made": made, "answers": plot.answers})
    imports = json.dumps({"imports": {f"{_PREFIX}{path}": _data_url(source) for path, source in _modules().items()}})
    start = f'import "{_PREFIX}{_START}";'
    parts = {
        "policy": _policy(imports, start),
        "title": f"{escape(plot.title)} – Wiretune",
        "style": (DASHBOARD / "style.css").read_text("utf-8"),
        "imports": imports,
        "held": held.replace("<", "\\u003c"),  # so that no text of a job closes the element
        "start": start,
        "plotly": base64.b64encode(plotly_gzipped()).decode(),
    }
    frame = (DASHBOARD / "offline.html").read_text("utf-8")
    # In one pass: an inserted text may look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def pictures(content: str, kind: Picture) -> dict[str, bytes]:
    """Return the file's charts by name, in the order of the page. Repeated names are numbered.

    Raises:
        NoBrowser: this machine has no Chromium, or it drew nothing.
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
        flags.append("--no-sandbox")  # as root, Chromium does not start with a sandbox
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


def _plain(answer: BaseModel | Sequence[BaseModel]) -> Any:
    return answer.model_dump(mode="json") if isinstance(answer, BaseModel) else [_plain(each) for each in answer]


def _modules() -> dict[str, str]:
    """Return every module that the file needs, by its path. Imports name modules by the same paths.

    Relative paths do not work: a module from a `data:` URL has no folder.
    """
    found: dict[str, str] = {}
    for path in modules(_START):
        source = (DASHBOARD / path).read_text("utf-8")
        for relative, absolute in imported_by(path).items():
            source = source.replace(f'"{relative}"', f'"{_PREFIX}{absolute}"')
        found[path] = source
    return found


def _policy(*scripts: str) -> str:
    """Return the content security policy: the file loads its own scripts, and nothing from elsewhere."""
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    hashes = " ".join(f"'sha256-{each}'" for each in digests)
    return (
        f"default-src 'none'; script-src {hashes} data: blob:; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_url(source: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"
