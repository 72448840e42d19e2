"""What a closed stage hands to the next one."""

from typing import NamedTuple

from search.decision import DIVERGED_FACTOR
from search.evidence import scores, stage_level
from search.history import extended, learned_drift
from search.link import Link, StepCost, fit, level, moved
from search.reading import Ending
from search.region import WIDEST, next_width
from search.stage import Problem, Stage
from search.types import Forecast, Spent, Values

#: A commit that ended within so many standard deviations of its forecast, or below it, has met it.
MET_STDS = 2.0
#: A commit that was taken back without a blow-up was too high by less.
ROLLED_BACK_FACTOR = 0.5


def has_met(forecast: Forecast | None, ending: Ending) -> bool:
    """Whether a commit did as its decision had forecast; one without a forecast shows nothing."""
    if forecast is None or ending.level is None:
        return False
    return ending.level <= forecast.mean + MET_STDS * forecast.std


def next_stage(problem: Problem, stage: Stage, ending: Ending, *, search: Spent) -> Stage:
    """Return the stage after the decided `stage`, whose commit ended as `ending`; `search`: all probes so far.

    A switch that was rolled back leaves the incumbent as it was. Any other commit that was taken back cuts the rate
    and bars what it used. After either, rates stay down until a commit meets its forecast. The level follows the link.
    """
    assert stage.decision is not None
    start, link = stage_level(stage), measured_link(problem, stage, ending)
    begin = _after_kept(problem, stage, link) if ending.is_kept else _after_taken_back(problem, stage, ending)
    is_as_before = begin.incumbent == stage.decision.values and not ending.events
    history = extended(stage.history, scores(stage), incumbent=begin.incumbent)
    return Stage(
        index=stage.index + 1,
        incumbent=begin.incumbent,
        opened=ending.spent,
        search_before=search,
        level=ending.level if ending.level is not None else start,
        initial=stage.initial if stage.initial is not None else start,
        history=history,
        drift=learned_drift(history),
        width=begin.width,
        barred=begin.barred,
        rejected=begin.rejected,
        may_rise=ending.is_kept and (stage.may_rise or has_met(stage.decision.forecast, ending)),
        before=ending,
        before_level=start,
        events=ending.events,
        reference_seconds=ending.signs.reference_seconds if is_as_before else None,
        link=link,
        note=begin.note,
    )


class _Begin(NamedTuple):
    """Where the next stage's search begins, and what it may not try."""

    incumbent: Values
    width: float
    barred: tuple[Values, ...]
    rejected: tuple[Values, ...] = ()
    note: str = ""


def _after_kept(problem: Problem, stage: Stage, link: Link | None) -> _Begin:
    assert stage.decision is not None
    incumbent, note = _on_link(problem, link, stage.decision.values)
    return _Begin(incumbent, next_width(problem, stage, has_lasted=True), stage.barred, note=note)


def _after_taken_back(problem: Problem, stage: Stage, ending: Ending) -> _Begin:
    assert stage.decision is not None
    used = stage.decision.values
    if stage.has_incumbent and stage.decision.switched and not ending.diverged:
        note = f"the switch to {used.learning_rate:.3g} was rolled back"
        width = next_width(problem, stage, has_lasted=False)
        return _Begin(stage.incumbent, width, stage.barred, rejected=(used,), note=note)
    factor, what = (DIVERGED_FACTOR, "diverged") if ending.diverged else (ROLLED_BACK_FACTOR, "was taken back")
    rate = max(problem.space.min_learning_rate, used.learning_rate * factor)
    note = f"the stage before {what} at {used.learning_rate:.3g}, so this one starts from {rate:.3g}"
    incumbent = used.model_copy(update={"learning_rate": rate})
    return _Begin(incumbent, WIDEST, (*stage.barred, used), note=note)


def measured_link(problem: Problem, stage: Stage, ending: Ending) -> Link | None:
    """Return the link after `stage`: compute from probes at several levels, transfer from the latest steps.

    A budget without seconds reads no clock, and knows no link.
    """
    if problem.budget.seconds is None:
        return None
    timed = [probe.reading for probe in stage.probes if probe.reading.num_steps and probe.reading.step_seconds]
    costs = [StepCost(bytes=each.bytes_sent / each.num_steps, seconds=each.step_seconds or 0.0) for each in timed]
    link, seconds = fit(costs) or stage.link, ending.signs.step_seconds
    if link is None or seconds is None or not ending.num_steps:
        return link
    return moved(link, StepCost(bytes=ending.bytes_sent / ending.num_steps, seconds=seconds))


def _on_link(problem: Problem, link: Link | None, used: Values) -> tuple[Values, str]:
    """Return `used` at the level that the link suggests, and a note if that is another one."""
    suggested = used.level if problem.config.revisit == "stages" else level(link, problem.space, used.level)
    if link is None or suggested == used.level or used.level is None:
        return used, ""
    dense_s = (problem.space.dense_bytes or 0) * link.seconds_per_byte
    measured = f"a step computes for {1e3 * link.compute_s:.3g} ms, a dense exchange takes {1e3 * dense_s:.3g} ms"
    note = f"the level is {suggested:.3g}, not {used.level:.3g}: {measured}"
    return used.model_copy(update={"level": suggested}), note
