"""Calibrate forecasts by their outcomes: measure their errors, and learn how far to follow the fitted curves."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from search.types import Forecast, Value

#: How far a forecast follows the fitted curves before any stage has closed: the largest weight that selects recorded
#: curves as well as their tails do. On 188 other real curves, 0.7 to 1 would have been best.
FIRST_WEIGHT = 0.45
#: The first weight counts as one stage, whose curves led away from the tail by this share of the loss.
FIRST_MOVE = 0.05
#: Only this many of the last outcomes are used: early outcomes do not hold late in a run.
MAX_OUTCOMES = 5


class ForecastOutcome(Value):
    """A forecast, and the loss that was reached at its horizon."""

    forecast: Forecast
    loss: float


class Calibration(Value):
    """Forecasts against outcomes. Of good forecasts 68 % lie within 1 standard deviation and 95 % within 2."""

    num_outcomes: int
    within_1_std: float | None = Field(description="share of outcomes; null: there is none")
    within_2_std: float | None
    mean_z: float | None = Field(
        description="mean of (loss - forecast) / std; below 0: losses were lower than forecast"
    )


def z_score(loss: float, *, mean: float, std: float) -> float | None:
    """Return how many `std` a loss lies above the forecast `mean`; None if the forecast had no spread."""
    return (loss - mean) / std if std > 0 else None


def calibration(z_scores: Iterable[float]) -> Calibration:
    """Return the calibration of forecasts with these z-scores, which all count alike."""
    scores = list(z_scores)
    if not scores:
        return Calibration(num_outcomes=0, within_1_std=None, within_2_std=None, mean_z=None)
    return Calibration(
        num_outcomes=len(scores),
        within_1_std=sum(abs(score) <= 1 for score in scores) / len(scores),
        within_2_std=sum(abs(score) <= 2 for score in scores) / len(scores),
        mean_z=sum(scores) / len(scores),
    )


def with_outcome(
    outcomes: tuple[ForecastOutcome, ...], forecast: Forecast | None, loss: float | None
) -> tuple[ForecastOutcome, ...]:
    """Add an outcome to the last ones, if it can be learned from."""
    if forecast is None or forecast.average is None or loss is None:
        return outcomes
    return (*outcomes, ForecastOutcome(forecast=forecast, loss=loss))[-MAX_OUTCOMES:]


def learned_weight(outcomes: Sequence[ForecastOutcome]) -> float:
    """Return the weight w in [0, 1] that would have forecast `outcomes` best.

    Least squares of loss - tail = w (average - tail), in units of the tail, with `FIRST_WEIGHT` as one more outcome.
    """
    rows = []
    for forecast, loss in ((outcome.forecast, outcome.loss) for outcome in outcomes):
        if forecast.tail is not None and forecast.average is not None:
            unit = abs(forecast.tail) or 1.0
            rows.append(((forecast.average - forecast.tail) / unit, (loss - forecast.tail) / unit))
    power = FIRST_MOVE**2 + sum(led * led for led, _ in rows)
    weight = FIRST_WEIGHT + sum(led * (moved - FIRST_WEIGHT * led) for led, moved in rows) / power
    return min(1.0, max(0.0, weight))
