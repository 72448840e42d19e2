"""A run that chooses among optimizers, with real workers: it then trains as if it had only the chosen one."""

import json
from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import ScheduleFile
from service.cluster.optimizer_choice import built_with, choose_optimizer
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import Checkpointed, StageDecided, TrialFinished
from tests.support.small_trials import Memory, Stopping, digits_trial, train
from trainers.segment import Segment, SegmentResult
from trainers.training.elastic import ElasticGroup
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup
from trainers.workload import WorkloadError

#: The last is the best, so workers that are built with the first have to be built anew.
OPTIONS = ["sgd", {"kind": "adamw", "learning_rate": 0.002}]


def _spec(**changes: Any) -> TrialSpec:
    job: dict[str, Any] = {
        "optimizer": {"kind": "auto", "options": OPTIONS},
        "exchange": {"kind": "threshold", "density": 0.05},
        "controller": {"kind": "bo"},
        "budget": {"steps": 60},  # which reads no clock
        "objective": {"every": 20},
    }
    return digits_trial(**(job | changes))


def _trained(spec: TrialSpec, folder: Path) -> tuple[TrialFinished, StageDecided]:
    sink = Memory()
    train(spec, folder, sink, num_workers=2)
    return sink.of(TrialFinished)[0], sink.of(StageDecided)[0]


@pytest.mark.parametrize(
    ("changes", "options", "best"),
    [
        ({}, OPTIONS, "adamw"),
        ({"controller": {"kind": "off"}}, ["sgd", "adamw"], "adamw"),
        ({"sync": {"kind": "local_sgd", "period": 4}}, OPTIONS, "adamw"),
        ({"blocks": {"kind": "jointspar"}, "exchange": {"kind": "none"}}, ["sgd", "lars"], "sgd"),
        ({"exchange": {"kind": "dgc"}}, [{"kind": "lars", "momentum": 0}, {"kind": "sgd", "momentum": 0}], "lars"),
    ],
    ids=["bo", "off", "local updates", "drawn blocks", "momentum of the exchange"],
)
def test_the_one_whose_steps_are_worth_most_trains_as_if_it_were_alone(
    tmp_path: Path, changes: dict[str, Any], options: list[Any], best: str
) -> None:
    [own] = [each for each in options if each == best or (isinstance(each, dict) and each["kind"] == best)]
    several, decided = _trained(_spec(optimizer={"kind": "auto", "options": options}, **changes), tmp_path / "several")
    alone, _ = _trained(_spec(optimizer={"kind": own} if own == best else own, **changes), tmp_path / "alone")

    assert decided.values["optimizer"] == best
    assert f"{best} is expected to learn most: a step of " in decided.reason
    rates = [[(entry.step, entry.learning_rate) for entry in each.schedule] for each in (several, alone)]
    assert (rates[0], several.validation_loss) == (rates[1], alone.validation_loss)


def test_an_attempt_goes_on_bit_for_bit_with_the_optimizer_that_was_chosen(tmp_path: Path) -> None:
    spec, cut, resumed = _spec(checkpoint={"every_seconds": 0.01}), Stopping(), Memory()
    with pytest.raises(Stopped):
        train(spec, tmp_path / "cut", cut, num_workers=2)
    train(spec, tmp_path / "cut", resumed, cut.of(Checkpointed)[-1].resume, num_workers=2)

    [again], (whole, _) = resumed.of(TrialFinished), _trained(spec, tmp_path / "whole")
    assert again.validation_loss == whole.validation_loss


def test_a_run_that_an_earlier_release_began_with_several_optimizers_is_refused(tmp_path: Path) -> None:
    cut = Stopping()
    with pytest.raises(Stopped):
        train(_spec(checkpoint={"every_seconds": 0.01}), tmp_path, cut, num_workers=2)
    earlier = json.loads(json.dumps(cut.of(Checkpointed)[-1].resume))
    earlier["journal"]["space"]["optimizers"] = []

    with pytest.raises(WorkloadError, match=r"an earlier release began this run.*submit the job anew"):
        train(_spec(), tmp_path, Memory(), earlier, num_workers=2)


def test_a_schedule_is_replayed_by_the_optimizer_that_learned_it(tmp_path: Path) -> None:
    learned, decided = _trained(_spec(), tmp_path / "learned")
    kind, steps = decided.values["optimizer"], learned.bill.steps
    assert {entry.values["optimizer"] for entry in learned.schedule} == {kind}
    entries = tuple(entry.model_dump() for entry in learned.schedule)
    schedule = ScheduleFile(optimizer=kind, num_steps=steps, entries=entries)

    replayed, first = _trained(_spec(controller={"kind": "schedule", "schedule": schedule}), tmp_path / "replayed")

    assert replayed.validation_loss == learned.validation_loss
    assert first.values["optimizer"] == kind


@pytest.mark.parametrize(("muon_s", "best"), [(0.014, "muon"), (0.018, "adamw")], ids=["worth it", "too slow"])
def test_under_seconds_an_optimizer_whose_steps_take_long_must_be_worth_it(
    monkeypatch: pytest.MonkeyPatch, muon_s: float, best: str
) -> None:
    taken = {"muon": muon_s, "adamw": 0.01, "sgd": 0.009}
    spec = _spec(optimizer={"kind": "auto", "options": [*taken]}, budget={"seconds": 60})
    with ProcessGroup(spec.replica, 1) as group:
        run = group.run

        def timed(segment: Segment) -> SegmentResult:
            seconds = taken[(getattr(group.config.optimizer, "options", None) or [group.config.optimizer])[0].kind]
            return run(segment).model_copy(update={"step_seconds": (0.5 * seconds, 3 * seconds, seconds)})

        monkeypatch.setattr(group, "run", timed)
        chosen = choose_optimizer(spec, [group])

        assert group.config.optimizer.kind == chosen.spec.replica.optimizer.kind == best
    assert chosen.why.startswith(f"{best} is expected to learn most: a step of muon is worth 1.75 and takes 1")
    assert len(chosen.tried) == 6  # two turns of each


@pytest.mark.parametrize(
    "wrapped",
    [lambda group: group, RepairingGroup, lambda group: ElasticGroup(group, least=1)],
    ids=["workers", "workers that are replaced", "workers that come back"],
)
def test_workers_that_start_later_have_the_chosen_optimizer_too(tmp_path: Path, wrapped: Any) -> None:
    spec = _spec(sync={"kind": "diloco", "period": 4}, exchange={"kind": "none"})
    losses: list[list[float]] = []
    for kill in (False, True):
        with ProcessGroup(spec.replica, 2) as workers:
            group: Group = wrapped(workers)
            own = built_with(spec, [group], "adamw").replica
            group.snapshot("start")
            if kill:
                workers.replace([1])
                group = wrapped(workers)
            losses.append([*group.run(Segment(num_steps=8, learning_rate=0.01)).losses])
            assert group.config == own
    assert losses[0] == losses[1]
