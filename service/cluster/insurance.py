"""The user's own schedule, trained on a spare lane beside the main line: the better of the two is kept."""

import threading
from typing import Any

from search import strategies
from search.config import OffConfig
from search.space import SearchSpace
from search.types import Steer
from service.cluster.reports import Sink
from service.cluster.resume import Resume, StageStart
from service.cluster.trial_ledger import Progress
from service.job.parts import Lanes, TrialSpec
from service.wire.records import INSURANCE_PREFIX, AnyRecord, Checkpointed, Control, MetricPoints
from trainers.training.group import Group


class Over(Exception):
    """The main line has ended before its insurance."""


class InsuranceSink:
    """The sink of a second line: its evaluations go to `sink`, under names of their own.

    Its last checkpoint is for the main line to report, so that one record holds what a later attempt needs of both.
    """

    def __init__(self, sink: Sink, start: dict[str, Any]) -> None:
        self._sink = sink
        self._is_over = threading.Event()
        self._last = self._taken = start

    def report(self, *records: AnyRecord) -> None:
        if self._is_over.is_set():
            raise Over
        self._last = next((each.resume for each in records if isinstance(each, Checkpointed)), self._last)
        found = [each for each in records if isinstance(each, MetricPoints) and each.name.startswith("validation_")]
        # Without any, too: this raises what ends the run.
        self._sink.report(*(each.model_copy(update={"name": f"{INSURANCE_PREFIX}{each.name}"}) for each in found))

    flush = report

    def is_clear(self) -> bool:
        """Return whether the last checkpoint is known to the API, with the main line's."""
        return self._last is self._taken and self._sink.is_clear()

    def asked(self) -> Control:
        """Return `stop` if the user wants that; a pause is for the main line to make."""
        return Control.STOP if self._sink.asked() is Control.STOP else Control.RUN

    def steers(self) -> tuple[Steer, ...]:
        """Return nothing: the user's own schedule is not steered."""
        return ()

    def take(self) -> dict[str, Any]:
        """Return the last checkpoint, which the caller is about to report."""
        self._taken = self._last
        return self._taken

    def end(self) -> None:
        """Have the next report raise `Over`."""
        self._is_over.set()


def insured(spec: TrialSpec) -> TrialSpec:
    """Return the run beside that of `spec`: of one lane, with the same budget."""
    # One checkpoint more: when the second line saves, the main one may not have reported the one before yet.
    checkpoint = spec.checkpoint.model_copy(update={"keep": spec.checkpoint.keep + 1})
    return spec.model_copy(update={"lanes": Lanes(), "checkpoint": checkpoint})


def own_schedule(spec: TrialSpec, space: SearchSpace, group: Group, *, start: str, seconds: float) -> Resume:
    """Return where the second line begins: in the run's first state, at checkpoint `start`, with the guess.

    Its training clock starts at `seconds`: what has elapsed is gone for it too.
    """
    strategy = strategies.build(OffConfig(), space=space, seed=spec.seed, budget=spec.budget)
    return Resume(
        fingerprint=group.fingerprint,
        checkpoint=start,
        checkpoints=[],
        stage=StageStart(checkpoint=start, progress=Progress()),
        journal=dict(strategy.state_dict()),
        progress=Progress(seconds=seconds),
        cost=None,
        diverged_values=None,
        open_commit=None,
    )
