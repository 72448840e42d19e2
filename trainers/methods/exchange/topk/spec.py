"""Top-k: the largest entries. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.levels import CatConfig
from trainers.spec.method import Competing, Method, Paper
from trainers.spec.sparse import ByDensity
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import COUNT_MARGIN, capacity_for
from trainers.traffic.sizes import num_selected


class TopKConfig(ByDensity):
    """Send the largest entries of gradient + residual (Alistarh et al., 2018)."""

    kind: Literal["topk"] = "topk"
    selection: Literal["sampled", "exact"] = Field(
        "sampled", description="sampled: the cut-off is a quantile of a sample, some 30x faster than exact"
    )
    scope: Literal["layer", "bucket", "global"] = Field(
        "bucket", description="what the density is a share of: each layer, each bucket, or the whole gradient"
    )

    def _levels_conflict(self) -> str | None:
        if not isinstance(self.levels, CatConfig):
            return super()._levels_conflict()
        if isinstance(self.density, tuple):
            return "`cat` chooses how much is sent: give one `density`, the most that it may choose"
        if self.scope != "bucket":
            return f"`cat` chooses for each bucket, which is a message: give `scope: bucket`, got {self.scope}"
        if self.levels.variant == "drawn" and (self.memory != "none" or self.values == "sign"):
            return "`variant: drawn` is right on average by itself: give `memory: none` and `values: float16`"
        return None

    @property
    def has_layer_levels(self) -> bool:  # type: ignore[override]
        return self.scope == "layer"

    def room(self, d: int, density: float) -> int:
        if self.scope == "global":
            return super().room(d, density)
        return num_selected(d, density) if self.selection == "exact" else capacity_for(density * d, d, COUNT_MARGIN)

    def capacity(self, bucket: Bucket, density: float) -> int:
        parts = bucket.layers if self.scope == "layer" else (bucket,)
        return sum(self.room(part.num_elements, density) for part in parts)


METHOD = Method(
    "exchange",
    TopKConfig,
    "trainers.methods.exchange.topk.exchange:build",
    papers=(
        Paper(
            "Alistarh, Hoefler, Johansson, Khirirat, Konstantinov, Renggli",
            "The convergence of sparsified gradient methods",
            "NeurIPS",
            2018,
        ),
    ),
    least={"density": 0.01},
    competing=Competing("density", as_dense=0.11, power=0.385),
)
