"""What a closed stage hands to the next one."""

from search.calibration import with_outcome
from search.decision import DIVERGED_FACTOR, bounding_box
from search.evidence import relative_to, stage_level
from search.reading import Ending
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

    A commit that diverged cuts the rate and bars what diverged, and rates stay down until a commit meets its
    forecast again.
    """
    assert stage.decision is not None
    used, start = stage.decision.values, stage_level(stage)
    incumbent, note = _after_divergence(problem, used) if ending.diverged else (used, "")
    probed = [probe.candidate.values for probe in stage.probes]
    return Stage(
        index=stage.index + 1,
        incumbent=incumbent,
        opened=ending.spent,
        search_before=search,
        level=ending.level if ending.level is not None else start,
        initial=stage.initial if stage.initial is not None else start,
        previous=relative_to(incumbent, stage, bounding_box(problem, [*probed, incumbent])),
        barred=(*stage.barred, used) if ending.diverged else stage.barred,
        may_rise=not ending.diverged and (stage.may_rise or has_met(stage.decision.forecast, ending)),
        note=note,
        outcomes=with_outcome(stage.outcomes, stage.decision.forecast, ending.level),
    )


def _after_divergence(problem: Problem, used: Values) -> tuple[Values, str]:
    rate = max(problem.space.min_learning_rate, used.learning_rate * DIVERGED_FACTOR)
    note = f"the stage before diverged at {used.learning_rate:.3g}, so this one starts from {rate:.3g}"
    return used.model_copy(update={"learning_rate": rate}), note
