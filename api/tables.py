"""Every point of a job's series as a table, a row per point: CSV from the service, Parquet made of that CSV.

A spreadsheet runs text that begins with one of `= + - @`, or with a tab or a carriage return before it. In CSV such
text has an apostrophe before it, as has text that begins with one; who reads it takes the first apostrophe away.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from service.control.queries import Point
from service.wire.views import TrialView

COLUMNS = ("job", "arm", "seed", "step", "seconds", "name", "value")
_ROWS_AT_ONCE = 5_000
#: First characters by which a spreadsheet takes text for a formula; and the one that says that it is none.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")


def csv_chunks(job_id: str, points: Iterable[tuple[TrialView, Iterable[Point]]]) -> Iterator[str]:
    """Yield the table as CSV text. Floats are written so that they read back exactly; a diverged value is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    num_rows = 0
    for trial, found in points:
        for point in found:
            name = _as_text(point.name)
            writer.writerow([job_id, trial.arm, trial.seed, point.step, point.seconds, name, point.value])
            num_rows += 1
            if num_rows % _ROWS_AT_ONCE == 0:
                yield _taken(buffer)
    yield _taken(buffer)


def _as_text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _taken(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text


def write_parquet(source: BinaryIO, target: BinaryIO) -> None:
    """Write the table that `source` holds as CSV into `target` as Parquet, piece by piece."""
    import pyarrow as arrow  # a third of a second that no other command needs
    from pyarrow import csv as arrow_csv
    from pyarrow.compute import replace_substring_regex
    from pyarrow.parquet import ParquetWriter

    kinds = (arrow.string(), arrow.string(), arrow.int64(), arrow.int64(), arrow.float64(), arrow.string())
    schema = arrow.schema(list(zip(COLUMNS, (*kinds, arrow.float64()), strict=True)))
    options = arrow_csv.ConvertOptions(column_types=schema, null_values=[""], strings_can_be_null=False)
    with arrow_csv.open_csv(source, convert_options=options) as pieces, ParquetWriter(target, schema) as writer:
        for piece in pieces:
            names = replace_substring_regex(piece["name"], "^'", "")
            writer.write_batch(piece.set_column(COLUMNS.index("name"), schema.field("name"), names))
