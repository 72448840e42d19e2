"""The global random generators: seeded for a while, and put back afterwards."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch (CPU), NumPy and Python, and put them back afterwards."""
    with torch.random.fork_rng(devices=[]), host_seeded(seed):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def host_seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python, and put them back afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
