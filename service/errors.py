"""Errors that a caller can react to. Each carries an HTTP status and the slug of its problem type.

WiretuneError
  InvalidRequest      422  a request that is not a job, such as a new key, is not valid
    InvalidJob        422  the job is refused; nothing is stored
  KeyReused           422  an Idempotency-Key came back with another body
  Unauthorized        401
  Forbidden           403  the caller's role does not allow this, or another site asks in their name
  NotFound            404
  IllegalTransition   409  the verb does not fit the job's state
  CheckpointGone      409  what the job would go on from was removed
  KeyGone             409  the key was revoked, has expired, or is in a file of secrets
  CodeInUse           409  a job that is not over needs the code
  TooMuchCode         409  the project keeps as many packages of code as it may
  DoesNotFit          409  more than the cluster can ever place
  QueueFull           409  as many jobs of an owner or a project wait as its quota allows
  UnreadableJob       409  another release stored the job, and this one cannot read it
  PreconditionFailed  412  the job is not as its user last saw it
  Fenced              409  a later attempt owns the job; the writer must stop
  OutOfSequence       409  a batch of records is missing before this one
  TooManyRequests     429  of one key, or wrong keys of one address
  Unavailable         503  the database or the storage does not answer; try again
    DatabaseUnavailable 503  the database, in its own words: they are for callers who are known
    Busy              503  as many downloads, uploads or waits for storage and Ray as the service allows; try again
"""

from collections.abc import Sequence

from service.job.problems import Problem


class WiretuneError(Exception):
    """Base of all errors that the API answers with a problem document."""

    status = 500
    slug = "internal"
    title = "Internal error"


class InvalidRequest(WiretuneError):
    status, slug, title = 422, "invalid-request", "The request is not valid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(map(str, self.problems)))


class InvalidJob(InvalidRequest):
    slug, title = "invalid-job", "The job is not valid"


class KeyReused(WiretuneError):
    status, slug, title = 422, "idempotency-key-reused", "The Idempotency-Key was used for another job"


class Unauthorized(WiretuneError):
    status, slug, title = 401, "unauthorized", "A valid key is required"


class Forbidden(WiretuneError):
    status, slug, title = 403, "forbidden", "This is not allowed"


class NotFound(WiretuneError):
    status, slug, title = 404, "not-found", "There is no such thing"


class IllegalTransition(WiretuneError):
    status, slug, title = 409, "illegal-transition", "The job's state does not allow this"


class CheckpointGone(WiretuneError):
    status, slug, title = 409, "checkpoint-gone", "What the job would go on from was removed"


class KeyGone(WiretuneError):
    status, slug, title = 409, "key-gone", "The key cannot be used for this"


class CodeInUse(WiretuneError):
    status, slug, title = 409, "code-in-use", "A job that is not over needs this code"


class TooMuchCode(WiretuneError):
    status, slug, title = 409, "too-much-code", "The project keeps as many packages of code as it may"


class DoesNotFit(WiretuneError):
    status, slug, title = 409, "does-not-fit", "The cluster can never place this job"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        self.problems = list(problems)
        super().__init__(message)


class QueueFull(WiretuneError):
    status, slug, title = 409, "queue-full", "As many jobs wait as a quota allows"


class UnreadableJob(WiretuneError):
    """Raised with the paths of the fields at fault."""

    status, slug, title = 409, "unreadable-job", "This release cannot read the job"

    def __init__(self, job_id: str, fields: str) -> None:
        self.fields = fields
        super().__init__(
            f"job `{job_id}` was stored by another release, and this one cannot read it: {fields}; run that release "
            "again, or a newer one"
        )


class PreconditionFailed(WiretuneError):
    status, slug, title = 412, "precondition-failed", "The job has changed since you looked"


class Fenced(WiretuneError):
    status, slug, title = 409, "fenced", "A later attempt owns the job"


class OutOfSequence(WiretuneError):
    status, slug, title = 409, "out-of-sequence", "A batch before this one has not arrived"


class TooManyRequests(WiretuneError):
    """Raised with the number of seconds to wait before a retry."""

    status, slug, title = 429, "too-many-requests", "Too many requests"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Unavailable(WiretuneError):
    status, slug, title = 503, "unavailable", "A part of the service does not answer"


class DatabaseUnavailable(Unavailable):
    """Raised with the database's own message. It may name hosts and users, so only authenticated callers see it."""


class Busy(Unavailable):
    slug, title = "busy", "Too many requests of this kind at a time"
