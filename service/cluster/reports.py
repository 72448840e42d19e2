"""Build the records of a training run."""

import math
import platform
from collections.abc import Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from search.types import Decision, Forecast
from service.cluster.checkpoints import Exported
from service.cluster.measured import Probe, Pushed
from service.job.parts import TrialSpec
from service.wire.records import (
    OWN_PREFIX,
    AnyRecord,
    MetricPoints,
    Origin,
    ProbeDone,
    StageDecided,
    TrialStarted,
)
from trainers.segment import Evaluation
from trainers.training.group import Group


def origin(group: Group, weights: Exported, *, averaged: bool) -> Origin:
    """Return the origin of a run's result: releases, the fingerprint of first weights and data, the weights."""
    versions = {name: version(name) for name in ("wiretune", "torch")} | {"python": platform.python_version()}
    return Origin(versions=versions, fingerprint=group.built.fingerprint, weights=weights.sha256, averaged=averaged)


def started(trial_id: str, spec: TrialSpec, group: Group) -> TrialStarted:
    """Return the record of a run whose workers are ready."""
    return TrialStarted(
        trial_id=trial_id,
        arm=spec.arm,
        seed=spec.seed,
        backend=group.backend,
        device=group.device,
        metrics=dict(group.built.metrics),
    )


def finite(value: float | None) -> float | None:
    """Return `value`, or None if it is not finite, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None


def probe_done(trial_id: str, probe: Probe, *, ended_s: float | None = None) -> ProbeDone:
    """Return the record of a probe that ended at `ended_s`. Its forecast follows when the stage is decided."""
    candidate, measured = probe.candidate, probe.measured
    tail = measured.losses[len(measured.losses) // 2 :]
    return ProbeDone(
        trial_id=trial_id,
        stage=candidate.stage,
        probe_id=candidate.id,
        learning_rate=candidate.values.learning_rate,
        level=candidate.values.level,
        values=candidate.values.further,
        origin=candidate.origin,
        num_steps=measured.num_steps,
        seconds=probe.seconds,
        ended_s=ended_s,
        bytes_sent=measured.bytes_sent,
        density=measured.density,
        loss=finite(sum(tail) / len(tail)) if tail and not measured.diverged else None,
        status="diverged" if measured.diverged else "ok",
    )


def _judged(probe: ProbeDone, forecast: Forecast | None) -> ProbeDone:
    """Return the record with its forecast. Without one, the probe was too short to judge."""
    judgement: dict[str, Any] = {"status": "too_short"}
    if forecast is not None:
        means = {"forecast": finite(forecast.mean), "forecast_std": finite(forecast.std)}
        judgement = {"status": forecast.status, **means}
    if probe.status == "diverged":
        del judgement["status"]
    return probe.model_copy(update=judgement)


def decided(trial_id: str, decision: Decision, probes: Sequence[ProbeDone], *, first_step: int) -> list[AnyRecord]:
    """Return the stage's decision, preceded by its probes again, now with their forecasts.

    The cost of a promoted probe counts for the commit, not the search. Steps that workers trained side by side count
    once.
    """
    forecasts = {report.candidate.id: report.forecast for report in decision.probes}
    forecast = decision.forecast
    return [
        *(_judged(probe, forecasts.get(probe.probe_id)) for probe in probes),
        StageDecided(
            trial_id=trial_id,
            stage=decision.stage,
            first_step=first_step,
            learning_rate=decision.values.learning_rate,
            level=decision.values.level,
            values=decision.values.further,
            reason=decision.reason,
            switched=decision.switched,
            probability=finite(decision.probability),
            forecast=finite(forecast.mean) if forecast else None,
            forecast_std=finite(forecast.std) if forecast else None,
            search_seconds=decision.search_seconds,
            search_steps=decision.search_steps,
            search_bytes=sum(probe.bytes_sent for probe in probes if probe.probe_id != decision.promoted),
            decision=decision,
        ),
    ]


def committed(trial_id: str, pushed: Pushed) -> list[MetricPoints]:
    """Return a committed segment's series: loss and own numbers of every step, other series once, at its end."""
    segment, result, bytes_sent = pushed.segment, pushed.result, pushed.bytes_sent
    seconds = _step_ends(pushed)
    last = result.first_step + len(result.losses) - 1
    own = {f"{OWN_PREFIX}{name}": values for name, values in result.own.items()}
    ends = {
        "learning_rate": segment.learning_rate_at(len(result.losses) - 1),
        "bytes_sent": float(bytes_sent),
        "density": result.density,
        "memory_bytes": float(result.memory_bytes) or None,  # 0: not measured
    }
    of_steps = (
        MetricPoints(
            trial_id=trial_id,
            name=name,
            steps=tuple(range(result.first_step, last + 1)),
            seconds=seconds,
            values=tuple(map(finite, values)),
        )
        for name, values in ({"loss": result.losses} | own).items()
    )
    return [
        *of_steps,
        *(_point(trial_id, name, last, seconds[-1], value) for name, value in ends.items() if value is not None),
    ]


def _step_ends(pushed: Pushed) -> tuple[float, ...]:
    """Return the time on the training clock at which each step of the segment ended.

    A step takes the seconds of its slowest rank. If their sum exceeds the segment's time, they are scaled down.
    """
    segment_s, steps_s = pushed.ended_s - pushed.started_s, sum(pushed.result.step_seconds)
    scale = min(1.0, segment_s / steps_s) if steps_s else 1.0
    ends = accumulate(step_s * scale for step_s in pushed.result.step_seconds)
    return tuple(min(pushed.started_s + end, pushed.ended_s) for end in ends)


def evaluated(trial_id: str, evaluation: Evaluation, step: int, seconds: float) -> list[MetricPoints]:
    """Return an evaluation's points at `step` committed steps."""
    values = {"loss": evaluation.loss} | evaluation.metrics
    return [_point(trial_id, f"validation_{name}", step, seconds, value) for name, value in values.items()]


def _point(trial_id: str, name: str, step: int, seconds: float, value: float) -> MetricPoints:
    return MetricPoints(trial_id=trial_id, name=name, steps=(step,), seconds=(seconds,), values=(finite(value),))
