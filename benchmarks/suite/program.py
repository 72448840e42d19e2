"""The command line of the suite's programs, and their loop over what is not measured yet."""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from rows import Json, append, read

from trainers.workload import WorkloadError


def arguments(
    doc: str | None,
    commands: Sequence[str] = ("run", "table"),
    *,
    seeds: Sequence[int],
    tasks: Collection[str] = (),
    steps: Sequence[int] = (),
) -> argparse.Namespace:
    """Return the parsed command line: a command, and options with these defaults. One without a default is left out.

    From here on the process takes a single core: others take the other parts.
    """
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=commands)
    if tasks:
        parser.add_argument("--tasks", nargs="+", choices=tuple(tasks), default=tuple(tasks))
    add_options(parser, seeds=seeds, steps=steps)
    return parser.parse_args()


def add_options(parser: argparse.ArgumentParser, *, seeds: Sequence[int], steps: Sequence[int] = ()) -> None:
    """Add the options that select runs."""
    if steps:
        parser.add_argument("--steps", nargs="+", type=int, default=steps)
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds)
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("INDEX", "COUNT"))


def append_missing(file: Path, cells: Sequence[Json], part: Sequence[int], measure: Callable[..., Json]) -> None:
    """Append to `file` a dated row for each cell of this part that has none.

    A cell is the beginning of its row, and the arguments of `measure`, which returns the rest.
    """
    rows = read(file)
    for cell in cells[part[0] :: part[1]]:
        if any(cell.items() <= row.items() for row in rows):
            continue
        try:
            row = cell | measure(**cell)
        except WorkloadError as error:  # its data are not on this machine
            print(*cell.values(), error, file=sys.stderr)
            continue
        append(file, row | {"date": datetime.now(UTC).date().isoformat()})
