"""Builds the records of a training run."""

import math
from collections.abc import Sequence

from pydantic import BaseModel

from search.types import Candidate, Decision, Forecast
from service.cluster.progress import Measured
from service.records import AnyRecord, MetricPoints, ProbeDone, StageDecided
from trainers.segment import Evaluation, Segment, SegmentResult


class Probe(BaseModel):
    """A candidate, and what its probe measured."""

    candidate: Candidate
    measured: Measured
    seconds: float


def finite(value: float | None) -> float | None:
    """Return `value`, or None where JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None


def probe_done(trial_id: str, probe: Probe, forecast: Forecast | None) -> ProbeDone:
    """Return the probe's record; its forecast is known once the stage is decided."""
    candidate, measured = probe.candidate, probe.measured
    tail = measured.losses[len(measured.losses) // 2 :]
    status = forecast.status if forecast else "ok"
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
        bytes_sent=measured.bytes_sent,
        density=measured.density,
        loss=finite(sum(tail) / len(tail)) if tail and not measured.diverged else None,
        forecast=finite(forecast.mean) if forecast else None,
        forecast_std=finite(forecast.std) if forecast else None,
        status="diverged" if measured.diverged else status,
    )


def decided(
    trial_id: str, decision: Decision, probes: Sequence[Probe], *, first_step: int, search_bytes: int
) -> list[AnyRecord]:
    """Return the stage's decision, and its probes once more, now with their forecasts."""
    forecasts = {report.candidate.id: report.forecast for report in decision.probes}
    forecast = decision.forecast
    return [
        *(probe_done(trial_id, probe, forecasts.get(probe.candidate.id)) for probe in probes),
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
            search_seconds=sum(probe.seconds for probe in probes),
            search_steps=sum(probe.measured.num_steps for probe in probes),
            search_bytes=search_bytes,
            decision=decision.model_dump(mode="json"),
        ),
    ]


def committed(
    trial_id: str, segment: Segment, result: SegmentResult, *, started_s: float, bytes_sent: int
) -> list[MetricPoints]:
    """Return a committed segment's series: the loss of every step; the rest once, at its end."""
    seconds, clock = [], started_s
    for step_s in result.step_seconds:
        clock += step_s
        seconds.append(clock)
    last = result.first_step + len(result.losses) - 1
    rate = segment.learning_rate if segment.final_learning_rate is None else segment.final_learning_rate
    ends = {"learning_rate": rate, "bytes_sent": float(bytes_sent), "density": result.density}
    losses = MetricPoints(
        trial_id=trial_id,
        name="loss",
        steps=tuple(range(result.first_step, last + 1)),
        seconds=tuple(seconds),
        values=tuple(finite(loss) for loss in result.losses),
    )
    return [
        losses,
        *(_point(trial_id, name, last, clock, value) for name, value in ends.items() if value is not None),
    ]


def evaluated(trial_id: str, evaluation: Evaluation, step: int, seconds: float) -> list[MetricPoints]:
    """Return an evaluation's points, at `step` committed steps."""
    values = {"loss": evaluation.loss} | evaluation.metrics
    return [_point(trial_id, f"validation_{name}", step, seconds, value) for name, value in values.items()]


def _point(trial_id: str, name: str, step: int, seconds: float, value: float) -> MetricPoints:
    return MetricPoints(trial_id=trial_id, name=name, steps=(step,), seconds=(seconds,), values=(finite(value),))
