"""A package of code equals its files; a hostile zip is refused by name, at a small cost."""

import errno
import io
import os
import stat
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from service.code_package import MAX_BYTES, MAX_FILE_BYTES, MAX_FILES, CodeRefused, of_folder, of_zip

TRAIN = b"def build(): ...\n"
END_BYTES = 22


def zipped(*members, compression=zipfile.ZIP_DEFLATED):
    """A zip of (name or ZipInfo, content)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def of_mode(name, mode):
    about = zipfile.ZipInfo(name)
    about.create_system, about.external_attr = 3, mode << 16
    return about


def patched(content, **fields):
    """The zip with fields of its first entry replaced, in the directory and in front of it: (offsets, form, value)."""
    directory = bytearray(content)
    start = content.index(b"PK\x01\x02")
    for (central, local), form, value in fields.values():
        struct.pack_into(form, directory, start + central, value)
        struct.pack_into(form, directory, local, value)
    return bytes(directory)


def renamed(content, old, new):
    assert len(old) == len(new)
    return content.replace(old, new)


def many(count):
    return zipped(*((f"m{index}.py", b"") for index in range(count)), compression=zipfile.ZIP_STORED)


def claiming(size):
    """A file of few bytes that says that it has `size`."""
    return patched(zipped(("train.py", TRAIN * 100)), size=((24, 22), "<L", size))


SMALL = zipped(("train.py", TRAIN))
HOSTILE = {
    "not a zip": (b"PK" * 100, "not a zip"),
    "empty": (b"", "not a zip"),
    "no file": (zipped(), "no file"),
    "only a folder": (zipped(("models/", b"")), "no file"),
    "cut off": (SMALL[:40] + SMALL[45:], "cut off"),
    "in front of it": (b"#!/bin/sh\n" + SMALL, "begins with"),
    "comment": (SMALL[:-2] + b"\x03\x00abc", "comment"),
    "absolute": (zipped(("/etc/cron.d/x", b"")), "absolute"),
    "traversal": (zipped(("../../x.py", b"")), "`..`"),
    "traversal inside": (zipped(("a/../../x.py", b"")), "`..`"),
    "traversal of a folder": (zipped(("train.py", b""), ("../x/", b"")), "`..`"),
    "dot": (zipped(("./x.py", b"")), "`.`"),
    "empty part": (zipped(("a//x.py", b"")), "empty part"),
    "backslash": (renamed(zipped(("a/bcd.py", b"")), b"a/bcd.py", b"..\\bc.py"), "backslash"),
    "NUL": (renamed(zipped(("a/bcd.py", b"")), b"a/bcd.py", b"a\0bcd.py"), "control"),
    "newline": (zipped(("a\nb.py", b"")), "control"),
    "not UTF-8": (renamed(zipped(("ä.py", b"")), "ä".encode(), b"\xff\xfe"), "not a whole zip"),
    "not marked as UTF-8": (renamed(zipped(("ab.py", b"")), b"ab.py", "ä.py".encode()), "UTF-8"),
    "long": (zipped(("a" * 241 + ".py", b"")), "240 bytes"),
    "link": (zipped((of_mode("x.py", stat.S_IFLNK | 0o777), b"/etc/passwd")), "link or a device"),
    "device": (zipped((of_mode("x", stat.S_IFCHR | 0o666), b"")), "link or a device"),
    "pipe": (zipped((of_mode("x", stat.S_IFIFO | 0o666), b"")), "link or a device"),
    "twice": (renamed(zipped(("one.py", b"1"), ("two.py", b"2")), b"two.py", b"one.py"), "more than once"),
    "file as folder": (zipped(("a", b""), ("a/b.py", b"")), "is a file"),
    "encrypted": (patched(SMALL, flags=((8, 6), "<H", 1)), "encrypted"),
    "unusual compression": (zipped(("x.py", TRAIN), compression=zipfile.ZIP_BZIP2), "unusual"),
    "unknown compression": (patched(SMALL, method=((10, 8), "<H", 97)), "unusual"),
    "wrong checksum": (patched(SMALL, crc=((16, 14), "<L", 1)), "CRC"),
    "more than it says": (claiming(10), "CRC"),
    "less than it says": (claiming(3000), "says that it has 3000 bytes"),
    "too large": (claiming(MAX_BYTES + 1), "100000001 bytes"),
    "too many": (many(MAX_FILES + 1), "5000 files"),
    "bomb": (zipped(("zeros", bytes(30_000_000))), "200 times"),
    "bomb once it is packed anew": (
        zipped(("zeros", bytes(3_000_000)), compression=zipfile.ZIP_STORED),
        "200 times",
    ),
    "the workers' module": (zipped(("service/__init__.py", b"")), "workers' own module `service`"),
    "Python's module": (zipped(("random.py", b"")), "workers' own module `random`"),
}


@pytest.mark.parametrize(("content", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_zip_is_refused_with_its_reason_at_a_small_price(content, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    began = time.process_time()

    with pytest.raises(CodeRefused) as refused:
        of_zip(io.BytesIO(content))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert why in str(refused.value)
    assert time.process_time() - began < 2.0 and peak < 20_000_000
    assert not list(tmp_path.iterdir())


def test_a_directory_of_more_entries_than_the_end_of_the_zip_counts_is_not_read():
    content = bytearray(many(40_000))
    struct.pack_into("<HH", content, len(content) - END_BYTES + 8, 1, 1)
    began = time.process_time()

    with pytest.raises(CodeRefused, match="5000"):
        of_zip(io.BytesIO(content))

    assert time.process_time() - began < 1.5


def test_any_damage_to_a_zip_is_a_refusal_or_changes_no_file():
    content = zipped(("train.py", TRAIN), ("models/net.py", b"x = 1\n"))
    whole = of_zip(io.BytesIO(content))
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        try:
            found = of_zip(io.BytesIO(damaged))
        except CodeRefused:
            continue
        assert found.num_bytes == whole.num_bytes


def test_a_zip_inside_is_a_file_like_others():
    inner = zipped(("../x.py", b""))

    made = of_zip(io.BytesIO(zipped(("data.zip", inner))))

    assert zipfile.ZipFile(io.BytesIO(made.content)).read("data.zip") == inner


def test_the_digest_is_of_names_and_contents_alone():
    files = {"train.py": TRAIN, "models/net.py": b"x = 1\n", "models/ä.txt": b""}
    forward, backward = zipped(*files.items()), zipped(*reversed(files.items()), ("models/", b""))
    stored = zipped(*((of_mode(name, 0o100755), text) for name, text in files.items()), compression=zipfile.ZIP_STORED)

    made = [of_zip(io.BytesIO(content)) for content in (forward, backward, stored)]

    assert len({(each.digest, each.content) for each in made}) == 1
    assert (made[0].num_files, made[0].num_bytes) == (3, len(TRAIN) + 6)
    assert of_zip(io.BytesIO(made[0].content)) == made[0]
    for changed in (files | {"train.py": TRAIN + b" "}, files | {"new.py": b""}):
        assert of_zip(io.BytesIO(zipped(*changed.items()))).digest != made[0].digest


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mine"
    for name in ("train.py", "models/net.py", "data/rows.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(TRAIN)
    return folder


def test_a_folder_gives_the_digest_that_its_zip_has_at_the_service(folder):
    made = of_folder(folder)

    assert of_zip(io.BytesIO(made.content)) == made
    assert made.num_files == 3


def test_histories_caches_environments_and_what_is_excluded_stay_behind(folder):
    before = of_folder(folder, exclude=["*.csv"])
    for name in (".git/config", "__pycache__/x.pyc", "models/x.pyc", ".venv/a.py", "env/pyvenv.cfg", "env/lib/b.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    (folder / ".git" / "link").symlink_to("/")

    assert of_folder(folder, exclude=["*.csv"]) == before
    assert of_folder(folder, exclude=["data"]) == of_folder(folder, exclude="data") == before
    assert of_folder(folder, exclude=["data/rows.csv"]) == before
    assert before.num_files == 2


def test_a_link_or_a_large_file_of_a_folder_is_named(folder):
    with (folder / "weights.bin").open("wb") as large:
        large.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(CodeRefused, match=r"weights.bin.*--exclude"):
        of_folder(folder)
    os.remove(folder / "weights.bin")
    (folder / "models" / "shared").symlink_to(folder / "data")
    with pytest.raises(CodeRefused, match=r"models/shared.* is a link.*--exclude"):
        of_folder(folder)
    assert of_folder(folder, exclude=["shared"]).num_files == 3


@pytest.mark.timeout(30)  # to read the pipe would never end
@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_what_is_no_plain_file_of_a_folder_is_named(folder, kind):
    os.mknod(folder / "models" / "odd", kind | 0o644)

    with pytest.raises(CodeRefused, match=r"`models/odd` is a pipe, a socket or a device.*--exclude"):
        of_folder(folder)
    assert of_folder(folder, exclude=["odd"]).num_files == 3


@pytest.mark.parametrize(("module", "name", "at"), [(os, "scandir", "models"), (Path, "read_bytes", "models/net.py")])
def test_what_cannot_be_read_of_a_folder_is_named_and_not_left_out(folder, monkeypatch, module, name, at):
    read = getattr(module, name)

    def denied(path, *rest):
        if os.path.relpath(path, folder) == at:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path, *rest)

    monkeypatch.setattr(module, name, denied)

    with pytest.raises(CodeRefused, match=rf"`{at}` cannot be read: Permission denied; .*--exclude"):
        of_folder(folder)
    assert of_folder(folder, exclude=["models"]).num_files == 2
