"""A stage as users see it: its row, and what its stored decision adds to it."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from search.curves.calibration import z_score
from search.types import Refusal, Steer, Tax
from service.control.models import ProbeRow, StageRow, TrialRow
from service.wire.records import ProbeResult
from service.wire.trials import ProbeView, StageView

#: A number of a decision's JSON, which writes NaN and infinity as words; None where it is not finite.
Finite = Annotated[float | None, AfterValidator(lambda number: number if math.isfinite(number or 0.0) else None)]


class _Stored(BaseModel):
    """The base of what is read of stored decisions: those of every release, with what each has."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Named(_Stored):
    id: str


class _Report(_Stored):
    candidate: _Named
    reward: Finite = None
    posterior_mean: Finite = None
    posterior_std: Finite = None


class _Decided(_Stored):
    probes: tuple[_Report, ...] = ()
    tax: Tax = Tax(budget_share=0.0, cap_share=None)
    forecast_weight: float | None = None
    num_earlier: int = 0
    refused: tuple[Refusal, ...] = ()
    promoted: str | None = None
    steers: tuple[Steer, ...] = ()


_STAGE_COLUMNS = StageView.model_fields.keys() - {
    "arm", "seed", "probes", "tax", "forecast_weight", "num_earlier", "posterior", "refused", "promoted",
    "steers", "z_score",
}  # fmt: skip


def stage_view(trial: TrialRow, stage: StageRow, probes: Sequence[ProbeRow], *, with_posterior: bool) -> StageView:
    """Return the stage with its probes; without its posterior unless asked, for that is large."""
    decision = _Decided.model_validate(stage.decision, extra="ignore")
    reports = {report.candidate.id: report for report in decision.probes}
    parts = {
        "arm": trial.arm,
        "seed": trial.seed,
        "probes": tuple(_probe_view(row, reports.get(row.probe_id)) for row in probes),
        "tax": decision.tax,
        "forecast_weight": decision.forecast_weight,
        "num_earlier": decision.num_earlier,
        "refused": decision.refused,
        "promoted": decision.promoted,
        "steers": decision.steers,
        "posterior": stage.posterior if with_posterior else None,
        "z_score": z_score_of(stage),
    }
    columns = {name: getattr(stage, name) for name in _STAGE_COLUMNS}
    return StageView.model_validate(parts | columns, extra="ignore")


def z_score_of(stage: StageRow) -> float | None:
    """Return how far the stage ended from its forecast; None: one of both is not known."""
    if stage.loss is None or stage.forecast is None or stage.forecast_std is None:
        return None
    return z_score(stage.loss, mean=stage.forecast, std=stage.forecast_std)


def _probe_view(row: ProbeRow, report: _Report | None) -> ProbeView:
    judged = {name: getattr(report, name, None) for name in ("reward", "posterior_mean", "posterior_std")}
    return ProbeView(**{name: getattr(row, name) for name in ProbeResult.model_fields}, **judged)
