"""A job's trials as MLflow runs: in a database file, or on the server that `MLFLOW_TRACKING_URI` names."""

import math
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no usage reports without consent

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from api.exporters.trackers import Begin, Points, Subject, flat, told_as

_AT_ONCE = 1000  # metrics, as the server allows
_PARAMS_AT_ONCE = 100
_LONGEST_VALUE = 6000
_TRIAL = "wiretune.trial"
#: Status by outcome. With any other outcome the run stays running.
_ENDS = {
    "completed": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "not finished": "KILLED",
}


def into(folder: Path) -> Begin:
    """Return a function that begins a run in the experiment named after its job.

    Without a server it writes a database, since MLflow has discontinued its folders of files.
    """
    if asked := os.environ.get("MLFLOW_TRACKING_URI"):
        return partial(_Run, _client(asked), "MLFLOW_TRACKING_URI")  # not its value, which may hold a password
    folder.mkdir(parents=True, exist_ok=True)
    own = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
    return partial(_Run, _client(own), own)


#: The library lets some errors of its connection through, which are all OSErrors.
_TOLD = told_as("MLflow", MlflowException, OSError)


@_TOLD
def _client(uri: str) -> MlflowClient:
    return MlflowClient(uri)


class _Run:
    @_TOLD
    def __init__(self, client: MlflowClient, place: str, subject: Subject) -> None:
        self._client, self._subject, self._last_step = client, subject, 0
        self._end: str | None = None  # until it is finished
        trial = f"{subject.job.id}/{subject.name}"
        found = client.get_experiment_by_name(subject.job.name)
        experiment = found.experiment_id if found else client.create_experiment(subject.job.name)
        for earlier in client.search_runs([experiment], f"tags.`{_TRIAL}` = '{trial}'"):
            client.delete_run(earlier.info.run_id)
        self._id = client.create_run(experiment, run_name=subject.name, tags={_TRIAL: trial}).info.run_id
        self.place = f"{place}, experiment {subject.job.name}, run {subject.name}"
        given = [Param(name, str(value)[:_LONGEST_VALUE]) for name, value in flat(subject.parameters).items()]
        for start in range(0, len(given), _PARAMS_AT_ONCE):
            client.log_batch(self._id, params=given[start : start + _PARAMS_AT_ONCE])

    @_TOLD
    def add(self, points: Points) -> None:
        """Write the points, at the time when they were measured; a diverged value is NaN."""
        metrics = [
            Metric(
                name,
                math.nan if point.value is None else point.value,
                int(1000 * self._subject.time_at(point.seconds)),
                point.step,
            )
            for name, series in points.items()
            for point in series
        ]
        self._last_step = max([self._last_step, *(metric.step for metric in metrics)])
        self._log(metrics)

    @_TOLD
    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        """Write the totals at the last step, and how the trial ended."""
        now = int(1000 * time.time())
        self._log([Metric(name, value, now, self._last_step) for name, value in totals.items()])
        self._end = _ENDS.get(outcome)

    @_TOLD
    def close(self, *, is_broken_off: bool = False) -> None:
        """End the run, unless its trial goes on."""
        end = self._end or ("KILLED" if is_broken_off else None)
        if end is not None:
            self._client.set_terminated(self._id, end)

    def _log(self, metrics: list[Metric]) -> None:
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[start : start + _AT_ONCE])
