"""Copying a checkpoint counts on the training clock; its upload runs in parallel to the training."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.wire.records import Checkpointed, MetricPoints
from tests.support.small_trials import Memory, digits_trial
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.call_results import WorkerFailed
from trainers.training.checkpoint import CheckpointError, read_manifest
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup

SEGMENT = Segment(num_steps=5, learning_rate=0.1)


@pytest.fixture
def slow_group(arithmetic_group: Callable[..., Any]) -> Any:
    """A group whose checkpoints are complete only when it is asked for the `num_looks`th time, or waited for."""
    group = arithmetic_group()
    group.num_looks, group.waited, group.copies = 3, 0, {}

    def begin_save(url: str) -> None:
        group.copies[url] = (0, json.dumps([group.num_workers, group.rates]))

    def saved(url: str, within_s: float = 0.0) -> bool:
        looks, copy = group.copies[url]
        group.copies[url] = (looks + 1, copy)
        group.waited += within_s > 0
        if looks + 1 < group.num_looks and not within_s:
            return False
        folder = Path(url.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(copy)
        return True

    group.begin_save, group.saved = begin_save, saved
    return group


class Watching(Memory):
    """Notes, with each checkpoint that is reported, whether it is there, and the last step that was reported before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, int, int]] = []

    def report(self, *records: Any) -> None:
        for record in records:
            if isinstance(record, Checkpointed):
                steps = [points.steps[-1] + 1 for points in self.of(MetricPoints) if points.name == "loss"]
                folder = Path(record.resume["checkpoint"].removeprefix("file://"))
                self.seen.append(((folder / "state.json").exists(), record.step, max(steps)))
            super().report(record)


def _train(group: Any, folder: Path) -> Watching:
    sink = Watching()
    spec = digits_trial(controller={"kind": "fixed"}, checkpoint={"every_seconds": 1e-6}, objective={"every": 20})
    trial.train(spec, group, sink, trial_id="t", storage_url=f"file://{folder}")
    return sink


def test_training_goes_on_while_a_checkpoint_is_written_and_it_is_told_once_complete(
    slow_group: Any, tmp_path: Path
) -> None:
    sink = _train(slow_group, tmp_path)

    assert len(sink.seen) > 3
    assert all(is_there for is_there, _, _ in sink.seen)
    assert any(step < trained for _, step, trained in sink.seen)


def test_one_is_written_at_a_time_and_the_end_waits_for_the_last(slow_group: Any, tmp_path: Path) -> None:
    slow_group.num_looks = 10**9  # complete only where it is waited for

    sink = _train(slow_group, tmp_path)

    assert len(sink.seen) == 1
    assert slow_group.waited == 2  # for that one, and for the stage's end


def test_what_an_upload_takes_is_not_on_the_training_clock(
    slow_group: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_group.num_looks, hour = 10**9, 3600.0
    passed, now, saved = [0.0], time.monotonic, slow_group.saved
    monkeypatch.setattr(time, "monotonic", lambda: now() + passed[0])

    def slowly(url: str, within_s: float = 0.0) -> bool:
        passed[0] += hour if within_s else 0.0
        return bool(saved(url, within_s))

    slow_group.saved = slowly
    sink = _train(slow_group, tmp_path)

    assert passed[0] >= hour
    assert sink.of(Checkpointed)[-1].bill.seconds_training < hour / 2
    assert sink.of(MetricPoints)[-1].seconds[-1] < hour / 2


def test_what_is_written_first_in_a_later_attempt_is_not_on_the_training_clock_either(
    slow_group: Any, arithmetic_group: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}"
    spec = digits_trial(controller={"kind": "fixed"}, checkpoint={"every_seconds": 1e-6, "keep": 100})
    before = Watching()
    trial.train(spec, arithmetic_group(), before, trial_id="t", storage_url=url)

    waited_for, save = list[str](), slow_group.save
    slow_group.save = lambda url: (waited_for.append(url), save(url))
    resume = before.of(Checkpointed)[0].resume
    trial.train(spec, slow_group, sink := Watching(), trial_id="t", storage_url=f"{url}/later", resume=resume)

    assert sink.of(Checkpointed) and [url.rpartition("/")[2] for url in waited_for] == ["weights"]


@pytest.fixture
def group(s3: Any) -> Any:  # whose workers have its address in their environment
    spec = digits_trial()
    config = ReplicaConfig.model_validate(spec.replica.model_dump())
    with RepairingGroup(ProcessGroup(config, 2, device="cpu")) as made:
        yield made


def _complete(group: RepairingGroup, url: str) -> None:
    deadline = time.monotonic() + 60
    while not group.saved(url, 0.5):
        assert time.monotonic() < deadline


def test_a_checkpoint_on_s3_is_of_the_moment_it_was_begun_though_a_worker_is_killed_before_it_is_complete(
    group: Any, s3: Any, tmp_path: Path
) -> None:
    there, here = "s3://results/run", f"file://{tmp_path}/run"
    group.run(SEGMENT)
    group.save(here)
    s3.hold("rank-1.safetensors")
    group.begin_save(there)
    group.run(SEGMENT)
    assert s3.held.wait(60)
    assert not group.saved(there)
    with pytest.raises(CheckpointError, match=r"manifest.json is missing"):
        read_manifest(there)

    os.kill(group._group.pids[1], signal.SIGKILL)
    s3.release.set()
    ahead = group.run(SEGMENT)
    _complete(group, there)

    assert {each.name: each.sha256 for each in read_manifest(there).shards} == {
        each.name: each.sha256 for each in read_manifest(here).shards
    }
    group.load(there)
    assert group.run(SEGMENT).first_step == 5
    assert group.run(SEGMENT).losses == ahead.losses
    assert group.recovery.repairs == 1


@pytest.mark.long  # S3 is asked again for half a minute
def test_an_upload_that_fails_for_good_ends_the_run_as_what_may_pass(group: Any, s3: Any) -> None:
    group.run(SEGMENT)
    s3.fail("PUT", *["500 Internal Server Error"] * 40)
    group.begin_save("s3://results/run")

    with pytest.raises(WorkerFailed) as failed:
        _complete(group, "s3://results/run")

    assert failed.value.is_passing
    with pytest.raises(CheckpointError):
        read_manifest("s3://results/run")
