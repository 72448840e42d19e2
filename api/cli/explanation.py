"""Explanations of a job's decisions: the reason, the evidence, and the outcome, from the public API alone."""

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from api.cli import figures
from api.cli.progress import values_text
from api.cli.sheet import Sheet
from api.client import Client
from api.display import trial_name
from search.curves.calibration import Calibration
from search.types import GridAxis, Posterior
from service.wire.jobs import JobView
from service.wire.reports import TrialReport
from service.wire.trials import ProbeView, StageView

NUM_ROWS = 16
NUM_CELLS = 40
_SHADES = " ░▒▓█"
_PROBE, _CHOICE = "o", "X"
#: The origin of a wide search's coarse probes.
COARSE = "wide"


def plot(stage: StageView, posterior: Posterior, *, level: str) -> Iterator[str]:
    """Yield the lines of the posterior's plot; `level` is the name of the stage's level."""
    if len(posterior.axes) == 1:
        yield from _bars(stage, posterior)
    else:
        yield from _map(
            stage,
            posterior,
            second=level if posterior.axes[1].name == "level" else posterior.axes[1].name.replace("_", " "),
        )


def _bars(stage: StageView, posterior: Posterior) -> Iterator[str]:
    rates = posterior.axes[0].coordinates
    low = min(mean - std for mean, std in zip(posterior.mean, posterior.std, strict=True))
    high = max(mean + std for mean, std in zip(posterior.mean, posterior.std, strict=True))
    rows = _thinned(len(rates))
    probes = _rows_of(rows, posterior.axes[0], [probe.learning_rate for probe in stage.probes])
    chosen = _rows_of(rows, posterior.axes[0], [stage.learning_rate])
    yield f"{'learning rate':>14}   gain expected (█), and 1 std more (░); {_PROBE}: a probe, {_CHOICE}: chosen"
    for row in rows:
        mean, std = posterior.mean[row], posterior.std[row]
        sure, hoped = (round(NUM_CELLS * _share(value, low, high)) for value in (mean, mean + std))
        marks = (_PROBE if row in probes else "") + (_CHOICE if row in chosen else "")
        bar = "█" * sure + "░" * (hoped - sure)
        yield f"{rates[row]:>14.3g} {marks:<3}{bar:<{NUM_CELLS}} {mean:+.3g} ± {std:.2g}"


def _map(stage: StageView, posterior: Posterior, *, second: str) -> Iterator[str]:
    rates, others = posterior.axes
    rows = _thinned(len(others.coordinates))
    low, high = min(posterior.mean), max(posterior.mean)
    marks = _marks(stage, posterior, rows)
    yield f"{second:>14}   gain expected, the darker the higher; {_PROBE}: a probe, {_CHOICE}: chosen"
    for row in reversed(rows):
        means = posterior.mean[row :: len(others.coordinates)]
        shades = (_SHADES[min(4, int(5 * _share(mean, low, high)))] for mean in means)
        cells = (marks.get((column, row), shade) for column, shade in enumerate(shades))
        yield f"{others.coordinates[row]:>14.3g} |{''.join(cells)}|"
    first, last = f"{rates.coordinates[0]:.3g}", f"{rates.coordinates[-1]:.3g}"
    yield f"{'':>16}{first} {last.rjust(len(rates.coordinates) - len(first) - 1)}  learning rate"


def _marks(stage: StageView, posterior: Posterior, rows: Sequence[int]) -> dict[tuple[int, int], str]:
    rates, others = posterior.axes
    columns = range(len(rates.coordinates))
    shown: list[tuple[ProbeView | StageView, str]] = [*((probe, _PROBE) for probe in stage.probes), (stage, _CHOICE)]
    return {
        (_nearest(columns, rates, each.learning_rate), _nearest(rows, others, other)): mark
        for each, mark in shown
        if isinstance(other := each.level if others.name == "level" else each.values.get(others.name), int | float)
    }


def _thinned(num_points: int) -> list[int]:
    """Return at most `NUM_ROWS` indices, both ends included."""
    last = num_points - 1
    return sorted({round(index * last / (NUM_ROWS - 1)) for index in range(NUM_ROWS)})


def _rows_of(rows: Sequence[int], axis: GridAxis, values: Sequence[float]) -> set[int]:
    return {_nearest(rows, axis, value) for value in values}


def _nearest(rows: Sequence[int], axis: GridAxis, value: float) -> int:
    # the grid is even on the axis's own scale, so either neighbour of a value is close enough
    return min(rows, key=lambda row: abs(axis.coordinates[row] - value))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


#: The shares of good forecasts within 1 and 2 standard deviations.
EXPECTED = (0.68, 0.95)


class TrialExplanation(BaseModel):
    """A trial's decisions, oldest first."""

    trial: TrialReport
    stages: tuple[StageView, ...]


class Explanation(BaseModel):
    """A job's decisions, trial by trial; scripts get it unchanged."""

    job: JobView
    trials: tuple[TrialExplanation, ...]


def explanation(
    client: Client, job_id: str, *, trial: str | None = None, arm: str | None = None, stage: int | None = None
) -> Explanation:
    """Return the requested decisions, by default all. Raises `LookupError` that names the existing ones."""
    report, job = client.report(job_id), client.job(job_id).view
    chosen = [each for each in report.trials if trial in (None, each.trial_id) and arm in (None, each.arm)]
    if not chosen:
        known = ", ".join(each.trial_id for each in report.trials)
        raise LookupError(f"job {job_id} has no such trial; its trials: {known}")
    only = () if stage is None else (stage,)
    trials = [
        TrialExplanation(trial=each, stages=client.stages(job_id, trial=each.trial_id, stage=only, with_posterior=True))
        for each in chosen
    ]
    if not any(each.stages for each in trials):
        ids = {each.trial_id for each in chosen}
        decided = sorted({each.stage for each in client.stages(job_id) if each.trial_id in ids})
        raise LookupError(f"nothing is decided there yet; stages that are: {', '.join(map(str, decided)) or 'none'}")
    return Explanation(job=job, trials=tuple(trials))


def parts(found: Explanation) -> Iterator[str | Sheet]:
    """Yield the explanation for a terminal, in order: lines, and tables of probes."""
    spec = found.job.spec
    for each in found.trials:
        name, level = trial_name(each.trial, spec), each.trial.level_name
        for stage in each.stages:
            yield from _decision(stage, name, level)
        yield f"{name}: {calibration_line(each.trial.calibration)}"
        yield ""


def _decision(stage: StageView, name: str, level: str) -> Iterator[str | Sheet]:
    yield f"{name}, stage {stage.stage}, from step {stage.first_step}"
    yield f"  {stage.reason}"
    yield f"  {search_line(stage)}"
    if stage.probes:
        yield _probe_table(stage, level)
    for reason in dict.fromkeys(refusal.reason for refusal in stage.refused):
        tried = [values_text(refusal.values, level) for refusal in stage.refused if refusal.reason == reason]
        yield f"  not tried: {'; '.join(tried)}: {reason}"
    if stage.posterior is not None:
        yield from plot(stage, stage.posterior, level=level)
    yield f"  {outcome_line(stage)}"
    yield ""


def search_line(stage: StageView) -> str:
    """Return what was searched for the decision, and the share of the budget spent on searching."""
    if not stage.probes and not stage.tax.budget_share:
        return "nothing was searched"
    earlier = f" and {stage.num_earlier} of earlier stages" if stage.num_earlier else ""
    cap = "" if stage.tax.cap_share is None else f", {figures.share(stage.tax.cap_share)} of what it may"
    num_probes = len(stage.probes)
    probes = f"{num_probes} probe{'s' if num_probes > 1 else ''}{earlier}" if num_probes else "no probe"
    return f"{probes}; searching has taken {figures.share(stage.tax.budget_share)} of the budget{cap}"


def outcome_line(stage: StageView) -> str:
    """Return what the commit reached, next to its forecast."""
    weight = "" if stage.forecast_weight is None else f" (weight {figures.number(stage.forecast_weight, 2)})"
    forecast = f"forecast {_forecast(stage)}{weight}"
    if not stage.closed:
        return f"{forecast}; the commit runs"
    if stage.num_steps == 0:
        return f"{forecast}; the commit kept no steps"
    came = "" if stage.z_score is None else f", {stage.z_score:+.1f} standard deviations from the forecast"
    return f"{forecast}; the training loss came to {figures.loss(stage.loss)}{came}"


def calibration_line(found: Calibration) -> str:
    """Return how the finished forecasts compare with reality."""
    if not found.num_outcomes or found.within_1_std is None or found.within_2_std is None:
        return "no forecast has come to its end yet"
    shares = " and ".join(
        f"{share:.0%} within {num_stds} std (of good ones {expected:.0%})"
        for num_stds, share, expected in zip((1, 2), (found.within_1_std, found.within_2_std), EXPECTED, strict=True)
    )
    return f"of {found.num_outcomes} forecasts {shares} came true; on average {found.mean_z:+.1f} std off"


def _probe_table(stage: StageView, level: str) -> Sheet:
    write = figures.share if level == "density" else figures.number
    has_level, has_more = stage.level is not None, any(probe.values for probe in stage.probes)
    settings = ["learning rate", *[level] * has_level, *["besides"] * has_more]
    measured = ("steps", "loss", "forecast", "status", "gain", "posterior")
    table = Sheet(*settings, *measured, left=("status", "besides"))
    for probe, gain in zip(stage.probes, gains(stage.probes), strict=True):
        table.add_row(
            figures.number(probe.learning_rate),
            *[write(probe.level)] * has_level,
            *[figures.settings(probe.values)] * has_more,
            *_measured(probe, gain),
        )
    return table


def gains(probes: Sequence[ProbeView]) -> list[float | None]:
    """Return each probe's gain over the first finite one that it is compared with; None: it has no reward.

    A wide search compares its short coarse probes with each other only, and so its longer finalists. The first finite
    finalist is the posterior's zero, too.
    """
    has_finalists = any(probe.origin != COARSE and probe.reward is not None for probe in probes)
    zeros: dict[bool, float] = {}  # by whether they are coarse beside finalists
    return [
        None
        if probe.reward is None
        else probe.reward - zeros.setdefault(has_finalists and probe.origin == COARSE, probe.reward)
        for probe in probes
    ]


def _measured(probe: ProbeView, gain: float | None) -> list[str]:
    """Return the probe's cells."""
    posterior = "-"
    if probe.posterior_mean is not None and probe.posterior_std is not None:
        posterior = f"{probe.posterior_mean:+.3g} ± {probe.posterior_std:.2g}"
    return [
        str(probe.num_steps),
        figures.loss(probe.loss),
        _forecast(probe),
        probe.status.replace("_", " "),
        "-" if gain is None else f"{gain:+.3g}",
        posterior,
    ]


def _forecast(of: ProbeView | StageView) -> str:
    if of.forecast is None:
        return "-"
    return f"{figures.loss(of.forecast)} ± {figures.number(of.forecast_std, 2)}"
