"""Check that a worker has its GPU for itself, by the memory of other processes that `nvidia-smi` shows."""

import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainers.training.call_results import Outcome

log = logging.getLogger(__name__)

_GPUS = "--query-gpu=index,uuid,name,memory.total,memory.used"
_PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
_TIMEOUT_S = 20.0
#: What a dead attempt's process may take to give its memory back.
PATIENCE_S = 20.0
#: What a driver, or a screen, may hold of an idle GPU, MiB.
_IDLE_MIB = 1024
_NEEDED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process with memory on a GPU. In a container its number may be the host's, and its memory unknown."""

    pid: int
    name: str
    mib: int | None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU's memory, and who is known to hold some of it."""

    index: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    holders: tuple[Holder, ...]

    @property
    def is_held(self) -> bool:
        """Return whether somebody is there: not every container sees the processes, but the memory that they hold."""
        return bool(self.holders) or self.used_mib > _IDLE_MIB


def parse(gpus: str, processes: str) -> tuple[Gpu, ...]:
    """Return the GPUs from `nvidia-smi`'s tables, without those whose memory it does not tell; raises ValueError."""
    holders: dict[str, list[Holder]] = {}
    for line in processes.splitlines():
        uuid, pid, mib, name = (field.strip() for field in line.split(",", 3))
        holders.setdefault(uuid, []).append(Holder(pid=int(pid), name=name, mib=_number(mib)))
    found = []
    for line in gpus.splitlines():
        index, uuid, name, total, used = (field.strip() for field in line.split(","))
        total_mib, used_mib = _number(total), _number(used)
        if total_mib is not None and used_mib is not None:
            here = tuple(holders.get(uuid, ()))
            gpu = Gpu(index=int(index), uuid=uuid, name=name, total_mib=total_mib, used_mib=used_mib, holders=here)
            found.append(gpu)
    return tuple(found)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None  # [N/A], [Insufficient Permissions]


def visible(gpus: Sequence[Gpu], names: str | None) -> tuple[Gpu, ...]:
    """Return those that CUDA_VISIBLE_DEVICES names, by index or by the beginning of their uuid; None: all.

    Parts of a GPU (MIG) are not among them.
    """
    if names is None:
        return tuple(gpus)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    uuids = tuple(name for name in wanted if name.startswith("GPU-"))
    return tuple(gpu for gpu in gpus if str(gpu.index) in wanted or gpu.uuid.startswith(uuids))


def look() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use; none where `nvidia-smi` does not tell."""
    try:
        found = parse(_ask(_GPUS), _ask(_PROCESSES))
    except (OSError, subprocess.SubprocessError, ValueError) as error:  # the last: it said something else
        log.info("who holds memory of this worker's GPU is not known: %s", error)
        return ()
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _ask(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout


def wait_until_free(
    look: Callable[[], Sequence[Gpu]] = look, *, patience_s: float = PATIENCE_S, every_s: float = 1.0
) -> str:
    """Give other processes time to leave this worker's GPU; return who still holds what then, empty: nobody.

    To be called before this process uses the GPU: all that is held is then others'.
    """
    end = time.monotonic() + patience_s
    while held := [gpu for gpu in look() if gpu.is_held]:
        if time.monotonic() >= end:
            said = "; ".join(map(described, held))
            log.warning("this worker does not have its GPU for itself: %s", said)
            return said
        time.sleep(every_s)
    return ""


def described(gpu: Gpu) -> str:
    """Return what is taken of the GPU and by whom, for a person."""
    by = ", ".join(_named(holder) for holder in gpu.holders) or "processes that are not seen from here"
    taken = f"{_gib(gpu.used_mib)} of {_gib(gpu.total_mib)} GiB"
    return f"of GPU {gpu.index} ({gpu.name}) {taken} are held by {by}"


def _named(holder: Holder) -> str:
    size = "" if holder.mib is None else f", {_gib(holder.mib)} GiB"
    return f"process {holder.pid} ({holder.name}{size})"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}"


def blamed(outcome: Outcome, held: str) -> Outcome:
    """Return the outcome of a call on a GPU of which others held `held` when the worker started.

    If the memory did not suffice, that is the machine's fault, which may pass: the next attempt waits for them again.
    """
    if not held or outcome.kind != "error" or "OutOfMemoryError" not in outcome.content:
        return outcome
    found = _NEEDED.search(outcome.content)
    needed = f": {found[1]} more were needed" if found else ""
    reason = f"out of GPU memory{needed}; when this worker started, {held}; end them, or wait"
    return Outcome("machine_error", f"{outcome.content.rstrip()}\n{reason}")
