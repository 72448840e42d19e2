"""Configurations that several tests share."""

import csv
import gzip
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
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
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp

OPTIMIZERS: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(learning_rate=0.1, weight_decay=1e-4, warmup_steps=5),
    "adamw": AdamWConfig(learning_rate=1e-3, warmup_steps=5),
    "muon": MuonConfig(learning_rate=1e-3, warmup_steps=5),
    "schedulefree_sgd": ScheduleFreeSgdConfig(learning_rate=0.5, weight_decay=1e-4, warmup_steps=5),
    "schedulefree_adamw": ScheduleFreeAdamWConfig(learning_rate=2.5e-3, warmup_steps=5),
    "schedulefree_plus": ScheduleFreePlusConfig(learning_rate=0.3, weight_decay=20, warmup_steps=5),
}
#: What tells made-up docstrings apart.
TOPIC_WORDS = ("matrix", "normal")
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
    """Write 100 digits in the formats of the image sets, and made-up tables, texts and weights in those of theirs."""
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
    _write_flights(folder / "nycflights13")
    _write_encoder(folder / "all-MiniLM-L6-v2")
    _write_docstrings(folder / "scipy")
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


def _write_flights(folder: Path) -> None:
    """200 flights, those of one airline late; the weather of every other hour is known."""
    folder.mkdir()
    columns = (
        "year",
        "month",
        "day",
        "arr_delay",
        "carrier",
        "tailnum",
        "origin",
        "dest",
        "distance",
        "hour",
        "time_hour",
    )
    lines = [",".join(columns), "2013,1,1,NA,UA,NA,EWR,IAH,1400,5,2013-01-01T10:00:00Z"]
    for index in range(200):
        day, airline = 1 + index % 28, ("UA", "AA")[index % 3 == 0]
        when = f"2013-01-{day:02}T10:00:00Z"
        delay = 40 if airline == "AA" else -5
        lines.append(f"2013,1,{day},{delay},{airline},N{index % 50},EWR,IAH,{1000 + index},5,{when}")
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines) + "\n")
    rows = ["origin,temp,humid,wind_speed,precip,pressure,visib,time_hour"]
    rows += [f"EWR,{30 + day},NA,10.4,0,1012,10,2013-01-{day:02}T10:00:00Z" for day in range(1, 14, 2)]
    rows += [f"EWR,{30 + day},59.4,10.4,0,1012,10,2013-01-{day:02}T10:00:00Z" for day in range(15, 29, 2)]
    (folder / "weather.csv").write_text("\n".join(rows) + "\n")


def _write_encoder(folder: Path) -> None:
    """Random weights of all-MiniLM-L6-v2's width and depth; its hidden layers and vocabulary are smaller."""
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "return", "the", "of", "##s", *TOPIC_WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    rng = np.random.default_rng(0)
    width, hidden = 384, 16
    sizes = {
        "attention.self.query": (width, width), "attention.self.key": (width, width),
        "attention.self.value": (width, width), "attention.output.dense": (width, width),
        "attention.output.LayerNorm": (width,), "intermediate.dense": (hidden, width),
        "output.dense": (width, hidden), "output.LayerNorm": (width,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(vocabulary), width),
        "embeddings.position_embeddings.weight": (64, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for layer in range(6):
        for name, size in sizes.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": size, f"encoder.layer.{layer}.{name}.bias": size[:1]}
    weights = {name: rng.normal(0, 0.05, size).astype(np.float32) for name, size in shapes.items()}
    norms = {name: np.ones_like(each) for name, each in weights.items() if name.endswith("LayerNorm.weight")}
    save_file(weights | norms, folder / "model.safetensors")


def _write_docstrings(folder: Path) -> None:
    """Ten functions in each of two topics, which one word tells apart."""
    for topic, word in zip(("linalg", "stats"), TOPIC_WORDS, strict=True):
        (folder / topic / "tests").mkdir(parents=True)
        text = "".join(f'def f{i}():\n    """Return the {word}s of {"the " * i}."""\n' for i in range(10))
        (folder / topic / "_functions.py").write_text(text)
        (folder / topic / "tests" / "test_it.py").write_text('def test():\n    """Return what nobody should read."""\n')
