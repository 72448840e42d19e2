"""The type of a job's `sync`: any policy of the registry. Pydantic only: a job is checked without torch."""

from typing import TYPE_CHECKING, TypeAlias

from trainers.methods import registry
from trainers.spec.sync import SyncBase

if TYPE_CHECKING:
    SyncConfig: TypeAlias = SyncBase
else:
    SyncConfig = registry.union("sync")
