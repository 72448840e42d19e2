"""Gather the facts of a trial for its report, from its row, its stages and its curve. Functions of one open session."""

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from service.control import queries
from service.control.models import StageRow, TrialRow
from service.control.results import overfitting, stage_views
from service.control.results.report import TrialFacts, milestones
from service.wire.trials import Series

_TRAINING_POINTS = 2000  # of the training loss, to see whether it fell
#: The first search keeps the guess if fewer coarse probes than this end: `MIN_COARSE` of the controller.
LEAST_COARSE = 3


def trial_facts(
    session: Session, trial: TrialRow, stages: Sequence[StageRow], curve: Series, metric: str
) -> TrialFacts:
    """Return the facts of a trial with its decided `stages`. `curve` has all of its evaluations by `metric`."""
    scores = (stage_views.z_score_of(stage) for stage in stages)
    return TrialFacts(
        view=queries.trial_view(trial),
        curve=milestones(curve, trial.metric_directions.get(metric, "min")),
        z_scores=[score for score in scores if score is not None],
        unsearched=_unsearched(stages),
        overfitted=_overfitted(session, trial, metric, curve),
        steered=_steered(stages),
    )


def _unsearched(stages: Sequence[StageRow]) -> str | None:
    """Return the first decision's reason if a trial was never searched, though its rate was neither usual nor pinned.

    A first search that ended after one or two coarse probes, for want of budget, has kept the guess.
    """
    if not stages or stages[0].decision.get("is_usual") or any(stage.decision["probes"] for stage in stages[1:]):
        return None
    probes = stages[0].decision["probes"]
    if len(probes) >= LEAST_COARSE or any(probe["candidate"]["origin"] != "wide" for probe in probes):
        return None
    pinned = {name for steer in stages[0].decision.get("steers", ()) for name in steer["pin"]}
    return None if "learning_rate" in pinned else stages[0].reason


def _steered(stages: Iterable[StageRow]) -> dict[str, list[int]]:
    """Return those of a trial's stages that each person steered."""
    found: dict[str, list[int]] = {}
    for stage in stages:
        for by in dict.fromkeys(steer["by"] for steer in stage.decision.get("steers", ())):
            found.setdefault(by, []).append(stage.stage)
    return found


def _overfitted(session: Session, trial: TrialRow, metric: str, curve: Series) -> str | None:
    """Return a sentence if the finished trial got worse by `metric` while its training loss fell, else None."""
    if trial.outcome != "completed" or queries.line_of(trial) != "main":  # the series are those of the main line
        return None
    found = overfitting.worsening(curve, trial.metric_directions.get(metric, "min"))
    if found is None:
        return None
    return overfitting.sentence(found, metric, queries.series(session, trial, "loss", max_points=_TRAINING_POINTS))
