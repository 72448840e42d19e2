"""A stage as users see it: its row, and what its stored decision adds to it."""

import math
from collections.abc import Sequence
from typing import Any

from search.curves.calibration import z_score
from search.types import Tax
from service.control.models import ProbeRow, StageRow, TrialRow
from service.wire.views import ProbeView, StageView

_NO_TAX = Tax(budget_share=0.0, cap_share=None)
_PROBE_COLUMNS = ProbeView.model_fields.keys() - {"reward", "posterior_mean", "posterior_std"}
_STAGE_COLUMNS = StageView.model_fields.keys() - {
    "arm", "seed", "probes", "tax", "forecast_weight", "num_earlier", "posterior", "refused", "z_score"
}  # fmt: skip


def stage_view(trial: TrialRow, stage: StageRow, probes: Sequence[ProbeRow], *, with_posterior: bool) -> StageView:
    """Return the stage with its probes; without its posterior unless asked, for that is large."""
    decision = stage.decision
    reports = {report["candidate"]["id"]: report for report in decision.get("probes", ())}
    return StageView(
        arm=trial.arm,
        seed=trial.seed,
        probes=tuple(_probe_view(row, reports.get(row.probe_id, {})) for row in probes),
        tax=decision.get("tax", _NO_TAX),
        forecast_weight=decision.get("forecast_weight"),
        num_earlier=decision.get("num_earlier", 0),
        refused=decision.get("refused", ()),
        posterior=stage.posterior if with_posterior else None,
        z_score=z_score_of(stage),
        **{name: getattr(stage, name) for name in _STAGE_COLUMNS},
    )


def z_score_of(stage: StageRow) -> float | None:
    """Return how far the stage ended from its forecast; None: one of both is not known."""
    if stage.loss is None or stage.forecast is None or stage.forecast_std is None:
        return None
    return z_score(stage.loss, mean=stage.forecast, std=stage.forecast_std)


def _probe_view(row: ProbeRow, report: dict[str, Any]) -> ProbeView:
    judged = {name: _finite(report.get(name)) for name in ("reward", "posterior_mean", "posterior_std")}
    return ProbeView(**{name: getattr(row, name) for name in _PROBE_COLUMNS}, **judged)


def _finite(value: float | str | None) -> float | None:
    # a decision's JSON writes NaN and infinity as words
    return value if isinstance(value, float | int) and math.isfinite(value) else None
