"""Replay: a job that repeats the run in which a schedule was learned, step by step, without a search."""

from typing import Any

from search.schedule_file import Provenance, RecordedSchedule, ScheduleFile
from service.job.parts import Arm, JobParts
from service.job.spec import JobSpec
from service.job.sweep import at, sample_name
from trainers.spec.ranges import Range

#: Job fields that a replay sets, or leaves out. It takes over all others, since they decide what a step does.
NOT_OF_TRAINING = frozenset(
    {
        *("name", "controller", "arms", "seeds", "budget", "objective", "checkpoint"),  # it sets them
        *("lanes", "limits", "labels", "priority", "webhook", "params", "sweep"),
    }
)
#: Objective fields that turn early stopping off, since a replay trains all steps of the schedule.
_NEVER_EARLY: dict[str, Any] = {"patience": None, "min_delta": 0.0, "target": None}


def replayed(recorded: RecordedSchedule) -> JobSpec:
    """Return a job that replays a schedule: its arm or sample, seed, values for each step, and number of steps.

    Raises ValueError for a schedule without provenance, or from a run that steps alone cannot repeat.
    """
    origin = recorded.provenance
    if origin is None:
        raise ValueError(
            "`provenance` is missing: the file does not say which job it was learned in. An earlier release wrote it; "
            "export it again, or follow it by `controller: {kind: schedule, path: ...}`"
        )
    spec, arm = _run_of(origin)
    if spec.lanes.after == "batch":
        raise ValueError(
            "`provenance.job.lanes.after` is `batch`: workers joined in the middle of that run, which a schedule does "
            "not repeat; follow it by `controller: {kind: schedule, path: ...}` with as many workers as it ended with"
        )
    replica = spec.trial(arm, origin.seed).replica
    of_training = JobParts.model_fields.keys() - NOT_OF_TRAINING
    job: dict[str, Any] = spec.model_dump(mode="json", include=of_training)
    job |= replica.model_dump(mode="json", include=of_training)  # with the arm's own parts
    for each in replica.ranges():
        # The upper end of a level sizes the exchange's memory. By the upper end of a batch size, epochs and BatchNorm's
        # statistics count. The schedule sets both for each step.
        _put(job, each.field, each.high if each.name in ("level", "batch_size") else _first(recorded, each))
    return JobSpec.model_validate(
        job
        | {
            "name": f"replay of {origin.job_id}",
            "controller": {"kind": "schedule", "schedule": values_alone(recorded)},
            "arms": [{"name": origin.arm}],
            "seeds": [origin.seed],
            "budget": {"steps": recorded.num_steps},
            "objective": spec.objective.model_dump(mode="json") | _NEVER_EARLY,
            "checkpoint": {"export": "average" if origin.averaged else "last"},
        }
    )


def _run_of(origin: Provenance) -> tuple[JobParts, Arm]:
    """Return the job of the run, with its sample's values applied, and its arm."""
    spec = JobSpec.model_validate(origin.job)
    arms = {arm.name: arm for arm in spec.arms}
    if origin.arm in arms:
        return spec, arms[origin.arm]
    names = [*arms, *map(sample_name, range(spec.num_samples))]
    if origin.arm not in names:
        raise ValueError(f"`provenance.arm` must be one of {', '.join(names)}, the job's trials, got {origin.arm!r}")
    if origin.sample is None:
        raise ValueError(
            f"`provenance.sample` is missing: the file does not say what `{origin.arm}` sets in the job. An earlier "
            "release wrote it; export it again"
        )
    if origin.sample.keys() != spec.params.keys():
        given = ", ".join(origin.sample) or "nothing"
        raise ValueError(f"`provenance.sample` must set {', '.join(spec.params)}, the job's `params`, got {given}")
    return at(spec, origin.sample), Arm(name=origin.arm)


def differences(before: Provenance, now: Provenance) -> str:
    """Say in a sentence whether a replay ended with the original run's weights, and if not, what may explain it."""
    if before.weights is None or now.weights is None:
        return "replayed; the schedule does not say which weights its run ended with, so they cannot be compared"
    if before.weights == now.weights:
        return f"replayed: the weights are the same, bit for bit (sha256 {now.weights[:12]})"
    other = [
        f"{name} was {then} and is {now.versions.get(name)}"
        for name, then in before.versions.items()
        if now.versions.get(name) != then
    ]
    if before.fingerprint != now.fingerprint:
        other.append("the first weights, or the data, are others")
    why = "; ".join(other) or (
        "releases and data are the same: it trained on a GPU, its workers became others on the way, or its budget read "
        "a clock"
    )
    return f"replayed: the weights differ ({why})"


def values_alone(schedule: ScheduleFile) -> dict[str, Any]:
    """Return the schedule without measurements and default values: the number of values in a job is limited."""
    fields = {*ScheduleFile.model_fields} - {"entries"}
    measured = {"density", "threshold", "reason", "steered_by"}
    entries = [each.model_dump(mode="json", exclude=measured, exclude_defaults=True) for each in schedule.entries]
    return schedule.model_dump(mode="json", include=fields) | {"entries": entries}


def _first(recorded: RecordedSchedule, searched: Range) -> Any:
    """Return the first value of a searched range; if its optimizer was not chosen, any value in the range."""
    return recorded.entry_at(0).values.get(searched.name, searched.pair[0])


def _put(job: dict[str, Any], field: str, value: Any) -> None:
    """Set the field at a path such as `optimizer/options/0/momentum` or `optimizer/betas/0`."""
    *path, last = field.split("/")
    place: Any = job
    for name in path:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
