"""Stages appear as their release decided them; old stored decisions can still be read."""

from typing import Any

import pytest

from service.control.models import ProbeRow, StageRow, TrialRow
from service.control.results.stage_views import stage_view
from service.wire.trials import StageView

#: As an earlier release stored it: without what came later, with what is gone, and with NaN as a word.
EARLIER: dict[str, Any] = {
    "stage": 0,
    "values": {"learning_rate": 0.1, "level": None},
    "method": "vertex",
    "probes": [
        {"candidate": {"id": "0.0", "rank": 1}, "reward": 0.25, "posterior_mean": 0.0, "posterior_std": 0.1},
        {"candidate": {"id": "0.1"}, "reward": "NaN", "forecast": {"mean": "NaN", "std": "Infinity"}},
    ],
    "num_earlier": 2,
}


def _shown(decision: dict[str, Any]) -> StageView:
    common: dict[str, Any] = {"stage": 0, "learning_rate": 0.1, "level": None, "values": {}, "density": None}
    stage = StageRow(
        **common, trial_id="t", first_step=0, num_steps=10, threshold=None, reason="", switched=False, probability=None,
        forecast=None, forecast_std=None, search_seconds=1.0, search_steps=14, search_bytes=0, closed=True, loss=None,
        bill=None, posterior=None, decision=decision,
    )  # fmt: skip
    probes = [
        ProbeRow(
            **common, trial_id="t", probe_id=f"0.{number}", origin="wide", num_steps=7, seconds=0.1, bytes_sent=0,
            loss=0.5, forecast=None, forecast_std=None, status="ok",
        )
        for number in range(2)
    ]  # fmt: skip
    return stage_view(TrialRow(arm="tuned", seed=0), stage, probes, with_posterior=False)


def test_an_earlier_releases_decision_is_shown_with_what_it_has() -> None:
    shown = _shown(EARLIER)

    assert [probe.reward for probe in shown.probes] == [0.25, None]
    assert (shown.num_earlier, shown.refused, shown.forecast_weight) == (2, (), None)
    assert shown.tax.budget_share == 0.0


def test_the_probe_that_a_commit_began_with_is_named() -> None:
    assert _shown(EARLIER | {"promoted": "0.1"}).promoted == "0.1"
    assert _shown(EARLIER).promoted is None


def test_a_stage_without_a_decision_is_shown_without_judgements() -> None:
    assert {probe.reward for probe in _shown({}).probes} == {None}


@pytest.mark.parametrize("name", ["posterior_mean", "posterior_std"])
def test_what_was_judged_is_shown_with_its_probe(name: str) -> None:
    first, second = _shown(EARLIER).probes

    assert getattr(first, name) is not None and getattr(second, name) is None
