"""A disk of a few megabytes that a test can fill: a tmpfs, which needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_FILLER = "filler"


class SmallDisk:
    """A file system of its own at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, *, leave: int = 0) -> None:
        """Leave no byte free, or as many as `leave` says."""
        with open(self.path / _FILLER, "ab", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while filler.write(bytes(size)) == size:
                        pass
                except OSError:  # smaller pieces may fit yet
                    continue
            filler.truncate(filler.tell() - leave)

    def free(self) -> None:
        """Give everything back that `fill` took."""
        (self.path / _FILLER).unlink()


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a disk of so many `megabytes` at `path`; skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("a full disk is tried on a tmpfs of its own, and only root may mount one: run the tests as root")
    path.mkdir(parents=True)
    options = f"size={megabytes}m,mode=700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a full disk is tried on a tmpfs of its own, and none can be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
