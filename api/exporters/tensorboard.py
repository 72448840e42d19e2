"""A job's trials as TensorBoard event files: a folder each."""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from api.exporters.trackers import Begin, Points, Subject, flat, told_as


def into(folder: Path) -> Begin:
    """Return a function that begins a run, in a folder named after its job and itself, in `folder`."""
    return partial(_Run, folder)


_TOLD = told_as("TensorBoard", OSError)


class _Run:
    @_TOLD
    def __init__(self, folder: Path, subject: Subject) -> None:
        self._subject, self._last_step = subject, 0
        own = folder / subject.job.id / subject.name
        for earlier in own.glob("events.out.tfevents.*"):
            earlier.unlink()
        self.place, self._events = str(own), SummaryWriter(str(own))
        for summary in hparams(flat(subject.parameters), _results(subject)):
            self._events.file_writer.add_summary(summary)

    @_TOLD
    def add(self, points: Points) -> None:
        """Write the points, at the time when they were measured; a diverged value is NaN."""
        for name, series in points.items():
            for point in series:
                value = math.nan if point.value is None else point.value
                self._events.add_scalar(name, value, point.step, walltime=self._subject.time_at(point.seconds))
                self._last_step = max(self._last_step, point.step)
        self._events.flush()

    @_TOLD
    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        """Write the totals as scalars (24 bits) and exactly as texts, and the outcome as text."""
        for name, value in totals.items():
            self._events.add_scalar(name, value, self._last_step)
        self._events.add_text("totals", json.dumps(dict(totals), indent=2), self._last_step)
        self._events.add_text("outcome", outcome, self._last_step)

    @_TOLD
    def close(self, *, is_broken_off: bool = False) -> None:
        """Write what is still buffered."""
        self._events.close()


def _results(subject: Subject) -> dict[str, None]:
    """Return the names of the scalars that the table of hyperparameters shows as results."""
    by = f"validation_{subject.job.readable.objective.metric}"
    return dict.fromkeys([by, "validation_loss", "final/validation_loss", "bill/bytes_sent", "bill/seconds_training"])
