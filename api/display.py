"""Views of a job for people: a line, a table in a terminal or notebook, a data frame, a figure."""

import io
import math
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
from service.job.states import JobState
from service.wire.jobs import JobSummary, JobView
from service.wire.reports import TrialReport
from service.wire.stored import UnreadJob, has_one_seed
from service.wire.trials import ScheduleView, Series, TrialView

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

Trials = Sequence[TrialView]
Show = Callable[[JobView, Trials, str], None]
Axis = Literal["seconds", "step"]
#: Durations are in seconds up to here: longer ones are hard to read so.
LONG_S = 600.0
SPANS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
#: An arm may be called `null` or `01`, so pandas must not interpret it; only a value may be missing.
_AS_NAMED: Any = {"keep_default_na": False, "na_values": {"value": [""]}, "dtype": {"arm": str, "name": str}}
_COLUMNS = ("trial", "state", "step", "training", "learning rate", "validation loss", "sent")
#: Of a job that is not over, more trials than this that do not train are one row: the others must fit a screen.
_MOST_AT_REST = 3


def duration(seconds: float, digits: int = 1) -> str:
    """Return a duration in seconds, `2.6 s`, and from ten minutes on in its two largest units: `3 h 12 min`."""
    if seconds < LONG_S:
        return f"{seconds:.{digits}f} s"
    at = next(at for at, (_, length) in enumerate(SPANS) if round(seconds) >= length)
    (unit, length), (lower, part) = SPANS[at : at + 2]
    whole, rest = divmod(round(seconds / part), length // part)
    return f"{whole} {unit} {rest} {lower}" if rest else f"{whole} {unit}"


def how_far(job: JobSummary) -> str:
    """Return the spent share of a job's budget, and the time left: `45%, 2 h 10 min left`; empty if it is over."""
    if job.progress is None or job.is_over:
        return ""
    share, left_s = f"{math.floor(100 * job.progress.share)}%", job.progress.seconds_left
    if left_s is None or job.state in (JobState.QUEUED, JobState.PAUSED):
        return share
    return f"{share}, {duration(left_s, 0)} left"


def headline(job: JobView, trials: Trials) -> str:
    """Return a job in one line: its name, its state, and the progress of the training trial, or else the first."""
    parts = [f"{job.name!r} {job.state}"]
    begun = [trial for trial in trials if trial.backend]
    trial = next((each for each in begun if each.outcome is None), begun[0] if begun else None)
    if trial is not None:
        parts += [f"step {trial.step}", f"loss {_number(trial.validation_loss)}"]
    return ", ".join([*parts, job.id])


def table(job: JobView, trials: Trials, far: str = "") -> Table:
    """Return the job's trials for a terminal; `far` says how far it is."""
    # As `Text`: rich would read brackets in a plain string as markup.
    title = Text(_title(job, far), style="table.title")
    made = Table(*_COLUMNS, title=title, title_justify="left", box=box.SIMPLE)
    for row in _rows(job, trials):
        made.add_row(*map(Text, row))
    return made


def html(job: JobView, trials: Trials, far: str = "") -> str:
    """Return the job's trials for a notebook; `far` says how far it is."""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in _rows(job, trials))
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><p><b>{escape(_title(job, far))}</b></p>{body}</div>"


@contextmanager
def screen() -> Iterator[Show]:
    """Give a function that shows a job, replacing what it showed before."""
    console = Console()
    if console.is_jupyter:
        from IPython.display import HTML, display

        output = display(HTML(""), display_id=True)
        yield lambda job, trials, far: output.update(HTML(html(job, trials, far)))
    else:  # a pipe gets only the last one
        with Live(console=console, auto_refresh=False) as live:
            yield lambda job, trials, far: live.update(table(job, trials, far), refresh=True)


def frame(points: bytes, name: str | None) -> "DataFrame":
    """Return the service's table of points as a data frame: of all metrics, or of the metric `name` alone.

    Raises ValueError if the table has only other metrics.
    """
    import pandas  # takes half a second, so only here

    found = pandas.read_csv(io.BytesIO(points), **_AS_NAMED).drop(columns="job")
    if name is None:
        return found
    if len(found):
        require_name(name, found["name"])
    own = found[found["name"] == name].reset_index(drop=True)
    return own.drop(columns="name").rename(columns={"value": name})


def require_name(name: str, recorded: Iterable[str]) -> None:
    """Raise ValueError if `name` is none of the `recorded` metrics."""
    names = sorted(set(recorded))
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


def _title(job: JobView, far: str) -> str:
    why = [each for each in (job.reason, "" if job.queue is None else job.queue.sentence) if each]
    state = f"{job.state}, {far}" if far else job.state
    return f"{job.name} ({job.id}) is {state}{': ' if why else ''}{'; '.join(why)}"


def _rows(job: JobView, trials: Trials) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial. Of a job that is not over, those that train come first, and many others share one."""
    if job.is_over:
        yield from (_row(job, trial) for trial in trials)
        return
    trains = [trial for trial in trials if trial.backend and trial.outcome is None]
    waiting = [trial for trial in trials if not trial.backend and trial.outcome is None]
    for trial in trains:
        yield _row(job, trial)
    for name, group in (("waiting", waiting), ("finished", [trial for trial in trials if trial.outcome is not None])):
        if len(group) <= _MOST_AT_REST:
            yield from (_row(job, trial) for trial in group)
        else:
            yield _row_of_several(f"{len(group)} trials", name, group)


def _row(job: JobView, trial: TrialView) -> tuple[str, ...]:
    return (
        trial_name(trial, job.spec),
        trial.phase(job.state),
        str(trial.step),
        duration(trial.seconds),
        _number(trial.learning_rate),
        _number(trial.validation_loss),
        filesize.decimal(trial.bill.bytes_sent),
    )


def _row_of_several(name: str, state: str, trials: Trials) -> tuple[str, ...]:
    losses = [trial.validation_loss for trial in trials if trial.validation_loss is not None]
    best = f"best {_number(min(losses))}" if losses else "-"
    return name, state, "", "", "", best, filesize.decimal(sum(trial.bill.bytes_sent for trial in trials))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
