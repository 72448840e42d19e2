"""A run's checkpoints on storage: where they are, and which may go."""

import fsspec

from trainers.group import Group


class Keeper:
    """Saves a run's checkpoints below `root` and removes old ones.

    `save` is called only after the checkpoint before it is known to the API, so at any moment the one that a
    later attempt would ask for exists.
    """

    def __init__(self, group: Group, root: str, *, keep: int) -> None:
        self.group, self.root, self.keep = group, root, keep
        self._saved: list[str] = []

    def save(self, step: int) -> str:
        """Write a checkpoint and return its URL; earlier ones beyond the last `keep` are removed first."""
        self._remove(self._saved[: -self.keep])
        del self._saved[: -self.keep]
        url = f"{self.root}/step-{step:08d}"
        if url not in self._saved:  # a rewound stage ends where its predecessor was saved, with the same state
            self.group.save(url)
            self._saved.append(url)
        return url

    def export(self) -> str:
        """Write the weights (for Schedule-Free: of the averaged iterate) and return their URL."""
        url = f"{self.root}/weights.safetensors"
        self.group.export(url)
        return url

    def _remove(self, urls: list[str]) -> None:
        for url in urls:
            filesystem, path = fsspec.core.url_to_fs(url)
            filesystem.rm(path, recursive=True)
