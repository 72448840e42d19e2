"""A run's checkpoints on storage: where they are, and which may go."""

from collections.abc import Iterable

import fsspec

from trainers.group import Group


class Keeper:
    """Saves a run's checkpoints below `root` and removes old ones, also those `inherited` from earlier attempts.

    `save` is called only after the checkpoint before it is known to the API, so at any moment the one that a
    later attempt would ask for exists.
    """

    def __init__(self, group: Group, root: str, *, keep: int, inherited: Iterable[str] = ()) -> None:
        self.group, self.root, self.keep = group, root, keep
        self.saved = list(inherited)  # oldest first
        self._num_saves = 0

    def save(self, step: int, *, needed: Iterable[str] = ()) -> str:
        """Write a checkpoint and return its URL.

        First removes earlier ones beyond the last `keep`, but none that is still `needed`.
        """
        still = {*self.saved[-self.keep :], *needed}
        for url in self.saved:
            if url not in still:
                _remove(url)
        # Counted, since a rewound run comes to the same step again, with another state.
        url = f"{self.root}/{self._num_saves:06d}-step-{step}"
        self.group.save(url)
        self._num_saves += 1
        self.saved = [*(each for each in self.saved if each in still), url]
        return url

    def export(self) -> str:
        """Write the weights (for Schedule-Free: of the averaged iterate) and return their URL."""
        url = f"{self.root}/weights.safetensors"
        self.group.export(url)
        return url


def _remove(url: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(url)
    try:
        filesystem.rm(path, recursive=True)
    except FileNotFoundError:
        return  # somebody made room
