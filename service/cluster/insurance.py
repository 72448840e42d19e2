"""The second line: the user's own schedule, trained on a spare lane. The better of the two lines is kept."""

import threading
from typing import Any

from search import strategies
from search.config import OffConfig
from search.space import SearchSpace
from search.types import Steer
from service.cluster.resume import Resume, StageStart
from service.cluster.sink import Sink
from service.cluster.trial_ledger import TrialLedger
from service.job.parts import Lanes, TrialSpec
from service.wire.records import INSURANCE_PREFIX, AnyRecord, Checkpointed, Control, MetricPoints
from trainers.training.group import Group


class Over(Exception):
    """The main line has ended before the second line."""


class InsuranceSink:
    """The sink of a second line. It reports evaluations to `sink` under their own names.

    The main line reports the second line's last checkpoint, so one record holds what a later attempt needs of both.
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
        # Called without records, too: it raises what must end the run.
        self._sink.report(*(each.model_copy(update={"name": f"{INSURANCE_PREFIX}{each.name}"}) for each in found))

    flush = report

    def has_more(self) -> bool:
        """Return whether there is a checkpoint that the main line has not reported."""
        return self._last is not self._taken

    def is_clear(self) -> bool:
        """Return whether the API knows of the last checkpoint, together with the main line's."""
        return not self.has_more() and self._sink.is_clear()

    def asked(self) -> Control:
        """Return `stop` if the user asked for it. The main line handles a pause."""
        return Control.STOP if self._sink.asked() is Control.STOP else Control.RUN

    def steers(self) -> tuple[Steer, ...]:
        """Return no steers: they do not apply to the user's own schedule."""
        return ()

    def take(self) -> dict[str, Any]:
        """Return the last checkpoint, which the caller is about to report."""
        self._taken = self._last
        return self._taken

    def end(self) -> None:
        """Make the next report raise `Over`."""
        self._is_over.set()


def insured(spec: TrialSpec) -> TrialSpec:
    """Return the spec of the second line: one lane, with the budget of `spec`."""
    # One more checkpoint: when this line saves, the main line may not have reported its previous checkpoint yet.
    checkpoint = spec.checkpoint.model_copy(update={"keep": spec.checkpoint.keep + 1})
    return spec.model_copy(update={"lanes": Lanes(), "checkpoint": checkpoint})


def own_schedule(spec: TrialSpec, space: SearchSpace, group: Group, *, start: str, seconds: float) -> Resume:
    """Return the start of the second line: the run's first state, at checkpoint `start`, with the guess.

    Its training clock starts at `seconds`, since elapsed time counts for it too.
    """
    strategy = strategies.build(OffConfig(), space=space, seed=spec.seed, budget=spec.budget)
    return Resume(
        fingerprint=group.built.fingerprint,
        checkpoint=start,
        checkpoints=[],
        stage=StageStart(checkpoint=start, progress=TrialLedger()),
        journal=dict(strategy.state_dict()),
        progress=TrialLedger(seconds=seconds),
        cost=None,
        open_commit=None,
    )
