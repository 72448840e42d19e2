"""Metric points: rows until there are enough for a chunk, and above these a pyramid of thinned chunks.

A chunk of level 0 holds `CHUNK` points. A chunk of level k holds as many, which represent `FANOUT` chunks of the level
below by their ends and extremes. A long series is read from the one level that has enough points, plus what is newer
than its last chunk. Functions of one open session: a chunk is made in the transaction that stores its points.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from service.control.metrics.columns import Point, decode, encode, means
from service.control.models import ChunkRow, PointRow, TrialRow
from service.wire.records import INSURANCE_PREFIX, MAX_WHOLE


def thin(values: Sequence[float | None], max_points: int) -> list[int]:
    """Return at most `max_points` ascending indices into `values`: both ends, and each bucket's extremes.

    A missing value counts as the highest: it marks a divergence. `max_points` is at least 2.
    """
    if len(values) <= max_points:
        return list(range(len(values)))
    last = len(values) - 1
    num_buckets = (max_points - 2) // 2
    kept = {0, last}
    for bucket in range(num_buckets):
        low, high = 1 + bucket * (last - 1) // num_buckets, 1 + (bucket + 1) * (last - 1) // num_buckets
        inside = enumerate(values[low:high], start=low)
        heights = {index: math.inf if value is None else value for index, value in inside}
        kept |= {min(heights, key=heights.__getitem__), max(heights, key=heights.__getitem__)}
    return sorted(kept)


CHUNK = 1024
FANOUT = 4
#: Chunks in memory at a time while a whole series is read.
_AT_ONCE = 4

_INSERTS: dict[str, Callable[[type[PointRow]], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


_FIRST = ChunkRow.first_step


class Key(NamedTuple):
    """Names a series."""

    trial_id: str
    name: str


class Steps(NamedTuple):
    """The steps from `first` to `last`, both included."""

    first: int
    last: int

    def holds(self, step: int) -> bool:
        """Return whether the step is one of them."""
        return self.first <= step <= self.last


EVERY_STEP = Steps(0, MAX_WHOLE)


# -- writing --------------------------------------------------------------------------------------------------


def add(session: Session, key: Key, points: Sequence[Point]) -> None:
    """Store `points`. If a step is stored already, the newest value replaces it."""
    first = min(each.step for each in points)
    if first <= _end(session, key, 0):
        _unpack(session, _is(ChunkRow, key), first)
    num_rows = session.scalar(select(func.count()).select_from(PointRow).where(_is(PointRow, key))) or 0
    if num_rows + len(points) < CHUNK:
        _insert(session, key, points)
    else:
        pack(session, key, points)


def pack(session: Session, key: Key, points: Sequence[Point] = ()) -> None:
    """Pack rows and `points` into chunks while there are enough. The rest stays as rows."""
    newest = {each.step: each for each in (*_rows(session, _is(PointRow, key)), *points)}
    loose = [newest[step] for step in sorted(newest)]
    num_packed = len(loose) - len(loose) % CHUNK
    if num_packed:
        session.execute(delete(PointRow).where(_is(PointRow, key)))
    for start in range(0, num_packed, CHUNK):
        _put(session, key, level=0, points=loose[start : start + CHUNK], num_points=CHUNK)
        _lift(session, key)
    if num_packed < len(loose):
        _insert(session, key, loose[num_packed:])


def _lift(session: Session, key: Key) -> None:
    """Thin each `FANOUT` chunks into one of the level above, from the lowest level up."""
    for level in range(_top(session, key) + 1):
        loose = _chunks(session, key, level, beyond=_end(session, key, level + 1))
        if len(loose) < FANOUT:
            return
        points = [point for chunk in loose[:FANOUT] for point in decode(chunk.data)]
        num_points = sum(chunk.num_points for chunk in loose[:FANOUT])
        _put(session, key, level=level + 1, points=thinned(points, CHUNK), num_points=num_points)


def _put(session: Session, key: Key, *, level: int, points: Sequence[Point], num_points: int) -> None:
    chunk = ChunkRow(
        trial_id=key.trial_id,
        name=key.name,
        level=level,
        first_step=points[0].step,
        last_step=points[-1].step,
        num_points=num_points,
        least=min((each.value for each in points if each.value is not None), default=None),
        data=encode(points),
    )
    session.add(chunk)
    session.flush()


def _insert(session: Session, key: Key, points: Sequence[Point]) -> None:
    insert = _INSERTS[session.get_bind().dialect.name](PointRow)
    newest = {"seconds": insert.excluded.seconds, "value": insert.excluded.value}
    upsert = insert.on_conflict_do_update(index_elements=["trial_id", "name", "step"], set_=newest)
    trial_id, name = key
    rows = [
        {"trial_id": trial_id, "name": name, "step": step, "seconds": seconds, "value": value}
        for step, seconds, value in points
    ]
    session.connection().execute(upsert, rows)


def _unpack(session: Session, where: ColumnElement[bool], step: int) -> None:
    """Unpack the chunks that reach `step` or further into rows."""
    reach = where & (ChunkRow.last_step >= step)
    for chunk in session.scalars(select(ChunkRow).where(reach, ChunkRow.level == 0)):
        _insert(session, Key(chunk.trial_id, chunk.name), decode(chunk.data))
    session.execute(delete(ChunkRow).where(reach))


def unpack_all(session: Session) -> None:
    """Unpack every chunk into rows."""
    _unpack(session, true(), 0)


def forget(session: Session, trial_id: str, step: int) -> None:
    """Delete the points beyond `step` committed steps (-1: all).

    The second line's series stay: it counts its own steps, resumes where it was, and reports equal points again.
    """
    chunks, rows = (_gone(table, trial_id, is_all=step < 0) for table in (ChunkRow, PointRow))
    session.execute(delete(ChunkRow).where(chunks, ChunkRow.first_step > step))
    _unpack(session, chunks, step)
    is_evaluation = PointRow.name.startswith("validation_", autoescape=True)  # measured after its step, not during it
    session.execute(delete(PointRow).where(rows, or_(PointRow.step > step, (PointRow.step == step) & ~is_evaluation)))


def _gone(table: type[ChunkRow] | type[PointRow], trial_id: str, *, is_all: bool) -> ColumnElement[bool]:
    of_trial = table.trial_id == trial_id
    return of_trial if is_all else of_trial & ~table.name.startswith(INSURANCE_PREFIX, autoescape=True)


# -- reading --------------------------------------------------------------------------------------------------


def read(session: Session, key: Key, *, max_points: int, within: Steps = EVERY_STEP) -> tuple[list[Point], int]:
    """Return the series thinned to `max_points`, with ends and extremes kept, and its number of points.

    Both are limited to the steps `within`. The ends of a part of a long series are those of its thinned chunks.
    """
    top = _top(session, key)
    cover = _cover(session, key, top)
    later = PointRow.step.between(max(_last_step(cover) + 1, within.first), within.last)
    rows = list(_rows(session, _is(PointRow, key) & later))
    total = _num_packed(session, key, cover, within) + len(rows)
    level = max((each for each in range(top + 1) if total >= max_points * FANOUT**each), default=0)
    drawn = _reached(cover, within) if level == top else _cover(session, key, level, within)
    parts = [*((_inside(chunk, within), level - chunk.level) for chunk in drawn), (rows, level)]
    # A part of few points keeps its extremes, too: `thin` has room for them from four points on.
    alike = [point for part, lower in parts for point in thinned(part, max(4, len(part) // FANOUT**lower))]
    return thinned(alike, max_points), total


def read_each(
    session: Session, trial_ids: Sequence[str], name: str, *, max_points: int
) -> dict[str, tuple[list[Point], int]]:
    """Return for each trial what `read` returns of its series `name`. One statement reads all that have no chunk."""
    named = select(ChunkRow.trial_id).where(ChunkRow.trial_id.in_(trial_ids), ChunkRow.name == name)
    packed = set(session.scalars(named.distinct()))
    loose: dict[str, list[Point]] = {trial_id: [] for trial_id in trial_ids if trial_id not in packed}
    columns = select(PointRow.trial_id, PointRow.step, PointRow.seconds, PointRow.value)
    rows = columns.where(PointRow.trial_id.in_(list(loose)), PointRow.name == name).order_by(PointRow.step)
    for trial_id, step, seconds, value in session.execute(rows) if loose else ():
        loose[trial_id].append(Point(step, seconds, value))
    found = {trial_id: (thinned(points, max_points), len(points)) for trial_id, points in loose.items()}
    return found | {each: read(session, Key(each, name), max_points=max_points) for each in packed}


def _reaches(within: Steps) -> ColumnElement[bool]:
    return (ChunkRow.last_step >= within.first) & (ChunkRow.first_step <= within.last)


def _reached(chunks: Sequence[ChunkRow], within: Steps) -> list[ChunkRow]:
    return [chunk for chunk in chunks if chunk.last_step >= within.first and chunk.first_step <= within.last]


def _inside(chunk: ChunkRow, within: Steps) -> list[Point]:
    found = decode(chunk.data)
    if within.holds(chunk.first_step) and within.holds(chunk.last_step):
        return found
    return [point for point in found if within.holds(point.step)]


def _num_packed(session: Session, key: Key, cover: Sequence[ChunkRow], within: Steps) -> int:
    """Return the number of packed points within; `cover` represents all. Only the two ends are counted one by one."""
    reached = _reached(cover, within)
    whole = [within.holds(chunk.first_step) and within.holds(chunk.last_step) for chunk in reached]
    total = sum(chunk.num_points for chunk, is_whole in zip(reached, whole, strict=True) if is_whole)
    for chunk in (chunk for chunk, is_whole in zip(reached, whole, strict=True) if not is_whole):
        parts = _is(ChunkRow, key) & (ChunkRow.level == 0) & _FIRST.between(chunk.first_step, chunk.last_step)
        is_whole = (ChunkRow.first_step >= within.first) & (ChunkRow.last_step <= within.last)
        total += int(session.scalar(select(func.sum(ChunkRow.num_points)).where(parts, is_whole)) or 0)
        ends = session.scalars(select(ChunkRow).where(parts, _reaches(within), ~is_whole))
        total += sum(len(_inside(part, within)) for part in ends)
    return total


def parts(session: Session, trial_ids: Sequence[str], name: str, *, max_points: int) -> dict[str, list[float | None]]:
    """Return the means of each trial's series over at most `max_points` equal spans of steps; None if not finite.

    Two queries read all series: one the chunks, as high in the pyramid as they go, and one the rows.
    """
    found: dict[str, dict[int, float | None]] = defaultdict(dict)
    given = {"trial_ids": list(trial_ids), "name": name, "num_parts": max_points}
    for trial_id, data, num_steps in session.execute(_PACKED, given) if trial_ids else ():
        found[trial_id] |= means(data, num_steps=num_steps + 1, num_parts=max_points)
    for trial_id, part, mean in session.execute(_LOOSE, given) if trial_ids else ():
        found[trial_id][part] = mean
    return {trial_id: [values[part] for part in sorted(values)] for trial_id, values in found.items()}


def _of_trials(table: type[ChunkRow] | type[PointRow]) -> ColumnElement[bool]:
    of_these = table.trial_id.in_(bindparam("trial_ids", expanding=True))
    return of_these & (table.name == bindparam("name")) & (TrialRow.id == table.trial_id)


_upper = aliased(ChunkRow)
_is_covered = exists().where(
    _upper.trial_id == ChunkRow.trial_id,
    _upper.name == ChunkRow.name,
    _upper.level == ChunkRow.level + 1,
    _upper.last_step >= ChunkRow.last_step,
)
_part = PointRow.step * bindparam("num_parts", type_=BigInteger) // (TrialRow.step + 1)
# Built once, since building these queries takes longer than running them.
_PACKED = select(ChunkRow.trial_id, ChunkRow.data, TrialRow.step).where(_of_trials(ChunkRow), ~_is_covered)
_LOOSE = (
    select(PointRow.trial_id, _part, func.avg(PointRow.value))
    .where(_of_trials(PointRow))
    .group_by(PointRow.trial_id, literal_column("2"))
)


def beyond(session: Session, key: Key, step: int) -> list[Point]:
    """Return the next points of the series after `step`, some thousand, by step; empty at the end.

    Points may be packed between two calls, so positions go by step.
    """
    later = select(ChunkRow).where(_is(ChunkRow, key), ChunkRow.level == 0, ChunkRow.last_step > step)
    chunks = session.scalars(later.order_by(_FIRST).limit(_AT_ONCE)).all()
    if chunks:
        return [point for chunk in chunks for point in decode(chunk.data) if point.step > step]
    rows = _point_columns(_is(PointRow, key) & (PointRow.step > step)).limit(_AT_ONCE * CHUNK)
    return [Point(*row) for row in session.execute(rows)]


def every(session: Session, key: Key, *, after: int = -1) -> Iterator[Point]:
    """Yield every point of the series after the step `after`, by step."""
    while found := beyond(session, key, after):
        yield from found
        after = found[-1].step


def names(session: Session, trial_ids: Sequence[str]) -> set[str]:
    """Return the names of the trials' series."""
    tables = (ChunkRow, PointRow)
    return {name for each in tables for name in session.scalars(_names(each, trial_ids).distinct())}


def is_known(session: Session, trial_ids: Sequence[str], name: str) -> bool:
    """Return whether one of the trials has points of this name."""
    found = (session.scalar(_names(each, trial_ids).where(each.name == name).limit(1)) for each in (PointRow, ChunkRow))
    return any(each is not None for each in found)


def newest(session: Session, key: Key) -> float | None:
    """Return the series' last value."""
    rows = select(PointRow.value).where(_is(PointRow, key)).order_by(PointRow.step.desc()).limit(1)
    for value in session.scalars(rows):
        return value
    last = select(ChunkRow).where(_is(ChunkRow, key), ChunkRow.level == 0).order_by(_FIRST.desc()).limit(1)
    chunk = session.scalars(last).first()
    return None if chunk is None else decode(chunk.data)[-1].value


def _is(table: type[ChunkRow] | type[PointRow], key: Key) -> ColumnElement[bool]:
    return (table.trial_id == key.trial_id) & (table.name == key.name)


def _names(table: type[ChunkRow] | type[PointRow], trial_ids: Sequence[str]) -> Select[str]:
    return select(table.name).where(table.trial_id.in_(trial_ids))


def _rows(session: Session, where: ColumnElement[bool]) -> Iterator[Point]:
    return (Point(*row) for row in session.execute(_point_columns(where)))


def _point_columns(where: ColumnElement[bool]) -> Select[int, float, float | None]:
    return select(PointRow.step, PointRow.seconds, PointRow.value).where(where).order_by(PointRow.step)


def _top(session: Session, key: Key) -> int:
    return session.scalar(select(func.max(ChunkRow.level)).where(_is(ChunkRow, key))) or 0


def _end(session: Session, key: Key, level: int) -> int:
    """Return the last step represented by a chunk of `level`; -1 if there is none."""
    steps = select(ChunkRow.last_step).where(_is(ChunkRow, key), ChunkRow.level == level)
    last = session.scalar(steps.order_by(_FIRST.desc()).limit(1))
    return -1 if last is None else last


def _chunks(session: Session, key: Key, level: int, *, beyond: int, within: Steps = EVERY_STEP) -> list[ChunkRow]:
    of_level = select(ChunkRow).where(_is(ChunkRow, key), ChunkRow.level == level, ChunkRow.first_step > beyond)
    return list(session.scalars(of_level.where(_reaches(within)).order_by(_FIRST)))


def _cover(session: Session, key: Key, level: int, within: Steps = EVERY_STEP) -> list[ChunkRow]:
    """Return the chunks that represent all packed points within: those of `level`, and newer ones of lower levels."""
    cover: list[ChunkRow] = []
    for each in range(level, -1, -1):
        cover += _chunks(session, key, each, beyond=_last_step(cover), within=within)
    return cover


def _last_step(cover: Sequence[ChunkRow]) -> int:
    return cover[-1].last_step if cover else -1


def thinned(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` of `points`, as `thin` chooses them."""
    return [points[index] for index in thin([each.value for each in points], max(2, max_points))]
