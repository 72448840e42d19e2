"""The record of what has been run: JSON rows in a file that is only added to."""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rows import append, read

Json = dict[str, Any]


class Book:
    """The rows of a file, each with the `kind` of run it is from, and the commit since there is one. Mutable: rows are
    added."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._commit = commit()  # now: a run of hours may see others, but its code is this one's
        self.rows: list[Json] = read(file)

    def add(self, kind: str, rows: Iterable[Json]) -> None:
        for row in rows:
            self.rows.append({"kind": kind, "commit": self._commit, **row})
            append(self._file, self.rows[-1])

    def find(self, **wanted: object) -> list[Json]:
        return [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]


def commit() -> str | None:
    """Return the repository's commit, shortened; None without a repository or git."""
    command = ("git", "rev-parse", "--short=10", "HEAD")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def num_commits(rows: Sequence[Json]) -> int:
    """Return how many commits the rows are known to be of: the first ones recorded name none."""
    return len({row.get("commit") for row in rows} - {None})
