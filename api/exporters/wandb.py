"""A job's trials as runs of Weights & Biases: offline ones, for `wandb sync`, unless `WANDB_MODE` says otherwise."""

import hashlib
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an offline export talks to nobody

import wandb

from api.exporters.trackers import Begin, Points, Subject, told_as

PROJECT = "wiretune"
#: Leaves out facts about this machine, which did not train.
_SETTINGS = wandb.Settings(
    silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
)


def into(folder: Path) -> Begin:
    """Return a function that begins a run, in a folder named after its job and itself, in `folder`."""
    return partial(_Run, folder)


_TOLD = told_as("W&B", wandb.Error, OSError)


class _Run:
    @_TOLD
    def __init__(self, folder: Path, subject: Subject) -> None:
        own = folder / subject.job.id / subject.name
        shutil.rmtree(own / "wandb", ignore_errors=True)
        own.mkdir(parents=True, exist_ok=True)
        self.place = str(own)
        self._run = wandb.init(
            id=_run_id(subject),
            mode=os.environ.get("WANDB_MODE") or "offline",
            dir=own,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=subject.job.id,
            name=subject.name,
            config=subject.parameters,
            reinit="create_new",
            settings=_SETTINGS,
        )
        self._run.define_metric("*", step_metric="step")  # series arrive one by one, each in its own order

    @_TOLD
    def add(self, points: Points) -> None:
        """Write a row for each step that has points; a diverged value is NaN."""
        rows: dict[tuple[int, float], dict[str, Any]] = defaultdict(dict)
        for name, series in points.items():
            for step, seconds, value in series:
                rows[step, seconds][name] = math.nan if value is None else value
        for step, seconds in sorted(rows):
            self._run.log({"step": step, "seconds": seconds, **rows[step, seconds]})

    @_TOLD
    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        """Write the totals, and how the trial ended, into the summary."""
        self._run.summary.update({**totals, "outcome": outcome})

    @_TOLD
    def close(self, *, is_broken_off: bool = False) -> None:
        """Write what is still buffered."""
        self._run.finish()


def _run_id(subject: Subject) -> str:
    """Return the trial's id at W&B, always the same, so that a further export replaces the run there, too."""
    return f"{subject.job.id}-{hashlib.sha256(subject.name.encode()).hexdigest()[:12]}"
