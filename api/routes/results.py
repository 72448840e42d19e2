"""`/v1/jobs/{job}/...`: what the job's trials measured, decided and learned."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from api.auth import StoreOf, require_key
from api.openapi import READING, refusals
from service.errors import NotFound
from service.views import ScheduleView, Series, StageView, TrialView

router = APIRouter(
    prefix="/v1/jobs/{job}",
    tags=["results"],
    dependencies=[Depends(require_key)],
    responses=refusals(*READING),
)


@router.get("/trials", operation_id="listTrials")
def list_trials(job: str, store: StoreOf) -> tuple[TrialView, ...]:
    """Return the job's trials: every arm x every seed."""
    return store.trials(job)


@router.get("/stages", operation_id="listStages")
def list_stages(job: str, store: StoreOf, trial: str | None = None) -> tuple[StageView, ...]:
    """Return every decided stage: its probes, the choice and its reason, and what the commit did."""
    return store.stages(job, trial_id=trial)


@router.get("/metrics/{name}", operation_id="getMetric")
def get_metric(
    job: str,
    name: str,
    store: StoreOf,
    trial: str | None = None,
    max_points: Annotated[int, Query(ge=2, le=10_000)] = 2000,
) -> tuple[Series, ...]:
    """Return one series per trial, thinned to `max_points` with its extremes kept."""
    return store.series(job, name, trial_id=trial, max_points=max_points)


@router.get("/schedule", operation_id="getSchedule")
def get_schedule(job: str, store: StoreOf, arm: str | None = None, seed: int | None = None) -> ScheduleView:
    """Return a learned schedule: by default that of the first arm and seed."""
    spec = store.job(job).spec
    arm = spec.arms[0].name if arm is None else arm
    seed = spec.seeds[0] if seed is None else seed
    found = store.schedules(job, arm=arm, seed=seed)
    if not found:
        arms = ", ".join(each.name for each in spec.arms)
        raise NotFound(f"job `{job}` has no arm `{arm}` with seed {seed}; arms: {arms}; seeds: {list(spec.seeds)}")
    if not found[0].entries:
        raise NotFound(f"job `{job}` has no schedule of arm `{arm}` yet: no stage is decided")
    return found[0]
