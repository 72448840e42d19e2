"""Decide whether a running probe or commit continues, ends, or rolls back: pure functions of its measurements."""

import math

import numpy as np
from numpy.typing import NDArray

from search.bayesian.awakening import is_asleep, was_killed_waking
from search.bayesian.probe_costs import StepCosts, has_room_for_search, is_too_slow
from search.bayesian.reports import LONGEST_COMMIT
from search.bayesian.rewards import (
    as_averages,
    has_blown_up,
    lowest_probed,
    opening_loss,
    scores,
    start_loss,
    steps_at_equal_cost,
    usable_control,
)
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import BARRED_AXES, BARRED_FACTOR, Probe, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves import events
from search.curves.calibration import learned_weight
from search.curves.client_drift import client_drift, first_steps
from search.curves.curve_summary import (
    MIN_END_LOSSES,
    Reading,
    last_losses,
    num_steps_of,
    side_by_side,
    trace_of,
    usable_median,
)
from search.curves.events import Event, Signs
from search.curves.faults import IGNORANCE_SHARE, Known
from search.curves.forecast import forecast_loss, size_of, standard_error
from search.space import are_within
from search.types import Candidate, Course, Observation, Spent, Values

Array = NDArray[np.float64]

#: Standard normal quantile at 99.9 %, one-sided.
SURE = 3.09
#: Shares that differ by less count as equal.
ROUNDING = 1e-9
#: Fewer losses than this, in the half that is compared, do not show their noise.
MIN_POINTS = 8


def is_hopeless(stage: Stage, reading: Reading) -> bool:
    """Return whether a running probe has diverged, or is sure to stay behind the probe to beat.

    The two are compared step by step or, if their steps differ in cost, at equal cost.
    """
    start = stage.line.start_loss
    if start is None:
        start = opening_loss([*stage.readings.values(), reading])
    if has_blown_up(stage, reading, start=start):
        return True
    candidate = next(each for each in stage.pending if each.id == reading.candidate_id)
    control = _to_beat(stage, candidate)
    if control is None or not reading.num_steps:
        return False
    num_steps, same_steps = steps_at_equal_cost(Probe(candidate, reading), control)
    if same_steps < 1:
        return False
    seen, same = side_by_side(reading, control.reading, num_steps, same_steps)
    return stays_behind(seen - same, left=control.reading.num_steps / same_steps - 1)


def _to_beat(stage: Stage, candidate: Candidate) -> Probe | None:
    """Return the probe that `candidate` must beat, or None.

    In a later stage it is the incumbent's. In the wide search, a probe of another exchange must beat the best so far.
    Probes that look for the rate run to their end: the curve through them needs bad rates too.
    """
    if stage.has_incumbent:
        return None if usable_control(stage) is None else as_averages(stage, stage.probes)[0]
    if candidate.origin != "option":
        return None
    decisive = stage.decisive
    judged = zip(scores(decisive), as_averages(decisive, decisive.probes), strict=True)
    whole = [(score.reward, probe) for score, probe in judged if score.reward is not None and not probe.reading.is_cut]
    return max(whole, key=lambda each: each[0])[1] if whole else None


def stays_behind(gaps: Array, *, left: float) -> bool:
    """Return whether losses that exceed the control's by `gaps` `(m,)` so far will still do so at the end.

    They will if the mean gap of the last half is above 0 with 99.9 % (Student's t by its expansion, Abramowitz &
    Stegun, 1964, 26.7.5), and its linear trend does not close it. `left`: the steps to come, as a multiple of those
    seen.
    """
    half = gaps[len(gaps) // 2 :]
    if len(half) < MIN_POINTS:
        return False
    degrees = len(half) - 1
    quantile = SURE + (SURE**3 + SURE) / (4 * degrees) + (5 * SURE**5 + 16 * SURE**3 + 3 * SURE) / (96 * degrees**2)
    gap, middle = float(half.mean()), len(half) // 2
    change = float(half[middle:].mean() - half[:middle].mean())
    # in units of the steps seen: the two parts are 1/4 apart, and the last half's centre moves by 3/4 x `left`
    return gap > quantile * standard_error(half) and gap + 3 * max(0.0, left) * min(0.0, change) > 0


#: A switch is judged once this share of its commit is done ...
FIRST_CHECK = 0.2
#: ... and from this share on, only if its loss is also above the stage's start: a rollback undoes the whole commit.
LATE = 0.4
#: Standard deviations above the incumbent's forecast.
WORSE_STDS = 1.2
#: Workers of a commit drift apart if their average's loss is higher than their own by the share `DRIFT_SHARE`, and by
#: `DRIFT_ERRORS` standard errors (many, since it is checked again and again), over at least `LEAST_AVERAGES` averages.
DRIFT_SHARE, DRIFT_ERRORS, LEAST_AVERAGES = 0.1, 4.0, 4
#: The share of the budget after which a run does not start over.
LATEST_START = 0.5
#: ... or if its rate falls by this factor, and its loss has not fallen by this share of the run's first.
FAR_BELOW, LITTLE_SHARE = 3.0, 0.5
#: After a rollback the same rise is excused for this multiple of the steps after which it was seen.
REPEATED = 2


def course_of(setup: SearchSetup, stage: Stage, observation: Observation, *, costs: StepCosts, search: Spent) -> Course:
    """Return whether a probe or the commit goes on, ends, or rolls back; `search`: what all probes have spent.

    A commit with an event ends if a search may follow. It is rolled back if its start is the better state. A commit
    that rose above the run's best, but is still better than its start, always ends: the next has a lower rate. A run
    that overfits starts over.
    """
    if observation.candidate_id is not None:
        reading = Reading.of(observation)
        return "end" if is_too_slow(setup, stage, reading) or is_hopeless(stage, reading) else "go_on"
    assert stage.decision is not None
    part, whole = part_done(setup, stage, observation), commit_amounts(setup, stage)
    if is_setback(setup, stage, observation, part=part, whole=whole):
        return "roll_back"
    if part < setup.config.event_dwell:
        return "go_on"
    signs = signs_of(setup, stage, observation)
    found = events_of(setup, stage, observation, signs)
    if "divergence" in found:
        return "roll_back" if signs.has_diverged or signs.is_dead or signs.is_lost else "end"
    if "client_drift" in found:
        return "end"
    if setup.config.revisit == "stages" or stage.is_pinned:
        return "go_on"
    has_lower = stage.decision.values.learning_rate > setup.space.min_learning_rate
    if observation.overfits and has_lower and may_start_over(setup, observation.spent):
        return "start_over"
    if stage.course.awakens:  # gradients grow when a model begins to learn
        return "roll_back" if was_killed_waking(setup, stage, signs, observation) else "go_on"
    if is_asleep(setup, stage, signs, observation, is_over=part >= 1):
        return "roll_back"
    values, spent = stage.decision.values, observation.spent
    has_room = has_room_for_search(setup, costs, values=values, search=search, spent=spent)
    return "end" if found and has_room else "go_on"


def is_setback(setup: SearchSetup, stage: Stage, commit: Observation, *, part: float, whole: Amounts) -> bool:
    """Return whether the share `part` of a `commit` that may spend `whole` does worse than it would without its switch.

    The median of its last losses is compared with a forecast from the incumbent's probe, at the same point.
    """
    control, recent = usable_control(stage), last_losses(commit.losses, num_steps_of(commit))
    median, start = usable_median(recent), start_loss(stage)
    if stage.decision is None or not stage.decision.switched or control is None:
        return False
    if (
        part < FIRST_CHECK
        or median is None
        or len(recent) < MIN_END_LOSSES
        or (start is not None and part >= LATE and median <= start)
    ):
        return False
    cost = setup.line_cost(spending.measured_step_cost(setup.budget, control))
    num_steps = spending.num_steps(spending.scale(whole, part), cost)
    points = max(float(len(control.losses)), min(num_steps, LONGEST_COMMIT) / control.steps_per_point)
    forecast = forecast_loss(control.losses, points, start=start, weight=learned_weight(stage.line.outcomes))
    return median > forecast.mean + WORSE_STDS * math.hypot(forecast.std, standard_error(np.asarray(recent)))


def may_start_over(setup: SearchSetup, spent: Spent) -> bool:
    """Return whether a run may start over: with half of the budget left.

    In its last half the rate falls, which a larger budget would put off: so an extended run starts over where a run
    with that budget does.
    """
    is_early = spending.fraction_spent(setup.budget, spent) < LATEST_START
    return setup.config.start_over and setup.traits.decays and is_early


def falls_far(setup: SearchSetup, stage: Stage, values: Values, spent: Spent) -> bool:
    """Return whether a search took `values` far below the rate that has taught the model little: the run starts over.

    A rate that is far too high leaves units that never learn again, which no lower rate mends (docs/decisions/0052).
    A commit whose loss was not finite does not show that: a single batch may be at fault.
    """
    may = setup.space.starts_over and setup.config.revisit == "events" and may_start_over(setup, spent)
    is_steered = stage.is_pinned or stage.is_displaced
    if not may or is_steered or stage.course.awakens or not stage.probes:
        return False
    kept, before, initial, start = stage.course.kept, stage.line.before, stage.line.initial, start_loss(stage)
    if kept is None or before is None or before.diverged or initial is None or start is None:
        return False
    is_far_below = FAR_BELOW * values.learning_rate <= kept.learning_rate
    is_like = are_within(values, kept, BARRED_FACTOR, BARRED_AXES)
    return is_far_below and is_like and initial - start < LITTLE_SHARE * size_of(initial, lowest=start)


def signs_of(setup: SearchSetup, stage: Stage, observation: Observation) -> Signs:
    """Return the signs that the open commit shows."""
    decision = stage.decision
    assert decision is not None
    known = Known(
        start=start_loss(stage),
        initial=stage.line.initial,
        best=stage.line.best,
        probed=lowest_probed(stage),
        gradient_scale=stage.line.gradient_scale,
        first=setup.space.first_loss,
    )
    is_as_before = decision.values == stage.incumbent and not stage.probes
    signs = events.read(
        trace_of(observation),
        part=part_done(setup, stage, observation),
        reference=stage.line.reference if is_as_before else None,
        forecast=decision.forecast,
        known=known,
    )
    excused = {"has_diverged": False, "has_worsened": False} if _repeats_a_rise(setup, stage, signs) else {}
    before = stage.line.before
    is_retried = before is not None and before.rolled_back and before.signs.is_dead
    is_given_time = is_retried or stage.is_on_ramp or (stage.course.awakens and not signs.has_learned)
    if is_given_time and not (signs.has_risen and _may_be_the_rates(setup, stage)):
        excused |= {"is_dead": False}  # dead at a quarter of the rate too: the start is dead, or training is just slow
    return signs.model_copy(update={**excused, "client_drift": drift_of_commit(setup, stage, observation)})


def drift_of_commit(setup: SearchSetup, stage: Stage, observation: Observation) -> float:
    """Return how much higher the average's loss is than the workers' own; 0: not clearly, or no exchange to go to."""
    assert stage.decision is not None
    period = setup.space.period_of_option(stage.decision.values.option)
    averaged = first_steps(len(observation.losses), period=period, steps_to_meeting=observation.steps_to_meeting)
    if (
        sum(first > 0 for first in averaged) < LEAST_AVERAGES
        or "option" in stage.steered.pinned
        or not setup.space.synchronous
    ):
        return 0.0
    rise = client_drift(observation.losses, averaged, errors=DRIFT_ERRORS)
    size = size_of(float(np.median(observation.losses)), observation.losses)
    return rise if rise > DRIFT_SHARE * size else 0.0


def _may_be_the_rates(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether a failure may still be the rate's, which each failure lowers; otherwise it is the data's."""
    return stage.line.num_taken_back <= setup.config.num_stages


def _repeats_a_rise(setup: SearchSetup, stage: Stage, signs: Signs) -> bool:
    """Return whether the commit before was rolled back for a rise here: seen at a lower rate too, it is the data's.

    If the data do not go back with the weights, this commit has seen other batches.
    """
    if not stage.is_paired and _may_be_the_rates(setup, stage):
        return False
    before = stage.line.before
    if before is None or not before.rolled_back or before.diverged:
        return False
    if not (before.signs.has_diverged or before.signs.has_worsened):
        return False
    return signs.num_steps <= REPEATED * before.num_steps


def events_of(setup: SearchSetup, stage: Stage, observation: Observation, signs: Signs) -> tuple[Event, ...]:
    """Return the events of the open commit. On the ramp, where nothing is searched, only divergence and drift count.

    Gradients grow when a model begins to learn, which is no event. The next commit will see a changed step time too.
    """
    if observation.diverged:
        return ("divergence",)
    excused: set[Event] = {"gradient_scale"} if _begins_to_learn(stage, signs) else set()
    if stage.is_on_ramp:
        excused = {"gradient_scale", "plateau", "step_time"}
    return tuple(event for event in events.found(signs, setup.config, is_timed=setup.is_timed) if event not in excused)


def _begins_to_learn(stage: Stage, signs: Signs) -> bool:
    """Return whether gradients grow, and the loss falls, in a commit that began where nothing was learned."""
    if not signs.has_progressed or signs.gradient_jump is None or signs.gradient_jump < 1:
        return False
    initial, start = stage.line.initial, signs.start
    if initial is None or start is None:
        return stage.index == 0
    return initial - start < IGNORANCE_SHARE * size_of(initial, lowest=start)


def part_done(setup: SearchSetup, stage: Stage, observation: Observation) -> float:
    """Return how much of the open commit is done, in [0, 1]: the largest share of its caps.

    It is 1 if another step would pass a cap: the run ends before that, short of its bytes and seconds.
    """
    before, now = spending.amounts(setup.budget, stage.decided), spending.amounts(setup.budget, observation.spent)
    whole = commit_amounts(setup, stage)
    part = max([(now[unit] - before[unit]) / whole[unit] for unit in whole if whole[unit] > 0], default=1.0)
    num_steps = trace_of(observation).num_steps
    with_another = part * (1 + 1 / num_steps) if num_steps else part
    return 1.0 if with_another > 1 + ROUNDING else min(1.0, part)


def commit_amounts(setup: SearchSetup, stage: Stage) -> Amounts:
    """Return what the open commit may spend, a promoted probe included."""
    assert stage.decision is not None
    before, until = spending.amounts(setup.budget, stage.decided), stage.decision.commit_until
    return {unit: (getattr(until, unit) or 0.0) - before[unit] for unit in before}
