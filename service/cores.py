"""The cores that this process may use: a container, or a service with a quota, has fewer than its machine."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Files with a group's quota and its period, in microseconds: of control groups of version 2, and of version 1.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def usable(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return how many cores the affinity and the quotas of control groups leave to this process, at least 1.

    Args:
        groups: where control groups are mounted.
        own_groups: the file that names those of this process; without it (macOS) there is no quota.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _quotas(groups, own_groups))]))


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's groups and of those that they are in."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):  # version 2 names none
            continue
        # In a container the name may be that on the host, while its own group is mounted as the topmost.
        group = PurePosixPath(name.lstrip("/"))
        for each in (group, *group.parents):
            yield from _quotas_of(groups / ("cpu" if controllers else "") / each)


def _quotas_of(group: Path) -> Iterator[float]:
    for files in _QUOTAS:
        with suppress(OSError, ValueError):  # no such file, or `max`
            quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
            if quota > 0:  # -1: none
                yield quota / period
