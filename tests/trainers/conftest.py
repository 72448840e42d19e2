"""Configurations that several tests share."""

import csv
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from trainers.spec.replica import ReplicaConfig
from trainers.spec.workloads import DigitsMlp

OPTIMIZERS: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(learning_rate=0.1, weight_decay=1e-4, warmup_steps=5),
    "adamw": AdamWConfig(learning_rate=1e-3, warmup_steps=5),
    "muon": MuonConfig(learning_rate=1e-3, warmup_steps=5),
    "schedulefree_sgd": ScheduleFreeSgdConfig(learning_rate=0.5, weight_decay=1e-4, warmup_steps=5),
    "schedulefree_adamw": ScheduleFreeAdamWConfig(learning_rate=2.5e-3, warmup_steps=5),
    "schedulefree_plus": ScheduleFreePlusConfig(learning_rate=0.3, weight_decay=20, warmup_steps=5),
}
EXCHANGES = {"none": NoneConfig(), "threshold": ThresholdConfig(density=0.02)}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take many times as long as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=OPTIMIZERS)
def optimizer_config(request: pytest.FixtureRequest) -> OptimizerConfig:
    return OPTIMIZERS[request.param]


@pytest.fixture(params=EXCHANGES)
def exchange_config(request: pytest.FixtureRequest) -> NoneConfig | ThresholdConfig:
    return EXCHANGES[request.param]


@pytest.fixture
def make_config() -> Callable[..., ReplicaConfig]:
    """Build a digits run; keywords override."""

    def make(**changes: Any) -> ReplicaConfig:
        defaults = {
            "workload": DigitsMlp(batch_size=16),
            "optimizer": OPTIMIZERS["sgd"],
            "exchange": NoneConfig(),
            "seed": 3,
        }
        return ReplicaConfig(**(defaults | changes))

    return make


@pytest.fixture(scope="session")
def _small_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 100 digits in the formats of the image sets, and 100 made-up diamonds in that of theirs."""
    folder = tmp_path_factory.mktemp("data")
    pixels, labels = load_digits(return_X_y=True)
    images = np.kron(pixels[:100].reshape(-1, 8, 8) * 15, np.ones((3, 3))).astype(np.uint8)  # 8x8 -> 24x24
    images, labels = np.pad(images, ((0, 0), (2, 2), (2, 2))), labels[:100].astype(np.uint8)
    _write_mnist(folder / "mnist_5k.csv.gz", images, labels)
    (folder / "fashion-mnist").mkdir()
    for part, rows in {"train": slice(80), "t10k": slice(80, None)}.items():
        _write_idx(folder / "fashion-mnist" / f"{part}-images-idx3-ubyte.gz", images[rows])
        _write_idx(folder / "fashion-mnist" / f"{part}-labels-idx1-ubyte.gz", labels[rows])
    _write_diamonds(folder / "diamonds.csv")
    return folder


@pytest.fixture
def small_data(_small_data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have every data set be a small one of the real format."""
    monkeypatch.setenv("WIRETUNE_DATA_DIR", str(_small_data_dir))
    return _small_data_dir


def _write_mnist(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.column_stack([images.reshape(len(images), -1), labels]), fmt="%d", delimiter=",")


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">2xBB{array.ndim}I", 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def _write_diamonds(path: Path) -> None:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        rows.writerow(("carat", "cut", "color", "clarity", "depth", "table", "price", "x", "y", "z"))
        for carat in rng.uniform(0.2, 2.0, 100):
            size = 6.4 * carat ** (1 / 3)
            grades = (rng.choice(["Fair", "Ideal"]), rng.choice(["D", "J"]), rng.choice(["I1", "IF"]))
            rows.writerow((carat, *map(str, grades), 61.8, 57, round(4000 * carat**1.7), size, size, 0.6 * size))
