"""Detect events on a committed line: a change in its step times, its gradients or its loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from search.config import SearchConfig
from search.curves import faults
from search.curves.faults import Known
from search.curves.forecast import is_usable, median, size_of, standard_error
from search.trace import Trace
from search.types import Forecast, Value

Array = NDArray[np.float64]
Event = Literal["step_time", "gradient_scale", "plateau", "client_drift", "divergence"]

#: A trace of fewer points can only show that a model is dead, or has learned nothing yet.
MIN_POINTS = 40
#: The points of the shortest median window: step times and a sparse gradient's scale are noisy.
MIN_WINDOW = 10
#: A loss above its forecast is a plateau if it made no progress for this share of the commit.
PLATEAU_SHARE = 0.2
#: A divergence raises the loss by this many standard errors, and by this share of the run's first loss.
DIVERGENCE_ERRORS, DIVERGENCE_SHARE = 3.0, 0.05


class StepTime(Value):
    """The seconds of a step, and the part in which training waited for the exchange; None: not measured."""

    seconds: float
    waited: float | None = None

    def longer_than(self, before: "StepTime") -> float:
        """Return by how many seconds the step is longer; if both waits are known, by how many it waits longer.

        Compute time depends on the machine, and on other work there.
        """
        if self.waited is None or before.waited is None:
            return self.seconds - before.seconds
        return self.waited - before.waited


class Signs(Value):
    """Signs of change in a commit, against measurements after the last search. None: unknown."""

    num_steps: int = 0
    step: StepTime | None = None  # of the latest steps
    reference: StepTime | None = None  # of a step after the last search
    gradient_jump: float | None = None  # the largest factor between neighbouring windows of the gradient's scale
    gradient_drift: float | None = None  # the scale's end over its beginning: scales fall as a run converges
    loss: float | None = None  # of the last fifth
    start: float | None = None  # the loss at which the commit started
    forecast: Forecast | None = None
    has_progressed: bool | None = None
    has_diverged: bool = False
    has_worsened: bool = False  # above the best of the run, and not coming back
    is_dead: bool = False
    is_ignorant: bool = False  # nothing was learned yet, and nothing is being learned
    has_learned: bool = False
    has_risen: bool = False  # its end is clearly above the commit's start, or its lowest loss
    is_lost: bool = False  # the commit's start is better than its present state
    best: float | None = None  # the lowest loss that the committed line has reached
    gradient_start: float | None = None  # the gradient's scale at its beginning
    gradient_end: float | None = None  # and now
    gradient_peak: float | None = None  # the largest of its windows
    client_drift: float = 0.0  # by how much the loss of the workers' average is clearly higher than their own

    @model_validator(mode="before")
    @classmethod
    def _have_steps(cls, given: Any) -> Any:
        """Read the signs of an earlier release, which had no waits."""
        if not isinstance(given, Mapping) or "step_seconds" not in given:
            return given
        old = dict(given)
        seconds = {"step": old.pop("step_seconds"), "reference": old.pop("reference_seconds")}
        return old | {name: None if each is None else {"seconds": each} for name, each in seconds.items()}

    @property
    def slower(self) -> float | None:
        """The factor by which steps take longer than the reference, or shorter if it is below 1; None: unknown."""
        step, reference = self.step, self.reference
        if step is None or reference is None or not reference.seconds:
            return None
        return 1 + step.longer_than(reference) / reference.seconds


@np.errstate(over="ignore", invalid="ignore")  # gradients may be too large for a mean
def read(
    trace: Trace,
    *,
    part: float,
    reference: StepTime | None,
    forecast: Forecast | None,
    known: Known,
) -> Signs:
    """Read the signs of a commit of which `part` (0 to 1) is done.

    Args:
        trace: the commit's curves so far.
        part: the share of the commit that is done.
        reference: a step after the last search; None: the beginning of this commit.
        forecast: of the commit's end.
        known: the other references for its losses and gradients.
    """
    start, scales, values = known.start, trace.gradient_scales, np.asarray(trace.losses, dtype=np.float64)
    losses = values if is_usable(values) else None
    wrong = (
        faults.NO_FAULT
        if losses is None
        else faults.fault(losses, scales, known, is_over=part >= 1, opening=trace.opening)
    )
    gradients = _gradients(scales)
    if len(trace.points) < MIN_POINTS and not wrong.is_dead:
        return Signs(
            num_steps=trace.num_steps,
            reference=reference,
            start=start,
            forecast=forecast,
            is_ignorant=wrong.is_ignorant,
            **gradients,
        )
    return Signs(
        num_steps=trace.num_steps,
        step=_step(trace, _end),
        reference=reference or _step(trace, _beginning),
        gradient_jump=jump(scales),
        gradient_drift=_ratio(_end(scales), _beginning(scales)),
        loss=None if losses is None else median(losses[-len(losses) // 5 :]),
        start=start,
        forecast=forecast,
        has_progressed=None if losses is None else has_progressed(losses, part=part),
        has_diverged=losses is not None and _has_diverged(losses, start=start, initial=known.initial),
        **gradients,
        **wrong._asdict(),
    )


def found(signs: Signs, config: SearchConfig, *, is_timed: bool) -> tuple[Event, ...]:
    """Return the events that `signs` show by the thresholds of `config`; `is_timed`: step times count."""
    events = list[Event]()
    slower = signs.slower if is_timed else None
    if _is_beyond(slower, config.event_step_time):
        events.append("step_time")
    if _is_beyond(signs.gradient_jump, config.event_gradient_scale):
        events.append("gradient_scale")
    expected = signs.forecast
    highest = math.inf if expected is None else expected.mean + config.event_loss_stds * expected.std
    if signs.has_progressed is False and signs.loss is not None and signs.loss > highest:
        events.append("plateau")
    if signs.client_drift:
        events.append("client_drift")
    if signs.has_diverged or signs.has_worsened or signs.is_dead:
        events.append("divergence")
    return tuple(events)


def jump(series: Sequence[float]) -> float | None:
    """Return the largest factor, up or down, between the medians of two neighbouring windows of a positive series.

    A series that falls slowly has a factor near 1, however far it falls. The first tenth is left out.
    """
    values = np.asarray(series, dtype=np.float64)
    window = max(MIN_WINDOW, len(values) // 10)
    values = values[len(values) // 10 :]
    if len(values) < 2 * window or not bool(np.all(np.isfinite(values) & (values > 0))):
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(np.log(values), window), axis=1)
    changes = medians[window:] - medians[:-window]
    return math.exp(float(changes[np.argmax(np.abs(changes))]))


def has_progressed(losses: Array, *, part: float) -> bool | None:
    """Return whether a commit's last fifth beats the fifth before by more than noise; `part` of it is done.

    None: less than two fifths are done.
    """
    window = round(len(losses) * PLATEAU_SHARE / part) if part > 0 else len(losses)
    if window < MIN_WINDOW or 2 * window > len(losses):
        return None
    last, before = losses[-window:], losses[-2 * window : -window]
    return median(before) - median(last) > _error(last, before)


def _has_diverged(losses: Array, *, start: float | None, initial: float | None) -> bool:
    """Return whether the loss has risen through the last two fifths, and clearly above where the commit started."""
    window = len(losses) // 5
    if start is None or window == 0:
        return False
    last, before = losses[-window:], losses[-2 * window : -window]
    margin = DIVERGENCE_ERRORS * _error(last, before)
    share = DIVERGENCE_SHARE * size_of(start if initial is None else initial, losses)
    return median(last) > median(before) + margin and median(last) > start + max(margin, share)


def _error(first: Array, second: Array) -> float:
    return 1.25 * math.hypot(standard_error(first), standard_error(second))  # of medians, under normal noise


def _beginning(series: Sequence[float]) -> float | None:
    """Return the median of a series' second tenth and what follows, a fifth in all; its first tenth may calibrate."""
    skip = len(series) // 10
    return _finite_median(series[skip : skip + max(MIN_WINDOW, len(series) // 5)])


def _end(series: Sequence[float]) -> float | None:
    return _finite_median(series[-max(MIN_WINDOW, len(series) // 10) :])


def _step(trace: Trace, window: Callable[[Sequence[float]], float | None]) -> StepTime | None:
    """Return the median step of a window of the trace; None where nothing was timed."""
    seconds, waited = window(trace.step_seconds), window(trace.waits)
    return None if seconds is None else StepTime(seconds=seconds, waited=waited)


def _gradients(scales: Sequence[float]) -> dict[str, float | None]:
    """Return the fields of `Signs` about a gradient's scales; None where they are too large to have a mean."""
    if not len(scales):
        return {}
    return {
        "gradient_start": faults.gradient_start(scales),
        "gradient_end": _end(scales),
        "gradient_peak": _peak(scales),
    }


def _peak(series: Sequence[float]) -> float | None:
    values = np.asarray(series, dtype=np.float64)
    windows = values[len(values) % MIN_WINDOW :].reshape(-1, MIN_WINDOW)
    return _finite_median([float(np.median(windows, axis=1).max())]) if len(windows) else None


def _finite_median(series: Sequence[float]) -> float | None:
    middle = median(series)
    return middle if math.isfinite(middle) else None


def _ratio(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


def _is_beyond(factor: float | None, threshold: float) -> bool:
    return factor is not None and factor > 0 and max(factor, 1 / factor) >= threshold
