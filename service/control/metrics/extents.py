"""The extent of every series of some trials: its number of points and its last point, without reading the others."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.control.metrics import points
from service.control.metrics.points import Key
from service.control.models import ChunkRow, PointRow


class Extent(NamedTuple):
    """The number of a series' points, and the last of them. A value is None if it was not finite."""

    num_points: int
    last_step: int | None  # None: there are no points
    last_value: float | None


NO_POINTS = Extent(0, None, None)


def extents(session: Session, trial_ids: Sequence[str]) -> dict[Key, Extent]:
    """Return the extent of each series of the trials that has points.

    Two statements read all of them. A series whose points are all in chunks takes one more, for its last chunk.
    """
    packed, loose = _packed(session, trial_ids), _loose(session, trial_ids)
    found = dict(loose)
    for key, (num_points, last_step) in packed.items():
        if key in loose:  # rows are newer than all chunks
            found[key] = loose[key]._replace(num_points=num_points + loose[key].num_points)
        else:
            found[key] = Extent(num_points, last_step, points.newest(session, key))
    return found


def _packed(session: Session, trial_ids: Sequence[str]) -> dict[Key, tuple[int, int]]:
    """Return for each series with chunks the number of points in them, and the last step."""
    every = select(ChunkRow.trial_id, ChunkRow.name, func.sum(ChunkRow.num_points), func.max(ChunkRow.last_step))
    of_trials = every.where(ChunkRow.trial_id.in_(trial_ids), ChunkRow.level == 0)
    rows = session.execute(of_trials.group_by(ChunkRow.trial_id, ChunkRow.name))
    return {Key(trial_id, name): (int(num), last) for trial_id, name, num, last in rows}


def _loose(session: Session, trial_ids: Sequence[str]) -> dict[Key, Extent]:
    """Return the extent of the rows of each series that has some."""
    counted = select(PointRow.trial_id, PointRow.name, func.count().label("num"), func.max(PointRow.step).label("last"))
    ends = counted.where(PointRow.trial_id.in_(trial_ids)).group_by(PointRow.trial_id, PointRow.name).subquery()
    is_end = (PointRow.trial_id == ends.c.trial_id) & (PointRow.name == ends.c.name) & (PointRow.step == ends.c.last)
    rows = session.execute(
        select(PointRow.trial_id, PointRow.name, ends.c.num, PointRow.step, PointRow.value).join(ends, is_end)
    )
    return {Key(trial_id, name): Extent(num, last, value) for trial_id, name, num, last, value in rows}
