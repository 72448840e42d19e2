"""Context managers that seed the global random generators and restore them afterwards."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore them afterwards.

    If `device` is a GPU, its generator is seeded too; those of other GPUs are not.
    """
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), host_seeded(seed):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.set_rng_state(torch.Generator(gpu).manual_seed(seed).get_state(), gpu)
        yield


def present(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators, by kind: the CPU's, and that of `device` if it is a GPU."""
    states = {"cpu": torch.random.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def enforce(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put torch's global generators into `states`, as `present` returns them."""
    torch.random.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def host_seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python, and restore them afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
