"""The example jobs in the stage loop, with spawned workers: cut off anywhere, each ends like an undisturbed one."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import checkpoints, trial
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Bill, Checkpointed, MetricPoints, Searched, StageClosed, TrialFinished
from tests.support.example_jobs import EXAMPLES, MANY_BYTES, shortened
from tests.support.small_trials import Memory
from trainers.training.process_group import ProcessGroup

LINK = {"mode": "emulate", "mbps": 10_000, "latency_ms": 0.1}
CHECKPOINT = {"every_seconds": 1e-9}  # after every push
RESUMABLE = Checkpointed | StageClosed | Searched
PEAK = "memory_bytes"  # of the process, which a resumed run has another of
NOT_BITS: Any = {
    "weights_url": True,
    "last_weights_url": True,
    "bill": {
        **{name: True for name in Bill.model_fields if name.startswith("seconds_") or name == PEAK},
        "by_option": {"__all__": {"seconds"}},
    },
}
#: An example for each family of methods.
FAMILIES = {
    "the largest entries, whose number is searched": "topk",
    "messages as long as they are worth it": "cat",
    "a bit for each entry": "onebit",
    "low rank, by a level policy": "accordion",
    "signs both ways": "dist_ef_sgd",
    "parameters that drift apart": "cser",
    "local updates": "vrl_sgd",
    "blocks": "jointspar",
    "activations": "dropit",
    "kinds that compete": "auto",
}
#: What lets a short run do what the example does: values that are searched, or need not be, regimes that are compared,
#: kinds that are probed beside each other, a model whose steps take milliseconds.
SHORTER: dict[str, dict[str, Any]] = {
    "topk": {"budget": {"steps": 80, "bytes": MANY_BYTES}},
    "dropit": {"workload": {"kind": "digits-mlp"}, "exchange": {"kind": "threshold", "density": 0.05}},
    "accordion": {
        "exchange": {
            "kind": "powersgd",
            "rank": 1,
            "levels": {"kind": "accordion", "critical": 4, "epoch_steps": 4, "interval": 1},
        }
    },
    "auto": {
        "exchange": {"kind": "auto", "options": ["powersgd 1", "powersgd 4", "threshold 0.01"]},
        "controller": {"kind": "bo", "max_search_fraction": 0.5, "min_probe_steps": 4},
        "budget": {"bytes": 1_000_000},
    },
}


@pytest.mark.parametrize("name", FAMILIES.values(), ids=FAMILIES)
def test_a_method_of_each_family_that_is_cut_off_ends_like_the_undisturbed_one(name: str, tmp_path: Path) -> None:
    [path] = [path for path in EXAMPLES if path.stem == name]
    changes = {"budget": {"steps": 30}, "workers": {"count": 2}} | SHORTER.get(name, {})
    spec, *_ = shortened(path, link=LINK, checkpoint=CHECKPOINT, **changes).trials()

    _end_the_same(spec, random.Random(name), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_arm_of_an_example_that_is_cut_off_ends_like_the_undisturbed_one(path: Path, tmp_path: Path) -> None:
    draw = random.Random(path.stem)
    for spec in shortened(path, link=LINK, checkpoint=CHECKPOINT).trials():
        _end_the_same(spec, draw, tmp_path / spec.arm)


@pytest.fixture(autouse=True)
def all_checkpoints_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be cut off at any of hundreds of moments, each of which goes on from a checkpoint of its own."""
    monkeypatch.setattr(checkpoints, "_remove", lambda url: None)


def _end_the_same(spec: TrialSpec, draw: random.Random, folder: Path) -> None:
    """Train to the end, and once more from a drawn moment on, in fresh processes, as an attempt does after a kill."""
    whole = _train(spec, folder / "whole")
    moments = _moments(whole, in_search=bool(spec.searched))
    assert moments, f"{spec.arm} ended without a probe"
    cut = draw.choice(moments)

    resumed = _train(spec, folder / "resumed", resume=whole[cut].resume)

    assert _finished(resumed) == _finished(whole), spec.arm
    assert _points(whole[:cut]) | _points(resumed) == _points(whole), spec.arm


def _moments(records: list[Any], *, in_search: bool) -> list[int]:
    """Return where a run can be gone on with, but for its end: within its search alone, or anywhere."""
    *found, _ = [index for index, each in enumerate(records) if isinstance(each, RESUMABLE)]
    return [index for index in found if isinstance(records[index], Searched)] if in_search else found


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
    series = [each for each in records if isinstance(each, MetricPoints) and each.name != PEAK]
    return {(each.name, step): value for each in series for step, value in zip(each.steps, each.values, strict=True)}
