"""Examples of answers for the OpenAPI document: one per main schema, built from the models themselves."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from api.http.problems import ProblemDocument
from search.schedule_file import Provenance
from search.types import Band
from service.job.advice import advice
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import JobState, verbs_in
from service.wire.access import AuditEntry, AuditPage, IssuedKey, KeyView, Me, Role, SignInCode
from service.wire.artifacts import Artifact, ArtifactKind
from service.wire.cluster import ClusterView, NodeView, Placement
from service.wire.code import CodePage, CodeView
from service.wire.events import Event, EventKind, EventPage
from service.wire.jobs import Cloned, JobPage, JobSummary, JobView, Validated
from service.wire.queue import (
    ProjectShare,
    QueueEntry,
    QueuePlace,
    QueueView,
    QuotaKind,
    QuotaView,
    WaitKind,
    sentence,
)
from service.wire.records import Acknowledgement, Control, ScheduleEntry
from service.wire.steering import SteerableView, SteeringView, SteerView
from service.wire.trials import ScheduleView, Series

_JOB, _NEXT = "job-6611245dc76ebd58d96c99b1", "WyItY3JlYXRlZCIsImpvYi02NjExMjQ1ZGM3NmViZDU4ZDk2Yzk5YjEiXQ"
_AHEAD = "job-6611245dc76ebd58d96c99a0"
_TRIAL, _DIGEST = f"{_JOB}.tuned.0", f"sha256:{'4b' * 32}"
_AT = datetime(2026, 11, 25, 9, 30, tzinfo=UTC)
_SOON = _AT + timedelta(minutes=5)


#: The job in all examples of the document.
EXAMPLE_JOB: dict[str, Any] = {
    "name": "digits over a slow link",
    "workload": {"kind": "digits-mlp"},
    "workers": {"count": 2},
    "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.1},
    "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
    "controller": {"kind": "bo", "revisit": "events"},
    "arms": [
        {"name": "tuned"},
        {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}},
    ],
    "budget": {"seconds": 40},
    "link": {"mode": "emulate", "mbps": 100, "latency_ms": 1},
}

_LINK = {"mode": "emulate", "mbps": 100, "latency_ms": 1}
#: Further jobs to start from.
JOBS: tuple[dict[str, Any], ...] = (
    {"name": "digits, all defaults", "workload": {"kind": "digits-mlp"}, "budget": {"seconds": 40}},
    {
        "name": "digits, whatever exchange suits the link",
        "workload": {"kind": "digits-mlp"},
        "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.1},
        "exchange": {"kind": "auto"},
        "controller": {"kind": "bo", "max_search_fraction": 0.2},
        "arms": [
            {"name": "auto"},
            {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}},
        ],
        "budget": {"seconds": 40},
        "link": _LINK,
    },
    {
        "name": "digits, low rank",
        "workload": {"kind": "digits-mlp"},
        "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.5},
        "exchange": {"kind": "powersgd", "rank": [1, 8]},
        "controller": {"kind": "bo"},
        "budget": {"seconds": 40},
        "link": _LINK,
    },
    {
        "name": "digits by label, rounds of AdamW with an outer momentum",
        "workload": {"kind": "digits-mlp"},
        "partition": {"kind": "by_label"},
        "workers": {"count": 4, "cpus": 0.5},
        "optimizer": {"kind": "adamw", "learning_rate": 0.001},
        "controller": {"kind": "fixed"},
        "arms": [
            {"name": "diloco", "sync": {"kind": "diloco", "period": 20, "outer_momentum": 0.5}},
            {"name": "dense"},
        ],
        "budget": {"steps": 600},
    },
    {
        "name": "digits, four values searched",
        "workload": {"kind": "digits-mlp", "batch_size": 32},
        "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": [0.8, 0.98], "weight_decay": [1e-5, 1e-2]},
        "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
        "controller": {"kind": "bo", "max_search_fraction": 0.25},
        "budget": {"seconds": 90},
        "link": _LINK,
    },
)


def answers(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return examples of the main answers about `job`, by schema."""
    found = [*_of_jobs(JobSpec.model_validate(job)), *_of_results(), *_of_access()]
    return {type(each).__name__: each.model_dump(mode="json") for each in found}


def _of_jobs(spec: JobSpec) -> Iterator[BaseModel]:
    common = {"id": _JOB, "name": spec.name, "state": JobState.QUEUED, "created_at": _AT, "finished_at": None}
    labels = {"team": "vision"}
    view = JobView(
        **common,
        started_at=None,
        version=1,
        verbs=verbs_in(JobState.QUEUED),
        labels=labels,
        advice=advice(spec),
        spec=spec.model_copy(update={"labels": labels}),
    )
    arms = tuple(arm.name for arm in spec.arms)
    summary = JobSummary(**common, reason="", arms=arms, best_validation_loss=None, labels=labels, version=1)
    yield view
    yield JobPage(jobs=(summary,), next_cursor=_NEXT, total=None)
    yield Validated(spec=spec, num_trials=len(arms), notes=(), advice=advice(spec))
    yield Cloned(source=_JOB, changes=(), spec=spec, job=view)
    place = QueuePlace(
        place=3,
        of=12,
        kind=WaitKind.BEHIND,
        workers=8,
        missing=2,
        behind=_AHEAD,
        behind_name="resnet",
        behind_project="vision",
        behind_priority=Priority.HIGH,
    )
    place = place.model_copy(update={"sentence": sentence(place)})
    entry = QueueEntry(job_id=_JOB, owner="ci", project="default", priority=Priority.NORMAL, queued_at=_AT, place=place)
    share = ProjectShare(project="default", weight=1.0, running=1, waiting=1, workers=6, share=0.75, recent=0.5)
    yield QueueView(
        at=_AT, of=12, cpus=8.0, gpus=0.0, free_cpus=2.0, free_gpus=0.0, entries=(entry,), projects=(share,)
    )
    yield ProblemDocument(
        type="/problems/not-found", title="There is no such thing", status=404, detail=f"there is no job `{_JOB}`"
    )


def _of_results() -> Iterator[BaseModel]:
    trial: dict[str, Any] = {"trial_id": _TRIAL, "arm": "tuned", "seed": 0}
    entry = ScheduleEntry(step=0, num_steps=200, learning_rate=2.96, level=0.01, reason="the search's minimum")
    steer = SteerView(
        id=1,
        at=_AT,
        by="ci",
        trials=(_TRIAL,),
        pin={"density": 0.02},
        veto={"learning_rate": Band(above=0.1)},
        search_now=False,
        first_stages={_TRIAL: 2},
        in_force=True,
    )
    density = SteerableView(name="density", trials=(_TRIAL,), low=0.003, high=0.1, current=0.02)
    yield SteeringView(version=3, steers=(steer,), steerable=(density,))
    yield Series(**trial, name="loss", steps=(0, 1), seconds=(0.1, 0.2), values=(2.3, 2.1), num_points=2)
    provenance = Provenance(
        job_id=_JOB,
        job={"workload": {"kind": "digits-mlp"}, "budget": {"steps": 200}},
        arm="tuned",
        seed=0,
        versions={"wiretune": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    )
    yield ScheduleView(
        **trial,
        optimizer="schedulefree_sgd",
        complete=True,
        line="main",
        num_steps=200,
        entries=(entry,),
        provenance=provenance,
    )
    yield Artifact(
        name=f"{_TRIAL}.best.weights.safetensors",
        kind=ArtifactKind.WEIGHTS,
        trial_id=_TRIAL,
        href=f"/v1/jobs/{_JOB}/weights?arm=tuned&seed=0&which=best",
        media_type="application/octet-stream",
        num_bytes=39_464,
        created_at=_AT,
    )
    data = {"state": "running", "reason": "", "version": 3, "attempt": 1}
    event = Event(id=4712, job_id=_JOB, project="default", kind=EventKind.JOB, at=_AT, data=data)
    yield EventPage(events=(event,), next_after=4712, gap=False)
    yield Acknowledgement(sequence=1, control=Control.RUN)


def _of_access() -> Iterator[BaseModel]:
    key = KeyView(
        id="key-5f3a09c2b4de",
        name="ci",
        owner="ci",
        role=Role.SUBMITTER,
        project="default",
        created_by="first",
        created_at=_AT,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
    )
    yield key
    yield IssuedKey(key=key, secret="wt_...")
    yield Me(
        name=key.name, role=key.role, project=key.project, key=key.id, may=("read", "create a job"), release="0.1.0"
    )
    yield SignInCode(code="...", expires_at=_SOON)
    entry = AuditEntry(
        id=1,
        at=_AT,
        name="ci",
        key=key.id,
        address="127.0.0.1",
        action="createJob",
        target=_JOB,
        outcome="done",
    )
    yield AuditPage(entries=(entry,))
    placement = Placement(job=_JOB, name="digits over a slow link", workers=2, cpus=2.0, gpus=0.0)
    node = NodeView(
        id="6e3e75d5",
        name="head",
        address="10.0.0.5",
        is_head=True,
        cpus=8.0,
        gpus=1.0,
        memory_gb=42.5,
        accelerator="A100",
        placements=(placement,),
    )
    yield ClusterView(embedded=False, reachable=True, version="1.0.0", ray_version="2.60.0", nodes=(node,))
    package = CodeView(
        digest=_DIGEST,
        owner="ci",
        project="default",
        num_bytes=2048,
        num_files=3,
        created_at=_AT,
        used_at=_AT,
        in_use=False,
    )
    yield package
    limits = {"workers": 8, "gpus": 4.0, "running": None, "waiting": 100, "weight": 2.0}
    yield QuotaView(kind=QuotaKind.PROJECT, name="vision", set_by="first", set_at=_AT, **limits)
    yield CodePage(packages=(package,), next_cursor=None)
