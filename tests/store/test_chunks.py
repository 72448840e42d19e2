"""Long series that are packed, thinned, rolled back and written again equal what was reported."""

import math

import pytest
from sqlalchemy import func, select

from service.control.metrics import points as stored
from service.control.metrics.columns import Point, decode, encode
from service.control.models import ChunkRow, PointRow
from service.wire.records import MetricPoints
from tests.store.conftest import only
from tests.support.reported import BILL, points

MANY = 5 * stored.CHUNK + 300


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks so small that a few hundred points make a pyramid."""
    monkeypatch.setattr(stored, "CHUNK", 32)


def _value(step):
    return None if step == 77 else math.sin(step) + (1e6 if step == 150 else 0.0)


def _report(driver, steps, **changes):
    record = points(driver.trial_id, steps, [_value(step) for step in steps])
    driver.send(record.model_copy(update=changes), stream=driver.trial_id)


def _counts(store):
    with store._db.reading() as session:
        rows = session.scalar(select(func.count()).select_from(PointRow))
        levels = session.execute(select(ChunkRow.level, func.sum(ChunkRow.num_points)).group_by(ChunkRow.level))
        return rows, {level: int(total) for level, total in levels}


def _whole(store, driver, name="loss"):
    (series,) = store.series(driver.job_id, name, max_points=10**6)
    return list(zip(series.steps, series.values, strict=True))


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_columns_give_back_every_bit(size):
    samples = [Point(step=7 * n + n % 3, seconds=1e-3 * n**1.5, value=_value(n)) for n in range(size)]

    assert decode(encode(samples)) == samples


def test_columns_of_another_format_are_refused():
    with pytest.raises(ValueError, match="format 9, this release reads 1"):
        decode(b"\x09")


def test_a_long_series_is_stored_in_chunks_and_nothing_is_lost(store, driver, small_chunks):
    for first in range(0, 700, 50):
        _report(driver, range(first, first + 50))

    rows, levels = _counts(store)
    assert rows < stored.CHUNK and levels[0] + rows == 700
    assert levels[1] == 5 * 4 * 32 and levels[2] == 16 * 32
    assert _whole(store, driver) == [(step, _value(step)) for step in range(700)]
    assert [point.step for point in store.points(driver.trial_id)] == list(range(700))


def test_a_peak_among_the_newest_points_of_a_long_series_stays(store, driver, small_chunks):
    record = points(driver.trial_id, range(700), [9.0 if step == 690 else 1.0 for step in range(700)])
    driver.send(record, stream=driver.trial_id)

    (series,) = store.series(driver.job_id, "loss", max_points=40)

    assert _counts(store)[0] == 28 and len(series.values) <= 40
    assert max(series.values) == 9.0


def test_points_that_become_a_chunk_while_somebody_reads_are_read_once(store, driver, small_chunks):
    _report(driver, range(100))
    read = []

    for point in store.points(driver.trial_id):
        read.append(point.step)
        if len(read) % 20 == 0 and len(read) <= 320:
            _report(driver, range(5 * len(read), 5 * len(read) + 100))

    rows, levels = _counts(store)
    assert rows < stored.CHUNK < levels[0]
    assert read == list(range(1700))


def test_whoever_takes_points_slowly_holds_no_connection(store, driver, small_chunks):
    _report(driver, range(700))
    points = store.points(driver.trial_id)

    first = next(points)

    assert first.step == 0
    assert store._db.engine.pool.checkedout() == 0


@pytest.mark.parametrize("max_points", [2, 20, 300])
def test_a_series_drawn_from_the_pyramid_keeps_its_ends_and_extremes(store, driver, small_chunks, max_points):
    _report(driver, range(900))

    (series,) = store.series(driver.job_id, "loss", max_points=max_points)

    assert len(series.steps) <= max_points and series.num_points == 900
    assert (series.steps[0], series.steps[-1]) == (0, 899)
    assert list(series.steps) == sorted(set(series.steps))
    assert all(value == _value(step) for step, value in zip(series.steps, series.values, strict=True))
    if max_points >= 20:
        assert None in series.values  # which marks a divergence, and counts as the highest
        assert {1e6 + math.sin(150), min(_value(step) for step in range(900) if step != 77)} & set(series.values)


def test_what_an_attempt_without_a_checkpoint_reported_is_taken_back(store, driver, begin, small_chunks):
    _report(driver, range(300))

    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    assert _counts(store) == (0, {})


@pytest.mark.parametrize("step", [32, 400])
def test_what_a_lost_attempt_reported_beyond_its_checkpoint_is_taken_back(store, driver, begin, small_chunks, step):
    driver.decide(0, first_step=0)
    _report(driver, range(700))
    _report(driver, range(0, 700, 2), name="validation_loss")
    driver.close(0, num_steps=step, step=step, bill=BILL, resume={"at": step})

    store.attempts.lose(driver.job_id, 1, reason="lost")
    again = begin(driver.job_id)

    assert _whole(store, driver) == [(each, _value(each)) for each in range(step)]
    evaluated = [(each, _value(each)) for each in range(0, step + 1, 2)]
    assert _whole(store, driver, "validation_loss") == evaluated
    assert store.trials(driver.job_id)[0].validation_loss == evaluated[-1][1]
    _report(again, range(step, 800))
    assert _whole(store, driver) == [(each, _value(each)) for each in range(800)]


def test_a_step_that_is_reported_again_has_its_newest_value_wherever_it_lies(store, driver, small_chunks):
    _report(driver, range(500))
    again = MetricPoints(trial_id=driver.trial_id, name="loss", steps=(40, 250), seconds=(1.0, 2.0), values=(5.0, 6.0))
    driver.send(again, stream=driver.trial_id)

    expected = {step: _value(step) for step in range(500)} | {40: 5.0, 250: 6.0}
    assert dict(_whole(store, driver)) == expected
    rows, levels = _counts(store)
    assert levels[0] + rows == 500


def test_the_best_loss_is_found_among_chunks_too(store, driver, small_chunks):
    _report(driver, range(100), name="validation_loss")
    lowest = MetricPoints(trial_id=driver.trial_id, name="validation_loss", steps=(100,), seconds=(1.0,), values=(0.5,))
    driver.send(lowest, stream=driver.trial_id)

    assert store.jobs().jobs[0].best_validation_loss == min(_value(step) for step in range(100) if step != 77)


@only("sqlite")
def test_rows_can_be_made_of_all_chunks_again(store, driver, small_chunks):
    _report(driver, range(300))

    store._db.write(stored.unpack_all)

    assert _counts(store) == (300, {})
    assert _whole(store, driver) == [(step, _value(step)) for step in range(300)]


@only("sqlite")
def test_two_thousand_points_of_a_long_series_are_read_from_a_few_chunks(store, driver, monkeypatch):
    for first in range(0, MANY * 2, 5000):
        _report(driver, range(first, min(first + 5000, MANY * 2)))
    decoded = []
    monkeypatch.setattr(stored, "decode", lambda data: decoded.append(data) or decode(data))

    (series,) = store.series(driver.job_id, "loss", max_points=500)

    assert series.num_points == MANY * 2 and 200 < len(series.steps) <= 500
    assert len(decoded) <= stored.FANOUT * 3
