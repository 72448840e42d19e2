"""Views of a job for people: a line, a table in a terminal or notebook, a data frame, a figure."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from rich import box, filesize
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from service.job.spec import JobSpec
from service.wire.jobs import JobView
from service.wire.reports import TrialReport
from service.wire.stored import UnreadJob, has_one_seed
from service.wire.trials import ScheduleView, Series, SeriesExtent, TrialView

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

Trials = Sequence[TrialView]
Show = Callable[[JobView, Trials], None]
Axis = Literal["seconds", "step"]
#: An arm may be called `null` or `01`, so pandas must not interpret it; only a value may be missing.
_AS_NAMED: Any = {"keep_default_na": False, "na_values": {"value": [""]}, "dtype": {"arm": str, "name": str}}
_COLUMNS = ("trial", "state", "step", "seconds", "learning rate", "validation loss", "sent")


def headline(job: JobView, trials: Trials) -> str:
    """Return a job in one line: its name, its state, and the progress of the training trial, or else the first."""
    parts = [f"{job.name!r} {job.state}"]
    begun = [trial for trial in trials if trial.backend]
    trial = next((each for each in begun if each.outcome is None), begun[0] if begun else None)
    if trial is not None:
        parts += [f"step {trial.step}", f"loss {_number(trial.validation_loss)}"]
    return ", ".join([*parts, job.id])


def table(job: JobView, trials: Trials) -> Table:
    """Return the job's trials for a terminal, one row each."""
    # As `Text`: rich would read brackets in a plain string as markup.
    made = Table(*_COLUMNS, title=Text(_title(job), style="table.title"), title_justify="left", box=box.SIMPLE)
    for row in _rows(job, trials):
        made.add_row(*map(Text, row))
    return made


def html(job: JobView, trials: Trials) -> str:
    """Return the job's trials for a notebook, one row each."""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in _rows(job, trials))
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><p><b>{escape(_title(job))}</b></p>{body}</div>"


@contextmanager
def screen() -> Iterator[Show]:
    """Give a function that shows a job, replacing what it showed before."""
    console = Console()
    if console.is_jupyter:
        from IPython.display import HTML, display

        output = display(HTML(""), display_id=True)
        yield lambda job, trials: output.update(HTML(html(job, trials)))
    else:  # a pipe gets only the last one
        with Live(console=console, auto_refresh=False) as live:
            yield lambda job, trials: live.update(table(job, trials), refresh=True)


def frame(points: bytes, name: str | None) -> "DataFrame":
    """Return the service's table of points as a data frame: of all metrics, or of the metric `name` alone."""
    import pandas  # takes half a second, so only here

    found = pandas.read_csv(io.BytesIO(points), **_AS_NAMED).drop(columns="job")
    return found if name is None else found.drop(columns="name").rename(columns={"value": name})


def require_name(name: str, recorded: Iterable[SeriesExtent]) -> None:
    """Raise ValueError if `name` is none of the `recorded` metrics."""
    names = sorted({each.name for each in recorded})
    if name not in names:
        raise ValueError(f"`name` must be one of {', '.join(names)}, got {name!r}")


def trial_name(trial: TrialView | TrialReport | ScheduleView | Series, spec: JobSpec | UnreadJob) -> str:
    """Return the arm's name, with the seed if there are several."""
    return trial.arm if has_one_seed(spec) else f"{trial.arm} seed {trial.seed}"


def figure(job: JobView, series: Sequence[Series], x: Axis) -> "Figure":
    """Return a figure of the series over `x`, one line per trial.

    Raises:
        ValueError: `x` is neither `seconds` nor `step`.
    """
    import plotly.graph_objects as plotly  # takes half a second, so only here

    if x not in ("seconds", "step"):
        raise ValueError(f"`x` must be seconds or step, got {x!r}")
    lines = [
        plotly.Scatter(x=each.seconds if x == "seconds" else each.steps, y=each.values, name=trial_name(each, job.spec))
        for each in series
    ]
    over = "training seconds" if x == "seconds" else "step"
    title = {"title": job.name, "xaxis_title": over, "yaxis_title": series[0].name if series else ""}
    return plotly.Figure(lines, layout=title)


def _title(job: JobView) -> str:
    return f"{job.name} ({job.id}) is {job.state}{f': {job.reason}' if job.reason else ''}"


def _rows(job: JobView, trials: Trials) -> Iterator[tuple[str, ...]]:
    for trial in trials:
        yield (
            trial_name(trial, job.spec),
            trial.phase(job.state),
            str(trial.step),
            f"{trial.seconds:.1f}",
            _number(trial.learning_rate),
            _number(trial.validation_loss),
            filesize.decimal(trial.bill.bytes_sent),
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
