"""Compare our forecasts and selections from short loss curves with those of AutoLRS."""

from collections.abc import Callable, Sequence

import numpy as np
from loss_curves import SHAPES, Line, Question, Synthetic, synthetic
from numpy.typing import NDArray

from search.baselines.extrapolation import extrapolate
from search.bayesian.rewards import scores
from search.bayesian.stage import CommittedLine, Stage
from search.config import AutoLrsConfig
from search.curves.calibration import Calibration, calibration, z_score
from search.curves.curve_summary import Reading
from search.curves.forecast import LARGEST, forecast_loss
from search.types import Allowance, Candidate, Observation, Spent, Values

Array = NDArray[np.float64]
Forecaster = Callable[[list[float], int], float]
Selector = Callable[[Line], int]

SEEDS = 20
#: Losses that a forecast of a synthetic series sees.
SEEN = (50, 100, 240)
NUM_RESAMPLES = 4000
PUBLISHED = AutoLrsConfig()


def our_average(losses: list[float], horizon: int) -> float:
    """Return the plain extrapolation: the average of curves, with its full weight."""
    return forecast_loss(losses, horizon, weight=1.0).mean


def reference(losses: list[float], horizon: int) -> float:
    """Return AutoLRS's forecast, as the arm `autolrs` makes it."""
    return extrapolate(losses, horizon, passes=PUBLISHED.forecast_passes, outliers=PUBLISHED.outlier_fraction).mean


def all_series(seen: int) -> list[Synthetic]:
    return [synthetic(shape, seed, seen=seen) for shape in SHAPES for seed in range(SEEDS)]


def coverage(questions: Sequence[Question]) -> Calibration:
    """Return how sure our forecasts of real curves were to be: what did not blow up counts."""
    scores = []
    for question in questions:
        forecast = forecast_loss(question.losses, question.horizon, start=question.level)
        if forecast.status != "diverged":
            scores.append(z_score(question.truth, mean=forecast.mean, std=forecast.std))
    return calibration(score for score in scores if score is not None)


def errors(forecaster: Forecaster, seen: int) -> Array:
    """Return the absolute errors `(300,)` from `seen` losses of the synthetic series; infinite: no finite forecast."""
    found = []
    for losses, horizon, truth in all_series(seen):
        error = abs(forecaster(losses, horizon) - truth)
        found.append(error if np.isfinite(error) else np.inf)
    return np.array(found)


# -- selection -------------------------------------------------------------------------------------


def by_controller(line: Line) -> int:
    """Choose as the controller scores: the lowest mean loss of the last half."""
    stage = Stage(index=1, incumbent=Values(learning_rate=1.0), line=CommittedLine(start_loss=line.level))
    for index, losses in enumerate(line.losses):
        values = Values(learning_rate=10.0**index)
        stage.candidates.append(Candidate(id=str(index), stage=1, values=values, allowance=Allowance(), origin="wide"))
        stage.readings[str(index)] = Reading.of(_observed(str(index), losses, line.seen))
    rewards = [-np.inf if score.reward is None else score.reward for score in scores(stage)]
    return int(np.argmax(rewards))


def _observed(candidate_id: str, losses: list[float], seen: int) -> Observation:
    return Observation(
        candidate_id=candidate_id,
        losses=tuple(losses),
        step_seconds=(),
        bytes_sent=0,
        diverged=len(losses) < seen,
        spent=Spent(),
    )


def by_forecast(line: Line) -> int:
    """Choose the lowest forecast of the blend that horizons and events use."""
    return _lowest(line, lambda losses: forecast_loss(losses, line.horizon, start=line.level).mean)


def by_tail(line: Line) -> int:
    """Choose the lowest median of the last fifth."""
    return _lowest(line, lambda losses: float(np.median(losses[-(len(losses) // 5) :])))


def by_reference(line: Line) -> int:
    """Choose AutoLRS's lowest forecast."""
    return _lowest(line, lambda losses: reference(losses, line.horizon))


def _lowest(line: Line, worth: Callable[[list[float]], float]) -> int:
    finite = [len(losses) == line.seen and max(losses) < LARGEST for losses in line.losses]
    return int(np.argmin([worth(losses) if ok else np.inf for losses, ok in zip(line.losses, finite, strict=True)]))


def regrets(selector: Selector, lines: Sequence[Line]) -> Array:
    """Return the regret `(n,)` of what is selected on each of `lines`."""
    return np.array([line.regret(selector(line)) for line in lines])


def interval(differences: Array) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean of `differences` `(n,)`."""
    draws = np.random.default_rng(0).integers(0, len(differences), (NUM_RESAMPLES, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
