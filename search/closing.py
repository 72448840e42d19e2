"""What a closed stage hands to the next one."""

from typing import NamedTuple

from search.decision import DIVERGED_FACTOR
from search.evidence import scores, stage_level
from search.history import extended, learned_drift
from search.reading import Ending
from search.region import WIDEST, next_width
from search.stage import Problem, Stage
from search.types import Forecast, Spent, Values

#: A commit that ended within so many standard deviations of its forecast, or below it, has met it.
MET_STDS = 2.0


def has_met(forecast: Forecast | None, ending: Ending) -> bool:
    """Whether a commit did as its decision had forecast; one without a forecast shows nothing."""
    if forecast is None or ending.level is None:
        return False
    return ending.level <= forecast.mean + MET_STDS * forecast.std


def next_stage(problem: Problem, stage: Stage, ending: Ending, *, search: Spent) -> Stage:
    """Return the stage after the decided `stage`, whose commit ended as `ending`; `search`: all probes so far.

    A finite switch that was rolled back leaves the incumbent as it was. Any other commit that was taken back
    diverged: that cuts the rate and bars what diverged. After either, rates stay down until a commit meets its
    forecast again.
    """
    assert stage.decision is not None
    start, begin = stage_level(stage), _begin(problem, stage, ending)
    history = extended(stage.history, scores(stage), incumbent=begin.incumbent)
    is_kept = not (ending.diverged or ending.rolled_back)
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
        may_rise=is_kept and (stage.may_rise or has_met(stage.decision.forecast, ending)),
        note=begin.note,
    )


class _Begin(NamedTuple):
    """Where the next stage's search begins, and what it may not try."""

    incumbent: Values
    width: float
    barred: tuple[Values, ...]
    rejected: tuple[Values, ...] = ()
    note: str = ""


def _begin(problem: Problem, stage: Stage, ending: Ending) -> _Begin:
    assert stage.decision is not None
    used, has_probes = stage.decision.values, stage.index > 0 and bool(stage.probes)
    has_switched = stage.decision.switched and stage.index > 0
    if not (ending.diverged or ending.rolled_back):
        return _Begin(used, next_width(stage.width, has_probes=has_probes, has_switched=has_switched), stage.barred)
    if has_switched and not ending.diverged:
        width = next_width(stage.width, has_probes=has_probes, has_switched=False)
        note = f"the switch to {used.learning_rate:.3g} was rolled back"
        return _Begin(stage.incumbent, width, stage.barred, (used,), note)
    rate = max(problem.space.min_learning_rate, used.learning_rate * DIVERGED_FACTOR)
    note = f"the stage before diverged at {used.learning_rate:.3g}, so this one starts from {rate:.3g}"
    incumbent = used.model_copy(update={"learning_rate": rate})
    return _Begin(incumbent, WIDEST, (*stage.barred, used), note=note)
