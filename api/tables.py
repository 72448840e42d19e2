"""Every point of a job's series as a table, one row per point: CSV from the service, and Parquet made from it.

A spreadsheet runs text that begins with one of `= + - @`, or with a tab or a carriage return. In CSV such text gets an
apostrophe in front, and so does text that begins with one. Readers drop the first apostrophe.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import BinaryIO

from service.control.queries import NamedPoint
from service.wire.trials import TrialView

COLUMNS = ("job", "arm", "seed", "step", "seconds", "name", "value")
_ROWS_AT_ONCE = 5_000
#: First characters that make a spreadsheet run text as a formula, and the one that marks it as plain text.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")


def csv_chunks(job_id: str, points: Iterable[tuple[TrialView, Iterable[NamedPoint]]]) -> Iterator[str]:
    """Yield the table as CSV text. Floats read back exactly; a diverged value is empty."""
    yield _fields(*COLUMNS) + "\n"
    for trial, found in points:
        for name, series in groupby(found, attrgetter("name")):
            start, label = _fields(job_id, trial.arm, trial.seed), _fields(_as_text(name))
            while some := list(islice(series, _ROWS_AT_ONCE)):  # formatting by hand takes a third of csv.writer's time
                yield "".join(
                    f"{start},{step},{seconds!r},{label},{'' if value is None else repr(value)}\n"
                    for _, step, seconds, value in some
                )


def _as_text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _fields(*values: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def write_parquet(source: BinaryIO, target: BinaryIO) -> None:
    """Convert the CSV table in `source` to Parquet in `target`, piece by piece."""
    import pyarrow as arrow  # takes a third of a second, so only here
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
