"""SparseLoCo: the largest entries of each chunk in 14 bits, and a memory that fades. Pydantic only."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import Density, ExchangeBase
from trainers.spec.method import Method, Paper
from trainers.traffic.buckets import Bucket
from trainers.traffic.chunk_layout import LARGEST_CHUNK, ChunkLayout
from trainers.traffic.collectives import Traffic, all_gather
from trainers.traffic.sizes import WORD_BYTES


class SparseLoCoConfig(ExchangeBase):
    """The largest entries of each chunk in 14 bits each, and a memory that fades (SparseLoCo, Sarfi et al., 2025)."""

    is_elastic: ClassVar[bool] = True

    kind: Literal["sparse_loco"] = "sparse_loco"
    density: Density | tuple[Density, Density] = Field(
        1 / 64, description="share of each chunk's entries that is sent, in (0, 1]; 14 bits each"
    )
    chunk: int = Field(
        LARGEST_CHUNK, ge=8, le=LARGEST_CHUNK, description="neighbouring entries that are ranked together"
    )
    decay: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description="of what was not sent: the share that goes with the next exchange; 1: error feedback"
    )

    @property
    def level(self) -> float | tuple[float, float]:
        return self.density

    def layout(self, bucket: Bucket, density: float) -> ChunkLayout:
        """Return what is sent of a bucket, behind the loss."""
        return ChunkLayout(bucket.num_elements, self.chunk, density)

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        return all_gather(WORD_BYTES + self.layout(bucket, self.check_level(level)).num_bytes, num_workers)

    def difference_conflict(self) -> str | None:
        return None  # of differences of parameters too, what was not sent is to fade


METHOD = Method(
    "exchange",
    SparseLoCoConfig,
    "trainers.methods.exchange.sparse_loco.exchange:build",
    papers=(
        Paper(
            "Sarfi, Therien, Lidin, Belilovsky",
            "Communication efficient LLM pre-training with SparseLoCo",
            "arXiv:2508.15706",
            2025,
        ),
    ),
)
