"""A run's checkpoints on storage: where they are, and which may go."""

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
#: Besides the last `keep` a run may hold the one being written, its stage's start, two that a larger budget needs, the
#: best one, and the best one at its stage's start, for a stage that is rolled back.
_NUM_BESIDES = 6
#: The folder of a checkpoint as `Keeper.save` names it, in a path below a run's folder.
_FOLDER = re.compile(r"(.*/)?\d{6}-step-\d+(?=/)")


class NoRoom(Exception):
    """The storage cannot hold the checkpoints of this run."""


class Exported(NamedTuple):
    """A file of weights."""

    url: str
    sha256: str


class Keeper:
    """Saves a run's checkpoints below `root` and removes old ones, also those of earlier attempts, which it inherits.

    `save` is called only after the checkpoint before it is known to the API, so at any moment the one that a
    later attempt would ask for exists.
    """

    def __init__(self, group: Group, root: str, *, keep: int) -> None:
        self.group, self.root, self.keep = group, root, keep
        self.saved: list[str] = []  # oldest first
        self._num_saves = 0
        self._under_way: str | None = None

    def inherit(self, urls: Iterable[str]) -> None:
        """Take over the checkpoints of earlier attempts, oldest first."""
        self.saved = list(urls)

    @tracing.traced("checkpoint")
    def save(self, step: int, *, needed: Iterable[str] = (), beside: bool = False) -> str:
        """Write a checkpoint and return its URL; with `beside` it is begun, and `is_saved` says when it is there.

        First removes earlier ones beyond the last `keep`, but none that is still `needed`. One that cannot be removed
        is tried again at the next, before those behind it. Raises NoRoom, as `is_saved` does, when a run's first shows
        that the storage cannot hold as many as there will be.
        """
        last = {*self.saved[-self.keep :], *needed}
        removed = set(takewhile(_is_removed, (each for each in self.saved if each not in last)))
        still = [each for each in self.saved if each not in removed]
        # Counted, since a rewound run comes to the same step again, with another state.
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
        """Return whether the checkpoint that was begun is complete, within so many seconds. Raises what ended it."""
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
        """Raise NoRoom when the run's only checkpoint, which is complete, shows that there is none for the others."""
        if len(self.saved) == 1:  # a run that has got further waits for room instead
            require_room(self.saved[-1], num_more=self.keep + _NUM_BESIDES - 1)

    @tracing.traced("export")
    def export(self, folder: str = "") -> tuple[Exported, Written]:
        """Write the weights (for Schedule-Free: of the averaged iterate) to `folder`; returns what was sent, too."""
        url = f"{self.root}/{folder}weights.safetensors"
        written = self.group.export(url)
        return Exported(url, str(written.sha256)), written


def require_room(url: str, *, num_more: int) -> None:
    """Raise NoRoom unless `num_more` checkpoints of the size of that at `url` fit; only a local disk says so."""
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
    """Remove what killed attempts before attempt `number` left of a run: half files, checkpoints that nothing names.

    Whatever `resume` names stays; by that alone does anything go on. `storage_url` is the attempt's own folder.
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
    """Yield the URLs of the checkpoints and half-written files below a run's folder, some of them often."""
    with reaching(root) as (filesystem, path):
        for inside in (found[len(path) + 1 :] for found in filesystem.find(path)):
            if folder := _FOLDER.match(inside):
                yield f"{root}/{folder[0]}"
            if inside.endswith(".partial"):
                yield f"{root}/{inside}"


def _discard(url: str) -> None:
    """Remove half a checkpoint: it is of no use, and may be what fills the disk."""
    with suppress(OSError):  # the storage may be gone altogether
        _remove(url)


def _is_removed(url: str) -> bool:
    try:
        _remove(url)
    except OSError as error:
        _log.warning("%s is not needed, and could not be removed: %s", url, error)
        return False
    return True


def _remove(url: str) -> None:
    with suppress(FileNotFoundError), reaching(url) as (filesystem, path):  # somebody made room
        filesystem.rm(path, recursive=True)
