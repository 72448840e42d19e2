"""A run's checkpoints on storage: write them, and remove those no longer needed."""

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from service import tracing
from trainers.filesystem import reaching
from trainers.segment import Written
from trainers.training.group import Group

_log = logging.getLogger(__name__)
#: Checkpoints that a run may hold besides the last `keep`: the one being written, the stage's start, two for a larger
#: budget, the best one, in case of a rollback the best one at the stage's start, and the run's first one.
_NUM_BESIDES = 7
#: A checkpoint's folder, as `Keeper.save` names it, in a path below a run's folder.
_FOLDER = re.compile(r"(.*/)?\d{6}-step-\d+(?=/)")


class NoRoom(Exception):
    """The storage has no room for this run's checkpoints."""


class Exported(NamedTuple):
    """A file of weights."""

    url: str
    sha256: str


class Keeper:
    """Saves a run's checkpoints below `root` and removes old ones, including those inherited from earlier attempts.

    `save` is called only after the API knows of the previous checkpoint. So the checkpoint that a later attempt would
    resume from always exists.
    """

    def __init__(self, group: Group, root: str, *, keep: int) -> None:
        self.group, self.root, self.keep = group, root, keep
        self.saved: list[str] = []  # oldest first
        self._num_saves = 0
        self._under_way: str | None = None

    def inherit(self, urls: Iterable[str]) -> None:
        """Take over earlier attempts' checkpoints, oldest first."""
        self.saved = list(urls)

    @tracing.traced("checkpoint")
    def save(self, step: int, *, needed: Iterable[str] = (), beside: bool = False) -> str:
        """Write a checkpoint and return its URL. With `beside`, only begin it; `is_saved` tells when it is complete.

        Earlier checkpoints beyond the last `keep` are removed first, except those still `needed`. One that cannot be
        removed is tried again at the next save, before newer ones. Raises NoRoom, as `is_saved` does, if the size of a
        run's first checkpoint shows that the storage cannot hold all that the run will need.
        """
        last = {*self.saved[-self.keep :], *needed}
        removed = set(takewhile(_is_removed, (each for each in self.saved if each not in last)))
        still = [each for each in self.saved if each not in removed]
        # Numbered, because a rewound run reaches the same step again in another state.
        url = f"{self.root}/{self._num_saves:06d}-step-{step}"
        try:
            if beside:
                self.group.begin_save(url)
                self._under_way = url
            else:
                self.group.save(url)
        except Exception:
            _discard(url)
            raise
        self._num_saves += 1
        self.saved = [*still, url]
        if not beside:
            self._require_room()
        return url

    def is_saved(self, within_s: float = 0.0) -> bool:
        """Wait up to `within_s` for the checkpoint being written; return whether it is complete. Raises its error."""
        if (url := self._under_way) is None:
            return True
        try:
            is_there = self.group.saved(url, within_s)
        except Exception:
            _discard(url)
            raise
        if is_there:
            self._under_way = None
            self._require_room()
        return is_there

    def _require_room(self) -> None:
        """Raise NoRoom if the size of the run's only checkpoint shows that the others will not fit."""
        if len(self.saved) == 1:  # later in a run, wait for room instead
            require_room(self.saved[-1], num_more=self.keep + _NUM_BESIDES - 1)

    @tracing.traced("export")
    def export(self, folder: str = "", *, averaged: bool = False) -> tuple[Exported, Written]:
        """Write the weights, or their average, to `folder`. Also return the traffic of it."""
        url = f"{self.root}/{folder}weights.safetensors"
        written = self.group.export(url, averaged=averaged)
        return Exported(url, str(written.sha256)), written


def require_room(url: str, *, num_more: int) -> None:
    """Raise NoRoom unless `num_more` checkpoints as large as the one at `url` fit. Only local disks are checked."""
    with reaching(url) as (filesystem, path):
        if not isinstance(filesystem, LocalFileSystem):
            return
        size, free = filesystem.du(path), shutil.disk_usage(path).free
    if num_more * size > free:
        raise NoRoom(
            f"the storage has {free / 1e9:.3g} GB free and the run needs {num_more * size / 1e9:.3g}, for {num_more} "
            "checkpoints more: make room (`wiretune clean`) and `wiretune retry`, or lower `checkpoint.keep`"
        )


def remove_strays(storage_url: str, trial_id: str, *, number: int, resume: dict[str, Any] | None) -> None:
    """Remove what killed attempts before `number` left of a run: partial files and checkpoints that nothing names.

    Everything that `resume` names stays, since runs resume only from that. `storage_url` is the attempt's own folder.
    """
    above, named = storage_url.rpartition("/")[0], json.dumps(resume)
    job = above.rpartition("/")[0]  # the storage, whose name may have changed since
    for each in range(1, number):
        try:
            written = {*_written(f"{above}/attempt-{each}/{trial_id}")}
        except OSError as error:
            _log.warning("cannot tell what attempt %d left on storage: %s", each, error)
            continue
        for url in sorted(url for url in written if f'{url.removeprefix(job)}"' not in named):
            _is_removed(url)


def _written(root: str) -> Iterator[str]:
    """Yield the URLs of checkpoints and partial files below a run's folder; some repeat."""
    with reaching(root) as (filesystem, path):
        for inside in (found[len(path) + 1 :] for found in filesystem.find(path)):
            if folder := _FOLDER.match(inside):
                yield f"{root}/{folder[0]}"
            if inside.endswith(".partial"):
                yield f"{root}/{inside}"


def _discard(url: str) -> None:
    """Remove a partial checkpoint: it is useless, and may be what fills the disk."""
    with suppress(OSError):  # the storage itself may be gone
        _remove(url)


def _is_removed(url: str) -> bool:
    try:
        _remove(url)
    except OSError as error:
        _log.warning("%s is not needed, and could not be removed: %s", url, error)
        return False
    return True


def _remove(url: str) -> None:
    with suppress(FileNotFoundError), reaching(url) as (filesystem, path):  # somebody else removed it
        filesystem.rm(path, recursive=True)
