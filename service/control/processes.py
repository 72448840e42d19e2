"""Processes on this machine."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def is_running(pid: int, *, word: str) -> bool:
    """Return whether `pid` lives and has `word` on its command line, so that it is not a stranger with a reused pid."""
    try:
        process = psutil.Process(pid)
        return _lives(process) and word in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def is_own(pid: int) -> bool:
    """Return whether `pid` is a living child of this process, even just started with an empty command line."""
    try:
        process = psutil.Process(pid)
        return _lives(process) and process.ppid() == os.getpid()
    except psutil.NoSuchProcess:
        return False


def started_at(pid: int) -> int | None:
    """Return the start time of `pid` in ticks since boot; None if it is gone. Together they identify a process.

    Read from Linux's /proc, because the times that psutil returns change when the clock is set.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def children(parent: int) -> list[int]:
    """Return the living children of `parent`, adopted ones included and zombies excluded."""
    return descendants(parent, recursive=False)


def descendants(root: int, *, recursive: bool = True) -> list[int]:
    """Return the living descendants of `root`, zombies excluded; without `recursive`, only direct children."""
    try:
        return [process.pid for process in psutil.Process(root).children(recursive=recursive) if _lives(process)]
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def send(pid: int, signal: int) -> None:
    """Send a signal to `pid`. Do nothing if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal)


def reap() -> None:
    """Reap our own children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def wait_until(condition: Callable[[], T], *, timeout_s: float, every_s: float = 0.1) -> T:
    """Poll `condition` until it is true or `timeout_s` has passed; return its last value."""
    end = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() <= end:
        time.sleep(every_s)
    return found
