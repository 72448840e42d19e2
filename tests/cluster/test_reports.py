"""A run's points are stored on a clock that never goes back."""

import math

from hypothesis import given, strategies as st

from service.cluster.measured import Pushed
from service.cluster.reports import committed
from trainers.segment import Segment, SegmentResult

#: A segment: the seconds of its steps, and how long it took as a whole.
SEGMENTS = st.lists(st.tuples(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.floats(0, 50)), max_size=9)


def _pushed(step_seconds: list[float], started_s: float, ended_s: float) -> Pushed:
    num_steps = len(step_seconds)
    result = SegmentResult(
        first_step=0, losses=(1.0,) * num_steps, step_seconds=tuple(step_seconds), bytes_sent=({},), bytes_dense=0
    )
    return Pushed(Segment(num_steps=num_steps, learning_rate=0.1), result, started_s, ended_s, bytes_sent=0)


@given(SEGMENTS)
def test_the_clock_of_every_series_never_goes_back(segments: list[tuple[list[float], float]]) -> None:
    seconds: dict[str, list[float]] = {}
    clock = 0.0
    for step_seconds, took_s in segments:
        for points in committed("trial", _pushed(step_seconds, clock, clock + took_s)):
            seconds.setdefault(points.name, []).extend(points.seconds)
        clock += took_s

    assert all(series == sorted(series) for series in seconds.values())


def test_steps_that_fit_into_their_segment_keep_their_seconds() -> None:
    losses, *_ = committed("trial", _pushed([0.25, 0.5], 10.0, 11.0))

    assert losses.seconds == (10.25, 10.75)


def test_own_numbers_have_a_point_for_every_step_and_memory_one_for_the_segment() -> None:
    pushed = _pushed([0.25, 0.5], 10.0, 11.0)
    result = pushed.result.model_copy(update={"own": {"aux": (2.0, math.nan)}, "memory_bytes": 4096})

    found = {points.name: points for points in committed("trial", pushed._replace(result=result))}

    assert (found["own_aux"].steps, found["own_aux"].values) == ((0, 1), (2.0, None))
    assert found["own_aux"].seconds == found["loss"].seconds
    assert (found["memory_bytes"].steps, found["memory_bytes"].values) == ((1,), (4096.0,))


def test_a_segment_without_own_numbers_or_measured_memory_has_no_such_series() -> None:
    found = {points.name for points in committed("trial", _pushed([0.25], 0.0, 1.0))}

    assert found == {"loss", "learning_rate", "bytes_sent"}
