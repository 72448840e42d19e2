"""Decide whether a running probe or commit continues, ends, or rolls back: pure functions of what it has measured."""

from search.bayesian.probe_costs import StepCosts, has_room_for_search, is_too_slow
from search.bayesian.pruning import is_hopeless
from search.bayesian.rewards import lowest_probed, stage_level
from search.bayesian.rollback import is_setback
from search.bayesian.stage import SearchSetup, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves import events
from search.curves.curve_summary import Reading, trace_of
from search.curves.events import Event, Signs
from search.curves.faults import Known
from search.types import Course, Observation, Spent

#: A rise that was taken back is expected again until so many times as many steps as it took to see it.
REPEATED = 2


def course_of(setup: SearchSetup, stage: Stage, observation: Observation, *, costs: StepCosts, search: Spent) -> Course:
    """Return where a probe, or the commit, goes from here; `search`: what all probes have spent."""
    if observation.candidate_id is not None:
        reading = Reading.of(observation)
        return "end" if is_too_slow(setup, stage, reading) or is_hopeless(stage, reading) else "go_on"
    return _course_of_commit(setup, stage, observation, costs=costs, search=search)


def _course_of_commit(
    setup: SearchSetup, stage: Stage, observation: Observation, *, costs: StepCosts, search: Spent
) -> Course:
    """End a commit in which something happened, if a search may follow; take it back if it was better without.

    One that rose above the run's best, and is still worth more than its start, ends in any case: at a lower rate.
    """
    assert stage.decision is not None
    part, whole = part_done(setup, stage, observation.spent), commit_amounts(setup, stage)
    if is_setback(setup, stage, observation.losses, part=part, whole=whole):
        return "roll_back"
    if part < setup.config.event_dwell:
        return "go_on"
    signs = signs_of(setup, stage, observation)
    found = events_of(setup, observation, signs)
    if "divergence" in found:
        return "roll_back" if signs.has_diverged or signs.is_dead or signs.is_lost else "end"
    if setup.config.revisit == "stages":
        return "go_on"
    values, spent = stage.decision.values, observation.spent
    has_room = has_room_for_search(setup, costs, values=values, search=search, spent=spent)
    return "end" if found and has_room else "go_on"


def signs_of(setup: SearchSetup, stage: Stage, observation: Observation) -> Signs:
    """Return what the open commit shows."""
    decision = stage.decision
    known = Known(
        start=stage_level(stage),
        initial=stage.initial,
        best=stage.best,
        probed=lowest_probed(stage),
        gradient_scale=stage.gradient_scale,
    )
    is_as_before = decision is not None and decision.values == stage.incumbent and not stage.probes
    signs = events.read(
        trace_of(observation),
        part=part_done(setup, stage, observation.spent),
        reference_seconds=stage.reference_seconds if is_as_before else None,
        forecast=None if decision is None else decision.forecast,
        known=known,
    )
    excused = {"has_diverged": False, "has_worsened": False} if _repeats_a_rise(stage, signs) else {}
    if stage.before is not None and stage.before.rolled_back and stage.before.signs.is_dead:
        excused |= {"is_dead": False}  # at a quarter of the rate too: its start is dead, or it is but slow
    return signs.model_copy(update=excused)


def _repeats_a_rise(stage: Stage, signs: Signs) -> bool:
    """Return whether the commit before was rolled back here: a rise that a lower rate shows too is the data's."""
    before = stage.before
    if before is None or not before.rolled_back or before.diverged:
        return False
    return signs.num_steps <= REPEATED * before.num_steps


def events_of(setup: SearchSetup, observation: Observation, signs: Signs) -> tuple[Event, ...]:
    """Return what happened in a commit."""
    if observation.diverged:
        return ("divergence",)
    return events.found(signs, setup.config, is_timed=setup.budget.seconds is not None)


def part_done(setup: SearchSetup, stage: Stage, spent: Spent) -> float:
    """Return how much of the open commit is done, in [0, 1]: the largest share of a cap of its own."""
    if stage.decision is None:
        return 0.0
    before, now = spending.amounts(setup.budget, stage.decided), spending.amounts(setup.budget, spent)
    whole = commit_amounts(setup, stage)
    shares = [(now[unit] - before[unit]) / whole[unit] for unit in whole if whole[unit] > 0]
    return min(1.0, max(shares, default=1.0))


def commit_amounts(setup: SearchSetup, stage: Stage) -> Amounts:
    """Return what the open commit may spend, a promoted probe included."""
    assert stage.decision is not None
    before, until = spending.amounts(setup.budget, stage.decided), stage.decision.commit_until
    return {unit: (getattr(until, unit) or 0.0) - before[unit] for unit in before}
