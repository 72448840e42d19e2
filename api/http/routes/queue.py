"""`/v1/queue`, `/v1/quotas`: waiting jobs and their reasons, and the limits of owners and projects."""

from typing import Annotated

from fastapi import Depends, Path, Query

from api.http import bodies
from api.http.auth import Caller, require_key
from api.http.dependencies import OutlookOf
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf
from service.control.access.rules import Action, visible_project
from service.errors import NotFound
from service.wire.base import MAX_PAGE
from service.wire.queue import QueueView, QuotaKind, QuotaLimits, QuotaName, QuotaView

router = OperationRouter(prefix="/v1", tags=["queue"], dependencies=[Depends(require_key)])

_Name = Annotated[QuotaName, Path(description="an owner or a project; `*`: everyone without a quota of their own")]


@router.serves("GET", "/queue", Operation(id="getQueue", action=Action.READ))
def get_queue(
    caller: Caller,
    outlook: OutlookOf,
    after: Annotated[int, Query(ge=0, le=10_000_000, description="`next_after` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> QueueView:
    """Return the waiting jobs in their order, and why each waits; only those that the caller may see.

    The queue is decided every second, so a new job appears after up to a second.
    """
    return outlook.view(project=visible_project(caller), after=after, limit=limit)


@router.serves("GET", "/quotas", Operation(id="listQuotas", action=Action.READ_QUOTAS))
def list_quotas(store: StoreOf) -> tuple[QuotaView, ...]:
    """Return all quotas, owners' before projects'."""
    return store.quotas.list()


_LIMITS = {"workers": 8, "gpus": 4, "running": None, "waiting": 100, "weight": 2}


@router.serves(
    "PUT",
    "/quotas/{kind}/{name:path}",
    Operation(id="setQuota", action=Action.SET_QUOTAS, body=Body(model=QuotaLimits, example=_LIMITS)),
)
def set_quota(
    kind: QuotaKind,
    name: _Name,
    limits: Annotated[QuotaLimits, Depends(bodies.quota_limits)],
    store: StoreOf,
    caller: Caller,
) -> QuotaView:
    """Set or replace the quota of an owner or a project. Running jobs go on."""
    return store.quotas.set(kind, name, limits, by=caller)


@router.serves(
    "PATCH",
    "/quotas/{kind}/{name:path}",
    Operation(
        id="updateQuota",
        action=Action.SET_QUOTAS,
        body=Body(model=QuotaLimits, example={"weight": 3, "gpus": None}, media_types=bodies.CHANGES_TYPES),
    ),
)
def update_quota(
    kind: QuotaKind,
    name: _Name,
    patch: Annotated[QuotaLimits, Depends(bodies.quota_edit)],
    store: StoreOf,
    caller: Caller,
) -> QuotaView:
    """Change some limits of a quota, by a JSON merge patch: what is left out stays, and null removes a limit.

    If there is no such quota, it is made with these limits only.
    """
    return store.quotas.edit(kind, name, patch, by=caller)


@router.serves(
    "DELETE",
    "/quotas/{kind}/{name:path}",
    Operation(id="deleteQuota", action=Action.SET_QUOTAS, errors=(NotFound,)),
    status_code=204,
)
def delete_quota(kind: QuotaKind, name: _Name, store: StoreOf, caller: Caller) -> None:
    """Remove a quota. The one for everyone then applies, if there is one."""
    store.quotas.remove(kind, name, by=caller)
