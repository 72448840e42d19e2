"""Check that the service does not grow while it works: memory, descriptors and write-ahead log of the API's process.

    python benchmarks/soak.py --minutes 30 --jobs 50 [--json benchmarks/soak.jsonl]

Real jobs are submitted at a steady pace, while clients read lists, metrics, reports and the page all the time. The
first fifth is warm-up. Goals: memory grows by at most 10 MB an hour, descriptors by at most 4, and the log stays below
64 MB. The last line says whether they were met.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from faults.clients import FAMILIES
from faults.live import LiveService, Victim, adopt_orphans, insist, kill
from rows import append

from api.client import Client
from api.failures import ApiError
from service.job.states import TERMINAL, JobState

WARM_UP = 0.2
EVERY_S = 2.0
NUM_RUNNING = 2
MAX_MB_PER_H, MAX_WAL_MB = 10.0, 64.0
MAX_MORE_DESCRIPTORS = 4  # they come and go with connections
PATIENCE_S = 600.0
NUM_ROWS = 10


class Sample(NamedTuple):
    """The API's process at a moment, in seconds since the start; sizes in MB."""

    seconds: float
    memory: float
    descriptors: int
    log: float


class Trend(NamedTuple):
    """The findings of the samples after the warm-up."""

    memory_per_h: float
    more_descriptors: float  # in the last quarter than in the first, by the medians
    max_log: float

    @property
    def is_met(self) -> bool:
        is_flat = self.more_descriptors <= MAX_MORE_DESCRIPTORS
        return self.memory_per_h <= MAX_MB_PER_H and is_flat and self.max_log <= MAX_WAL_MB


def main() -> int:
    given = parse()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    with tempfile.TemporaryDirectory(prefix="wt-soak-") as folder:
        service = LiveService(Path(folder), num_cpus=2 * NUM_RUNNING)
        try:
            samples = soak(service, minutes=given.minutes, num_jobs=given.jobs)
            states = ended(service)
        finally:
            kill(Victim(os.getpid(), "tree"))
    trend = trend_of(samples)
    print(told(samples, trend))
    num_well = states.count(JobState.SUCCEEDED)
    if given.json:
        append(given.json, record(samples, trend) | {"jobs": len(states), "succeeded": num_well})
    print(f"{num_well} of {len(states)} jobs succeeded; goals {'met' if trend.is_met else 'missed'}")
    return int(not trend.is_met or num_well < len(states))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line is appended")
    return parser.parse_args()


# -- the load ---------------------------------------------------------------------------------------------


def soak(service: LiveService, *, minutes: float, num_jobs: int) -> list[Sample]:
    """Submit `num_jobs` over `minutes` while they are read, and return what the API's process looked like."""
    done = threading.Event()
    reader = threading.Thread(target=read_all_the_time, args=(service, done), name="reader")
    reader.start()
    (api,) = service.candidates("api")
    started, samples, num_submitted = time.monotonic(), [], 0
    families = sorted(FAMILIES)
    try:
        while (seconds := time.monotonic() - started) < 60 * minutes:
            if num_submitted < num_jobs and seconds >= num_submitted * 60 * minutes / num_jobs:
                submit(service, families[num_submitted % len(families)])
                num_submitted += 1
            samples.append(sample(api.pid, service.settings.state_dir, seconds))
            time.sleep(EVERY_S)
    finally:
        done.set()
        reader.join(60)
    return samples


def submit(service: LiveService, family: str) -> None:
    with service.client() as client:
        insist(lambda: client.submit(FAMILIES[family]))


def read_all_the_time(service: LiveService, done: threading.Event) -> None:
    """Ask what a watching user's page and terminal ask, twice a second."""
    while not done.wait(0.5):
        with service.client() as client:
            for job in client.jobs(limit=50).jobs[:5]:
                read(client, job.id)


def read(client: Client, job_id: str) -> None:
    client.job(job_id), client.trials(job_id), client.stages(job_id), client.report(job_id)
    try:
        client.metrics(job_id, "loss")
        client.logs(job_id)
    except ApiError as error:
        if error.status not in (404, 503):  # there is none yet
            raise


def ended(service: LiveService) -> list[JobState]:
    """Return the jobs' states once all have ended, or `PATIENCE_S` are over."""
    deadline = time.monotonic() + PATIENCE_S
    with service.client() as client:
        while True:
            states = [job.state for job in client.jobs(limit=200).jobs]
            if set(states) <= TERMINAL or time.monotonic() > deadline:
                return states
            time.sleep(1.0)


# -- what is measured -------------------------------------------------------------------------------------


def sample(pid: int, state_dir: Path, seconds: float) -> Sample:
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    log = state_dir / "wiretune.db-wal"
    return Sample(
        seconds=seconds,
        memory=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        descriptors=len(os.listdir(process / "fd")),
        log=log.stat().st_size / 1e6 if log.exists() else 0.0,
    )


def trend_of(samples: Sequence[Sample]) -> Trend:
    warm = [each for each in samples if each.seconds >= WARM_UP * samples[-1].seconds]
    hours = np.array([each.seconds for each in warm]) / 3600
    descriptors, quarter = [each.descriptors for each in warm], max(1, len(warm) // 4)
    return Trend(
        memory_per_h=float(np.polyfit(hours, [each.memory for each in warm], 1)[0]),
        more_descriptors=float(np.median(descriptors[-quarter:]) - np.median(descriptors[:quarter])),
        max_log=max(each.log for each in warm),
    )


def record(samples: Sequence[Sample], trend: Trend) -> dict[str, Any]:
    """Return the trend, and what `told` shows of the samples, as JSON."""
    columns = {"minutes": [round(row.seconds / 60, 1) for row in shown(samples)]}
    columns |= {name: [round(getattr(row, name), 1) for row in shown(samples)] for name in Sample._fields[1:]}
    figures = {name: round(number, 1) for name, number in trend._asdict().items()}
    load = round(os.getloadavg()[0], 1)
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "load": load, **figures, "samples": columns}


def shown(samples: Sequence[Sample]) -> list[Sample]:
    return [samples[index] for index in np.linspace(0, len(samples) - 1, NUM_ROWS).astype(int)]


def told(samples: Sequence[Sample], trend: Trend) -> str:
    lines = ["minute   memory MB   descriptors   log MB"]
    lines += [
        f"{row.seconds / 60:6.1f}   {row.memory:9.1f}   {row.descriptors:11d}   {row.log:6.1f}"
        for row in shown(samples)
    ]
    lines.append(
        f"after the warm-up: memory {trend.memory_per_h:+.1f} MB/h (goal {MAX_MB_PER_H:g}), "
        f"descriptors {trend.more_descriptors:+g} (goal {MAX_MORE_DESCRIPTORS}), "
        f"log at most {trend.max_log:.1f} MB (goal {MAX_WAL_MB:g}); load {os.getloadavg()[0]:.1f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
