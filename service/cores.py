"""The cores that this process may use; a container or a quota may allow fewer than the machine has."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Files with a control group's quota and period in microseconds: version 2, then version 1.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def usable(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Return the number of cores that CPU affinity and control-group quotas allow this process, at least 1.

    Args:
        groups: where control groups are mounted.
        own_groups: the file that names this process's groups; without it (macOS) there is no quota.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _quotas(groups, own_groups))]))


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's groups and their parents."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):  # version 2 names no controllers
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
