"""The list of a job's series says what reading every point of each of them says."""

import pytest

from service.control.metrics import points as stored
from service.errors import NotFound
from service.wire.records import MetricPoints
from tests.support.reported import points


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks so small that a few hundred points make a pyramid."""
    monkeypatch.setattr(stored, "CHUNK", 32)


def _found(store, job_id):
    extents = store.series_extents(job_id)
    return {each.name: (each.num_points, each.last_step, each.last_value) for each in extents if each.num_points}


@pytest.mark.parametrize("num_points", [1, 31, 32, 33, 320, 333])
def test_the_extent_of_a_series_is_that_of_all_its_points(store, driver, small_chunks, num_points):
    values = [float(step) for step in range(num_points)]
    driver.send(points(driver.trial_id, range(num_points), values), stream=driver.trial_id)

    (series,) = store.series(driver.job_id, "loss", max_points=10**6)
    assert _found(store, driver.job_id) == {"loss": (len(series.steps), series.steps[-1], series.values[-1])}


def test_steps_that_come_again_count_once(store, driver, small_chunks):
    driver.send(points(driver.trial_id, range(100)), stream=driver.trial_id)

    driver.send(points(driver.trial_id, range(40, 60), [7.0] * 20), stream=driver.trial_id)

    assert _found(store, driver.job_id)["loss"] == (100, 99, 1.0 / 100)


def test_a_last_value_that_is_not_finite_is_missing(store, driver):
    driver.send(points(driver.trial_id, range(2), [1.0, None]), stream=driver.trial_id)

    assert _found(store, driver.job_id) == {"loss": (2, 1, None)}


def test_every_series_that_is_listed_can_be_read_and_the_refusal_of_another_names_them(store, driver):
    own = MetricPoints(trial_id=driver.trial_id, name="own_aux", steps=(0,), seconds=(0.1,), values=(2.0,))
    driver.send(own, stream=driver.trial_id)

    names = [each.name for each in store.series_extents(driver.job_id)]

    assert "own_aux" in names and names == sorted(names)
    assert [store.series(driver.job_id, name)[0].num_points for name in names] == [
        each.num_points for each in store.series_extents(driver.job_id)
    ]
    with pytest.raises(NotFound, match=f"there are {', '.join(names)}$"):
        store.series(driver.job_id, "own_other")


def test_a_job_whose_workload_returns_no_numbers_lists_none(store, driver):
    driver.send(points(driver.trial_id, range(3)), stream=driver.trial_id)

    assert not [each for each in store.series_extents(driver.job_id) if each.name.startswith("own_")]
