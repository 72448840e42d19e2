"""References to jobs: a part of the id, the name, or `latest`."""

import re

from api.failures import UnknownJob
from service.wire.access import Me
from service.wire.jobs import JobPage

#: The form of a whole id; anything else is looked up.
WHOLE_ID = re.compile("job-[0-9a-f]{24}")
#: How many candidates an error message lists.
NUM_CANDIDATES = 8


def only(ref: str, found: JobPage) -> str:
    """Return the id of the one job that `ref` means. Raises UnknownJob."""
    if len(found.jobs) == 1:
        return found.jobs[0].id
    if not found.jobs:
        raise UnknownJob(f"no job goes by `{ref}`; see `list`")
    candidates = [f"  {job.id}  {job.state}  {job.name}" for job in found.jobs]
    more = ["  and more"] * (found.next_cursor is not None)
    raise UnknownJob("\n".join([f"`{ref}` is ambiguous; give more of the id:", *candidates, *more]))


def without_own(me: Me, others: JobPage) -> UnknownJob:
    """Return the error that `me` has no `latest` job; it names the newest of `others`, perhaps a colleague's."""
    if not others.jobs:
        return UnknownJob("no job is listed yet; an archived one goes by its id or name")
    job = others.jobs[0]
    return UnknownJob(
        f"`latest` is your own newest job, and no job of `{me.name}` in project `{me.project}` is listed; the newest "
        f"that you see is\n  {job.id}  {job.state}  {job.name}, of `{job.owner}` in project `{job.project}`"
    )
