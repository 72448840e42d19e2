"""The environment variables that the service passes to an embedded Ray, and so to every driver and worker.

It is an allow-list, because the service's environment may hold secrets, and workers run user code.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase

from trainers.filesystem import is_s3

#: Programs and their libraries, the user's places, language and time; the libraries that train; where data are.
ALWAYS = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "LC_*", "TZ", "LD_*", "PYTHON*",
    "VIRTUAL_ENV", "XDG_*", "SSL_CERT_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMBA_*", "TORCH_*", "PYTORCH_*",
    "TRITON_*", "CUDA_*", "CUBLAS_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "HF_HOME", "HF_HUB_OFFLINE",
    "WIRETUNE_DATA_*",
)  # fmt: skip


#: With these the workers reach a storage on S3, which they write to.
_OF_S3 = ("AWS_*",)


def inherited(further: str, *, storage_url: str = "") -> dict[str, str]:
    """Return our variables that match `ALWAYS` or `further`: comma-separated names and patterns such as `HF_*`.

    If the storage is on S3, its keys and endpoint are included.
    """
    patterns = (*ALWAYS, *_listed(further), *(_OF_S3 if is_s3(storage_url) else ()))
    return {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _listed(names: str) -> Iterator[str]:
    return (name for each in names.split(",") if (name := each.strip()))
