"""A part of a long series is read without the rest."""

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from service.control.metrics import points
from service.control.metrics.columns import Point
from service.control.metrics.points import Key, Steps
from service.control.models import ChunkRow

KEY = Key("trial", "loss")
NUM_POINTS = 4096


@pytest.fixture
def session(monkeypatch):
    """A session on a series of 256 chunks and more, in a pyramid of four levels and more."""
    monkeypatch.setattr(points, "CHUNK", 16)
    engine = create_engine("sqlite://")
    for table in (points.ChunkRow, points.PointRow):
        table.__table__.create(engine)
    with Session(engine) as session:
        for start in range(0, NUM_POINTS, 512):
            points.add(session, KEY, [Point(step, 0.0, float(step % 97)) for step in range(start, start + 512)])
        session.flush()
        session.expunge_all()
        yield session
    engine.dispose()


@pytest.fixture
def loaded():
    """The chunks that were read with their data."""
    chunks = []

    def note(chunk, _):
        chunks.append(chunk)

    event.listen(ChunkRow, "load", note)
    yield chunks
    event.remove(ChunkRow, "load", note)


@pytest.mark.parametrize("first", [0, 7, 1030, 2048, 3000, NUM_POINTS - 50])
def test_a_zoom_reads_few_chunks_of_a_long_series_and_all_its_points(session, loaded, first):
    within = Steps(first, first + 49)

    samples, total = points.read(session, KEY, max_points=100, within=within)

    assert [each.step for each in samples] == list(range(first, first + 50)) and total == 50
    assert len(loaded) <= 40  # of 340: the top of the pyramid, and what the zoom reaches
