"""The file of a program's measurements: one JSON row per line, append-only."""

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def read(file: Path) -> list[Json]:
    """Return the rows; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, *rows: Json) -> None:
    """Add rows to the file, which is made if it is not there."""
    with file.open("a") as out:
        out.writelines(f"{json.dumps(row)}\n" for row in rows)
