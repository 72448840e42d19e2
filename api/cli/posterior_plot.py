"""A posterior as lines of text: bars over the learning rate, or a map of learning rate and a second axis."""

from collections.abc import Iterator, Sequence

from search.types import GridAxis, Posterior
from service.wire.views import ProbeView, StageView

NUM_ROWS = 16
NUM_CELLS = 40
_SHADES = " ░▒▓█"
_PROBE, _CHOICE = "o", "X"


def plot(stage: StageView, posterior: Posterior, *, level: str) -> Iterator[str]:
    """Yield the plot; `level` is what the stage's level is called."""
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
    """Return at most `NUM_ROWS` indices, both ends among them."""
    last = num_points - 1
    return sorted({round(index * last / (NUM_ROWS - 1)) for index in range(NUM_ROWS)})


def _rows_of(rows: Sequence[int], axis: GridAxis, values: Sequence[float]) -> set[int]:
    return {_nearest(rows, axis, value) for value in values}


def _nearest(rows: Sequence[int], axis: GridAxis, value: float) -> int:
    # the grid is even on the axis's own scale: what lies between two of its points is near enough to both
    return min(rows, key=lambda row: abs(axis.coordinates[row] - value))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
