"""Check that a worker has its GPU to itself, by the memory of other processes that `nvidia-smi` shows."""

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
#: The time in which a dead attempt's process gives its memory back.
PATIENCE_S = 20.0
#: Memory in MiB that a display or the GPU's driver may hold of an idle GPU.
_IDLE_MIB = 1024
_NEEDED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process with memory on a GPU. In a container, its pid may be the host's and its memory unknown."""

    pid: int
    name: str
    mib: int | None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU's memory, and the processes known to hold some of it."""

    index: int
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    holders: tuple[Holder, ...]

    @property
    def is_held(self) -> bool:
        """True if other processes use the GPU. Their memory counts, since a container may not see the processes."""
        return bool(self.holders) or self.used_mib > _IDLE_MIB


def parse(gpus: str, processes: str) -> tuple[Gpu, ...]:
    """Parse the tables of `nvidia-smi`. GPUs without memory numbers are left out. Raises ValueError."""
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
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by index or uuid prefix; None: all.

    MIG instances are left out.
    """
    if names is None:
        return tuple(gpus)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    uuids = tuple(name for name in wanted if name.startswith("GPU-"))
    return tuple(gpu for gpu in gpus if str(gpu.index) in wanted or gpu.uuid.startswith(uuids))


def look() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use; empty if `nvidia-smi` does not tell."""
    try:
        found = parse(_ask(_GPUS), _ask(_PROCESSES))
    except (OSError, subprocess.SubprocessError, ValueError) as error:  # ValueError: its output was something else
        log.info("who holds memory of this worker's GPU is not known: %s", error)
        return ()
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _ask(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout


def wait_until_free(
    look: Callable[[], Sequence[Gpu]] = look, *, patience_s: float = PATIENCE_S, every_s: float = 1.0
) -> str:
    """Wait for other processes to leave this worker's GPU. Return a text on who still holds memory; empty if nobody.

    Call it before this process uses the GPU, so that all memory in use belongs to others.
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
    """Describe for people how much of the GPU is taken, and by whom."""
    by = ", ".join(_named(holder) for holder in gpu.holders) or "processes that are not seen from here"
    taken = f"{_gib(gpu.used_mib)} of {_gib(gpu.total_mib)} GiB"
    return f"of GPU {gpu.index} ({gpu.name}) {taken} are held by {by}"


def _named(holder: Holder) -> str:
    size = "" if holder.mib is None else f", {_gib(holder.mib)} GiB"
    return f"process {holder.pid} ({holder.name}{size})"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}"


def blamed(outcome: Outcome, held: str) -> Outcome:
    """Blame other processes, described by `held`, if a call ran out of GPU memory. Return the outcome.

    Such an outcome counts as a passing fault of the machine: the next attempt waits for the others again.
    """
    if not held or outcome.kind != "error" or "OutOfMemoryError" not in outcome.content:
        return outcome
    found = _NEEDED.search(outcome.content)
    needed = f": {found[1]} more were needed" if found else ""
    reason = f"out of GPU memory{needed}; when this worker started, {held}; end them, or wait"
    return Outcome("machine_error", f"{outcome.content.rstrip()}\n{reason}")
