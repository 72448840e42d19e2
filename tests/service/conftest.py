"""A store with a clock that tests turn."""

import pytest

from service.control.store import Store
from service.settings import Settings
from tests.support.fake_ray import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def settings(tmp_path):
    return Settings(state_dir=tmp_path)


@pytest.fixture
def store(settings, clock, put_sqlite):
    put_sqlite(settings)
    store = Store.open(settings, clock=clock)
    yield store
    store.close()
