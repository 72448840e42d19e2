"""The operator's settings, read from `WIRETUNE_*` variables. The defaults work without any."""

import base64
import json
import math
import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from search.config import Config
from service import cores
from service.job.states import ENDS, Occasion
from service.log_lines import LogFormat, LogLevel
from service.wire.access import Role

WEBHOOK_SECRET_PREFIX = "whsec_"
#: The variable that names a folder of secret files, as Docker and Kubernetes mount them.
SECRETS_DIR = "WIRETUNE_SECRETS_DIR"
_LOOPBACK = ("localhost", "::1")
_KINDS = {"integer": "an integer", "number": "a number", "string": "text", "boolean": "true or false"}
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}


class ClusterNodes(Config):
    """A number of nodes of the same kind."""

    cpus: float = Field(gt=0, le=1_000_000)
    gpus: float = Field(0.0, ge=0, le=1_000_000)
    memory_gb: float | None = Field(None, gt=0, le=1_000_000)  # null: not known, so enough for any worker
    accelerator: str | None = None  # null: not known, so of any kind
    count: int = Field(1, ge=1, le=10_000)


class Settings(BaseSettings):
    """Settings of one service. If an address is not set, that component runs here, embedded."""

    model_config = SettingsConfigDict(env_prefix="WIRETUNE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    state_dir: Path = Field(Path.home() / ".wiretune", description="database, results, keys, embedded Ray")
    host: str = Field("127.0.0.1", description="bind address; anything but loopback is the operator's choice")
    port: int = Field(8470, ge=0, le=65535, description="0: any free port")
    allow_plain_http: bool = Field(False, description="let other machines in without TLS, over a network you trust")
    database_url: str = Field("", description="SQLAlchemy URL; empty: SQLite in the state dir")
    ray_address: str = Field("", description="Ray's Jobs address, http://host:8265; empty: embedded Ray")
    ray_token_path: Path | None = Field(None, description="file with the cluster's auth token")
    storage_url: str = Field("", description="fsspec URL for checkpoints and results; empty: the state dir")
    api_url: str = Field("", description="where the cluster reaches this API; required when Ray is not local")
    worker_env: str = Field(
        "", description="variables that an embedded Ray's workers get besides the usual ones: names, AWS_*, with commas"
    )
    user_code: bool = Field(False, description="let jobs name their own `workload.factory` and `workload.weights`")
    code_packages: int = Field(100, ge=1, le=100_000, description="packages of code that a project may keep")
    requests_per_minute: int = Field(60_000, ge=1, description="of one key, to one process of the service")
    oidc_issuer: str = Field("", description="OpenID Connect issuer whose tokens are taken; empty: none")
    oidc_audience: str = Field("", description="`aud` of its tokens; required with an issuer")
    oidc_claim: str = Field("groups", description="claim of a token that names groups")
    oidc_roles: Annotated[dict[str, Role], NoDecode] = Field(
        {}, description="JSON: the role of each group; the highest counts"
    )
    oidc_project_claim: str = Field("", description="claim that names the project; empty: the default one")
    oidc_client_id: str = Field(
        "", description="of this service at the issuer, for signing in to the page; empty: none"
    )
    oidc_client_secret: SecretStr = Field(SecretStr(""), description="of that client; empty: it is a public one")
    oidc_scope: str = Field("openid", description="what the page asks the issuer for; with `openid`")
    num_cpus: int = Field(
        default_factory=lambda: max(2, cores.usable()), ge=1, description="logical CPUs of the embedded Ray"
    )
    num_gpus: int | None = Field(None, ge=0, description="GPUs of the embedded Ray; unset: those found")
    lease_s: float = Field(15.0, gt=0, description="an attempt silent for longer has lost its job")
    renew_s: float = Field(5.0, gt=0, description="how often a driver renews its lease; below half of `lease_s`")
    max_silence_s: float = Field(600.0, gt=0, description="a driver stops by itself after so long without the API")
    max_attempts: int = Field(
        3, ge=1, le=100, description="attempts in a row that get a job no further, the first included, before it fails"
    )
    cluster_nodes: Annotated[tuple[ClusterNodes, ...], NoDecode] = Field(
        (), description="JSON: the nodes of a cluster that grows by itself, at its largest; unset: those that it has"
    )
    queue_aging_s: float = Field(
        43_200.0, gt=0, description="a queued job that has waited so long counts one priority higher"
    )
    queue_backfill_s: float = Field(
        3600.0, ge=0, description="where no budget tells when a job can start, others may pass it so long"
    )
    queue_min_run_s: float = Field(600.0, ge=0, description="a job is not paused for another before it has run so long")
    idempotency_s: float = Field(
        86_400.0, gt=0, description="an Idempotency-Key that comes again after so long makes another job"
    )
    audit_days: float | None = Field(None, gt=0, description="entries of the audit log stay so long; unset: for ever")
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="signs messages about jobs: `whsec_` and 24 to 64 bytes in base64",
    )
    webhook_url: SecretStr = Field(SecretStr(""), description="is told of every job; empty: nothing is")
    webhook_on: Annotated[tuple[Occasion, ...], NoDecode] = Field(
        ENDS, description="JSON: what `webhook_url` is told of"
    )
    webhook_private: bool = Field(False, description="let jobs name webhooks that are not public, and plain http")
    downloads: int = Field(32, ge=1, le=1000, description="downloads at a time: metrics, weights, logs")
    price_worker_hour: float | None = Field(None, ge=0, description="of one worker; unset: bills show no money for it")
    price_gb: float | None = Field(
        None, ge=0, description="of 10^9 bytes on the wire; unset: bills show no money for it"
    )
    price_currency: str = Field("", max_length=10, description="written behind sums of money")
    stall_s: float = Field(30.0, gt=0, description="a client that takes nothing of its answer for so long is cut off")
    log_file: Path | None = Field(None, description="log into this file, which is rotated; unset: standard error")
    log_format: LogFormat = Field(LogFormat.TEXT, description="of the service's log and the attempts': text, or json")
    log_level: LogLevel = Field(LogLevel.INFO, description="of the service's own lines: this level and above")
    embedded_idle_s: float = Field(120.0, gt=0, description="an embedded Ray that nobody needs ends after this")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the variables, then the files in `WIRETUNE_SECRETS_DIR`, each named like a variable in lower case."""
        folder = os.environ.get(SECRETS_DIR)
        files = (SecretsSettingsSource(settings_cls, secrets_dir=folder),) if folder else ()
        return (init_settings, env_settings, *files)

    @field_validator("state_dir")
    @classmethod
    def _make_absolute(cls, state_dir: Path) -> Path:
        # Absolute, because every process derives paths from it, and each has its own working directory.
        try:
            return state_dir.expanduser().resolve()
        except RuntimeError as error:
            raise ValueError(f"`state_dir` is {state_dir}, in a home that does not exist; allowed: a path") from error

    @field_validator("allow_plain_http")
    @classmethod
    def _keep_keys_off_the_wire(cls, allow_plain_http: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "")
        if not allow_plain_http and host and not _is_loopback(host):
            raise ValueError(
                f"`host` is {host}, which other machines reach, and the service speaks plain HTTP: keys could be read "
                "on the way. Leave `host` on loopback, behind a proxy on this machine that speaks TLS; or set "
                "WIRETUNE_ALLOW_PLAIN_HTTP=true for a network that you trust"
            )
        return allow_plain_http

    @field_validator("storage_url")
    @classmethod
    def _require_one_for_all_nodes(cls, url: str, info: ValidationInfo) -> str:
        ray_address = info.data.get("ray_address", "")
        if not url and _is_elsewhere(ray_address):
            raise ValueError(
                f"`storage_url` is empty while `ray_address` is {ray_address}; "
                "required: a folder that every node mounts, file:///FOLDER, or s3://BUCKET/FOLDER"
            )
        return url

    @field_validator("storage_url")
    @classmethod
    def _keep_keys_out(cls, url: str) -> str:
        place = urlsplit(url)
        if "@" in place.netloc:
            raise ValueError(
                "its value, which is not shown here, holds a key, and URLs are stored and logged; allowed: the URL "
                "alone, with the key in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in a file "
                "(AWS_SHARED_CREDENTIALS_FILE)"
            )
        if place.scheme in ("s3", "s3a") and not place.netloc:
            raise ValueError(f"`storage_url` is {url}, without a bucket; allowed: s3://BUCKET or s3://BUCKET/FOLDER")
        return url

    @field_validator("api_url")
    @classmethod
    def _require_a_way_back(cls, api_url: str, info: ValidationInfo) -> str:
        ray_address = info.data.get("ray_address", "")
        if not api_url and _is_elsewhere(ray_address):
            raise ValueError(
                f"`api_url` is empty while `ray_address` is {ray_address}; "
                "required: the URL at which the cluster's nodes reach this API"
            )
        return api_url

    @field_validator("oidc_roles", mode="before")
    @classmethod
    def _read_roles(cls, roles: Any) -> Any:
        try:
            found = json.loads(roles) if isinstance(roles, str) else roles
            return {str(group): Role(role) for group, role in found.items()}
        except (ValueError, AttributeError) as error:
            allowed = f'JSON such as {{"GROUP": "viewer"}}; roles: {", ".join(Role)}'
            raise ValueError(f"`oidc_roles` is {roles!r}; allowed: {allowed}") from error

    @field_validator("cluster_nodes", mode="before")
    @classmethod
    def _read_nodes(cls, nodes: Any) -> Any:
        try:
            found = json.loads(nodes) if isinstance(nodes, str) else nodes
            return tuple(ClusterNodes.model_validate(each) for each in found)
        except (ValueError, TypeError) as error:
            allowed = 'JSON such as [{"cpus": 16, "gpus": 4, "count": 8}]'
            raise ValueError(f"`cluster_nodes` is {nodes!r}; allowed: {allowed}") from error

    @field_validator("oidc_issuer")
    @classmethod
    def _require_https(cls, issuer: str) -> str:
        address = urlsplit(issuer)
        if (
            issuer
            and address.scheme != "https"
            and not (address.scheme == "http" and _is_loopback(address.hostname or ""))
        ):
            raise ValueError(f"`oidc_issuer` is {issuer}; allowed: an https:// URL")
        return issuer

    @field_validator("oidc_audience")
    @classmethod
    def _require_an_audience(cls, audience: str, info: ValidationInfo) -> str:
        if info.data.get("oidc_issuer") and not audience:
            raise ValueError("`oidc_audience` is empty while `oidc_issuer` is set; required: the `aud` of its tokens")
        return audience

    @field_validator("oidc_client_id")
    @classmethod
    def _require_an_issuer(cls, client: str, info: ValidationInfo) -> str:
        if client and not info.data.get("oidc_issuer"):
            raise ValueError(
                f"`oidc_client_id` is {client} while `oidc_issuer` is empty; required: the client's issuer"
            )
        return client

    @field_validator("renew_s")
    @classmethod
    def _leave_room_for_a_lost_renewal(cls, renew_s: float, info: ValidationInfo) -> float:
        most = info.data.get("lease_s", math.inf) / 2
        if renew_s >= most:
            raise ValueError(f"`renew_s` is {renew_s:g}; allowed: above 0 and below {most:g}, half of `lease_s`")
        return renew_s

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_key(cls, secret: SecretStr) -> SecretStr:
        given = secret.get_secret_value()
        try:
            size = len(base64.b64decode(given.removeprefix(WEBHOOK_SECRET_PREFIX), validate=True))
        except ValueError:
            size = 0
        if given and not (given.startswith(WEBHOOK_SECRET_PREFIX) and 24 <= size <= 64):
            raise ValueError(
                "its value, which is not shown here, is no secret; allowed: `whsec_` and 24 to 64 random bytes in "
                'base64, as `echo "whsec_$(openssl rand -base64 32)"` makes them'
            )
        return secret

    @field_validator("webhook_url")
    @classmethod
    def _is_an_address(cls, url: SecretStr) -> SecretStr:
        given = urlsplit(url.get_secret_value())
        if url.get_secret_value() and not (given.scheme in ("http", "https") and given.hostname):
            raise ValueError("its value, which is not shown here, is no URL; allowed: https://HOST[:PORT][/PATH]")
        return url

    @field_validator("webhook_on", mode="before")
    @classmethod
    def _read_occasions(cls, given: Any) -> Any:
        try:
            return tuple(Occasion(word) for word in (json.loads(given) if isinstance(given, str) else given))
        except (ValueError, TypeError) as error:
            allowed = f'JSON such as ["failed", "attempt_lost"]; words: {", ".join(Occasion)}'
            raise ValueError(f"`webhook_on` is {given!r}; allowed: {allowed}") from error

    @property
    def is_private(self) -> bool:
        """Return whether the service can be reached from this machine only."""
        return _is_loopback(self.host)

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{quote(str(self.state_dir / 'wiretune.db'))}"

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or f"file://{self.state_dir / 'results'}"


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def _is_elsewhere(ray_address: str) -> bool:
    """Return whether Ray runs on other machines."""
    return bool(ray_address) and not _is_loopback(urlsplit(ray_address).hostname or "")


def refusals_of(error: ValidationError) -> list[str]:
    """Return a line for each invalid variable in an `error` of `Settings()`: its name, value and what is allowed."""
    return [_refusal(detail) for detail in error.errors(include_url=False)]


def _refusal(detail: ErrorDetails) -> str:
    name = str(detail["loc"][0])
    variable = f"WIRETUNE_{name.upper()}"
    if detail["type"] == "value_error":  # one of our own, which says all of it
        return f"{variable}: {detail['msg'].removeprefix('Value error, ')}"
    return f"{variable} is {detail['input']!r}; allowed: {_allowed(name)}"


def _allowed(name: str) -> str:
    described = Settings.model_json_schema()
    schema = described["properties"][name]
    schema = schema.get("anyOf", [schema])[0]  # the other form is null, for an unset value
    if "$ref" in schema:
        return ", ".join(described["$defs"][schema["$ref"].rpartition("/")[2]]["enum"])
    bounds = (f"{word} {schema[bound]:g}" for bound, word in _BOUNDS.items() if bound in schema)
    return " ".join([_KINDS[schema["type"]], *bounds])
