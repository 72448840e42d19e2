"""`/v1/events`, `/v1/jobs/{job}/events`, `/v1/jobs/{job}/snapshot`: the state of a page, and its changes."""

from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response

from api.http.auth import Caller, is_welcome, require_key
from api.http.broadcast import EventStream
from api.http.etags import UNCHANGED, IfNoneMatch, etag_made_of, unchanged
from api.http.operations import Answers, Operation, OperationRouter
from api.http.services import StoreOf, services_of
from service.control.access.rules import Action, visible_project
from service.errors import NotFound, UnreadableJob
from service.wire.base import MAX_PAGE
from service.wire.events import EventKind, EventPage
from service.wire.snapshot import Snapshot

router = OperationRouter(prefix="/v1", tags=["events"], dependencies=[Depends(require_key)])

_MAX_ID = 2**53 - 1  # the largest safe integer in JavaScript
_STREAM: Answers = {
    200: {
        "description": "a page; with `Accept: text/event-stream` a stream that does not end",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}

_MAX_POINTS = "the most points per series; fewer where a job has so many trials that they would be over 200,000 in all"

JobFilter = Annotated[str | None, Query(max_length=100, description="only events of this job")]
Kinds = Annotated[list[EventKind], Query(description="only events of these kinds; several: kind=job&kind=probe")]
After = Annotated[
    int | None,
    Query(ge=0, le=_MAX_ID, description="an event's id; default: 0 for a page, the newest for a stream"),
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="the most events on a page")]
Brief = Annotated[bool, Query(description="in a stream, send only the event's `id`, `job_id` and `kind` as `data`")]
LastEventId = Annotated[
    str | None, Header(pattern=r"^[0-9]{1,15}$", description="as a browser sends it; takes precedence over `after`")
]


@router.serves(
    "GET",
    "/events",
    Operation(id="listEvents", action=Action.READ, errors=(NotFound,), is_stream=True),
    response_model=EventPage,
    responses=_STREAM,
)
def list_events(
    request: Request,
    store: StoreOf,
    caller: Caller,
    job: JobFilter = None,
    kind: Kinds = [],  # noqa: B006  (FastAPI copies it)
    after: After = None,
    limit: Limit = MAX_PAGE,
    brief: Brief = False,
    last_event_id: LastEventId = None,
) -> EventPage | Response:
    """Return the changes, oldest first: as a page, or as a stream that resumes by `Last-Event-ID`."""
    after = after if last_event_id is None else int(last_event_id)
    wanted: dict[str, Any] = {"project": visible_project(caller), "job_id": job, "kinds": frozenset(kind)}
    if "text/event-stream" in request.headers.get("accept", ""):
        store.events(store.newest_event(), limit=1, **wanted)  # raises now, since a begun stream cannot refuse
        broadcaster = services_of(request).broadcaster
        return EventStream(broadcaster.stream(after, brief=brief, is_welcome=is_welcome(request), **wanted))
    return store.events(after or 0, limit=limit, **wanted)


@router.serves(
    "GET",
    "/jobs/{job}/events",
    Operation(id="listJobEvents", action=Action.READ, is_stream=True),
    response_model=EventPage,
    responses=_STREAM,
)
def list_job_events(
    job: str,
    request: Request,
    store: StoreOf,
    caller: Caller,
    kind: Kinds = [],  # noqa: B006
    after: After = None,
    limit: Limit = MAX_PAGE,
    brief: Brief = False,
    last_event_id: LastEventId = None,
) -> EventPage | Response:
    """Return the changes of one job, as `/v1/events` does for all."""
    return list_events(request, store, caller, job, kind, after, limit, brief, last_event_id)


@router.serves(
    "GET",
    "/jobs/{job}/snapshot",
    Operation(id="getSnapshot", action=Action.READ, errors=(UnreadableJob,), headers={200: ("ETag",), 304: ("ETag",)}),
    response_model=Snapshot,
    responses=UNCHANGED,
)
def get_snapshot(
    job: str,
    store: StoreOf,
    request: Request,
    response: Response,
    since: Annotated[int | None, Query(ge=0, le=_MAX_ID, description="`cursor` of the previous snapshot")] = None,
    max_points: Annotated[int, Query(ge=2, le=10_000, description=_MAX_POINTS)] = 1000,
    if_none_match: IfNoneMatch = None,
) -> Snapshot | Response:
    """Return all that the job's page shows at one moment; with `since`, only the changes."""
    prices = store.settings.price_worker_hour, store.settings.price_gb, store.settings.price_currency
    etag = etag_made_of(store.snapshot_version(job), request.app.version, *prices)
    response.headers["ETag"] = etag
    return unchanged(etag, if_none_match) or store.snapshot(job, since=since, max_points=max_points)
