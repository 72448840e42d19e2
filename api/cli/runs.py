"""Run one job from a terminal: start a server if none runs, follow the job, and clean up."""

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from api.cli.local import StartedElsewhere, start_server, stop_server
from api.cli.progress import follow
from api.cli.terminal import say
from api.client import Client
from api.failures import ApiError, Unreachable
from api.local_service import Server, running_server
from api.retries import PATIENCE_S
from service.job.spec import JobSpec
from service.job.states import ACTIVE, JobState
from service.settings import Settings
from service.wire.jobs import JobView

CANCEL_S = 60.0
#: If the command that started a server for one job is killed, or leaves it to other jobs, the server ends after this
#: time without a job or a request.
ORPHAN_LINGER_S = 120.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
AtEnd = Callable[[Client, JobView], None]


class Interrupted(Exception):
    """The user ended the run: its job is cancelled, and its server has stopped, unless other jobs need it."""


class Run:
    """A run of one job on this machine's server.

    Args:
        settings: of the server to use or to start.
        console: receives the progress.
        linger_s: how long a server started here stays up afterwards; None: it stops with the job, unless other jobs
            wait or run there by then.
    """

    def __init__(self, settings: Settings, console: Console, *, linger_s: float | None = None) -> None:
        self._settings, self._console, self._linger_s = settings, console, linger_s
        self._idle_s = linger_s or ORPHAN_LINGER_S  # a server started here ends after this time without job and request
        self._started: Server | None = None  # the server, if it was started here
        self.page = ""  # a link to the job's page, if the server stays up
        self._submission: tuple[Server, JobSpec, str] | None = None  # with its idempotency key; set before sending
        self._job_id: str | None = None  # set by the answer
        self._is_over = False

    def run(self, spec: JobSpec, *, at_end: AtEnd) -> None:
        """Run `spec` to its end and pass its last view to `at_end`.

        Raises `Interrupted` after SIGINT or SIGTERM, once the job is cancelled and what was started has stopped. After
        any other error, the job is also cancelled if its server was started here: the next server would continue it.
        """
        succeeded = False
        with _interruptible():
            try:
                self._run(spec, at_end)
                succeeded = True
            except KeyboardInterrupt as error:
                _ignore_signals()
                raise Interrupted(f"interrupted; {self._cancel()}") from error
            except BaseException as error:
                if self._started and self._may_be_live(error):
                    _ignore_signals()
                    self._say(self._cancel())
                raise
            finally:
                if self._started and not (succeeded and self._linger_s is not None):
                    _ignore_signals()
                    self._say(self._leave(self._started))

    def _run(self, spec: JobSpec, at_end: AtEnd) -> None:
        server = running_server(self._settings)
        if server is None:
            self._say(f"starting a service (state in {self._settings.state_dir})")
            try:
                server = self._started = start_server(self._own_settings(), linger_s=self._idle_s)
            except StartedElsewhere as other:
                server = other.server
        with _client_of(server) as client:
            key = str(uuid.uuid4())
            self._submission = server, spec, key
            job_id = self._job_id = client.submit(spec, idempotency_key=key).id
            self._say(f"page: {client.sign_in_link(job_id)}")
            view = follow(client, job_id, self._console)
            self._is_over = True
            at_end(client, view)
            if self._linger_s is not None:  # the first link was used, or has expired
                self.page = client.sign_in_link(job_id)

    def _own_settings(self) -> Settings:
        """Return the settings of a service for one job. It may run user code, since nobody else has the key."""
        is_for_others = self._linger_s is not None or not self._settings.is_private
        if is_for_others or "user_code" in self._settings.model_fields_set:
            return self._settings
        return self._settings.model_copy(update={"user_code": True})

    def _may_be_live(self, error: BaseException) -> bool:
        """Return whether the job may be queued or running after `error`."""
        is_refused = isinstance(error, ApiError) and error.status < 500 and self._job_id is None
        return self._submission is not None and not is_refused and not self._is_over

    def _cancel(self) -> str:
        """Cancel the job and return its final state in words."""
        if self._submission is None:
            return "the job was not queued yet"
        server, spec, key = self._submission
        job_id = self._job_id
        try:
            with _client_of(server) as client:
                if job_id is None:  # it may be queued; the same key gives its id and no second job
                    job_id = self._job_id = client.submit(spec, idempotency_key=key).id
                client.cancel(job_id)
                self._say(f"cancelling {job_id} ...")
                state = client.wait(job_id, timeout_s=CANCEL_S).state
        except ApiError as error:  # it was over already
            return error.detail
        except (TimeoutError, Unreachable) as error:
            told = "the job may be queued" if job_id is None else f"{job_id} was told to stop"
            return f"{told}, but: {error}"
        return f"{job_id} is {state}"

    def _leave(self, server: Server) -> str:
        """Stop the server that was started here, unless other jobs wait or run there; return what was done."""
        num_others = self._num_others(server)
        if num_others == 0:
            return stop_server(self._settings)
        if num_others is None:  # stopping it could end the jobs of other terminals
            why = "it does not say whether other jobs wait or run"
        else:
            why = "another job waits or runs" if num_others == 1 else f"{num_others} other jobs wait or run"
        return (
            f"left the service at {server.url} up, since {why} there: `wiretune stop` ends it now; "
            f"by itself it ends {self._idle_s:g} s after its last job and request"
        )

    def _num_others(self, server: Server) -> int | None:
        """Return how many jobs of others keep the server busy; None: it does not say.

        While the id of this run's job is unknown, that job counts, too.
        """
        try:
            with _client_of(server) as client:
                busy = client.iter_jobs(state=[JobState.QUEUED, *ACTIVE], archived=None)
                return sum(job.id != self._job_id for job in busy)
        except (ApiError, Unreachable):
            return None

    def _say(self, line: str) -> None:
        say(self._console, line)


def _client_of(server: Server) -> Client:
    """Return a client of a local service; if that is away for longer than a restart takes, it has ended."""
    return Client(server.url, server.key, away_s=PATIENCE_S)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into KeyboardInterrupt, even in a background job, where SIGINT is ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
