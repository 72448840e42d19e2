"""The record of what has been run: JSON rows in a file that is only added to."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Book:
    """The rows of a file, each with the `kind` of run it is from. Mutable: rows are added."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.rows: list[Json] = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def add(self, kind: str, rows: Iterable[Json]) -> None:
        with self._file.open("a") as out:
            for row in rows:
                self.rows.append({"kind": kind, **row})
                print(json.dumps(self.rows[-1]), file=out, flush=True)

    def find(self, **wanted: object) -> list[Json]:
        return [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]
