"""Compare parts of the controller with their rivals, in one run on one thread; a part's name runs only that part.

    python benchmarks/controller.py [--json FILE] [surface] [ask] [series] [coverage] [selection]

surface: regret of ten evaluations on a surface with a known optimum (see `surface.py`).
ask: the processor time that the controller takes to think after ten probes.
series: errors of forecasts of 300 synthetic loss curves at ten times the steps seen, which are 50, 100 or 240.
coverage: share of losses of 64 real curves beyond 1 and 2 standard deviations of their forecasts; ideally 32 and 5 %.
selection: regret of choosing among recorded probes by their first 100 steps.
A bar is the limit of a figure, in its own unit or as a ratio to a rival's.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import forecasts
import numpy as np
import surface
import torch
from loss_curves import followed, recorded
from threadpoolctl import threadpool_limits

from search.bayesian.controller import Controller

#: Probes that are told before an ask is timed; distinct searches, and asks timed in each.
TOLD, SEARCHES, REPEATS = 10, 8, 5


class Row(NamedTuple):
    part: str
    figure: str
    value: float
    bar: float | None = None


# -- surface ---------------------------------------------------------------------------------------


def measure_surface() -> Iterator[Row]:
    ours = surface.median(surface.outcomes(surface.ours))
    yield Row("surface", "median regret of the decision, ours", ours.decision)
    yield Row("surface", "median regret of the best point seen, ours", ours.best_seen)
    for name, method, decision_bar in (("Sobol", surface.sobol, 0.4), ("reference", surface.reference, 0.15)):
        if method is surface.reference and find_spec("skopt") is None:
            print("surface: the reference needs scikit-optimize: pip install -e '.[bench]'")
            continue
        theirs = surface.median(surface.outcomes(method))
        yield Row("surface", f"median regret of the decision, {name}", theirs.decision)
        yield Row("surface", f"median regret of the best point seen, {name}", theirs.best_seen)
        yield Row("surface", f"decision, ratio to {name}'s", ours.decision / theirs.decision, decision_bar)
        yield Row("surface", f"best point seen, ratio to {name}'s", ours.best_seen / theirs.best_seen)


# -- ask -------------------------------------------------------------------------------------------


def measure_ask() -> Iterator[Row]:
    journals = [_told(seed) for seed in range(SEARCHES)]
    _ask_milliseconds(journals[0], 1)  # loads what is loaded once
    for together, bar in ((1, 100.0), (4, 150.0)):
        times = [_ask_milliseconds(journal, together) for _ in range(REPEATS) for journal in journals]
        what = f"ask for {together}, after {TOLD} probes"
        yield Row("ask", f"{what}: median ms", float(np.median(times)))
        yield Row("ask", f"{what}: p95 ms", float(np.quantile(times, 0.95)), bar)


def _told(seed: int) -> dict[str, object]:
    """Return the journal of a controller that has been told its first probes."""
    problem, controller = surface.Surface(seed), surface.new_controller(seed, wide_probes=TOLD + 4)
    for index in range(TOLD):
        candidate = controller.ask()
        assert candidate is not None
        loss = problem.evaluate(np.array(surface.BOX.to_unit(candidate.values)))
        controller.tell(surface.observation(candidate, loss, num_probes=index + 1))
    return dict(controller.state_dict())


def _ask_milliseconds(journal: dict[str, object], together: int) -> float:
    """Return the processor time in which a controller restored from `journal` names `together` candidates."""
    controller = Controller.from_state_dict(journal)
    started = time.thread_time()
    for _ in range(together):
        assert controller.ask() is not None
    return 1e3 * (time.thread_time() - started)


# -- series, coverage and selection --------------------------------------------------------------------------


def measure_series() -> Iterator[Row]:
    for seen in forecasts.SEEN:
        ours, theirs = (forecasts.errors(each, seen) for each in (forecasts.our_average, forecasts.reference))
        yield Row("series", f"{seen} seen: forecasts that are not finite, ours", float(np.isinf(ours).sum()), 0.0)
        for name, share, bar in (("median", 0.5, 0.5), ("90th percentile", 0.9, 0.8)):
            first, second = np.quantile(ours, share), np.quantile(theirs, share)
            yield Row("series", f"{seen} seen: {name} error, ours (weight 1)", float(first))
            yield Row("series", f"{seen} seen: {name} error, reference", float(second))
            yield Row("series", f"{seen} seen: {name} error, ratio", float(first / second), bar)


def measure_coverage() -> Iterator[Row]:
    found = forecasts.coverage(followed())
    assert found.within_1_std is not None and found.within_2_std is not None and found.mean_z is not None
    what = f"{found.num_outcomes} forecasts of real curves"
    yield Row("coverage", f"{what}: share beyond 1 std", 1 - found.within_1_std, 0.4)
    yield Row("coverage", f"{what}: share beyond 2 std", 1 - found.within_2_std, 0.1)
    yield Row("coverage", f"{what}: mean (loss - forecast) / std", found.mean_z)


def measure_selection() -> Iterator[Row]:
    lines = recorded()
    selectors = {
        "ours (mean of the last half)": forecasts.by_controller,
        "ours (blended forecast)": forecasts.by_forecast,
        "median of the last fifth": forecasts.by_tail,
        "reference": forecasts.by_reference,
    }
    regrets = {name: forecasts.regrets(selector, lines) for name, selector in selectors.items()}
    for name, found in regrets.items():
        yield Row("selection", f"mean regret of {len(lines)} lines, {name}", float(found.mean()))
    ours, blend, tail, reference = regrets.values()
    for name, found in (("last half", ours), ("blend", blend)):
        low, high = forecasts.interval(found - tail)
        yield Row("selection", f"{name} less median of the last fifth: 95 % interval from", low, 0.0)
        yield Row("selection", f"{name} less median of the last fifth: 95 % interval to", high)
    yield Row("selection", "last half, ratio to reference", float(ours.mean() / reference.mean()), 0.3)


# -- the table -------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Iterable[Row]]] = {
    "surface": measure_surface,
    "ask": measure_ask,
    "series": measure_series,
    "coverage": measure_coverage,
    "selection": measure_selection,
}


def told(row: Row) -> str:
    verdict = "" if row.bar is None else f"   bar {row.bar:g}: {'met' if row.value <= row.bar else 'MISSED'}"
    return f"{row.part:<10} {row.figure:<62} {row.value:10.4g}{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    rows = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rivals' own
        for part in options.parts or PARTS:
            for row in PARTS[part]():
                rows.append(row)
                print(told(row), flush=True)
    print(f"one thread of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
