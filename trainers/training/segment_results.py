"""Merge the results of ranks, and of rounds, into one. Pure functions."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from trainers.segment import Evaluation, Purpose, SegmentResult, StepTimes, Written
from trainers.workload import WorkloadError

#: Of a segment's result: one entry for each step.
_SERIES = ("losses", "step_seconds", "waits", "gradient_scales", "alignments")
#: Of the same: one entry for each rank.
_BYTES = ("bytes_sent", "bytes_within")


def merge(results: list[SegmentResult], *, leaves_out: bool = False) -> SegmentResult:
    """Merge the ranks' views of one segment. A step lasts as long as its slowest rank.

    Ranks that train by themselves report their own losses. If one of these is not finite, the segment ends for all. If
    averages leave out such ranks (`leaves_out`), it ends only when no rank's loss is finite. Raises WorkloadError if
    the ranks' losses brought numbers of different names.
    """
    if leaves_out:
        results = _of_finite(results)
    losses = _means([result.losses for result in results])
    num_finite = sum(1 for _ in itertools.takewhile(math.isfinite, losses))
    seconds = tuple(map(max, zip(*(result.step_seconds for result in results), strict=True)))
    return results[0].model_copy(
        update={
            "losses": losses[:num_finite],
            "step_seconds": seconds[:num_finite],
            "waits": _means([result.waits for result in results])[:num_finite],
            "gradient_scales": _means([result.gradient_scales for result in results])[:num_finite],
            "alignments": _means([result.alignments for result in results])[:num_finite],
            "own": {name: _means(of_ranks)[:num_finite] for name, of_ranks in _own(results).items()},
            "diverged": num_finite < len(losses) or any(result.diverged for result in results),
            "saved_bytes": max(result.saved_bytes for result in results),
            "memory_bytes": max(result.memory_bytes for result in results),
            "times": _mean_times([result.times for result in results]),
        }
        | bytes_by_rank(results)
    )


def _own(results: Sequence[SegmentResult]) -> dict[str, list[tuple[float, ...]]]:
    """Return the workload's own series by name, each rank's."""
    names = results[0].own.keys()
    for result in results:
        if result.own.keys() != names:
            raise WorkloadError(
                "`loss` must return the same numbers on all workers: one returned "
                f"{sorted(names)}, another {sorted(result.own)}"
            )
    return {name: [result.own[name] for result in results] for name in names}


def _mean_times(times: Sequence[StepTimes | None]) -> StepTimes | None:
    """Return the mean over ranks; None: not all of them measure it."""
    known = [each for each in times if each is not None]
    if len(known) < len(times):
        return None
    return StepTimes(
        **{name: statistics.fmean(getattr(each, name) for each in known) for name in StepTimes.model_fields}
    )


def _of_finite(results: Sequence[SegmentResult]) -> list[SegmentResult]:
    """Return the results with the mean of the finite ranks wherever a rank's number is not finite."""
    names = ("losses", "gradient_scales", "alignments")
    filled = {name: _filled([getattr(result, name) for result in results]) for name in names}
    own = {name: _filled(of_ranks) for name, of_ranks in _own(results).items()}
    return [
        result.model_copy(
            update={name: of_ranks[index] for name, of_ranks in filled.items()}
            | {"own": {name: of_ranks[index] for name, of_ranks in own.items()}}
        )
        for index, result in enumerate(results)
    ]


def _filled(series: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return each rank's series, with the mean of the finite ranks wherever its number is not finite."""
    steps = list(zip(*series, strict=True))
    finite = [[value for value in step if math.isfinite(value)] or step for step in steps]
    means = [statistics.mean(step) for step in finite]
    whole = [[v if math.isfinite(v) else mean for v in step] for step, mean in zip(steps, means, strict=True)]
    return [*zip(*whole, strict=True)] or [()] * len(series)


def _means(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean of each step over the ranks; exact, so that the mean of equal numbers is that number."""
    return tuple(map(statistics.mean, zip(*series, strict=True)))


def bytes_by_rank(answers: Sequence[SegmentResult | Evaluation | Written]) -> dict[str, Any]:
    """Collect the bytes of all ranks, as fields of their merged answer."""
    return {field: tuple(rank for answer in answers for rank in getattr(answer, field)) for field in _BYTES}


def with_average(taken: SegmentResult, met: SegmentResult) -> SegmentResult:
    """Merge the average after the last of the steps `taken` into that step's result."""
    last = len(taken.losses) - 1
    kept: dict[str, Any] = (
        {name: getattr(taken, name)[:last] for name in _SERIES}
        if met.diverged
        else {
            "losses": (*taken.losses[:last], met.losses[0]),
            "step_seconds": (*taken.step_seconds[:last], taken.step_seconds[last] + met.step_seconds[0]),
            "waits": (*taken.waits[:last], *met.waits),
        }
    )
    if met.diverged:
        kept["own"] = {name: values[:last] for name, values in taken.own.items()}
        kept["steps_by_workers"] = dict.fromkeys(taken.steps_by_workers, last)
    said = {name: getattr(met, name) for name in ("density", "threshold", "diverged")}
    return taken.model_copy(update=kept | said | _sums([taken, met]) | {"meets": False, "steps_to_meeting": 0})


def in_a_row(rounds: Sequence[SegmentResult]) -> SegmentResult:
    """Join the results of consecutive rounds into the result of one segment."""
    joined = {name: tuple(value for each in rounds for value in getattr(each, name)) for name in _SERIES}
    own = {name: tuple(value for each in rounds for value in each.own.get(name, ())) for name in rounds[0].own}
    densities = [each.density for each in rounds if each.density is not None]
    return rounds[-1].model_copy(
        update=joined
        | _sums(rounds)
        | {
            "own": own,
            "first_step": rounds[0].first_step,
            "bytes_dense": sum(each.bytes_dense for each in rounds),
            "density": math.fsum(densities) / len(densities) if densities else None,  # as `mean_density` has it
            "saved_bytes": rounds[0].saved_bytes,
            "memory_bytes": max(each.memory_bytes for each in rounds),
            "steps_by_workers": _steps_by_workers(rounds),
        }
    )


def _steps_by_workers(rounds: Sequence[SegmentResult]) -> dict[int, int]:
    if not any(each.steps_by_workers for each in rounds):
        return {}
    steps = Counter[int]()
    for each in rounds:
        steps.update(each.steps_by_workers or {len(each.bytes_sent): len(each.losses)})
    return dict(steps)


def _sums(results: Sequence[SegmentResult]) -> dict[str, Any]:
    """Return the bytes of each rank over all `results`, by purpose, and the times of all their steps."""
    sent = {field: tuple(map(_sum, zip(*(getattr(each, field) for each in results), strict=True))) for field in _BYTES}
    times = [each.times for each in results if each.times is not None]
    return sent | {"times": reduce(StepTimes.plus, times) if len(times) == len(results) else None}


def _sum(by_result: Sequence[Mapping[Purpose, int]]) -> dict[Purpose, int]:
    purposes = dict.fromkeys(purpose for each in by_result for purpose in each)
    return {purpose: sum(each.get(purpose, 0) for each in by_result) for purpose in purposes}
