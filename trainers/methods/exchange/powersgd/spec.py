"""PowerSGD: large matrices as two low-rank factors. Pydantic only."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import CorrectedConfig, SteeredConfig
from trainers.spec.levels import AccordionConfig
from trainers.spec.method import Competing, Method, Paper
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import HALF_BYTES, Traffic, all_reduce
from trainers.traffic.sizes import WORD_BYTES, as_matrix, is_worth_factors

HIGHEST_RANK = 1024
Rank = Annotated[int, Field(ge=1, le=HIGHEST_RANK)]


class PowerSgdConfig(CorrectedConfig, SteeredConfig):
    """Send a low-rank factorisation of each large matrix, the rest densely (Vogels et al., 2019)."""

    has_layer_levels: ClassVar[bool] = True
    amplifies_rounding: ClassVar[bool] = True

    kind: Literal["powersgd"] = "powersgd"
    rank: Rank | tuple[Rank, Rank] = Field(4, description="of the factorisation")
    min_saving: float = Field(
        2.0,
        gt=1,
        allow_inf_nan=False,
        description="factorise a matrix only if its factors have so many times fewer numbers",
    )
    values: Literal["float16", "float32"] = Field(
        "float16", description="of the first factors and of the rest on the wire; the second ones are float32"
    )

    @property
    def level_name(self) -> Literal["rank"]:
        return "rank"

    @property
    def highest_rank(self) -> int:
        """The highest that a step may have."""
        ranks = self.rank if isinstance(self.rank, tuple) else (self.rank,)
        critical = (int(self.levels.critical),) if isinstance(self.levels, AccordionConfig) else ()
        return max(*ranks, *critical, 1)

    @property
    def level(self) -> float | tuple[float, float]:
        return self.rank

    def level_conflict(self, level: float) -> str | None:
        highest = self.highest_rank
        if 1 <= level < highest + 0.5:  # it is rounded
            return None
        return f"must be in [1, {highest}] for a rank, since the factors that are kept have no higher one"

    def _critical_conflict(self, critical: float) -> str | None:
        highest = max(self.rank) if isinstance(self.rank, tuple) else self.rank
        if critical.is_integer() and highest < critical <= HIGHEST_RANK:
            return None
        return f"must be a whole number above the rank, {highest}, and at most {HIGHEST_RANK}, to send more"

    def difference_conflict(self) -> str | None:
        return f"`{self.kind}` here has no plain residual" if self.lr_corrected else None

    def step_traffic(self, buckets: Sequence[Bucket], num_workers: int, level: float | None) -> Traffic:
        """Return a collective for each bucket, and one in float32 for all second factors and the loss."""
        width = HALF_BYTES if self.values == "float16" else WORD_BYTES
        words = [self._factor_words(bucket, round(self.check_level(level))) for bucket in buckets]
        firsts = [all_reduce(width * first, num_workers) for first, _ in words]
        return sum(firsts, start=all_reduce(WORD_BYTES * (1 + sum(second for _, second in words)), num_workers))

    def _factor_words(self, bucket: Bucket, rank: int) -> tuple[int, int]:
        """Return the numbers in a bucket's first factors and in what stays dense, and those in its second factors."""
        now = later = 0
        for layer in bucket.layers:
            if is_worth_factors(layer.shape, rank=rank, min_rate=self.min_saving):
                sides = as_matrix(layer.shape)
                now, later = now + rank * max(sides), later + rank * min(sides)
            else:
                now += layer.num_elements
        return now, later


METHOD = Method(
    "exchange",
    PowerSgdConfig,
    "trainers.methods.exchange.powersgd.exchange:build",
    papers=(
        Paper(
            "Vogels, Karimireddy, Jaggi",
            "PowerSGD: practical low-rank gradient compression for distributed optimization",
            "NeurIPS",
            2019,
        ),
    ),
    competing=Competing("rank", (4, 1), as_dense=11, power=0.29),
)
