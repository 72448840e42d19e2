"""The queue as the reconciler last decided it: places, reasons and shares as users see them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from service.control.moments import moment, moment_or_none
from service.control.queue.capacity import Node, Size, total
from service.control.queue.order import HALF_LIFE_S, dominant
from service.control.queue.queued import Place, Plan
from service.control.queue.quota_limits import limits_of
from service.control.queue.waiting import EMPTY, Backlog
from service.wire.queue import ProjectShare, QueueEntry, QueuePlace, QueueView, QuotaKind, WaitKind, sentence


@dataclass(frozen=True)
class Outlook:
    """A plan, its input and its time in seconds since the epoch; None: nothing was decided yet."""

    plan: Plan = field(default_factory=Plan)
    backlog: Backlog = EMPTY
    nodes: tuple[Node, ...] = ()
    at: float | None = None

    @cached_property
    def _places(self) -> dict[str, Place]:
        return {place.job.job_id: place for place in self.plan.places}

    def place(self, job_id: str, *, project: str | None) -> QueuePlace | None:
        """Return the job's place; None if it does not wait. Other jobs are named only within `project` (None: any)."""
        found = self._places.get(job_id)
        return None if found is None else self._view(found, project)

    def _view(self, place: Place, project: str | None) -> QueuePlace:
        job, ahead, (kind, name) = place.job, place.behind, place.quota or (None, None)
        is_seen = ahead is not None and project in (None, ahead.project)
        view = QueuePlace(
            place=place.number,
            of=len(self.plan.places),
            kind=place.kind,
            workers=place.size.workers,
            missing=place.missing,
            behind=ahead.job_id if ahead and is_seen else None,
            behind_name=ahead.name if ahead and is_seen else None,
            behind_project=ahead.project if ahead and is_seen else None,
            behind_priority=ahead.priority if ahead else None,
            quota=kind,
            quota_name=name,
            limit=place.limit or None,
            until=moment(job.not_before) if place.kind is WaitKind.BACK_OFF else None,
            is_preempted=job.is_preempted,
            detail=place.detail,
        )
        return view.model_copy(update={"sentence": sentence(view)})

    def view(self, *, project: str | None, after: int = 0, limit: int = 50) -> QueueView:
        """Return the waiting jobs of `project` (None: all) behind the place `after`, and all shares."""
        seen = [place for place in self.plan.places if project in (None, place.job.project) and place.number > after]
        capacity = total(self.nodes)
        free = capacity - sum((job.size for job in self.backlog.running), Size())
        return QueueView(
            at=moment_or_none(self.at),
            of=len(self.plan.places),
            cpus=capacity.cpus,
            gpus=capacity.gpus,
            free_cpus=max(0.0, free.cpus),
            free_gpus=max(0.0, free.gpus),
            entries=tuple(
                QueueEntry(
                    job_id=place.job.job_id,
                    owner=place.job.owner,
                    project=place.job.project,
                    priority=place.job.priority,
                    queued_at=moment(place.job.queued_at),
                    place=self._view(place, project),
                )
                for place in seen[:limit]
            ),
            projects=tuple(share for share in self._shares(capacity) if project in (None, share.project)),
            next_after=seen[limit - 1].number if len(seen) > limit else None,
        )

    def _shares(self, capacity: Size) -> Iterator[ProjectShare]:
        taken: dict[str, Size] = {}
        recent = dict(self.backlog.recent)
        for job in self.backlog.running:
            taken[job.project] = taken.get(job.project, Size()) + job.size
            had = 1.0 - 0.5 ** (max(0.0, (self.at or 0.0) - job.began_at) / HALF_LIFE_S)
            recent[job.project] = recent.get(job.project, Size()) + Size(had * job.size.cpus, had * job.size.gpus)
        running = Counter(job.project for job in self.backlog.running)
        waiting = Counter(place.job.project for place in self.plan.places)
        for project in sorted({*recent, *running, *waiting}):
            yield ProjectShare(
                project=project,
                weight=limits_of(self.backlog.quotas, QuotaKind.PROJECT, project).weight,
                running=running[project],
                waiting=waiting[project],
                workers=taken.get(project, Size()).workers,
                share=dominant(taken.get(project, Size()), capacity),
                recent=dominant(recent.get(project, Size()), capacity),
            )
