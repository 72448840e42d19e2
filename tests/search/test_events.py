"""Every event on synthetic commits, and near misses: thresholds, windows, words."""

import math

import numpy as np
import pytest

from search.bayesian import reasons
from search.config import BoConfig
from search.curves import events
from search.curves.events import StepTime
from search.curves.faults import Known
from search.trace import MAX_POINTS, Trace
from search.types import Forecast

CONFIG = BoConfig()
FORECAST = Forecast(mean=0.3, std=0.05, status="ok")
STEPS = 400


def _noise(size=STEPS, std=0.02, seed=0):
    return np.random.default_rng(seed).normal(0, std, size)


def _falling(start=1.0, end=0.3):
    return end + (start - end) * np.exp(-np.arange(STEPS) / 80) + _noise()


def _read(losses=None, *, seconds=None, scales=None, waits=(), part=1.0, **known):
    losses = _falling() if losses is None else losses
    seconds = np.full(len(losses), 0.008) if seconds is None else seconds
    scales = np.geomspace(1.0, 0.1, len(losses)) * np.exp(_noise(len(losses), 0.3)) if scales is None else scales
    trace = Trace().extended(losses, seconds, scales, waits=waits)
    context = {"reference": None, "forecast": FORECAST} | known
    start = context.pop("start", 1.0)
    return events.read(trace, part=part, **context, known=Known(start=start, initial=2.0))


def _found(signs, *, is_timed=True):
    return events.found(signs, CONFIG, is_timed=is_timed)


def test_a_commit_on_its_course_shows_no_event_and_says_what_was_looked_at():
    signs = _read(reference=StepTime(seconds=0.0079))

    assert _found(signs) == ()
    words = reasons.signs_in_words(signs, is_timed=True)
    assert "step 8 ms against 7.9" in words and "gradient scale 0." in words and "forecast 0.3 ± 0.05" in words


@pytest.mark.parametrize("num_losses", [4, 5])
def test_a_commit_of_a_few_steps_that_blows_up_is_dead(num_losses):
    signs = _read(np.full(num_losses, 1e30))

    assert signs.is_dead and signs.loss == 1e30


@pytest.mark.parametrize(("factor", "is_event"), [(1.6, True), (0.6, True), (1.4, False), (0.75, False)])
@pytest.mark.parametrize("reference", [None, StepTime(seconds=0.008)])
def test_steps_that_take_longer_or_shorter_are_an_event(factor, is_event, reference):
    seconds = np.full(STEPS, 0.008)
    seconds[STEPS * 3 // 4 :] *= factor
    signs = _read(seconds=seconds, reference=reference)

    assert _found(signs) == (("step_time",) if is_event else ())


@pytest.mark.parametrize(("computing", "waiting", "is_event"), [(2.0, 1.0, False), (0.5, 1.0, False), (1.0, 4.0, True)])
def test_where_waits_are_known_steps_that_compute_longer_are_no_event(computing, waiting, is_event):
    late = np.where(np.arange(STEPS) < STEPS * 3 // 4, 0.0, 1.0)
    computed, waits = 0.006 * (1 + (computing - 1) * late), 0.002 * (1 + (waiting - 1) * late)
    signs = _read(seconds=computed + waits, waits=waits)

    assert _found(signs) == (("step_time",) if is_event else ())
    assert f"wait {2 * waiting:.3g} against 2" in reasons.signs_in_words(signs, is_timed=True)


def test_one_stall_is_no_slow_link():
    waits = np.full(STEPS, 0.002)
    waits[-7] = 0.5
    signs = _read(seconds=0.006 + waits, waits=waits)

    assert _found(signs) == ()


def test_a_trace_of_an_earlier_release_is_read_as_one_without_waits():
    old = {"points": [[1.0, 0.008, 0.1]] * 60, "rest": [[1.0, 0.008, 0.1]]}
    trace = Trace.model_validate(old)

    assert trace.num_steps == 61 and all(math.isnan(wait) for wait in trace.waits)
    assert Trace.model_validate_json(trace.model_dump_json()).step_seconds == trace.step_seconds
    signs = events.read(trace, part=1.0, reference=None, forecast=None, known=Known(start=1.0, initial=2.0))
    assert signs.step == StepTime(seconds=0.008)
    told = events.Signs().model_dump(exclude={"step", "reference"})
    read = events.Signs.model_validate(told | {"step_seconds": 0.012, "reference_seconds": 0.008})
    assert read.slower == pytest.approx(1.5) and events.Signs.model_validate(read.model_dump()) == read


def test_a_budget_without_seconds_never_sees_the_step_time():
    signs = _read(seconds=np.geomspace(0.001, 0.1, STEPS))

    assert _found(signs, is_timed=False) == ()
    assert "ms" not in reasons.signs_in_words(signs, is_timed=False)


@pytest.mark.parametrize("where", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("factor", [8.0, 1 / 8])
def test_a_gradient_scale_that_jumps_is_an_event_wherever_it_does(where, factor):
    scales = np.ones(STEPS) * np.exp(_noise(std=0.3))
    scales[int(where * STEPS) :] *= factor
    signs = _read(scales=scales)

    assert _found(signs) == ("gradient_scale",)
    assert signs.gradient_jump == pytest.approx(factor, rel=0.3)


@pytest.mark.parametrize("end", [1e-3, 1e3])
def test_a_gradient_scale_that_drifts_is_no_event_however_far(end):
    assert _found(_read(scales=np.geomspace(1.0, end, STEPS) * np.exp(_noise(std=0.3)))) == ()


@pytest.mark.parametrize("scales", [(), np.zeros(STEPS), np.full(STEPS, math.inf)])
def test_gradient_scales_that_say_nothing_are_no_event(scales):
    signs = _read(scales=scales)

    assert signs.gradient_jump is None and _found(signs) == ()


@pytest.mark.parametrize("scales", [[1e308] * 100, [math.inf, -math.inf] * 50])
def test_gradient_scales_without_a_mean_are_no_event_and_no_vanished_gradient(scales):
    signs = _read(_falling()[:100], scales=scales)

    assert not signs.is_dead and _found(signs) == ()


@pytest.mark.parametrize(
    ("level", "part", "is_event"), [(0.6, 1.0, True), (0.6, 0.5, True), (0.6, 0.3, False), (0.4, 1.0, False)]
)
def test_no_progress_for_a_fifth_of_the_commit_above_its_forecast_is_a_plateau(level, part, is_event):
    signs = _read(np.full(STEPS, level) + _noise(), part=part)

    assert _found(signs) == (("plateau",) if is_event else ())


def test_above_its_forecast_but_falling_is_no_plateau():
    assert _found(_read(np.linspace(1.0, 0.6, STEPS) + _noise())) == ()


@pytest.mark.parametrize(("start", "is_lost"), [(0.5, True), (1.5, False)])
def test_a_loss_that_rises_diverges_slowly_and_is_lost_above_where_the_commit_started(start, is_lost):
    signs = _read(np.linspace(0.5, 1.0, STEPS) + _noise(), start=start, forecast=None)

    assert _found(signs) == ("divergence",)
    assert signs.has_diverged is signs.is_lost is is_lost


def test_a_short_commit_shows_nothing():
    signs = _read(np.linspace(1.0, 9.0, 39))

    assert _found(signs) == ()
    assert "39 steps are too few" in reasons.signs_in_words(signs.model_copy(update={"forecast": None}), is_timed=True)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e300])
def test_losses_that_are_not_usable_show_no_event(loss):
    assert _found(_read(np.where(np.arange(STEPS) == 300, loss, 0.9))) == ()


def test_a_trace_does_not_depend_on_how_the_steps_were_split_and_stays_short():
    losses = _noise(5000)
    whole = Trace().extended(losses, losses, losses, waits=losses)
    pieces = Trace()
    for first in range(0, 5000, 37):
        piece = losses[first : first + 37]
        pieces = pieces.extended(piece, piece, piece, waits=piece)

    assert pieces == whole == Trace.model_validate_json(whole.model_dump_json())
    assert MAX_POINTS / 2 <= len(whole.points) < MAX_POINTS and whole.num_steps == 5000
    assert np.mean(whole.losses) == pytest.approx(np.mean(losses[: whole.steps_per_point * len(whole.points)]))
