"""Every example job, each of its arms cut off at a drawn moment, in the stage loop with spawned workers."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.records import AnyRecord, Checkpointed, MetricPoints, Searched, StageClosed, TrialFinished
from service.spec import TrialSpec
from tests.example_jobs import EXAMPLES, shortened
from tests.small_trials import Memory
from trainers.group import ProcessGroup

LINK = {"mode": "emulate", "mbps": 10_000, "latency_ms": 0.1}
CHECKPOINT = {"every_seconds": 1e-9, "keep": 100}  # after every push
NOT_BITS: Any = {
    "weights_url": True,
    "bill": {"seconds_search", "seconds_training", "seconds_evaluation", "seconds_checkpoint"},
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_that_is_cut_off_at_a_drawn_moment_ends_like_the_undisturbed_one(path: Path, tmp_path: Path) -> None:
    draw = random.Random(path.stem)
    for spec in shortened(path, link=LINK, checkpoint=CHECKPOINT).trials():
        whole = _train(spec, tmp_path / spec.arm)
        *points, _ = [
            index for index, each in enumerate(whole) if isinstance(each, Checkpointed | StageClosed | Searched)
        ]
        cut = draw.choice(points)

        resumed = _train(spec, tmp_path / f"{spec.arm}-resumed", resume=whole[cut].resume)

        assert _finished(resumed) == _finished(whole), spec.arm
        assert _points(whole[:cut]) | _points(resumed) == _points(whole), spec.arm


def _train(spec: TrialSpec, folder: Path, resume: dict[str, Any] | None = None) -> list[Any]:
    """Return what the run reports."""
    sink = Memory()
    with ProcessGroup(spec.replica, spec.workers.count, device="cpu") as group:
        trial.train(spec, group, sink, trial_id="a-trial", storage_url=f"file://{folder}", resume=resume)
    return sink.records


def _finished(records: Iterable[AnyRecord]) -> tuple[dict[str, Any], bytes]:
    [finished] = [each for each in records if isinstance(each, TrialFinished)]
    weights = Path(str(finished.weights_url).removeprefix("file://"))
    return finished.model_dump(exclude=NOT_BITS), weights.read_bytes()


def _points(records: Iterable[AnyRecord]) -> dict[tuple[str, int], float | None]:
    series = [each for each in records if isinstance(each, MetricPoints)]
    return {(each.name, step): value for each in series for step, value in zip(each.steps, each.values, strict=True)}
