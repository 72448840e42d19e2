"""Measure the page under load: how soon it is ready, its requests, how smooth it stays, and whether its memory grows.

    python benchmarks/page.py [--jobs 200] [--points 100000] [--seconds 30] [--minutes 10] [--only list,job,...]

Needs `pip install '.[browser]'` and Chromium. The service runs in this process over SQLite, filled through its store.
The browser is a process of its own on the same cores, so each figure comes with the machine's load. Seconds of the main
thread are processor seconds, by the browser's own count: they depend far less on the load than others.

- list: `--jobs` running jobs; job: one with two series of `--points` points; trials: 40; stages: 200;
  cold: on the first visit; warm: from the third visit on, when the browser has the compiled scripts;
- live: a running job whose driver reports ten times a second: the 99th percentile of frames, and tasks over 50 ms;
- heap: the same for `--minutes`: the memory in use after each minute, once garbage is collected.
"""

import argparse
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from playwright.sync_api import BrowserContext, Page, sync_playwright
from replicas import load
from rich.console import Console
from rich.table import Table

from api.client import Client
from api.http.app import create_app
from api.http.connections import Deadlines
from api.http.examples import EXAMPLE_JOB
from api.http.server import bind, server_config
from search.types import Allowance, Decision, Values
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import AnyRecord, Batch, Bill, MetricPoints, StageClosed, StageDecided, TrialStarted

#: Notes when the page has its data and every chart in sight is drawn, and every frame and long task behind that.
_WATCH = """
window.__frames = []; window.__long = [];
const isDue = (chart) => chart.checkVisibility() && chart.getBoundingClientRect().top < innerHeight;
const isDrawn = (chart) => chart._fullLayout || !isDue(chart);
const ready = setInterval(() => {
  if (!window.__ready || ![...document.querySelectorAll('.chart')].every(isDrawn)) return;
  clearInterval(ready);
  window.__readyAt = performance.now();
}, 25); // to look has the browser lay out the page
const tasks = new PerformanceObserver((list) => window.__long.push(...list.getEntries().map((each) => each.duration)));
tasks.observe({type: 'longtask'});
let before = null;
const frame = (now) => {
  if (before !== null) window.__frames.push(now - before);
  before = now;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
_CALLS = (
    "performance.getEntriesByType('resource').filter((each) => new URL(each.name).pathname.startsWith('/v1/')).length"
)
_DEADLINE_S = 120.0


class Figure(NamedTuple):
    """A row of the table."""

    what: str
    figures: str
    load: str


class Driver:
    """Reports a job as the driver of an attempt does."""

    def __init__(self, store: Store, *, arms: int = 2, seeds: int = 1) -> None:
        named = [{"name": f"arm-{at}"} for at in range(arms)]
        spec = JobSpec.model_validate(EXAMPLE_JOB | {"arms": named, "seeds": list(range(seeds))})
        self.store, self.job_id = store, store.add_job(spec)[0].id
        self.number = store.attempts.begin(self.job_id).attempt
        self.trials = [trial.trial_id for trial in store.trials(self.job_id)]
        self._sequence = 0
        for trial in store.trials(self.job_id):
            self.post(
                TrialStarted(
                    trial_id=trial.trial_id, arm=trial.arm, seed=trial.seed, backend="gloo", device="cpu", metrics={}
                )
            )

    def post(self, *records: AnyRecord) -> None:
        """Report a batch."""
        self._sequence += 1
        self.store.attempts.ingest(
            self.job_id, self.number, Batch(stream="driver", sequence=self._sequence, records=records)
        )

    def points(self, trial: str, first: int, count: int) -> None:
        """Report losses of `count` steps, and an evaluation every 20 steps."""
        for start in range(first, first + count, 5000):
            steps = tuple(range(start, min(start + 5000, first + count)))
            values = tuple(2.3 / (1 + step / 500) + 0.05 + 0.02 * math.sin(step) for step in steps)
            seconds = tuple(0.05 * step for step in steps)
            series = {"loss": slice(None), "validation_loss": slice(None, None, 20)}
            self.post(
                *(
                    MetricPoints(trial_id=trial, name=name, steps=steps[at], seconds=seconds[at], values=values[at])
                    for name, at in series.items()
                )
            )

    def stage(self, trial: str, stage: int, steps: int = 100) -> None:
        """Report a stage that was decided without a search, and closed."""
        common: dict[str, Any] = {"trial_id": trial, "stage": stage}
        decided = StageDecided(
            **common,
            first_step=steps * stage,
            learning_rate=2.0 / (stage + 1),
            level=0.01,
            reason="fixed",
            switched=False,
            probability=None,
            forecast=None,
            forecast_std=None,
            search_seconds=0.0,
            search_steps=0,
            search_bytes=0,
            decision=Decision(
                stage=stage,
                values=Values(learning_rate=2.0 / (stage + 1)),
                reason="fixed",
                switched=False,
                commit_until=Allowance(steps=steps),
            ),
        )
        bill = Bill(
            bytes_sent=4000 * steps * (stage + 1),
            seconds_training=0.05 * steps * (stage + 1),
            steps=steps * (stage + 1),
        )
        closed = StageClosed(
            **common, step=steps * (stage + 1), num_steps=steps, density=0.01, threshold=0.01, bill=bill, resume={}
        )
        self.post(decided, closed)


@contextmanager
def served(store: Store) -> Iterator[str]:
    """Serve the store's application in a thread of this process."""
    with bind("127.0.0.1", 0) as bound:
        server = uvicorn.Server(server_config(create_app(store), Deadlines()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


class Visit:
    """A person's browser with an empty profile, signed in. Like a person's, it keeps scripts that it has compiled."""

    def __init__(self, start: Callable[[], BrowserContext], client: Client) -> None:
        self._url = client.url
        self._context = start()
        self.page: Page = self._context.new_page()
        self.page.add_init_script(_WATCH)
        self._open(client.sign_in_link())
        self._devtools = self.page.context.new_cdp_session(self.page)
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def close(self) -> None:
        """End the browser."""
        self._context.close()

    def _open(self, url: str) -> None:
        self.page.goto(url, wait_until="commit")
        end = time.monotonic() + _DEADLINE_S
        while not self.page.evaluate("window.__readyAt ?? null"):
            if time.monotonic() > end:
                raise TimeoutError(f"{url} is not ready within {_DEADLINE_S:g} s")
            self.page.wait_for_timeout(20)

    def opened(self, what: str, query: str) -> Figure:
        """Open a page; return when it was ready, what it computed and how often it asked until then."""
        self.page.goto("about:blank")
        before = self._metric("TaskDuration")
        self._open(f"{self._url}/{query}")
        ready, calls = self.page.evaluate(f"[window.__readyAt, {_CALLS}]")
        busy = self._metric("TaskDuration") - before
        return Figure(what, f"ready after {ready / 1000:.2f} s, main thread {busy:.2f} s, {calls} requests", load())

    def smooth(self, what: str, seconds: float) -> Figure:
        """Return how even the frames are, and which tasks are long, for so many seconds."""
        self.page.evaluate("window.__frames = []; window.__long = [];")
        before = self._metric("TaskDuration")
        self.page.wait_for_timeout(1000 * seconds)
        frames, long = self.page.evaluate("[window.__frames, window.__long]")
        busy = (self._metric("TaskDuration") - before) / seconds
        p99 = sorted(frames)[int(0.99 * len(frames))] if frames else math.nan
        longest = f", the longest {max(long):.0f} ms" if long else ""
        told = f"p99 of {len(frames)} frames {p99:.0f} ms, {len(long)} long tasks{longest}, main thread busy {busy:.0%}"
        return Figure(what, told, load())

    def heap_mb(self) -> float:
        """Return what JavaScript holds once garbage is collected, without what this benchmark notes."""
        self.page.evaluate("window.__frames = []; window.__long = []; performance.clearResourceTimings();")
        self._devtools.send("HeapProfiler.collectGarbage")
        used: float = self._devtools.send("Runtime.getHeapUsage")["usedSize"]
        return used / 1e6

    def _metric(self, name: str) -> float:
        found = self._devtools.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == name)


@contextmanager
def driving(driver: Driver) -> Iterator[None]:
    """Have the first trial of the job report ten times a second, a stage every 100 steps."""
    is_over = threading.Event()

    def drive() -> None:
        step = 0
        while not is_over.wait(0.1):
            driver.points(driver.trials[0], step, 10)
            step += 10
            if step % 100 == 0:
                driver.stage(driver.trials[0], step // 100 - 1)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Bench:
    """The parts of the benchmark, each a method that yields its figures."""

    def __init__(
        self, store: Store, start: Callable[[], BrowserContext], client: Client, given: argparse.Namespace
    ) -> None:
        self.store, self.start, self.client, self.given = store, start, client, given
        self._visits: list[Visit] = []

    def _visit(self) -> Visit:
        self.close()
        self._visits.append(Visit(self.start, self.client))
        return self._visits[-1]

    def close(self) -> None:
        """End the browser that is open, if there is one: it would take processor from the next."""
        while self._visits:
            self._visits.pop().close()

    def job(self) -> Iterator[Figure]:
        """Open a job with long series."""
        driver = Driver(self.store)
        for trial in driver.trials:
            driver.points(trial, 0, self.given.points)
        visit = self._visit()
        for which in VISITS:
            yield visit.opened(f"job, 2 x {self.given.points} points, {which}", f"?job={driver.job_id}")

    def trials(self) -> Iterator[Figure]:
        """Open a job of 40 trials."""
        driver = Driver(self.store, arms=8, seeds=5)
        for trial in driver.trials:
            driver.points(trial, 0, 2000)
            driver.stage(trial, 0)
        yield self._visit().opened("job of 40 trials", f"?job={driver.job_id}")

    def stages(self) -> Iterator[Figure]:
        """Open a job of 200 stages."""
        driver = Driver(self.store, arms=1)
        for stage in range(200):
            driver.points(driver.trials[0], 100 * stage, 100)
            driver.stage(driver.trials[0], stage)
        yield self._visit().opened("job of 200 stages", f"?job={driver.job_id}")

    def compare(self) -> Iterator[Figure]:
        """Open ten jobs beside one another."""
        drivers = [Driver(self.store) for _ in range(10)]
        for driver in drivers:
            for trial in driver.trials:
                driver.points(trial, 0, 2000)
                driver.stage(trial, 0)
        ids = ",".join(driver.job_id for driver in drivers)
        yield self._visit().opened("10 jobs compared", f"?compare={ids}")

    def list(self) -> Iterator[Figure]:
        """Open the list of many running jobs."""
        for _ in range(self.given.jobs):
            driver = Driver(self.store)
            driver.points(driver.trials[0], 0, 200)
        visit = self._visit()
        for which in VISITS:
            yield visit.opened(f"list of {self.given.jobs} running jobs, {which}", "")

    def live(self) -> Iterator[Figure]:
        """Watch a job that reports, and a list that it is in."""
        driver = Driver(self.store)
        for what, query in (("job", f"?job={driver.job_id}"), ("list", "")):
            visit = self._visit()
            visit.opened(what, query)
            with driving(driver if what == "job" else Driver(self.store)):
                yield visit.smooth(f"live {what}", self.given.seconds)

    def heap(self) -> Iterator[Figure]:
        """Watch a job that reports, for minutes."""
        driver, visit = Driver(self.store), self._visit()
        visit.opened("job", f"?job={driver.job_id}")
        with driving(driver):
            for minute in range(self.given.minutes + 1):
                yield Figure(f"heap after {minute} min", f"{visit.heap_mb():.1f} MB", load())
                if minute < self.given.minutes:
                    visit.page.wait_for_timeout(60_000)


#: A browser keeps a script on the first visit, what it compiled of it on the second, and uses both from the third on.
VISITS = ("cold", "second visit", "warm")
PARTS = ("job", "trials", "stages", "compare", "list", "live", "heap")


def main() -> None:
    """Run the parts asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    given = parser.parse_args()
    program = shutil.which("chromium")
    if program is None or not set(given.only) <= set(PARTS):
        parser.error(f"needs `chromium` on the PATH, and `--only` of {', '.join(PARTS)}")
    table = Table("what", "figures", "load")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Settings(state_dir=Path(folder)))
        with served(store) as url, Client(url, store.add_key("benchmark")) as client, sync_playwright() as playwright:

            def start() -> BrowserContext:
                profile = tempfile.mkdtemp(dir=folder)
                return playwright.chromium.launch_persistent_context(
                    profile, executable_path=program, args=["--no-sandbox"], viewport={"width": 1400, "height": 900}
                )

            bench = Bench(store, start, client, given)
            for part in given.only:
                for figure in getattr(bench, part)():
                    print(*figure, sep="; ", flush=True)
                    table.add_row(*figure)
            bench.close()
        store.close()
    Console().print(table)


if __name__ == "__main__":
    main()
