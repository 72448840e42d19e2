"""End what has outlived its attempt: Ray Jobs, and folders of killed drivers on this machine."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from service.control.attempts import PREFIX, attempt_named
from service.control.moments import is_ahead
from service.control.ray_cluster.clusters import RayApi
from service.control.store import Store
from service.errors import NotFound

_log = logging.getLogger(__name__)
#: What a driver keeps Tune's own files in, as `<job>-a<attempt>`; it removes them unless it is killed.
TUNE_FOLDERS = "wiretune-tune-*"
_EVERY_S = 10.0
_LAST_ACTS_S = 30.0  # a driver whose attempt has ended may still be closing its workers


class Orphans:
    """Finds leftovers of this database's ended attempts. `ray` returns Ray if it runs, without starting it.

    An attempt that the database does not know belongs to another service, and is left alone. The database remembers
    deleted jobs for an hour.
    """

    def __init__(self, store: Store, ray: Callable[[], RayApi | None]) -> None:
        self._store, self._ray = store, ray
        self._look_at = 0.0

    def remove_expired(self, now: float) -> None:
        """End the leftovers, at most every `_EVERY_S`. `now` is in seconds since the epoch."""
        if is_ahead(self._look_at, now=now, within_s=_EVERY_S):
            return
        self._look_at = now + _EVERY_S
        if (ray := self._ray()) is not None:
            for submission_id in ray.live():
                if self._is_over(submission_id, now):
                    _log.warning("%s outlived its attempt and is stopped", submission_id)
                    ray.stop(submission_id)
        for folder, submissions in tune_folders():
            if submissions and all(self._is_over(each, now) for each in submissions):
                _log.warning("%s was left by a driver that was killed; it is removed", folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _is_over(self, submission_id: str, now: float) -> bool:
        """Return whether it belongs to an ended attempt of ours that has had time to close."""
        if (parsed := attempt_named(submission_id)) is None:
            return False
        try:
            attempt = self._store.attempts.one(*parsed)
        except NotFound:
            deleted_at = self._store.expiry.deleted_at(parsed[0])  # of another service's attempt there is none
            return deleted_at is not None and now > deleted_at + _LAST_ACTS_S
        if submission_id.startswith(PREFIX) and submission_id != attempt.submission_id:
            return True  # of the same number, before the database was restored
        return attempt.ended_at is not None and now > attempt.ended_at + _LAST_ACTS_S


def tune_folders() -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders that drivers on this machine keep Tune's files in, each with the attempts that it is of."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(TUNE_FOLDERS)):
        if not os.access(folder, os.R_OK | os.W_OK):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):  # its driver has just removed it; it is none of ours
            yield folder, os.listdir(folder)
