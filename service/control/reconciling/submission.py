"""Hands an attempt to Ray: its driver, with what that one needs to know, and the code of its job."""

import io
import logging
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from service import log_lines, tracing
from service.code_package import CodeRefused, of_zip
from service.control.access import permissions
from service.control.ray_cluster.clusters import RayApi
from service.control.reconciling import effects
from service.control.reconciling.calls import in_background
from service.control.store import Store
from service.control.work import Work
from service.errors import NotFound, Unavailable
from service.job.spec import JobSpec
from service.log_lines import log_fields
from service.settings import Settings

_log = logging.getLogger(__name__)
_PATIENCE_S = 2.0  # of a round, with a storage that is to give a package of code


class _Upload(NamedTuple):
    """A package on its way from storage to Ray; `began` is monotonic seconds."""

    began: float
    done: "Future[None]"


class Submission:
    """Submits attempts. Thread-safe.

    Args:
        store: where attempts are.
        settings: the service's.
        python: the interpreter that drivers run under.
        api_url: where drivers reach the API.
    """

    def __init__(self, store: Store, settings: Settings, *, python: str, api_url: str) -> None:
        self._store, self._settings = store, settings
        self._python, self._api_url = python, api_url
        self._uploads: dict[str, _Upload] = {}  # by the package's name at Ray
        self._lock = threading.Lock()

    def submit(self, ray: RayApi, work: Work) -> None:
        """Start the attempt's driver; one whose code cannot be had is lost. Raises Unavailable: not yet."""
        assert work.submission_id is not None
        try:
            package = self._packaged(ray, work)
        except (NotFound, CodeRefused) as error:
            effects.lose(self._store, work, f"the job's code cannot be had: {error}")
            return
        with (
            log_fields(job=work.job_id, attempt=work.attempt),
            tracing.span("submit attempt", job=work.job_id, attempt=work.attempt),
        ):
            entrypoint = f"{self._python} -m service.cluster.entrypoint"
            ray.submit(work.submission_id, entrypoint=entrypoint, env_vars=self._environment(work), package=package)
            _log.info("submitted %s", work.submission_id)

    def forbidden(self, spec: JobSpec) -> str | None:
        """Return why the job may not run here: it was stored while the service allowed more than it does now."""
        found = permissions.conflicts(spec, user_code=self._settings.user_code)
        return "; ".join(each.message for each in found) or None

    def _environment(self, work: Work) -> dict[str, str]:
        """Return the variables of an attempt's driver, trials and workers."""
        return {
            "WIRETUNE_API_URL": self._settings.api_url or self._api_url,
            "WIRETUNE_JOB": work.job_id,
            "WIRETUNE_ATTEMPT": str(work.attempt),
            "WIRETUNE_TOKEN": self._store.attempts.token(work.job_id, work.attempt),
            "OMP_NUM_THREADS": "1",
            "RAY_DEDUP_LOGS": "0",  # every rank's own words, in the log that users read
            "RAY_COLOR_PREFIX": "0",
            log_lines.VARIABLE: self._settings.log_format,
            **tracing.environment(),
        }

    def _packaged(self, ray: RayApi, work: Work) -> str | None:
        """Return the name under which Ray has the job's code, given to it now if need be; None: there is none."""
        digest = work.spec.code
        if digest is None:
            return None
        name = f"_ray_pkg_{digest.removeprefix('sha256:')}.zip"  # Ray's own prefix
        with self._lock:  # jobs that start side by side may have the same code
            upload = self._uploads.get(name)
            if upload is None and ray.has_package(name):
                return name
            if upload is None:
                sending = in_background(lambda: self._upload(ray, name, work.project, digest), name="code")
                upload = self._uploads[name] = _Upload(time.monotonic(), sending)
        try:
            # A storage may never answer. All rounds together wait for it no longer than one.
            upload.done.result(timeout=max(0.0, upload.began + _PATIENCE_S - time.monotonic()))
        except TimeoutError as error:
            raise Unavailable("the storage has not given the job's code yet") from error
        finally:
            if upload.done.done():
                with self._lock:
                    if self._uploads.get(name) is upload:
                        del self._uploads[name]
        return name

    def _upload(self, ray: RayApi, name: str, project: str, digest: str) -> None:
        """Give Ray a package from storage.

        Jobs can write to the storage. What is there now may not be what was uploaded, so its digest is checked again.
        """
        package = of_zip(io.BytesIO(self._store.storage.read_code(project, digest)))
        if package.digest != digest:
            raise CodeRefused(f"on storage, `{digest}` was replaced by `{package.digest}`; upload it again")
        ray.upload(name, package.content)
