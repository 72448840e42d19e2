"""Tables: every point of a job's series, one row per point, as CSV or Parquet; and jobs, one row per job, as CSV.

A spreadsheet runs text that begins with one of `= + - @`, or with a tab or a carriage return. In CSV such text gets an
apostrophe in front, and so does text that begins with one. Readers drop the first apostrophe.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, BinaryIO

from service.control.queries import NamedPoint
from service.wire.jobs import JobBill, JobSummary
from service.wire.trials import TrialView

COLUMNS = ("job", "arm", "seed", "step", "seconds", "name", "value")
#: Of a table of jobs, before the columns that were asked for and the bill.
_OF_JOBS = (
    *("id", "name", "state", "owner", "project", "created_at", "started_at", "finished_at"),
    *("metric", "result", "best_validation_loss"),
)
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


def jobs_csv(jobs: Iterable[JobSummary], columns: Mapping[str, str]) -> Iterator[str]:
    """Yield jobs as CSV text, a line at a time, with their results, fields and bills.

    `columns` name the pointers of the fields. Floats read back exactly; what is not there is empty.
    """
    yield _fields(*_OF_JOBS, *map(_as_text, columns), *JobBill.model_fields) + "\n"
    for job in jobs:
        shown = job.model_dump(mode="json")
        of_spec, bill = shown["fields"] or {}, shown["bill"] or {}
        values = [shown[name] for name in _OF_JOBS] + [of_spec.get(pointer) for pointer in columns.values()]
        yield _fields(*map(_cell, [*values, *map(bill.get, JobBill.model_fields)])) + "\n"


def _cell(value: Any) -> Any:
    if value is None or type(value) in (int, float):
        return value
    return _as_text(value if isinstance(value, str) else json.dumps(value))


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
