"""Measure the cost to store, keep and draw the points of a metric: as single rows, and in chunks.

    python benchmarks/metric_points.py [--points 1000000]

Both take turns in one process, each on a fresh SQLite file. The losses are a noisy curve in float32, like real ones.
"""

import argparse
import random
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from service.control.metrics import points
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import Batch, MetricPoints

BATCH = 500
READS = 9
SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


def batches(trial_id: str, num_points: int) -> Iterator[Batch]:
    """Yield a loss curve as a driver reports it: a step every 20 ms or so."""
    draw, seconds = random.Random(0), 0.0
    for sequence, first in enumerate(range(0, num_points, BATCH), start=1):
        steps = range(first, min(first + BATCH, num_points))
        clock = [seconds := seconds + 0.02 * draw.uniform(0.9, 1.3) for _ in steps]
        losses = [_float32(2.3 / (1 + step / 1e4) ** 0.5 * draw.gauss(1, 0.05)) for step in steps]
        record = MetricPoints(
            trial_id=trial_id, name="loss", steps=tuple(steps), seconds=tuple(clock), values=tuple(losses)
        )
        yield Batch(stream=trial_id, sequence=sequence, records=(record,))


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def measure(name: str, folder: Path, num_points: int) -> None:
    """Store a series, and print what that takes."""
    store = Store.open(Settings(state_dir=folder, database_url=""))
    job_id = store.add_job(SPEC)[0].id
    store.attempts.begin(job_id)
    sent = list(batches(store.trials(job_id)[0].trial_id, num_points))
    empty = _size(folder)
    started = time.perf_counter()
    for batch in sent:
        store.attempts.ingest(job_id, 1, batch)
    stored_s = time.perf_counter() - started
    reads = []
    for _ in range(READS):
        started = time.perf_counter()
        [series] = store.series(job_id, "loss", max_points=2000)
        reads.append(time.perf_counter() - started)
    assert series.num_points == num_points and len(series.steps) > 1000
    store.close()
    print(
        f"{name}: {num_points / stored_s:,.0f} points/s, {(_size(folder) - empty) / num_points:.1f} bytes a point, "
        f"2,000 points drawn in {1e3 * sorted(reads)[READS // 2]:.1f} ms (median of {READS})",
        flush=True,
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("wiretune.db*"))


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    num_points, chunk = parser.parse_args().points, points.CHUNK
    for name, size in (("rows", 10**9), ("chunks", chunk)):
        points.CHUNK = size
        with tempfile.TemporaryDirectory(prefix="wt-points-") as folder:
            measure(name, Path(folder), num_points)


if __name__ == "__main__":
    main()
