"""The variables of the service's environment that an embedded Ray, and so every driver and worker, gets to see.

A list of what is let in, since the service's environment may hold secrets: workers run its users' code.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase

#: Programs and their libraries, the user's places, language and time; the libraries that train; where data are.
ALWAYS = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "LC_*", "TZ", "LD_*", "PYTHON*",
    "VIRTUAL_ENV", "XDG_*", "SSL_CERT_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMBA_*", "TORCH_*", "PYTORCH_*",
    "TRITON_*", "CUDA_*", "CUBLAS_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "HF_HOME", "HF_HUB_OFFLINE",
    "WIRETUNE_DATA_DIR",
)  # fmt: skip


def inherited(further: str) -> dict[str, str]:
    """Return our variables that match `ALWAYS`, or `further`: names and patterns such as `AWS_*`, with commas."""
    patterns = (*ALWAYS, *_listed(further))
    return {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _listed(names: str) -> Iterator[str]:
    return (name for each in names.split(",") if (name := each.strip()))
