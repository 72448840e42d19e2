"""Simulate a week of a service in an hour: people who submit, change their minds and read; failures; an upgrade.

    python benchmarks/week.py [--jobs 300] [--minutes 60] [--seed 0] [--json benchmarks/week.jsonl] [--keep FOLDER]

Four people in three projects share a real service. Each of their jobs is drawn from `KINDS`, and what they do with it
from `DEEDS`. Meanwhile the API, drivers and workers are killed. The service starts as the commit before the newest
migration, which needs a git checkout, and is upgraded after a third of the time. The last job is submitted after
`--minutes`. Then all jobs come to their ends, and everything is counted.

Goals: no submission and no metric point lost or doubled, no file damaged, nothing stuck or left behind, and every job
ends as its owner expects. With `--keep` the state stays, and `WIRETUNE_STATE_DIR=FOLDER wiretune serve` shows it.
"""

import argparse
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from faults import audit
from faults.clients import KEY_LABEL, Book
from faults.live import LiveService, NobodyToKill, Victim, adopt_orphans, insist, kill
from rows import append

from api.client import Client
from api.failures import ApiError, DamagedDownload, Unreachable
from service.control import processes
from service.job.states import TERMINAL, JobState
from service.wire.jobs import JobView

Json = dict[str, Any]
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
MIGRATIONS = "service/control/migrations/versions"

#: Who shares the service, and each one's project.
PEOPLE = {"ada": "vision", "ben": "vision", "chen": "language", "dora": "tables"}
_DIGITS: Json = {"workload": {"kind": "digits-mlp"}, "workers": {"count": 2, "cpus": 1}}
_LINK: Json = {"link": {"mode": "emulate", "mbps": 100, "latency_ms": 5}}
_FIXED: Json = {"controller": {"kind": "fixed"}}
_ADAMW: Json = {"optimizer": {"kind": "adamw"}}
_THRESHOLD: Json = {"exchange": {"kind": "threshold", "density": [0.003, 0.1]}}
_LOCAL: Json = {"sync": {"kind": "local_sgd", "period": 8}, "exchange": {"kind": "blockwise"}}
_SWEEP: Json = {
    "controller": {"kind": "off"},
    "optimizer": {"kind": "sgd"},
    "params": {"optimizer.learning_rate": {"log_uniform": [0.01, 1.0]}},
    "sweep": {"samples": 4},
    "objective": {"every": 20},
}
#: Kinds of jobs, how many of 100 are of each, and the job.
KINDS: dict[str, tuple[int, Json]] = {
    "searched rate": (20, _DIGITS | {"budget": {"steps": 300}}),
    "rate and density": (14, _DIGITS | _LINK | _THRESHOLD | {"budget": {"steps": 400, "bytes": 10**12}}),
    "dense": (8, _DIGITS | _FIXED | {"budget": {"steps": 200}}),
    "one worker": (8, _DIGITS | {"workers": {"count": 1}, "budget": {"steps": 300}}),
    "seconds": (8, _DIGITS | _LINK | {"exchange": {"kind": "topk", "density": 0.02}, "budget": {"seconds": 8}}),
    "low rank": (8, _DIGITS | _FIXED | _ADAMW | {"exchange": {"kind": "powersgd"}, "budget": {"steps": 200}}),
    "local steps": (8, _DIGITS | _FIXED | _LOCAL | {"budget": {"steps": 320}}),
    "auto": (6, _DIGITS | _LINK | {"exchange": {"kind": "auto"}, "budget": {"seconds": 12}}),
    "text": (5, _ADAMW | {"workload": {"kind": "stdlib-lm"}, "workers": {"count": 2}, "budget": {"steps": 60}}),
    "two arms": (5, _DIGITS | {"arms": [{"name": "tuned"}, {"name": "dense"} | _FIXED], "budget": {"steps": 200}}),
    "sweep": (4, _DIGITS | _SWEEP | {"budget": {"steps": 120}}),
    "blows up": (6, _DIGITS | _FIXED | {"optimizer": {"kind": "sgd", "learning_rate": 1e3}, "budget": {"steps": 200}}),
}
#: What a person does with a job, and how many of 100.
DEEDS = {
    "waits": 58, "cancels": 7, "pauses": 8, "stops": 6, "extends": 6, "clones": 5, "edits": 5, "refused": 5,
}  # fmt: skip
#: What befalls the service, evenly spread: how often in an hour.
BLOWS = {"api": 12, "driver": 6, "worker": 6, "trial": 4}
#: Longest that all jobs may take to end after the last one was submitted, and one that its person waits for.
PATIENCE_S = 1800.0
READS_EVERY_S = 2.0
MAX_POINTS = 5000
NUM_CPUS = 6
#: What must be 0.
WRONG = (
    "lost", "duplicates", "points_lost", "points_doubled", "files_damaged", "wedged", "ended_otherwise", "surprises",
    "orphans", "folders", "damaged",
)  # fmt: skip


def main() -> int:
    given = parse()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    with tempfile.TemporaryDirectory(prefix="wt-week-") as folder:
        try:
            row = week(given.keep or Path(folder), given)
        finally:
            kill(Victim(os.getpid(), "tree"))
    print(json.dumps(row, indent=1))
    if given.json:
        append(given.json, row)
    return int(any(row["wrong"].values()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line is appended")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="the service's state, which stays")
    return parser.parse_args()


def week(folder: Path, given: argparse.Namespace) -> Json:
    """Live through it, and return what is recorded."""
    started = time.monotonic()
    with release_before() as old:
        os.environ["PYTHONPATH"] = str(old)
        service = LiveService(folder, num_cpus=NUM_CPUS, max_attempts=20)
        people = [Person(service, name, given, number) for number, name in enumerate(PEOPLE)]
        for person in people:
            person.start()
        events = befall(service, given)
        for person in people:
            person.join()
    with service.client() as client:
        late = wait_for_all(client)
        found = checked(client, people, late)
    found |= audit.of_leftovers(service, everything(people))
    waits = [wait for person in people for wait in person.answers_s]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        "minutes": round((time.monotonic() - started) / 60, 1),
        "load": round(os.getloadavg()[0], 1),
        "befell": events,
        "answers": {"number": len(waits), "median_s": statistics.median(waits), "max_s": max(waits)},
        "counts": {name: number for name, number in found.items() if name not in WRONG},
        "wrong": {name: found[name] for name in WRONG},
        "surprises": [each for person in people for each in person.surprises],
    }


# -- people -----------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A job that a person is going to submit, and what will be done with it."""

    at_s: float
    kind: str
    deed: str


class Person(threading.Thread):
    """Submits jobs at their times, does what is planned with them, and reads lists and pages in between."""

    def __init__(self, service: LiveService, name: str, given: argparse.Namespace, number: int) -> None:
        super().__init__(name=name, daemon=True)
        self._service = service
        with service.client() as admin:
            self._key = insist(lambda: admin.create_key(name, project=PEOPLE[name])).secret
        draw = random.Random(f"{given.seed}/{name}")
        self._plans = sorted(plans(draw, given.jobs // len(PEOPLE), 60 * given.minutes))
        self.book, self.expected = Book(), dict[str, frozenset[JobState]]()  # by job
        self.answers_s: list[float] = []
        self.surprises: list[str] = []
        self.deeds: Counter[str] = Counter()

    def run(self) -> None:
        started = time.monotonic()
        for plan in self._plans:
            while (left := plan.at_s - (time.monotonic() - started)) > 0:
                time.sleep(min(left, READS_EVERY_S))
                self._guarded(self._read)
            self._guarded(lambda plan=plan: self._submit(plan))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # told in the end: the others go on
            self.surprises.append(f"{self.name}: {error!r}")

    def _submit(self, plan: Plan) -> None:
        key = f"{self.name}-{self.book.sent}"
        self.book.sent += 1
        spec = KINDS[plan.kind][1] | {
            "name": f"{plan.kind}, {key}",
            "labels": {KEY_LABEL: key, "kind": plan.kind.replace(" ", "-")},
        }
        if plan.deed == "refused":
            self._is_refused(spec)
            self.book.sent -= 1
            return
        job = self._ask(lambda client: client.submit(spec, idempotency_key=key)).id
        self.book.acknowledged[key] = job
        if self._ask(lambda client: client.submit(spec, idempotency_key=key)).id != job:
            self.book.contradicted.append(key)
        ends = JobState.FAILED if plan.kind == "blows up" else JobState.SUCCEEDED
        self.expected[job] = frozenset({ends})
        self._do(plan.deed, job, ends)

    def _is_refused(self, spec: Json) -> None:
        try:
            self._ask(lambda client: client.submit(spec | {"budget": {"steps": -1}}))
        except ApiError as error:
            if error.status == 422:
                self.deeds["refused"] += 1
                return
        self.surprises.append(f"{self.name}: a budget of -1 steps was accepted")

    def _do(self, deed: str, job: str, ends: JobState) -> None:
        """Do it, if the job is in a state in which it means something by then; else it is left alone."""
        both = frozenset({ends, JobState.CANCELLED, JobState.SUCCEEDED})
        match deed:
            case "cancels":
                self.expected[job] = both
                self._verb(deed, lambda client: client.cancel(job))
            case "pauses":
                self._until(job, frozenset({JobState.RUNNING}) | TERMINAL)
                if self._verb(deed, lambda client: client.pause(job)):
                    self._until(job, frozenset({JobState.PAUSED}) | TERMINAL)
                    self._verb("resumes", lambda client: client.resume(job))
            case "stops":
                self.expected[job] = both
                self._until(job, frozenset({JobState.RUNNING}) | TERMINAL)
                self._verb(deed, lambda client: client.stop(job))
            case "extends":
                if self._until(job, TERMINAL).state is JobState.SUCCEEDED:
                    steps = self._ask(lambda client: client.job(job)).spec.budget.steps
                    if steps is not None:
                        self._verb(deed, lambda client: client.extend(job, steps=steps + 100))
            case "clones":
                name = {"name": f"a clone of {job}", "labels": {KEY_LABEL: f"{job}-clone"}}
                made = self._ask(lambda client: client.clone(job, name, idempotency_key=f"{job}-clone")).job
                assert made is not None
                self.deeds[deed] += 1
                self.book.acknowledged[f"{job}-clone"] = made.id
                self.expected[made.id] = frozenset({ends})
            case "edits":
                self._verb(deed, lambda client: client.edit(job, notes="look at its density", labels={"seen": "yes"}))

    def _verb(self, deed: str, act: Callable[[Client], object]) -> bool:
        """Ask for it and return whether it was done; where it came too late for the job's state, the answer is 409."""
        try:
            self._ask(act)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        self.deeds[deed] += 1
        return True

    def _until(self, job: str, states: frozenset[JobState]) -> JobView:
        seen: list[JobView] = []

        def is_there() -> bool:
            seen[:] = [self._ask(lambda client: client.job(job)).view]
            return seen[0].state in states

        processes.wait_until(is_there, timeout_s=PATIENCE_S, every_s=1.0)
        return seen[0]

    def _read(self) -> None:
        """Look at the list and at the newest job, as a page does."""
        jobs = self._ask(lambda client: client.jobs(limit=20)).jobs
        if jobs:
            self._ask(lambda client: client.snapshot(jobs[0].id))

    def _ask(self, act: Callable[[Client], T]) -> T:
        """Insist on an answer, and note how long it took, service away included."""
        began = time.monotonic()
        with Client(self._service.server.url, self._key) as client:
            try:
                return insist(lambda: act(client))
            finally:
                self.answers_s.append(time.monotonic() - began)


def plans(draw: random.Random, count: int, seconds: float) -> Iterator[Plan]:
    """Yield `count` jobs at random moments, their kinds and deeds in the stated shares."""
    kinds, deeds = list(KINDS), list(DEEDS)
    for _ in range(count):
        (kind,) = draw.choices(kinds, [KINDS[each][0] for each in kinds])
        (deed,) = draw.choices(deeds, list(DEEDS.values()))
        yield Plan(draw.uniform(0, seconds), kind, deed)


# -- what befalls the service -----------------------------------------------------------------------------


@contextmanager
def release_before() -> Iterator[Path]:
    """Make a copy of the code as it was before the newest migration."""
    newest = sorted(path.name for path in (ROOT / MIGRATIONS).glob("0*.py"))[-1]
    added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", f"{MIGRATIONS}/{newest}")
    with tempfile.TemporaryDirectory(prefix="wt-release-") as folder:
        archive = subprocess.run(["git", "archive", f"{added}~1"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def befall(service: LiveService, given: argparse.Namespace) -> Counter[str]:
    """Kill and upgrade while jobs are submitted; return how often each happened."""
    draw, seconds = random.Random(f"{given.seed}/blows"), 60 * given.minutes
    blows = [kind for kind, per_hour in BLOWS.items() for _ in range(round(per_hour * given.minutes / 60))]
    draw.shuffle(blows)
    blows.insert(len(blows) // 3, "upgrade")
    started, happened = time.monotonic(), Counter[str]()
    for number, blow in enumerate(blows):
        at_s = seconds * (number + draw.random()) / len(blows)
        time.sleep(max(0.0, at_s - (time.monotonic() - started)))
        try:
            strike(service, blow, draw)
        except NobodyToKill:
            continue
        happened[blow] += 1
    return happened


def strike(service: LiveService, blow: str, draw: random.Random) -> None:
    if blow == "upgrade":
        service.stop()
        del os.environ["PYTHONPATH"]
    else:
        kill(service.victim(blow, jobs=(), draw=draw))
    if blow in ("upgrade", "api"):
        service.restart_api()


def wait_for_all(client: Client) -> int:
    """Wait until every job is over, and return how many are not after `PATIENCE_S`."""

    def left() -> int:
        return sum(job.state not in TERMINAL for job in client.iter_jobs())

    processes.wait_until(lambda: left() == 0, timeout_s=PATIENCE_S, every_s=2.0)
    return left()


# -- what is counted --------------------------------------------------------------------------------------


def everything(people: Sequence[Person]) -> Book:
    """Return what all people know together."""
    whole = Book()
    for person in people:
        whole.sent += person.book.sent
        whole.acknowledged |= person.book.acknowledged
        whole.contradicted += person.book.contradicted
    return whole


def checked(client: Client, people: Sequence[Person], late: int) -> Json:
    """Return counts of what there is, and of what is wrong with it."""
    book, jobs = everything(people), list(client.iter_jobs())
    expected = {job: states for person in people for job, states in person.expected.items()}
    keys = Counter(job.labels[KEY_LABEL] for job in jobs)
    otherwise = [job for job in jobs if job.state not in expected.get(job.id, {job.state})]
    for job in otherwise:
        print(f"{job.id}, {job.name}: {job.state}: {job.reason}", file=sys.stderr)
    found = {
        "jobs": len(jobs),
        "states": Counter(str(job.state) for job in jobs),
        "deeds": sum((person.deeds for person in people), Counter[str]()),
        "attempts": sum(len(client.attempts(job.id)) for job in jobs),
        "lost": len(set(book.acknowledged.values()) - {job.id for job in jobs}),
        "duplicates": len(book.contradicted) + keys.total() - len(keys),
        "wedged": late,
        "ended_otherwise": len(otherwise),
        "surprises": sum(len(person.surprises) for person in people),
    }
    return found | results(client, [job.id for job in jobs if job.state is JobState.SUCCEEDED])


def results(client: Client, jobs: Sequence[str]) -> Json:
    """Read every run of these jobs: its points must be each step's once, and its weights as their sum says."""
    found = Counter[str](dict.fromkeys(("runs", "steps", "points_lost", "points_doubled", "files_damaged"), 0))
    for job in jobs:
        for trial in client.trials(job):
            (losses,) = client.metrics(job, "loss", trial=trial.trial_id, max_points=MAX_POINTS)
            found["runs"] += 1
            found["steps"] += trial.bill.steps
            found["points_lost"] += len(set(range(trial.bill.steps)) - set(losses.steps))
            found["points_doubled"] += losses.num_points - len(set(losses.steps))
            if trial.weights_url is None:  # a sample that a rung ended
                continue
            try:
                client.save_weights(job, io.BytesIO(), arm=trial.arm, seed=trial.seed)
            except (ApiError, Unreachable, DamagedDownload) as error:
                print(f"{job}, {trial.arm}: {error}", file=sys.stderr)
                found["files_damaged"] += 1
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
