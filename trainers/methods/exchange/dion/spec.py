"""Dion: orthonormal steps along two low-rank factors of the momentum. Pydantic only."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, Density, UpdateConfig
from trainers.spec.method import Method, Paper
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import Traffic, all_reduce
from trainers.traffic.sizes import WORD_BYTES, as_matrix, is_worth_factors, num_selected

#: By this a search on a logarithmic scale may pass its end, relatively.
ROUNDING = 1e-9


class DionConfig(UpdateConfig):
    """Orthonormal steps along two low-rank factors of the momentum, AdamW's for the rest (Dion, Ahn et al., 2025)."""

    amplifies_rounding: ClassVar[bool] = True

    kind: Literal["dion"] = "dion"
    rank_fraction: Density | tuple[Density, Density] = Field(
        0.25, description="rank of a matrix's factors, as a share of its short side, in (0, 1]"
    )
    momentum: Coefficient = Field(0.95, description="of matrices: what stays of the part that is sent")
    betas: tuple[Coefficient, Coefficient] = Field((0.9, 0.999), description="of AdamW, for what is no such matrix")

    @property
    def level_name(self) -> Literal["rank_fraction"]:
        return "rank_fraction"

    @property
    def level(self) -> float | tuple[float, float]:
        return self.rank_fraction

    def level_conflict(self, level: float) -> str | None:
        if 0 < level <= self.highest_fraction * (1 + ROUNDING):
            return None
        return f"must be in (0, {self.highest_fraction:g}], since the factors that are kept have no higher rank"

    @property
    def highest_fraction(self) -> float:
        """The highest that a step may have."""
        return max(self.rank_fraction) if isinstance(self.rank_fraction, tuple) else self.rank_fraction

    def highest_rank(self, shape: Sequence[int]) -> int:
        """Return the rank that the factors of a layer of this shape may have, at most; 0: it is sent densely.

        One whose factors would have as many numbers as the matrix is dense, at every level, so that a search changes
        no layer's method.
        """
        rank = rank_at(shape, self.highest_fraction)
        return rank if is_worth_factors(shape, rank=rank, min_rate=1.0) else 0

    def step_traffic(self, buckets: Sequence[Bucket], num_workers: int, level: float | None) -> Traffic:
        """Return a collective for each bucket, and one for all second factors and the loss."""
        words = [self._factor_words(bucket, self.check_level(level)) for bucket in buckets]
        firsts = [all_reduce(WORD_BYTES * first, num_workers) for first, _ in words]
        return sum(firsts, start=all_reduce(WORD_BYTES * (1 + sum(second for _, second in words)), num_workers))

    def _factor_words(self, bucket: Bucket, level: float) -> tuple[int, int]:
        """Return the numbers in a bucket's first factors and in what is dense, and those in its second factors."""
        now = later = 0
        for layer in bucket.layers:
            if self.highest_rank(layer.shape):
                sides, rank = as_matrix(layer.shape), rank_at(layer.shape, level)
                now, later = now + rank * max(sides), later + rank * min(sides)
            else:
                now += layer.num_elements
        return now, later


def rank_at(shape: Sequence[int], fraction: float) -> int:
    """Return the rank at a share of the short side; 1 of what is no matrix."""
    return num_selected(min(as_matrix(shape)), fraction) if len(shape) > 1 else 1


METHOD = Method(
    "exchange",
    DionConfig,
    "trainers.methods.exchange.dion.exchange:build",
    papers=(Paper("Ahn, Xu, Abreu, Langford", "Dion: distributed orthonormalized updates", "arXiv:2504.05295", 2025),),
    beside={"optimizer": {"kind": "from_exchange"}},
)
