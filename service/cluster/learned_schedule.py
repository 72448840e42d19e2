"""The learned schedule of a run: entries with the values by which its committed steps were trained."""

from collections.abc import Sequence

from service.wire.records import ScheduleEntry
from trainers.segment import Segment, SegmentResult


def append(
    schedule: list[ScheduleEntry],
    segment: Segment,
    result: SegmentResult,
    reason: str,
    steered_by: Sequence[str] = (),
    *,
    optimizer: str | None = None,
) -> None:
    """Append the committed `segment` to the schedule. Extend the last entry if nothing changed.

    `optimizer` is the chosen one, if the job names several.
    """
    last = schedule[-1] if schedule else None
    entry = ScheduleEntry(
        step=result.first_step,
        num_steps=len(result.losses),
        learning_rate=segment.learning_rate,
        final_learning_rate=segment.final_learning_rate,
        piece_steps=segment.piece_steps,
        level=segment.level,
        values=segment.options | ({} if optimizer is None else {"optimizer": optimizer}),
        density=result.density,
        threshold=result.threshold,
        reason=reason,
        steered_by=tuple(steered_by),
    )
    if last is not None and _continues(last, entry, piece_from=segment.piece_from):
        schedule[-1] = _joined(last, entry)
        return
    if segment.piece_from:  # its beginning was rolled back
        ends = (segment.learning_rate_at(index) for index in (0, entry.num_steps - 1))
        rates = dict(zip(("learning_rate", "final_learning_rate"), ends, strict=True))
        entry = entry.model_copy(update={**rates, "piece_steps": None})
    schedule.append(entry)


def up_to(schedule: Sequence[ScheduleEntry], step: int) -> tuple[ScheduleEntry, ...]:
    """Return the part of `schedule` before `step`."""
    return tuple(_begun(entry, step - entry.step) for entry in schedule if entry.step < step)


def _continues(last: ScheduleEntry, entry: ScheduleEntry, *, piece_from: int) -> bool:
    """Return whether `entry`, which begins `piece_from` steps into its piece, continues `last`."""
    fields = ("learning_rate", "final_learning_rate", "piece_steps", "level", "values", "reason", "steered_by")
    is_of_piece = entry.final_learning_rate is None or (entry.piece_steps and piece_from == last.num_steps)
    return bool(is_of_piece) and all(getattr(last, field) == getattr(entry, field) for field in fields)


def _joined(last: ScheduleEntry, entry: ScheduleEntry) -> ScheduleEntry:
    num_steps = last.num_steps + entry.num_steps
    known = [each for each in (last, entry) if each.density is not None and each.num_steps]
    weight = sum(each.num_steps for each in known)  # a part without an average sends nothing
    density = sum((each.density or 0.0) * each.num_steps for each in known) / weight if known else None
    piece_steps = None if num_steps == last.piece_steps else last.piece_steps
    told = {"num_steps": num_steps, "piece_steps": piece_steps, "density": density, "threshold": entry.threshold}
    return last.model_copy(update=told)


def _begun(entry: ScheduleEntry, num_steps: int) -> ScheduleEntry:
    """Return the first `num_steps` of `entry`, or all of it."""
    if num_steps >= entry.num_steps:
        return entry
    ramps = entry.final_learning_rate is not None
    piece_steps = (entry.piece_steps or entry.num_steps) if ramps else None
    return entry.model_copy(update={"num_steps": num_steps, "piece_steps": piece_steps})
