"""What an operator sets, from `WIRETUNE_*` variables; the defaults need nothing."""

import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings of one service. Unset addresses mean: run it here, embedded."""

    model_config = SettingsConfigDict(env_prefix="WIRETUNE_", frozen=True, extra="ignore")

    state_dir: Path = Field(Path.home() / ".wiretune", description="database, results, keys, embedded Ray")
    host: str = Field("127.0.0.1", description="bind address; anything but loopback is the operator's choice")
    port: int = Field(8470, ge=0, le=65535, description="0: any free port")
    database_url: str = Field("", description="SQLAlchemy URL; empty: SQLite in the state dir")
    ray_address: str = Field("", description="Ray's Jobs address, http://host:8265; empty: embedded Ray")
    ray_token_path: Path | None = Field(None, description="file with the cluster's auth token")
    storage_url: str = Field("", description="fsspec URL for checkpoints and results; empty: the state dir")
    api_url: str = Field("", description="where the cluster reaches this API; required when Ray is not local")
    num_cpus: int = Field(max(2, os.cpu_count() or 2), ge=1, description="logical CPUs of the embedded Ray")
    num_gpus: int | None = Field(None, ge=0, description="GPUs of the embedded Ray; unset: those found")
    lease_s: float = Field(15.0, gt=0, description="an attempt silent for longer has lost its job")
    renew_s: float = Field(5.0, gt=0, description="how often a driver renews its lease")
    max_silence_s: float = Field(600.0, gt=0, description="a driver stops by itself after so long without the API")
    max_attempts: int = Field(3, ge=1, le=100, description="lives of a job on the cluster before it fails")
    embedded_idle_s: float = Field(120.0, gt=0, description="an embedded Ray without an owner ends after this")

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'wiretune.db'}"

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or f"file://{self.state_dir / 'results'}"
