"""Recommend a method for a job on its link, in a few lines, with the numbers behind it."""

from collections.abc import Callable, Iterator, Sequence
from typing import get_args

import yaml

from service.prediction.predict import DENSE, USUAL_OF_SMALL, best, judged
from service.wire.predictions import MethodPrediction, Prediction, Span, Task


def advised(found: Prediction, size: Callable[[float], str]) -> Iterator[str]:
    """Yield the lines of a recommendation, with the numbers behind it. `size` formats bytes."""
    first, *others = best(found)
    dense = next(each for each in found.methods if each.method == DENSE)
    is_known = any(each.loss_s is not None for each in found.methods if each.method != DENSE)
    choice = f"`{first.method}`" if is_known else _start(first)
    yield f"over {found.mbps:g} Mbit/s and {found.latency_ms:g} ms, {found.workers} workers: {choice}"
    if found.task is None:
        tasks = ", ".join(f"`{task}`" for task in get_args(Task))
        yield (
            "  to count what steps teach as well, name with `--like` a recorded task that is like yours "
            f"({tasks}), or none, if none is like it"
        )
    yield "  in the job:"
    yield from (
        f"    {line}" for line in yaml.safe_dump(first.job, default_flow_style=None, sort_keys=False).splitlines()
    )
    yield f"  a step: {_step(first, size)}; dense: {_step(dense, size)}"
    if first.loss_s and dense.loss_s and is_known:
        expected, low, high = map(duration, (first.loss_s.expected, first.loss_s.low, first.loss_s.high))
        yield (
            f"  to the loss that dense training has after {found.dense_steps} steps: {expected} ({low} to {high}), "
            f"dense {duration(dense.loss_s.expected)}; steps from {first.known_from}"
        )
        yield f"  as good, as far as is known: {', '.join(ties(first, others)[:4]) or 'none'}"
    elif first is not dense:
        yield f"  it may take {first.spare_ratio:.2g} times dense training's steps and still be as fast"
    if first.pays_below_mbps or first.pays_above_mbps:
        steps = "" if is_known else ", if it takes no more steps"
        yield f"  it beats dense training {rates_that_pay(first)} Mbit/s{steps}"
    quickest = min((first, *others), key=lambda each: each.step_s.expected)
    if not is_known and quickest is not first:
        yield f"  the shortest step is that of `{quickest.method}`: {_step(quickest, size)}; its loss is unknown, too"


def _start(first: MethodPrediction) -> str:
    """Recommend a first method when nothing is known about losses."""
    if first.method == DENSE:
        return f"start with `{DENSE}`: what is usual for a model of this size has no shorter step here"
    where = " whose workers see data alike" if first.method == USUAL_OF_SMALL else ""
    return (
        f"start with `{first.method}`, which suits most recorded models of this size{where}; how its loss goes here is "
        "unknown"
    )


def ties(first: MethodPrediction, others: Sequence[MethodPrediction]) -> list[str]:
    """Return the methods, formatted, that the prediction cannot distinguish from the first."""
    assert first.loss_s is not None
    return [
        f"`{each.method}`{_missed(each.loss_s, each.num_missed)}"
        for each in others
        if each.loss_s and judged(each.loss_s, first.loss_s) == "tie"
    ]


def _missed(loss_s: Span, num_missed: int) -> str:
    """Return the earliest time to the loss if a seed missed it, since there is no latest time then; else ""."""
    if not num_missed:
        return ""
    return f" ({duration(loss_s.low)} or more: {num_missed} {'seed' if num_missed == 1 else 'seeds'} missed)"


def rates_that_pay(each: MethodPrediction) -> str:
    """Return the rates at which the method beats dense training, as `below 80` (Mbit/s), `any` or `none`."""
    below, above = each.pays_below_mbps, each.pays_above_mbps
    if below == 0:
        return "none"
    if above is None:
        return "any" if below is None else f"below {below:g}"
    return f"above {above:g}" if below is None else f"from {above:g} to {below:g}"


def _step(each: MethodPrediction, size: Callable[[float], str]) -> str:
    span = each.step_s
    seconds = f"{1e3 * span.expected:.0f} ms ({1e3 * span.low:.0f} to {1e3 * span.high:.0f})"
    return f"{seconds}, {size(each.bytes_per_step)}"


def duration(seconds: float) -> str:
    """Format seconds to two digits, in minutes or hours if long."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 99.5 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
