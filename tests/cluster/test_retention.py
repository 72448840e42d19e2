"""Which checkpoints are kept: the newest, the best, and those that something resumes from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.cluster import trial
from service.cluster.resume import Resume
from service.wire.records import AnyRecord, Checkpointed, MetricPoints, StageClosed
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation


class Storage(Memory):
    """Notes with every checkpoint what of the losses evaluated so far is the lowest, and looks for its checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.best: list[tuple[float, int]] = []  # loss and the step of the first checkpoint behind it
        self._loss, self._step = 0.0, -1  # of the last evaluation

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        for record in records:
            if isinstance(record, MetricPoints) and record.name == "validation_loss":
                self._loss, self._step = record.values[0] or 0.0, record.steps[0]
            if isinstance(record, Checkpointed | StageClosed):
                self._look(Resume.model_validate(record.resume))

    def _look(self, resume: Resume) -> None:
        if not self.best or self._loss < self.best[-1][0]:
            self.best.append((self._loss, self._step))
        best = resume.progress.best
        assert best is not None and (best.score, int(best.checkpoint.rpartition("-")[2])) == self.best[-1]
        assert best.checkpoint in resume.checkpoints
        assert Path(best.checkpoint.removeprefix("file://")).is_dir()


def test_what_a_larger_budget_goes_on_from_has_its_best_checkpoint_still(
    tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    group, sink = arithmetic_group(), Memory()

    def evaluate(*, averaged: bool = False) -> Evaluation:
        return Evaluation(loss=2.0 - len(group.rates) / 300, metrics={}, num_samples=10, bytes_sent=({"control": 8},))

    group.evaluate = evaluate
    spec = digits_trial(
        budget={"steps": 300},
        optimizer={"kind": "sgd", "learning_rate": 0.1},
        checkpoint={"every_seconds": 3600, "keep": 1, "export": "best"},
        objective={"every": 30},
        controller={"kind": "off"},
    )
    trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    [steady] = [Resume.model_validate(each.resume) for each in sink.of(Checkpointed) if each.steady]
    best = steady.progress.best
    assert best is not None and 0 < (best.step or 0) < 300
    assert Path(best.checkpoint.removeprefix("file://")).is_dir()


def test_the_best_checkpoint_stays_until_there_is_a_better_one(
    tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    group, sink = arithmetic_group(), Storage()
    losses = {0: 2.0, 30: 1.5, 60: 0.5, 90: 1.0, 120: 0.7}  # by step; then it rises

    def evaluate(*, averaged: bool = False) -> Evaluation:
        loss = losses.get(len(group.rates), 3.0)
        return Evaluation(loss=loss, metrics={}, num_samples=10, bytes_sent=({"control": 8},) * 2)

    group.evaluate = evaluate
    checkpoint = {"every_seconds": 1e-9, "keep": 1}
    spec = digits_trial(
        budget={"steps": 300}, checkpoint=checkpoint, objective={"every": 30}, controller={"kind": "fixed"}
    )
    trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    assert [loss for loss, _ in sink.best] == [2.0, 1.5, 0.5]
    left = sorted(int(folder.name.rpartition("-")[2]) for folder in (tmp_path / "job.tuned.0").iterdir()
                  if folder.name.partition("-")[2].startswith("step"))  # fmt: skip
    assert sink.best[-1][1] in left and 300 in left and len(left) <= 5


class Away(Memory):
    """Stores the checkpoints up to step 90, and is silent from then on until somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.is_back = 0, False
        self.there: list[bool] = []  # with each later checkpoint: whether the best one that it knows of is on storage
        self._best = ""

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        for record in records:
            if isinstance(record, Checkpointed) and not self.is_back:
                self._note(record)

    def flush(self, *records: AnyRecord) -> None:
        self.is_back = self.step > 90
        super().flush(*records)

    def is_clear(self) -> bool:
        return self.step < 90 or self.is_back

    def _note(self, record: Checkpointed) -> None:
        self.step = record.step
        best = Resume.model_validate(record.resume).progress.best
        if self.step <= 90 and best is not None:
            self._best = best.checkpoint
        elif self.step > 90:
            self.there.append(Path(self._best.removeprefix("file://")).is_dir())


def test_the_best_checkpoint_that_a_silent_api_knows_of_stays_however_many_better_ones_there_are(
    tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    group, sink = arithmetic_group(), Away()
    losses = {0: 2.0, 30: 1.5, 120: 1.0, 150: 0.8, 180: 0.5}  # by step

    def evaluate(*, averaged: bool = False) -> Evaluation:
        loss = losses.get(len(group.rates), 3.0)
        return Evaluation(loss=loss, metrics={}, num_samples=10, bytes_sent=({"control": 8},) * 2)

    group.evaluate = evaluate
    checkpoint = {"every_seconds": 1e-9, "keep": 1, "export": "best"}
    spec = digits_trial(
        budget={"steps": 300}, checkpoint=checkpoint, objective={"every": 30}, controller={"kind": "fixed"}
    )
    trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    assert sink.there == [True, True, True]
