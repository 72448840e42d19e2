"""User code as a package: a zip whose digest depends only on the names and contents of its files.

Clients package a folder. The service repackages every zip it receives and discards the original. A stored package
therefore holds only plain files with plain names, all below the folder it is unpacked into.
"""

import fnmatch
import hashlib
import io
import os
import stat
import struct
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

MAX_ZIP_BYTES = 20_000_000
MAX_BYTES = 100_000_000  # unpacked
MAX_FILES = 5000
MAX_NAME_BYTES = 240
MAX_RATIO = 200  # unpacked bytes / zip bytes; source code packs to a fifth
#: A larger file is data, which does not belong in a package of code.
MAX_FILE_BYTES = 10_000_000

#: Names left out at any depth, as are folders that hold a virtual environment.
LEFT_OUT = (".git", ".hg", ".svn", "__pycache__", "*.pyc", ".*_cache", ".venv", "node_modules", ".DS_Store")
_VENV = "pyvenv.cfg"
#: Modules that the workers need themselves: a file of that name would be imported in their place.
_TAKEN = sys.stdlib_module_names | {"ray", "search", "service", "torch", "trainers", "wiretune"}

_CHUNK_BYTES = 1 << 20
_END = struct.Struct("<4s4H2LH")  # the record that ends a zip
_END64_BYTES = 20  # the record before it in a ZIP64 file
_MAX_DIRECTORY_BYTES = MAX_FILES * (46 + MAX_NAME_BYTES + 64)
_ENCRYPTED, _UTF8 = 0x1, 0x800
_UNIX = 3
_PLAIN = (0, stat.S_IFREG, stat.S_IFDIR)
_MOMENT = (1980, 1, 1, 0, 0, 0)


class CodeRefused(ValueError):
    """A zip or folder cannot become a package; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """Checked code. Equal trees give equal digests; `num_bytes` counts the unpacked files."""

    digest: str
    content: bytes  # the zip
    num_bytes: int
    num_files: int


def of_zip(file: IO[bytes]) -> Package:
    """Build a package from an untrusted zip. Raises CodeRefused.

    Reads no more than `MAX_ZIP_BYTES` and `MAX_BYTES` allow, and writes nothing. A nested zip counts as a plain file.
    """
    size, num_entries = _read_end(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) != num_entries:
                raise CodeRefused(f"its directory has {len(members)} entries, its end says {num_entries}")
            _require_small(members, size)
            files = {each.filename: each for each in members if not _checked(each).is_dir()}
            _require_apart([each.filename for each in members])
            made = _packed({name: partial(_contents, archive, each) for name, each in files.items()})
            _require_readable(made)
            return made
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        raise CodeRefused(f"this is not a whole zip: {error or type(error).__name__}") from error


def of_folder(folder: Path, exclude: str | Sequence[str] = ()) -> Package:
    """Build a package from a folder, without `LEFT_OUT`, virtual environments and files that match `exclude`.

    Patterns such as `data` or `*.csv` match the name of a file or folder, or its path in the folder.
    Raises CodeRefused for links, pipes, devices, unreadable files, files over `MAX_FILE_BYTES`, and whatever a service
    would refuse.
    """
    exclude = [exclude] if isinstance(exclude, str) else exclude
    try:
        if not folder.is_dir():
            raise CodeRefused(f"{folder} is not a folder")
        made = _packed({name: partial(_read, folder / name) for name in _small_files(folder, (*LEFT_OUT, *exclude))})
    except OSError as error:
        name = os.path.relpath(error.filename or folder, folder)
        _refuse(name, f"cannot be read: {error.strerror or error}; leave it out (--exclude)")
    if len(made.content) > MAX_ZIP_BYTES:
        raise CodeRefused(f"{folder} makes a zip of {len(made.content)} bytes; allowed: {MAX_ZIP_BYTES}")
    return made


def _small_files(folder: Path, left_out: Sequence[str]) -> Iterable[str]:
    """Return the relative path of each file to package; refuse a large file, and too many files."""
    sizes = dict(_files_of(folder, left_out))
    for name, size in sizes.items():
        _require_good_name(name)
        if size > MAX_FILE_BYTES:
            remedy = "data does not belong into a package of code: leave it out with `exclude` (--exclude)"
            raise CodeRefused(f"`{name}` has {size} bytes, over {MAX_FILE_BYTES}; {remedy}")
    _require_counts(len(sizes), sum(sizes.values()))
    return sizes


def _files_of(folder: Path, left_out: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the relative path and size in bytes of each file to package. Raises OSError."""
    for place, folders, names in os.walk(folder, onerror=_raise):
        here = Path(place).relative_to(folder)
        folders[:] = [
            each
            for each in folders
            if not _is_left_out(here / each, left_out) and not os.path.exists(Path(place) / each / _VENV)
        ]
        for each in (*folders, *names):
            if (Path(place) / each).is_symlink() and not _is_left_out(here / each, left_out):
                _refuse((here / each).as_posix(), "is a link: put the file in its place, or leave it out (--exclude)")
        for each in names:
            if not _is_left_out(here / each, left_out):
                about = (Path(place) / each).stat()
                if not stat.S_ISREG(about.st_mode):  # reading a pipe may never end
                    _refuse((here / each).as_posix(), "is a pipe, a socket or a device: leave it out (--exclude)")
                yield (here / each).as_posix(), about.st_size


def _raise(error: OSError) -> NoReturn:
    raise error


def _read(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()


def _is_left_out(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (path.name, path.as_posix()) for pattern in patterns)


def _packed(files: Mapping[str, Callable[[], Iterator[bytes]]]) -> Package:
    """Build a package from `files`: for each name, a callable that yields its content."""
    if not files:
        raise CodeRefused("there is no file in it")
    _require_own_modules(files)
    listing, out, num_bytes = hashlib.sha256(), io.BytesIO(), 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            digest, about = hashlib.sha256(), zipfile.ZipInfo(name, _MOMENT)
            about.compress_type, about.create_system = zipfile.ZIP_DEFLATED, _UNIX
            about.external_attr = (stat.S_IFREG | 0o644) << 16
            with archive.open(about, "w") as member:
                for chunk in files[name]():
                    digest.update(chunk)
                    member.write(chunk)
                    num_bytes += len(chunk)
            listing.update(f"{digest.hexdigest()}  {name}\n".encode())  # as `sha256sum` lists them
    return Package(
        digest=f"sha256:{listing.hexdigest()}", content=out.getvalue(), num_bytes=num_bytes, num_files=len(files)
    )


def _require_readable(made: Package) -> None:
    """Refuse a package whose repacked zip, now larger or much smaller, would be refused when a job starts."""
    size = len(made.content)
    if size > MAX_ZIP_BYTES:
        raise CodeRefused(f"it makes a zip of {size} bytes; allowed: {MAX_ZIP_BYTES}")
    if made.num_bytes > MAX_RATIO * size:
        raise CodeRefused(f"its {made.num_bytes} bytes pack to {size}; allowed: {MAX_RATIO} times the zip's")


def _read_end(file: IO[bytes]) -> tuple[int, int]:
    """Return the zip's size in bytes and its number of entries.

    Refuse a file with anything before or after the zip: `zipfile` would accept it as a self-extracting program. Refuse
    a directory that is too long: `zipfile` would make an object for each entry.
    """
    size = file.seek(0, os.SEEK_END)
    if size > MAX_ZIP_BYTES:
        raise CodeRefused(f"it has more than {MAX_ZIP_BYTES} bytes")
    file.seek(max(0, size - _END.size - _END64_BYTES))
    tail = file.read()
    end = tail[-_END.size :]
    if len(end) < _END.size or end[:4] != zipfile.stringEndArchive or end[-2:] != b"\0\0":  # type: ignore[attr-defined]
        raise CodeRefused("it is not a zip that ends without a comment")
    if tail[: -_END.size].startswith(b"PK\x06\x07"):
        raise CodeRefused("it is a ZIP64 file, which small zips need not be")
    *_, num_entries, directory, start, _ = _END.unpack(end)
    if num_entries > MAX_FILES or directory > _MAX_DIRECTORY_BYTES:
        raise CodeRefused(f"it has more than {MAX_FILES} files")
    if start + directory + _END.size != size:
        raise CodeRefused("it begins with something that is not a zip, or was cut off")
    return size, num_entries


def _require_small(members: Sequence[zipfile.ZipInfo], size: int) -> None:
    declared = sum(each.file_size for each in members)
    _require_counts(len(members), declared)
    if declared > MAX_RATIO * size:
        raise CodeRefused(f"it unpacks to {declared} bytes, over {MAX_RATIO} times its size")


def _require_counts(num_files: int, num_bytes: int) -> None:
    if num_files > MAX_FILES:
        raise CodeRefused(f"it has {num_files} files and folders; allowed: {MAX_FILES}")
    if num_bytes > MAX_BYTES:
        raise CodeRefused(f"its files have {num_bytes} bytes; allowed: {MAX_BYTES}")


def _checked(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return `member` if it is a plain file or folder whose name stays below the folder it is unpacked into."""
    written = member.orig_filename
    if not written.isascii() and not member.flag_bits & _UTF8:
        _refuse(written, "is not marked as UTF-8")
    _require_good_name(written.removesuffix("/"))
    if stat.S_IFMT(member.external_attr >> 16) not in _PLAIN:
        _refuse(written, "is a link or a device; files and folders are allowed")
    if member.flag_bits & _ENCRYPTED:
        _refuse(written, "is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _refuse(written, "is compressed in an unusual way; stored and deflated are allowed")
    return member


def _require_good_name(name: str) -> None:
    if "\\" in name or not name.isprintable():
        _refuse(name, "has a backslash or a control character in its name")
    if name.startswith("/"):
        _refuse(name, "is an absolute path")
    if any(part in ("", ".", "..") for part in name.split("/")):
        _refuse(name, "has an empty part, `.` or `..` in its path")
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        _refuse(name, f"has a name of more than {MAX_NAME_BYTES} bytes")


def _require_apart(names: Sequence[str]) -> None:
    """Refuse two members with the same name, and a file that another member uses as its folder."""
    counts = Counter(name.removesuffix("/") for name in names)
    for name, count in counts.items():
        if count > 1:
            _refuse(name, "is in it more than once")
    files = {name for name in names if not name.endswith("/")}
    for name in names:
        parts = name.removesuffix("/").split("/")
        for length in range(1, len(parts)):
            if "/".join(parts[:length]) in files:
                _refuse(name, f"is below `{'/'.join(parts[:length])}`, which is a file")


def _require_own_modules(names: Mapping[str, object]) -> None:
    """Refuse a top-level module that would hide one the workers need."""
    for name in names:
        first, _, rest = name.partition("/")
        module = first if rest else first.removesuffix(".py")
        if module in _TAKEN and name.endswith(".py"):
            _refuse(name, f"would be imported in place of the workers' own module `{module}`: give it another name")


def _contents(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the member's content; refuse it if the size differs from the declared one."""
    num_bytes = 0
    with archive.open(member) as file:
        while chunk := file.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            yield chunk
    if num_bytes != member.file_size:
        _refuse(member.filename, f"says that it has {member.file_size} bytes, and has {num_bytes}")


def _refuse(name: str, why: str) -> NoReturn:
    shown = name if len(name) <= 100 else f"{name[:100]}..."
    raise CodeRefused(f"`{ascii(shown)[1:-1]}` {why}")
