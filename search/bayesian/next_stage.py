"""Open the next stage with the results of the one that closed."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from search.bayesian.awakening import awakening_start
from search.bayesian.decay import is_decaying
from search.bayesian.decision import DIVERGED_FACTOR
from search.bayesian.history import extended, learned_drift
from search.bayesian.link_rule import changed_link, measured_link
from search.bayesian.rewards import diverged_probes, lowest_probed, scores, start_loss, usable_control
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, RateCourse, Stage
from search.curves import faults
from search.curves.calibration import with_outcome
from search.curves.curve_summary import OPENING_LOSSES, Ending, usable_median
from search.curves.events import Event
from search.curves.forecast import is_usable, size_of, standard_error
from search.types import Forecast, Spent, Values

WIDEST = 1.0
#: In a narrower trust region, probes could not tell values apart.
NARROWEST = 0.25
FACTOR = 2.0
#: The rate after a commit that was rolled back without diverging: it was too high by less.
ROLLED_BACK_FACTOR = 0.5
#: The rate after a commit whose loss stood still (docs/decisions/0027).
STALLED_FACTOR = 0.4
#: The rate of a run that starts over (docs/decisions/0050).
STARTED_OVER_FACTOR = 0.3
#: Fewer losses than this in each half do not tell whether the loss stood still.
LEAST_HALF = 20
#: A commit has met its forecast if it ended at most this many standard deviations above it.
MET_STDS = 2.0


def next_stage(setup: SearchSetup, stage: Stage, ending: Ending, *, search: Spent) -> Stage:
    """Return the stage after the decided `stage`, whose commit ended as `ending`; `search`: the cost of all probes.

    After a commit that failed, and after any event but `step_time` and `client_drift`, rates do not rise until a commit
    meets its forecast.
    """
    if "client_drift" in ending.events:  # such workers have lower losses than their average, which is the line
        ending = ending.raised(ending.signs.client_drift)
    meaning = _meaning(setup, stage, ending)
    begin = _begin(setup, stage, ending, is_stalled=meaning.is_stalled)
    return Stage(
        index=stage.index + 1,
        incumbent=begin.incumbent,
        note=begin.note,
        rejected=begin.rejected,
        line=_line_after(setup, stage, ending, meaning, begin),
        course=_course_after(setup, stage, ending, meaning, begin),
        is_paired=stage.is_paired,
        teaching=stage.teaching,
        width=begin.width,
        opened=ending.spent,
        search_before=search,
    )


class _Meaning(NamedTuple):
    """The meaning of a commit's end for the next stage."""

    drifts: bool  # the workers have drifted apart, so what was measured is not of the line
    woke: bool  # a model that had learned nothing has begun to learn
    is_stalled: bool  # the loss stood still
    is_quiet: bool  # nothing happened that keeps rates from rising
    events: tuple[Event, ...]  # what happened, without what waking explains


def _meaning(setup: SearchSetup, stage: Stage, ending: Ending) -> _Meaning:
    woke = stage.course.awakens and ending.signs.has_learned
    is_waking = woke and not ending.has_failed  # gradients grow when a model begins to learn
    events = tuple(event for event in ending.events if event == "client_drift" or not is_waking)
    return _Meaning(
        drifts="client_drift" in events,
        woke=woke,
        is_stalled=has_stalled(setup, stage, ending),
        is_quiet=not ending.has_failed and set(events) <= {"step_time", "client_drift"},
        events=events,
    )


def has_stalled(setup: SearchSetup, stage: Stage, ending: Ending) -> bool:
    """Return whether the loss of a quiet commit at a constant rate stood still.

    It did if the model has learned something, and the second half's mean is not lower than the first's by a standard
    error. Then the rate is too high for the noise of its batches, or the loss is at its floor, where a lower rate does
    no harm.
    """
    is_held = setup.traits.decays and setup.config.revisit == "events" and not (stage.is_pinned or stage.course.awakens)
    losses = np.asarray(ending.losses)
    half = len(losses) // 2
    is_held = is_held and not (stage.is_on_ramp or is_decaying(setup, ending.spent))
    if not is_held or stage.index == 0 or half < LEAST_HALF:
        return False
    if ending.has_failed or ending.events or not is_usable(losses):
        return False
    first, last = losses[:half], losses[half:]
    initial = stage.line.initial
    if initial is not None and last.mean() >= initial - faults.IGNORANCE_SHARE * size_of(initial, losses):
        return False  # nothing was learned, so the rate may as well be too low
    return bool(first.mean() - last.mean() < np.hypot(standard_error(first), standard_error(last)))


def has_met(forecast: Forecast | None, ending: Ending) -> bool:
    """Return whether a commit did as well as its decision had forecast; False without a forecast."""
    if forecast is None or ending.end_loss is None:
        return False
    return ending.end_loss <= forecast.mean + MET_STDS * forecast.std


class _Begin(NamedTuple):
    """The start of the next stage's search, and the values that it may not try."""

    incumbent: Values
    note: str
    width: float
    barred: tuple[Values, ...]
    rejected: tuple[Values, ...] = ()
    awakens: bool = False


def _begin(setup: SearchSetup, stage: Stage, ending: Ending, *, is_stalled: bool) -> _Begin:
    """Return how the next stage begins.

    After a switch that was rolled back, the old incumbent stays: its probe has shown that it trains. Any other commit
    that failed cuts the rate and bars the values it used. If it was to wake a model that learned nothing, and did not,
    the rate goes back to the one that was given up. A commit whose loss stood still only cuts the rate.
    """
    if ending.has_failed:
        begin = _after_failure(setup, stage, ending)
    elif is_stalled:
        begin = _after_a_stall(setup, stage)
    else:
        begin = _Begin(*_raised(setup, stage), next_width(setup, stage, has_lasted=True), stage.line.barred)
    return _without_drift(setup, stage, begin) if "client_drift" in ending.events else begin


def _raised(setup: SearchSetup, stage: Stage) -> tuple[Values, str]:
    """Return the values that a commit ended with, and why they differ from those of its decision."""
    assert stage.decision is not None
    used = stage.decision.values
    rate = setup.clip_rate(used.learning_rate * stage.course.rise)
    before, after = f"{used.learning_rate:.3g}", f"{rate:.3g}"
    why = "since nothing was learned" if stage.course.awakens else "since gradients kept their course"
    note = f"the rate had risen from {before} to {after}, {why}" if after != before else ""
    return used.model_copy(update={"learning_rate": rate}), note


def _after_a_stall(setup: SearchSetup, stage: Stage) -> _Begin:
    used = _raised(setup, stage)[0]
    rate = max(setup.space.min_learning_rate, used.learning_rate * STALLED_FACTOR)
    what = f"so the rate is {rate:.3g} now" if rate < used.learning_rate else "the lowest rate that may be used"
    note = f"the loss stood still at {used.learning_rate:.3g}, {what}"
    width = next_width(setup, stage, has_lasted=True)
    return _Begin(used.model_copy(update={"learning_rate": rate}), note, width, stage.line.barred)


def _without_drift(setup: SearchSetup, stage: Stage, begin: _Begin) -> _Begin:
    """Go on with the best synchronous exchange: by its probe, else by expectation."""
    assert stage.decision is not None
    options, used = setup.space.synchronous, stage.decision.values.option
    probed = {each.values.option: each.reward for each in scores(stage.decisive) if each.reward is not None}
    expected = {each.option: -each.cost_of_dense for each in setup.space.exchanges}
    option = max(options, key=lambda each: (probed.get(each, -math.inf), expected.get(each, -math.inf)))
    note = "; ".join(filter(None, [begin.note, f"{option} takes over from {used}"]))
    return begin._replace(incumbent=begin.incumbent.model_copy(update={"option": option}), note=note)


def _after_failure(setup: SearchSetup, stage: Stage, ending: Ending) -> _Begin:
    assert stage.decision is not None
    if ending.started_over:
        return _started_over(setup, stage)
    used = _raised(setup, stage)[0] if stage.course.awakens else stage.decision.values
    is_taken_back = ending.rolled_back and not ending.diverged
    if stage.decision.switched and usable_control(stage) is not None and is_taken_back:
        note = f"the switch to {used.learning_rate:.3g} was rolled back"
        width = next_width(setup, stage, has_lasted=False)
        return _Begin(stage.incumbent, note, width, stage.line.barred, rejected=(used,))
    if ending.was_asleep:
        rate = awakening_start(setup, used.learning_rate)
        note = f"the stage before learned nothing at {used.learning_rate:.3g}, so the rate rises from {rate:.3g}"
        incumbent = used.model_copy(update={"learning_rate": rate})
        return _Begin(incumbent, f"{note} until it does", WIDEST, stage.line.barred, awakens=True)
    factor, what = _cut(ending)
    if stage.is_pinned and stage.steered.unsteered and stage.steered.unsteered.learning_rate < used.learning_rate:
        note = f"the stage before {what} at the pinned {used.learning_rate:.3g}, so that pin is over"
        return _Begin(stage.steered.unsteered, note, WIDEST, (*stage.line.barred, used))
    rate = max(setup.space.min_learning_rate, used.learning_rate * factor)
    then = f"so this one starts from {rate:.3g}" if rate < used.learning_rate else "the lowest rate that may be used"
    given_up = stage.course.given_up
    if stage.course.awakens and not ending.signs.has_learned and given_up is not None and given_up < rate:
        # it may learn too little to be told from nothing, and the rate that was given up did no harm
        rate, then = given_up, f"and learned nothing below, so this one starts from {given_up:.3g}, as before"
    note = f"the stage before {what} at {used.learning_rate:.3g}, {then}"
    incumbent = used.model_copy(update={"learning_rate": rate})
    return _Begin(incumbent, note, WIDEST, (*stage.line.barred, used))


def _started_over(setup: SearchSetup, stage: Stage) -> _Begin:
    """Begin again at a lower rate than the one that was picked, and bar that one, and so all that it has risen to."""
    assert stage.decision is not None
    used, picked = stage.decision.values, _picked(setup, stage)
    what, factor = "the model was learning its data by heart", STARTED_OVER_FACTOR
    if stage.decision.starts_over:  # probes of a model that was hurt do not show what a new one wants
        assert stage.course.kept is not None
        used, picked, factor = stage.course.kept, stage.course.kept.learning_rate, DIVERGED_FACTOR
        what = f"{picked:.3g} was far too high"
    rate = max(setup.space.min_learning_rate, picked * factor)
    note = f"{what}, so the run starts over at {rate:.3g}"
    failed = used.model_copy(update={"learning_rate": picked})
    return _Begin(used.model_copy(update={"learning_rate": rate}), note, WIDEST, (*stage.line.barred, failed))


def _picked(setup: SearchSetup, stage: Stage) -> float:
    """Return the rate that was picked, before commits raised it, or cut it since their loss stood still.

    It comes from the last search, pin or failure, or it is the rate that woke the model. If it has been vetoed since,
    the nearest rate that is left stands for it.
    """
    assert stage.decision is not None
    if stage.course.awakens:
        return _raised(setup, stage)[0].learning_rate
    known = None if stage.probes or stage.is_pinned else stage.course.picked
    return stage.decision.values.learning_rate if known is None else setup.clip_rate(known)


def _cut(ending: Ending) -> tuple[float, str]:
    """Return the factor of the rate after a commit that failed, and how it failed."""
    if ending.diverged:
        return DIVERGED_FACTOR, "diverged"
    if ending.signs.is_dead:
        return DIVERGED_FACTOR, "was rolled back" if ending.rolled_back else "ended dead"
    return ROLLED_BACK_FACTOR, "was rolled back" if ending.rolled_back else "rose above the best loss of the run"


def next_width(setup: SearchSetup, stage: Stage, *, has_lasted: bool) -> float:
    """Return the trust region's width after a decided stage: doubled if its switch `has_lasted`, halved if it had none.

    TuRBO counts several failures first; a run has too few stages for that. The width stays after the wide search, after
    a stage without probes, and for controllers without a surrogate.
    """
    assert stage.decision is not None
    if not setup.config.has_surrogate or not stage.has_incumbent or not stage.probes:
        return stage.width
    is_success = stage.decision.switched and has_lasted
    return min(WIDEST, stage.width * FACTOR) if is_success else max(NARROWEST, stage.width / FACTOR)


def _line_after(setup: SearchSetup, stage: Stage, ending: Ending, meaning: _Meaning, begin: _Begin) -> CommittedLine:
    """Return the memory of the committed line; after client drift, its best losses and rewards start anew."""
    assert stage.decision is not None
    was, start, initial = stage.line, start_loss(stage), _initial(setup, stage, ending)
    if ending.started_over:  # what the line had reached is gone
        was, start = replace(was, best=None), initial
    # rewards of workers that drift apart come from losses that their average does not have
    history = () if meaning.drifts else extended(was.history, scores(stage.decisive), incumbent=begin.incumbent)
    return CommittedLine(
        start_loss=start if ending.end_loss is None else ending.end_loss,
        initial=initial,
        best=_best(None if meaning.drifts else was.best, ending),
        probed=None if meaning.drifts or ending.started_over else lowest_probed(stage),
        gradient_scale=_first_known(was.gradient_scale, ending.signs.gradient_start),
        num_taken_back=was.num_taken_back + (not ending.is_kept),
        before=ending,
        loss_before=start,
        events=meaning.events,
        reference=ending.signs.reference if ending.is_kept and not ending.events else None,
        link=changed_link(setup, stage, ending, measured_link(setup, stage, begin.incumbent.batch_size)),
        history=history,
        drift=learned_drift(history),
        outcomes=with_outcome(was.outcomes, stage.decision.forecast, None if ending.events else ending.end_loss),
        barred=begin.barred,
        diverged=(*diverged_probes(setup, stage), *((_raised(setup, stage)[0],) if ending.diverged else ())),
    )


def _best(before: faults.LossLevel | None, ending: Ending) -> faults.LossLevel | None:
    """Return the lowest loss of the line; steps that were rolled back do not belong to it."""
    reached = faults.reached(ending.losses) if ending.is_kept else None
    return before if reached is None else faults.lower(before, reached)


def _initial(setup: SearchSetup, stage: Stage, ending: Ending) -> float | None:
    """Return the loss at which the run started; None: not known yet."""
    opening = usable_median(ending.opening or ending.losses[:OPENING_LOSSES])
    start = _first_known(stage.line.initial, start_loss(stage), opening, setup.space.first_loss)
    known = faults.Known(initial=stage.line.initial, first=setup.space.first_loss)
    return None if start is None else faults.initial_loss(known, start)


def _first_known(*numbers: float | None) -> float | None:
    return next((number for number in numbers if number is not None), None)


def _course_after(setup: SearchSetup, stage: Stage, ending: Ending, meaning: _Meaning, begin: _Begin) -> RateCourse:
    """Return how the rate goes on without a probe, by how it went in this commit."""
    assert stage.decision is not None
    was, steps = stage.course, ending.spent.steps
    can_rise = was.may_rise or meaning.woke or has_met(stage.decision.forecast, ending)
    since_search = was.rise if stage.probes else was.raised * was.rise
    is_new = ending.has_failed or was.awakens  # the rise that wakes a model is not one of a chosen rate
    taken_back = was.ramp.anew(steps) if ending.started_over else was.ramp.begun(steps)
    return RateCourse(
        ramp=was.ramp.ended(steps) if ending.is_kept else taken_back,
        raised=1.0 if is_new else since_search,
        kept=_kept(setup, stage, ending),
        picked=begin.incumbent.learning_rate if ending.has_failed else _picked(setup, stage),
        may_rise=meaning.is_quiet and not meaning.is_stalled and can_rise,
        awakens=begin.awakens or (was.awakens and not meaning.woke and not ending.has_failed),
        has_awakened=was.has_awakened or was.awakens,
        given_up=stage.decision.values.learning_rate if ending.was_asleep and not was.awakens else was.given_up,
    )


def _kept(setup: SearchSetup, stage: Stage, ending: Ending) -> Values | None:
    if ending.started_over:
        return None
    return _raised(setup, stage)[0] if ending.is_kept else stage.course.kept
