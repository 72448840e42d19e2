"""Processes on this machine, read from Linux's /proc."""

import os
import time
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state letter and the parent of `pid`; None if it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])


def is_running(pid: int, *, word: str) -> bool:
    """Return whether `pid` lives and has `word` on its command line: is no stranger that got an old number."""
    stat = _stat(pid)
    if stat is None or stat[0] == "Z":
        return False
    try:
        return word.encode() in (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_own(pid: int) -> bool:
    """Return whether `pid` is a living child of this process, even at its start, with an empty command line."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z" and stat[1] == os.getpid()


def started_at(pid: int) -> int | None:
    """Return when `pid` started, in ticks since the boot; None if it is gone. With it, a number names one process."""
    try:
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def children(parent: int) -> list[int]:
    """Return the living processes that `parent` started, or was left with; zombies left out."""
    return [pid for pid, (state, its_parent) in _stats().items() if its_parent == parent and state != "Z"]


def _stats() -> dict[int, tuple[str, int]]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def descendants(root: int) -> list[int]:
    """Return every process below `root` that lives, zombies left out."""
    stats = _stats()
    below, found = {root}, {root}
    while found:
        found = {pid for pid, (_, parent) in stats.items() if parent in below} - below
        below |= found
    return [pid for pid in below - {root} if stats[pid][0] != "Z"]


def send(pid: int, signal: int) -> None:
    """Signal `pid`; nothing if it is gone."""
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        return


def reap() -> None:
    """Collect our own children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return


def wait_until(condition: Callable[[], bool], *, timeout_s: float, every_s: float = 0.1) -> bool:
    """Return whether `condition` came true within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
