"""Submit an attempt to Ray: its driver with its environment, and the job's code."""

import io
import logging
import threading
from dataclasses import dataclass, field
from functools import partial

from service import log_lines, tracing
from service.code_package import CodeRefused, of_zip
from service.control.access import permissions
from service.control.ray_cluster.clusters import RayApi
from service.control.reconciling import calls, effects
from service.control.store import Store
from service.control.work import Work
from service.errors import NotFound, Unavailable
from service.job.spec import JobSpec
from service.log_lines import log_fields
from service.settings import Settings

_log = logging.getLogger(__name__)
_HANGS_S = 60.0  # after this time, other attempts no longer wait for an upload that has not ended


@dataclass
class _Upload:
    """An upload of a package from storage to Ray."""

    ray: RayApi
    call: calls.Background[None]
    waiting: set[str] = field(default_factory=set)  # submissions that wait for it

    def is_for(self, ray: RayApi, submission_id: str) -> bool:
        """Return whether a submission may count on it: what was so before its time may be so no more."""
        is_its_own = submission_id in self.waiting
        if self.ray is not ray:
            return False
        if self.call.has_ended():
            return is_its_own and self.call.has_failed
        return is_its_own or self.call.asked_s < _HANGS_S


class Submission:
    """Submits attempts. Thread-safe.

    Args:
        store: the store of attempts.
        settings: the service's settings.
        python: the interpreter that drivers run under.
        api_url: where drivers reach the API.
    """

    def __init__(self, store: Store, settings: Settings, *, python: str, api_url: str) -> None:
        self._store, self._settings = store, settings
        self._python, self._api_url = python, api_url
        self._uploads: dict[tuple[str, str], _Upload] = {}  # by project and digest
        self._lock = threading.Lock()

    def submit(self, ray: RayApi, work: Work) -> None:
        """Start the attempt's driver. If its code is missing, the attempt is lost. Raises Unavailable to try later."""
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
            entrypoint = f"{self._python} -P -m service.cluster.entrypoint"
            ray.submit(work.submission_id, entrypoint=entrypoint, env_vars=self._environment(work), package=package)
            _log.info("submitted %s", work.submission_id)

    def forbidden(self, spec: JobSpec) -> str | None:
        """Return why the job may not run here, if the service allowed more when it was stored than it does now."""
        found = permissions.conflicts(spec, user_code=self._settings.user_code)
        return "; ".join(each.message for each in found) or None

    def _environment(self, work: Work) -> dict[str, str]:
        """Return the environment variables of an attempt's driver, trials and workers."""
        return {
            "WIRETUNE_API_URL": self._settings.api_url or self._api_url,
            "WIRETUNE_JOB": work.job_id,
            "WIRETUNE_ATTEMPT": str(work.attempt),
            "WIRETUNE_MAX_SILENCE_S": str(self._settings.max_silence_s),
            "WIRETUNE_TOKEN": self._store.attempts.token(work.job_id, work.attempt),
            "OMP_NUM_THREADS": "1",
            "RAY_DEDUP_LOGS": "0",  # every rank's own words, in the log that users read
            "RAY_COLOR_PREFIX": "0",
            log_lines.VARIABLE: self._settings.log_format,
            **tracing.environment(),
        }

    def _packaged(self, ray: RayApi, work: Work) -> str | None:
        """Return the name of the job's code in Ray, uploaded now if needed; None if the job has no code."""
        digest = work.spec.code
        if digest is None:
            return None
        name = f"_ray_pkg_{digest.removeprefix('sha256:')}.zip"  # Ray's own prefix
        upload = self._uploading(ray, work, name, digest)
        if upload is None:
            return name
        if not upload.call.has_ended(patience_s=calls.PATIENCE_S):
            raise Unavailable("the storage has not given the job's code yet")
        upload.call.answer()
        return name

    def _uploading(self, ray: RayApi, work: Work, name: str, digest: str) -> _Upload | None:
        """Return the upload that the attempt waits for, started now if needed; None if Ray has the package."""
        assert work.submission_id is not None
        key = work.project, digest
        with self._lock:  # jobs that start side by side may have the same code
            upload = self._uploads.get(key)
            if upload is not None and not upload.is_for(ray, work.submission_id):
                upload = None
            if ray.has_package(name):  # asked last: what has just been uploaded is not sent again
                self._uploads.pop(key, None)
                return None
            if upload is None:
                upload = _Upload(ray, calls.Background(partial(self._upload, ray, name, *key), name="code"))
                self._uploads[key] = upload
            upload.waiting.add(work.submission_id)
            return upload

    def _upload(self, ray: RayApi, name: str, project: str, digest: str) -> None:
        """Upload a package from storage to Ray.

        Jobs can write to the storage and may have changed the package, so its digest is checked again.
        """
        package = of_zip(io.BytesIO(self._store.storage.read_code(project, digest)))
        if package.digest != digest:
            raise CodeRefused(f"on storage, `{digest}` was replaced by `{package.digest}`; upload it again")
        ray.upload(name, package.content)
