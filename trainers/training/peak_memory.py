"""The peak memory of a rank."""

import resource
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int:
    """Return the most bytes held so far: by torch on `device` if that is a GPU, else by this process in main memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    if _STATUS.exists():  # Linux, whose `ru_maxrss` is at least that of the process which started this one
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
