"""Commit a stage: train its steps, watch them, and keep the stage or roll it back."""

from search.budget.spending import fraction_spent
from search.curves.curve_summary import end_loss
from search.loop import endings, pacing
from search.types import Allowance, Course, Piece
from service import tracing
from service.cluster import reports, segment_length, trial_checkpoints
from service.cluster.measured import OpenCommit, Pushed
from service.cluster.slots import BEST, STAGE
from service.cluster.trial_ledger import BEST_SPACING, is_clockless_turn
from service.cluster.trial_state import TrialState
from service.wire.records import StageClosed


@tracing.traced("commit")
def commit_stage(state: TrialState, commit: OpenCommit) -> Course:
    """Train the commit's steps, with evaluations and checkpoints on the way. Return how it ended."""
    if (course := endings.course_before(commit.decision, is_over=state.is_over)) is not None:
        return course
    until = pacing.within(commit.decision.commit_until, state.spec.budget)
    every, progress = state.spec.objective.every, state.progress
    while not state.ends_at(until):
        trial_checkpoints.settle(state, wait=False)
        if state.requests.is_pause():
            state.recorder.wait_for(trial_checkpoints.checkpointed(state, commit))
            state.requests.leave()
        _hold_steady(state, commit, until)
        _push(state, commit, until)
        if commit.measured.diverged:
            return "roll_back"  # only states that stay are evaluated and saved
        progress.evaluation_due = progress.evaluation_due or progress.step % every == 0
        is_evaluated = progress.evaluation_due and not progress.steps_to_meeting
        if is_evaluated:
            state.evaluate_line()
            if progress.at_target:  # whatever else there is to say of it
                return "end"
        if is_evaluated or commit.measured.num_steps >= _next_look(state, commit, until):
            course = _look(state, commit)
            if course != "go_on":
                return course
        is_due = state.seconds() - state.saved_s >= state.spec.checkpoint.every_seconds
        if is_evaluated and _is_new_best(state):
            _keep_best(state, commit)
        elif is_due and state.under_way is None and state.recorder.sink.is_clear():
            # While the API is silent, nobody would learn of another checkpoint. Only one is written at a time.
            state.known = trial_checkpoints.named(state)
            trial_checkpoints.keep(state, commit)
    return commit.last_look(commit.measured.num_steps, lambda: _look(state, commit))


def close_stage(state: TrialState, commit: OpenCommit, course: Course) -> None:
    """Keep the stage or roll it back, as `course` says, tell the strategy, and wait until the record is stored."""
    trial_checkpoints.settle(state)  # before a rollback makes the ranks forget how they got here
    measured, is_kept, state.progress.piece = commit.measured, course == "end", None
    ended = endings.closing(measured, course, state.spent())
    state.strategy.tell(ended)
    state.failures = endings.failures_after(state.failures, commit.decision.values, measured, course)
    if measured.diverged:
        state.progress.diverged_step = state.stage.progress.step + measured.num_steps
    if not is_kept:
        state.cost = state.cost if state.is_over() else None
        _start_over(state) if course == "start_over" else _roll_back(state, measured.num_steps)
    resume = trial_checkpoints.save(state, commit, closes=True)
    closed = StageClosed(
        trial_id=state.trial_id,
        stage=commit.decision.stage,
        step=state.progress.step,
        num_steps=measured.num_steps if is_kept else 0,
        density=measured.density,
        threshold=measured.threshold,
        loss=reports.finite(end_loss(ended)),
        bill=state.progress.bill,
        resume=resume,
    )
    state.recorder.wait_for(closed)
    state.known = []


def _roll_back(state: TrialState, num_steps: int) -> None:
    """Go back to the stage's start, before its `num_steps`."""
    state.group.restore(STAGE)
    state.progress.rewind_to(state.stage.progress, num_steps=num_steps)


def _start_over(state: TrialState) -> None:
    """Go back to the run's first step."""
    assert state.first is not None
    state.group.load(state.first.checkpoint)
    validation = state.progress.validation.anew()
    state.progress.rewind_to(state.first.progress, num_steps=state.progress.step)
    state.progress.validation = validation


def _push(state: TrialState, commit: OpenCommit, until: Allowance) -> None:
    """Train the next steps with the strategy's values."""
    num_steps, started = _next_push(state, commit, until), state.seconds()
    values, step = state.strategy.values(state.spent()), state.progress.step
    piece = state.progress.piece = _open_piece(state) or _next_piece(state, until, least=num_steps)
    num_steps = min(num_steps, piece.end - step)
    segment = segment_length.part_of_piece(piece, values, step=step, num_steps=num_steps)
    state.recorder.report()  # hears a cancel
    result = state.group.run(segment)
    ended = state.seconds()
    commit.measured.add(result)
    state.progress.charge(result, is_probe=False, option=segment.option)
    state.cost = segment_length.cost_of(result, state.cost, round_steps=state.space.period_of(values))
    if not result.diverged:
        pushed = Pushed(segment, result, started, ended_s=ended, bytes_sent=state.progress.bytes)
        state.keep_segment(commit, pushed)


def _open_piece(state: TrialState) -> Piece | None:
    """Return the linear piece of the rate's course that contains the next step; None if a new piece begins."""
    step, piece, spent = state.progress.step, state.progress.piece, state.spent()
    if own := state.strategy.piece(spent):
        return own.model_copy(update={"step": step - (spent.steps - own.step)})
    return piece if piece is not None and step < piece.end else None


def _next_piece(state: TrialState, until: Allowance, *, least: int) -> Piece:
    """Return the linear piece of the rate's course that begins here, with at least `least` steps."""
    spent, cost = state.spent(), state.cost
    num_steps = segment_length.next_piece(until, spent, cost, budget=state.spec.budget, least=least)
    ends = (spent, pacing.after(num_steps - 1, spent, cost))
    first, last = (state.strategy.values(each).learning_rate for each in ends)
    num_steps = num_steps if first != last else least  # a constant rate may be raised at the next look
    return Piece(step=state.progress.step, num_steps=num_steps, learning_rate=first, final_learning_rate=last)


def _next_push(state: TrialState, commit: OpenCommit, until: Allowance) -> int:
    every, progress = state.spec.objective.every, state.progress
    most = progress.steps_to_meeting if progress.evaluation_due else every - progress.step % every
    if state.spec.budget.seconds is not None:  # otherwise pushes are short enough
        most = min(most, max(1, _next_look(state, commit, until) - commit.measured.num_steps))
    return segment_length.next_push(until, state.spent(), state.cost, most=most)


def _next_look(state: TrialState, commit: OpenCommit, until: Allowance) -> int:
    """Return the commit's step count at the strategy's next look. Without a budget in seconds, no clock is read."""
    return commit.next_look(until, state.spent(), state.cost, num_done=commit.measured.num_steps)


def _look(state: TrialState, commit: OpenCommit) -> Course:
    """Ask the strategy how the commit goes on. If no budget is left to search again, keep the better state."""
    overfits = state.first is not None and state.progress.validation.overfits
    return commit.look(
        commit.measured.observation(None, state.spent(), overfits=overfits),
        state.strategy.watch,
        num_done=commit.measured.num_steps,
        is_over=state.is_over,
        is_better=lambda: _is_better_than_start(state),
    )


def _is_better_than_start(state: TrialState) -> bool:
    """Return whether the commit's end is better than its start by the objective. The group stays at the end."""
    state.group.snapshot(BEST)
    end = state.kept_of(state.evaluate(), state.evaluate)
    state.group.restore(STAGE)
    start = state.kept_of(state.evaluate(), state.evaluate)
    state.group.restore(BEST)
    return state.judge.rank(end) < state.judge.rank(start)


def _hold_steady(state: TrialState, commit: OpenCommit, until: Allowance) -> None:
    """Save the last state that does not depend on where the budget ends. An extended job resumes from it."""
    if state.progress.steady or _open_piece(state):
        return
    least, spent = _next_push(state, commit, until), state.spent()
    num_steps = segment_length.next_piece(until, spent, state.cost, budget=state.spec.budget, least=least)
    if state.strategy.anneals(pacing.after(num_steps - 1, spent, state.cost)):
        held = trial_checkpoints.checkpointed(state, commit, is_steady=True)
        state.recorder.wait_for(held)
        best = [state.progress.best.checkpoint] if state.progress.best else []  # a run resumed from there may end at it
        state.progress.steady = (held.resume["checkpoint"], state.stage.checkpoint, *best)


def _is_new_best(state: TrialState) -> bool:
    """Return whether the state just evaluated is worth a checkpoint. Without a budget in seconds, no clock is read."""
    if state.spec.checkpoint.export != "best":
        return False
    patience = state.progress.best_patience
    if state.spec.budget.seconds is None:
        return is_clockless_turn(fraction_spent(state.spec.budget, state.spent()) - state.progress.best_at, patience)
    return state.seconds() - state.saved_s >= patience * BEST_SPACING * state.save_took_s


def _keep_best(state: TrialState, commit: OpenCommit) -> None:
    """Write a checkpoint of a new best state."""
    trial_checkpoints.settle(state)
    if state.recorder.sink.is_clear():
        state.known = []
    state.progress.best_at = fraction_spent(state.spec.budget, state.spent())
    state.known += trial_checkpoints.named(state)  # needed until the API knows of a later one
    trial_checkpoints.keep(state, commit, is_new_best=True)
