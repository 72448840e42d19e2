"""The type of a job's `blocks`: any choice of the registry. Pydantic only: a job is checked without torch."""

from typing import TYPE_CHECKING, TypeAlias

from trainers.methods import registry
from trainers.spec.blocks import BlocksBase

if TYPE_CHECKING:
    BlocksConfig: TypeAlias = BlocksBase
else:
    BlocksConfig = registry.union("blocks")
