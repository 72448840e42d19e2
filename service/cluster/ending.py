"""End a training run: stop its clock, keep the better of its lines and states, export it, and test what is exported."""

import logging
from collections.abc import Mapping
from typing import Literal, NamedTuple

from search.loop.endings import futile
from service.cluster import reports, trial_checkpoints
from service.cluster.attempt import last_line
from service.cluster.checkpoints import Exported
from service.cluster.trial_ledger import Best
from service.cluster.trial_state import TrialState
from service.job.parts import LOSS
from service.wire.records import Divergence, TrialFinished
from trainers.segment import Evaluation
from trainers.training.call_results import WorkerFailed, WorkerLost
from trainers.workload import WorkloadError

#: Seconds between two looks at a second line that trains on: for its checkpoints, and for a pause.
POLL_S = 1.0

_log = logging.getLogger(__name__)


class _KeptLine(NamedTuple):
    """The state that is kept of a line: its last weights, their average, or a better state before."""

    line: TrialState
    evaluation: Evaluation  # of the kept state
    end: Evaluation
    exported: Best | None = None  # None: the end is kept
    last: Exported | None = None  # the weights of the end, if they are not what is kept


class _Tested(NamedTuple):
    """The `loss` and metrics of the exported weights on the test set; {}: there is none, or it failed."""

    found: Mapping[str, float | None] = {}
    failure: str | None = None


def finish(state: TrialState, outcome: Literal["completed", "diverged"]) -> TrialFinished:
    """Stop the clock, evaluate the kept state, and export it. If there are two lines, keep the better one."""
    is_stopped, ended = outcome == "completed" and state.is_stopped(), state.seconds()
    beside = _ended_beside(state)
    ended = max([ended, *(line.progress.seconds for line in beside)])
    state.progress.stop_clock(ended, num_held=state.recorder.num_held)
    kept = min(map(_ending, (state, *beside)), key=lambda ending: state.judge.rank(ending.evaluation))
    line, evaluation, exported = kept.line, kept.evaluation, kept.exported
    weights = _exported(line, averaged=evaluation.averaged)
    tested = _tested(kept)
    state.recorder.complete(state.progress, state.second)
    finished = TrialFinished(
        trial_id=state.trial_id,
        outcome=outcome if line is state else "completed",
        divergence=_divergence(state) if outcome == "diverged" and line is state else None,
        line="main" if line is state else "insurance",
        validation_loss=reports.finite(evaluation.loss),
        validation_metrics=_finite(evaluation.metrics),
        exported_step=exported and exported.step,
        averaged=evaluation.averaged,
        end_validation_loss=reports.finite(kept.end.loss) if kept.last else None,
        end_validation_metrics=_finite(kept.end.metrics) if kept.last else {},
        last_weights_url=kept.last and kept.last.url,
        last_weights_sha256=kept.last and kept.last.sha256,
        test=tested.found,
        test_failure=tested.failure,
        ended_early=line.is_stale(),
        at_target=line.progress.at_target or state.judge.is_at_target(state.judge.score(evaluation)),
        stopped=is_stopped,
        schedule=line.progress.schedule_to(exported) if exported else tuple(line.progress.schedule),
        bill=state.progress.bill,
        weights_url=weights.url,
        weights_sha256=weights.sha256,
        origin=reports.origin(line.group, weights, averaged=evaluation.averaged),
    )
    state.recorder.sink.flush(finished)
    return finished


def _ended_beside(state: TrialState) -> list[TrialState]:
    """Return the second line if it reached its own end. If the main line is at the target, do not wait for it.

    While it trains, a pause ends both.
    """
    if state.second is None:
        return []
    if state.progress.at_target:
        state.second.close()
        return []
    while not state.second.is_over(within_s=POLL_S):
        trial_checkpoints.report_second(state, state.second)
        if state.requests.is_pause():
            state.requests.leave()
    return [state.second.state] if state.second.wait() == "end" else []


def _ending(line: TrialState) -> _KeptLine:
    """Evaluate the line's end, and load the best checkpoint if it is better by the objective."""
    end = line.evaluate_off_the_clock()
    kept = line.kept_of(end, line.evaluate_off_the_clock)
    progress, export = line.progress, line.spec.checkpoint.export
    best = progress.best if export == "best" else None
    line.recorder.report(*reports.evaluated(line.trial_id, kept, progress.step, progress.seconds))
    if best is None or best.step is None or not best.score < line.judge.rank(kept):
        return _KeptLine(line, kept, end, last=None if kept is end else _exported(line, "last/"))
    last = _exported(line, "last/")
    line.group.load(best.checkpoint)
    return _KeptLine(line, line.evaluate_off_the_clock(averaged=best.averaged), end, best, last)


def _exported(line: TrialState, folder: str = "", *, averaged: bool = False) -> Exported:
    exported, written = line.keeper.export(folder, averaged=averaged)
    line.progress.charge_bytes(written)
    return exported


def _tested(kept: _KeptLine) -> _Tested:
    """Evaluate the kept weights on the test set. A fault in it costs no result, so it is returned instead of raised.

    So is the loss of workers: another attempt would come as far as here, and may lose them to the same samples again.
    """
    if not kept.line.group.built.num_test:
        return _Tested()
    try:
        tested = kept.line.group.evaluate(averaged=kept.evaluation.averaged, on="test")
    except (WorkloadError, WorkerFailed, WorkerLost) as failed:
        _log.warning("the test set cannot be evaluated: %s", failed)
        return _Tested(failure=last_line(failed))
    kept.line.progress.charge_bytes(tested)
    return _Tested(_finite({LOSS: tested.loss, **tested.metrics}))


def _divergence(state: TrialState) -> Divergence | None:
    step = state.progress.diverged_step
    if not state.failures or step is None:  # an earlier release has not said at which step
        return None
    rates = tuple(failed.values.learning_rate for failed in futile(state.failures))
    return Divergence(step=step, learning_rate=state.failures[-1].values.learning_rate, learning_rates=rates)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: reports.finite(value) for name, value in metrics.items()}
