"""The stage loop of one training run, for any Group and Strategy, without Ray. `train` reads top to bottom.

Calls go down and values come back. The strategy returns candidates and decisions, `search_stage` a commit,
`commit_stage` how it ended, and `finish` the run's result. Each acts on the run's `TrialState`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from search import strategies
from search.loop.endings import futile
from search.past_jobs.prior import NO_PRIOR, Prior
from search.space import SearchSpace
from search.types import Course
from service import tracing
from service.cluster import reports, trial_checkpoints
from service.cluster.commit_stage import close_stage, commit_stage
from service.cluster.ending import finish
from service.cluster.first_steps import evaluate_later
from service.cluster.insurance import InsuranceSink, insured, own_schedule
from service.cluster.measured import OpenCommit
from service.cluster.opening import evaluation_share, opening_space, require_traffic, starts_over, with_evaluations
from service.cluster.optimizer_choice import built_with, choose_optimizer
from service.cluster.resume import OpenSearch, Resume, StageStart
from service.cluster.search_stage import is_to_join, search_stage
from service.cluster.sink import Sink
from service.cluster.slots import STAGE
from service.cluster.trial_state import SecondLine, TrialState
from service.job.parts import TrialSpec
from service.wire.records import TrialFinished
from trainers.methods.optimizer.spec import contenders
from trainers.segment import Evaluation
from trainers.training.finite_objective import why_not_finite
from trainers.training.group import Group
from trainers.workload import WorkloadError

#: Evaluations that take more than this share of the clock are timed again.
LARGE_SHARE = 0.2


class OpenStage(NamedTuple):
    """The search or commit that an earlier attempt left open. If neither, the next stage opens."""

    search: OpenSearch | None = None
    commit: OpenCommit | None = None


def train(
    spec: TrialSpec,
    group: Group,
    sink: Sink,
    *,
    trial_id: str,
    storage_url: str,
    resume: dict[str, Any] | None = None,
    spare: Sequence[Group] = (),
    prior: Prior = NO_PRIOR,
) -> TrialFinished:
    """Train one run to the end of its budget, and return its result.

    `spare` are the lanes besides `group`. The search may learn from `prior`.
    """
    state = TrialState(spec, [group, *spare], sink, trial_id=trial_id, storage_url=storage_url)
    try:
        before = Resume.model_validate(resume).within(spec.budget) if resume else None
        begun = _go_on(state, before) if before else _start(state, prior)
        while any(begun) or not state.is_over():
            if state.fails_before_any_update() or futile(state.failures):
                return finish(state, "diverged")
            if not _train_stage(state, begun):
                return finish(state, "diverged")  # the strategy has nothing else to offer
            begun = OpenStage()
        return finish(state, "diverged" if futile(state.failures) else "completed")
    finally:
        if state.second is not None:
            state.second.close()


@tracing.traced("stage")
def _train_stage(state: TrialState, begun: OpenStage) -> bool:
    """Train one stage from search to close. Return False if it would repeat values that have diverged."""
    commit = begun.commit or search_stage(state, begun.search)
    if commit is None:  # a stop has left the search open
        return True
    if begun.commit is None and commit.decision.stage == 0:
        _employ_spare_lanes(state, commit)
    if any(failed.values == commit.decision.values for failed in state.failures[-1:]):
        return False
    close_stage(state, commit, commit_stage(state, commit))
    return True


def _start(state: TrialState, prior: Prior) -> OpenStage:
    """Start the run at step 0."""
    state.recorder.report(reports.started(state.trial_id, state.spec, state.group))
    state.spec, why, timings = choose_optimizer(state.spec, state.groups)
    state.space, warm_ups = opening_space(state.spec, state.groups, chosen_because=why)
    for warm_up in (*timings, *warm_ups):
        state.progress.charge_warm_up(warm_up)
    state.stage = StageStart(checkpoint=state.keeper.save(0), progress=state.progress)
    for lane in state.lanes:
        lane.hold(state.stage.checkpoint)  # their states are equal by construction
    evaluation = _evaluate_start(state)
    if state.judge.score(evaluation) is None and any(warm_up.losses for warm_up in warm_ups):
        _require_score_later(state, evaluation)
    state.strategy = strategies.build(
        state.spec.controller, space=state.space, seed=state.spec.seed, budget=state.spec.budget, prior=prior
    )
    state.clock.start()
    state.note_start(evaluation)
    if starts_over(state.spec):
        state.first = state.stage.model_copy(update={"progress": state.progress.model_copy(deep=True)})
    return OpenStage()


def _evaluate_start(state: TrialState) -> Evaluation:
    """Evaluate the new model, and let the search space know the share of evaluations in a budget in seconds.

    On the clock it could use up a short budget before the first step. If the share seems large, one is timed again: the
    first may have loaded data and libraries.
    """
    evaluation, took_s = _timed_evaluation(state)
    state.space = with_evaluations(state.spec, state.space, took_s)
    if evaluation_share(state.space) > LARGE_SHARE:
        _, again_s = _timed_evaluation(state)
        state.space = with_evaluations(state.spec, state.space, min(took_s, again_s))
    return evaluation


def _timed_evaluation(state: TrialState) -> tuple[Evaluation, float]:
    started = state.seconds()
    evaluation = state.evaluate_off_the_clock()
    return evaluation, state.seconds() - started


def _require_score_later(state: TrialState, evaluation: Evaluation) -> None:
    """Raise WorkloadError if the objective, not finite in `evaluation` of the new model, stays so for a few steps.

    Some metrics are undefined only while a new model gives all samples the same output. The training loss is finite at
    the weights of `evaluation`: otherwise the run diverges in its first step, and its report says so.
    """
    steps, later = evaluate_later(state.group, state.space.opening)
    state.progress.charge_warm_up(steps)
    state.progress.charge_bytes(later)
    if state.judge.score(later) is None:
        raise WorkloadError(why_not_finite(evaluation, state.judge.metric))


def _go_on(state: TrialState, resume: Resume) -> OpenStage:
    """Resume the run from a checkpoint. Return the search or commit that it interrupted."""
    state.recorder.report(reports.started(state.trial_id, state.spec, state.group))
    space = resume.journal["space"]
    if len(contenders(state.spec.replica.optimizer)) > 1 and "optimizers" in space:
        raise WorkloadError(
            "an earlier release began this run, whose checkpoints hold the state of several optimizers; submit the job "
            "anew, with `optimizer: {kind: auto}` or the one that was chosen"
        )
    state.spec = built_with(state.spec, state.groups, space["optimizer"])
    if resume.fingerprint != state.group.built.fingerprint:
        raise WorkloadError(
            "the model's starting weights, or its data, are not those that this job began with; submit it anew"
        )
    if state.spec.lanes.after == "batch" and not (resume.search and resume.search.stage == 0):
        _join_lanes(state)
    require_traffic(state.spec, state.group)
    resume = resume.among(state.spec, state.group)
    if resume.insurance is not None:
        _insure(state, Resume.model_validate(resume.insurance))
    state.stage, state.first = resume.stage, resume.first
    state.closed = resume.as_json() if resume.open_commit is None and resume.search is None else None
    if resume.open_commit is not None:
        state.group.load(resume.stage.checkpoint)
        state.group.snapshot(STAGE)
    state.group.load(resume.checkpoint)
    state.keeper.inherit(resume.checkpoints)
    state.strategy = strategies.restore(resume.journal)
    state.space = SearchSpace.model_validate(resume.journal["space"])
    state.progress, state.cost = resume.progress, resume.cost
    state.failures = resume.failures
    state.saved_s = state.progress.seconds
    state.clock.start(state.progress.seconds)
    return OpenStage(resume.search, resume.open_commit)


def _employ_spare_lanes(state: TrialState, commit: OpenCommit) -> None:
    """After the first search, join the spare lanes or train the second line on one, as the job says.

    `commit` is about to begin.
    """
    if is_to_join(state):
        _join_lanes(state)
        state.stage.checkpoint = state.keeper.save(0)  # the previous checkpoint has fewer ranks
        state.first = state.first and state.first.model_copy(update={"checkpoint": state.stage.checkpoint})
        state.progress.best = None
        state.progress.note_checkpoint(state.stage.checkpoint)
        state.lanes[0].hold(state.stage.checkpoint)
        trial_checkpoints.report_start(state, commit)
    if state.spec.lanes.after == "insurance":
        start, seconds = state.stage.checkpoint, state.seconds()
        _insure(state, own_schedule(state.spec, state.space, state.group, start=start, seconds=seconds))


def _join_lanes(state: TrialState) -> None:
    state.group.absorb(state.groups[1:])
    state.lanes = state.lanes[:1]
    state.cost = None


def _insure(state: TrialState, resume: Resume) -> None:
    """Train the second line from `resume` on, on the next lane, in parallel to this line."""
    sink = InsuranceSink(state.recorder.sink, resume.as_json())
    second = TrialState(
        insured(state.spec),
        [state.lanes.pop(1).group],
        sink,
        trial_id=state.trial_id,
        storage_url=f"{state.storage_url}/insurance",
    )
    begun = _go_on(second, resume)
    state.second = SecondLine(second, sink, lambda: _train_alone(second, begun))


def _train_alone(state: TrialState, begun: OpenStage) -> Course:
    """Train a line whose strategy does not search, in its only stage, from the start or within a commit."""
    if begun.commit is None:
        state.note_start(state.evaluate())
    commit = begun.commit or search_stage(state, begun.search)
    assert commit is not None  # there is no search that a stop could leave open
    course = commit_stage(state, commit)
    state.progress.stop_clock(state.seconds(), num_held=state.recorder.num_held)
    return course
