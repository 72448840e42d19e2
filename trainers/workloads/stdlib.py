"""The source of Python's standard library, byte by byte, and a transformer that predicts the next byte."""

import hashlib
import math
import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.segment import Direction
from trainers.spec.workloads import StdlibLm
from trainers.traffic.shapes import TRANSFORMERS
from trainers.workload import Batch, NoData, Workload
from trainers.workloads.transformer import ByteTransformer

#: Not the library itself: installed packages, tests, and the editor.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
#: One file in ten is held out.
HELD_OUT_SHARE = 0.1
#: Held-out windows that are evaluated, evenly spaced: all of them would take as long as a hundred steps.
NUM_VALIDATION_WINDOWS = 512


class Stdlib(Workload):
    """Batches are one tensor: windows `(b, context + 1)` (uint8) that do not overlap. Modules are held out whole."""

    metrics: Mapping[str, Direction] = {"bits_per_byte": "min"}
    evaluation_batch_size = 64

    def __init__(self, config: StdlibLm) -> None:
        self._config = config
        training, held_out = read_source(library())
        # The bytes follow the workers' version of Python.
        self.data_version = hashlib.sha256(training).hexdigest()
        self.training = TensorDataset(windows(training, config.context))
        validation = windows(held_out, config.context)
        self.validation = TensorDataset(validation[:: math.ceil(len(validation) / NUM_VALIDATION_WINDOWS)])

    def model(self) -> nn.Module:
        return ByteTransformer(
            TRANSFORMERS[self._config.size], self._config.context, checkpointing=self._config.checkpointing
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of nats per byte."""
        text = batch[0].long()
        scores = model(text[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        loss = self.loss(model, batch)
        return {"loss": loss, "bits_per_byte": loss / math.log(2)}


def library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_source(folder: Path) -> tuple[bytes, bytes]:
    """Return the training and the held-out bytes of all modules below `folder`, in order of their names.

    Raises NoData if it holds no source, as where Python runs from a zip file.
    """
    training: list[bytes] = []
    held_out: list[bytes] = []
    for path in source_files(folder):
        part = held_out if is_held_out(path.relative_to(folder).as_posix()) else training
        part.append(path.read_bytes())
    if not training or not held_out:
        raise NoData(f"the workers' Python has no source of its standard library in {folder}")
    return b"".join(training), b"".join(held_out)


def source_files(folder: Path) -> list[Path]:
    """Return the modules of the library itself, in order."""
    found: list[Path] = []
    for place, subfolders, names in os.walk(folder):
        subfolders[:] = set(subfolders) - LEFT_OUT  # not entered: installed packages may be many
        found += [Path(place) / name for name in names if name.endswith(".py")]
    return sorted(found)


def is_held_out(name: str) -> bool:
    """Return whether a module belongs to validation: by its path alone, so that versions of Python agree."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_SHARE * 256


def windows(text: bytes, context: int) -> Tensor:
    """Return `text` as rows of `context + 1` bytes, `(n, context + 1)`; what does not fill the last is dropped."""
    length = context + 1
    whole = len(text) // length * length
    return torch.from_numpy(np.frombuffer(text, np.uint8)[:whole].reshape(-1, length).copy())
