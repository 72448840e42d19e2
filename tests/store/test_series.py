"""The store's reported series."""

import pytest

from service.control.metrics.points import Steps
from service.errors import InvalidRequest, NotFound
from service.wire.records import (
    MetricPoints,
)
from tests.support.reported import points


def test_a_thinned_series_keeps_both_ends_and_the_extremes(store, driver):
    values = [1.0] * 1000
    values[333], values[777] = 99.0, -99.0
    driver.send(points(driver.trial_id, range(1000), values), stream=driver.trial_id)

    (series,) = store.series(driver.job_id, "loss", max_points=50)

    assert len(series.steps) <= 50
    assert (series.steps[0], series.steps[-1], series.num_points) == (0, 999, 1000)
    assert {99.0, -99.0} <= set(series.values)


def test_a_diverged_value_survives_as_missing(store, driver):
    driver.send(points(driver.trial_id, range(2), [1.0, None]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].values == (1.0, None)


def test_an_empty_series_is_empty_and_an_unknown_one_or_trial_is_not_found(store, driver):
    assert store.series(driver.job_id, "density")[0].values == ()
    with pytest.raises(NotFound, match="no metric `nothing`"):
        store.series(driver.job_id, "nothing")
    with pytest.raises(NotFound, match="no trial"):
        store.series(driver.job_id, "loss", trial_id="elsewhere")


def test_the_best_loss_is_the_lowest_reported_not_the_last(store, driver):
    losses = MetricPoints(
        trial_id=driver.trial_id,
        name="validation_loss",
        steps=(0, 10, 20),
        seconds=(0.0, 1.0, 2.0),
        values=(0.3, 0.1, 0.2),
    )
    driver.send(losses, stream=driver.trial_id)

    (summary,), (trial,) = store.jobs().jobs, store.trials(driver.job_id)
    assert (summary.best_validation_loss, trial.validation_loss) == (0.1, 0.2)


def test_of_a_step_that_comes_twice_in_a_batch_the_last_value_stays(store, driver):
    driver.send(points(driver.trial_id, [0, 1, 1], [3.0, 2.0, 1.0]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].values == (3.0, 1.0)


@pytest.mark.parametrize(("first", "last"), [(0, 9), (1000, 1100), (1023, 5120), (4090, 20_000), (20_500, 30_000)])
def test_a_range_of_a_long_series_is_that_of_all_its_points(store, driver, first, last):
    values = [float(step % 97) for step in range(21_000)]
    for start in range(0, 21_000, 3000):
        batch = points(driver.trial_id, range(start, start + 3000), values[start : start + 3000])
        driver.send(batch, stream=driver.trial_id)

    (whole,) = store.series(driver.job_id, "loss", max_points=30_000, within=Steps(first, last))
    (few,) = store.series(driver.job_id, "loss", max_points=60, within=Steps(first, last))

    expected = range(first, min(last + 1, 21_000))
    assert (whole.steps, whole.num_points) == (tuple(expected), len(expected))
    assert whole.values == tuple(values[first : last + 1])
    assert set(few.steps) <= set(expected) and few.num_points == len(expected)
    assert min(10, len(expected)) <= len(few.steps) <= 60 and max(few.values) == max(whole.values)


def test_a_range_that_ends_before_it_begins_is_refused(store, driver):
    with pytest.raises(InvalidRequest, match="`last_step` is at least `first_step`, which is 9, got 8"):
        store.series(driver.job_id, "loss", within=Steps(9, 8))
