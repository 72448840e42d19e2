"""The checkpoints of a training run: write them, also while training goes on, and report what resumes from them."""

import time
from typing import Any

from service.cluster.measured import OpenCommit
from service.cluster.resume import OpenSearch, Resume, StageStart
from service.cluster.trial_state import SecondLine, TrialState
from service.wire.records import Checkpointed

#: The longest upload of a checkpoint, in seconds; each request has its own timeout.
UPLOAD_S = 3600.0


def needed(state: TrialState) -> set[str]:
    """Return the checkpoints that must stay on storage, whatever their age."""
    beside = needed(state.second.state) if state.second else set()
    first = {state.first.checkpoint} if state.first else set()
    held = (lane.holds for lane in state.lanes if lane.holds)
    best = (each.best.checkpoint for each in (state.progress, state.stage.progress) if each.best)
    return {state.stage.checkpoint, *first, *state.known, *state.progress.steady, *best, *beside, *held}


def named(state: TrialState) -> list[str]:
    """Return the last checkpoint and the best one, which a record of now names."""
    best = state.progress.best
    return [*state.keeper.saved[-1:], *([best.checkpoint] if best else [])]


def save(
    state: TrialState, commit: OpenCommit, *, closes: bool = False, is_timed: bool = False, beside: bool = False
) -> dict[str, Any]:
    """Write a checkpoint. Return what a later attempt needs to resume from it, within `commit` unless that `closes`.

    `is_timed` means that a clock chose the moment. Under a budget without seconds, the exported state must not depend
    on a clock, so such a checkpoint does not become the best. The training clock counts the copying of the state, but
    not the writing of the copy. With `beside`, the writing is only begun.
    """
    settle(state)
    started = state.seconds()
    url = state.keeper.save(state.progress.step, needed=needed(state), beside=True)
    if not (beside and state.is_alone):
        _wait_for_upload(state)
    if not is_timed or state.spec.budget.seconds is not None or state.spec.checkpoint.export != "best":
        state.progress.note_checkpoint(url)
    state.saved_s = state.seconds()
    state.save_took_s = state.saved_s - started
    state.progress.charge_seconds(seconds_checkpoint=state.saved_s - started)
    state.progress.stop_clock(state.saved_s, num_held=state.recorder.num_held)
    state.recorder.complete(state.progress, state.second)
    if not closes:
        return resume_from(state, url, commit=commit)
    state.stage = StageStart(checkpoint=url, progress=state.progress, closed=commit.decision.stage)
    state.closed = resume_from(state, url)
    return state.closed


def keep(state: TrialState, commit: OpenCommit, *, is_new_best: bool = False) -> None:
    """Write a checkpoint within `commit` while training goes on. It is reported once it is complete."""
    state.under_way = checkpointed(state, commit, is_new_best=is_new_best, beside=True)
    settle(state, wait=False)


def settle(state: TrialState, *, wait: bool = True) -> None:
    """Report the checkpoint being written, if it is complete. With `wait`, wait until it is complete and stored."""
    if state.under_way is None or not (wait or state.keeper.is_saved()):
        return
    _wait_for_upload(state)
    record, state.under_way = state.under_way, None
    if wait:
        state.recorder.wait_for(record)
    else:
        state.recorder.report(record)


def _wait_for_upload(state: TrialState) -> None:
    deadline = time.monotonic() + UPLOAD_S
    with state.clock.held():
        while not state.keeper.is_saved(within_s=1.0):
            state.recorder.report()  # hears a cancel
            if time.monotonic() > deadline:
                raise TimeoutError(f"a checkpoint was not on storage within {UPLOAD_S:g} s: see that it is fast enough")


def checkpointed(
    state: TrialState, commit: OpenCommit, *, is_steady: bool = False, is_new_best: bool = False, beside: bool = False
) -> Checkpointed:
    """Write a checkpoint within `commit` and return its record."""
    resume = save(state, commit, is_timed=not is_new_best, beside=beside)
    return _record(state, commit, resume, is_steady=is_steady)


def report_second(state: TrialState, second: SecondLine) -> None:
    """Report the second line's new checkpoint, if any, with the stage that this line has closed last and its bill."""
    number = state.stage.closed
    if state.closed is None or number is None or not second.has_more():
        return
    state.recorder.complete(state.progress, second)
    now = {"progress": state.progress, "insurance": second.resume()}
    state.recorder.wait_for(
        Checkpointed(
            trial_id=state.trial_id,
            stage=number,
            step=state.progress.step,
            bill=state.progress.bill,
            resume=Resume.model_validate(state.closed).model_copy(update=now).as_json(),
        )
    )


def report_start(state: TrialState, commit: OpenCommit) -> None:
    """Report the stage's checkpoint as that of `commit`, which has no step yet. Older ones may be removed then."""
    state.recorder.wait_for(_record(state, commit, resume_from(state, state.stage.checkpoint, commit=commit)))


def _record(state: TrialState, commit: OpenCommit, resume: dict[str, Any], *, is_steady: bool = False) -> Checkpointed:
    """Return the record of a checkpoint within `commit`, from which a later attempt can `resume`."""
    return Checkpointed(
        trial_id=state.trial_id,
        stage=commit.decision.stage,
        step=state.progress.step,
        bill=state.progress.bill,
        resume=resume,
        steady=is_steady,
    )


def resume_from(
    state: TrialState, checkpoint: str, *, commit: OpenCommit | None = None, search: OpenSearch | None = None
) -> dict[str, Any]:
    """Return, as JSON, what a later attempt needs to resume from `checkpoint`, within `commit` or `search`."""
    return Resume(
        fingerprint=state.group.built.fingerprint,
        checkpoint=checkpoint,
        checkpoints=state.keeper.saved,
        stage=state.stage,
        first=state.first,
        num_workers=state.group.num_workers,
        journal=dict(state.strategy.state_dict()),
        progress=state.progress,
        cost=state.cost,
        failures=state.failures,
        open_commit=commit,
        search=search,
        insurance=state.second.resume() if state.second else None,
    ).as_json()
