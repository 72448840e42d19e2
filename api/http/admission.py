"""Admission of jobs: checks against the service's permissions, the caller's role, the cluster and the quotas."""

from fastapi import Request

from api.http.services import services_of
from service.control import webhooks
from service.control.access import permissions
from service.control.access.rules import Principal, may_use
from service.control.queue.capacity import Shape
from service.control.queue.quota_limits import quota_conflicts
from service.control.store import Store
from service.errors import DoesNotFit, Forbidden, InvalidJob
from service.job.parts import Webhook
from service.job.priority import Priority
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.wire.jobs import WebhookPatch


class PriorityForbidden(Forbidden):
    """A priority that the caller's role does not allow. Its pointer fits both a job and an edit of one."""

    def __init__(self, priority: Priority, message: str) -> None:
        self.problems = [Problem(pointer="/priority", message=message, value=priority.value)]
        super().__init__(message)


def require_permission(spec: JobSpec, request: Request) -> None:
    """Raise InvalidJob if the job brings something that this service does not allow."""
    if refused := permissions.conflicts(spec, user_code=services_of(request).user_code):
        raise InvalidJob(refused)


def require_priority(
    priority: Priority, store: Store, caller: Principal, *, operation: str | None = None, job: str = ""
) -> None:
    """Raise Forbidden if the caller's role does not allow the priority, and log the refused `operation`.

    With an `operation` of None, nothing is logged: the caller only checks, as a form does after every key.
    """
    if may_use(caller, priority):
        return
    if operation is not None:
        store.keyring.note_refusal(operation, job, by=caller)
    allowed = ", ".join(each for each in Priority if may_use(caller, each)) or "none"
    raise PriorityForbidden(priority, f"`priority` is {priority}; allowed to your role here, {caller.role}: {allowed}")


def require_webhook(webhook: Webhook | WebhookPatch | None, store: Store) -> None:
    """Raise InvalidJob if this service would not call the webhook."""
    if refused := webhooks.conflicts(webhook, store.settings):
        raise InvalidJob(refused)


def check(spec: JobSpec, request: Request, owner: str, project: str) -> None:
    """Raise InvalidJob or DoesNotFit if this service can never run this job of `owner`."""
    require_permission(spec, request)
    services = services_of(request)
    store = services.store
    require_webhook(spec.webhook, store)
    problems = services.conflicts(spec) or quota_conflicts(
        Shape.of(spec), store.quotas.limits(), owner=owner, project=project
    )
    if problems:
        raise DoesNotFit("; ".join(problem.message for problem in problems), problems)


def allowed_to(caller: Principal, spec: JobSpec) -> JobSpec:
    """Return the job with its priority, lowered if needed to the highest that the role of `caller` allows.

    For clones: an operator may have raised the priority of a job, and its user did not ask for that.
    """
    if may_use(caller, spec.priority):
        return spec
    highest = max((each for each in Priority if may_use(caller, each)), key=lambda priority: priority.rank)
    return spec.model_copy(update={"priority": highest})
