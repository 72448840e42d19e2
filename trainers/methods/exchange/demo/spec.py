"""DeMo: the largest coefficients of each worker's momentum, and a step by signs. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.methods.exchange.demo.layout import TileLayout
from trainers.spec.exchange import Coefficient, Density, UpdateConfig
from trainers.spec.method import Method, Paper
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import Traffic, all_gather
from trainers.traffic.sizes import WORD_BYTES


class DemoConfig(UpdateConfig):
    """The largest cosine coefficients of each worker's momentum, and a step by signs (DeMo, Peng et al., 2024)."""

    kind: Literal["demo"] = "demo"
    density: Density | tuple[Density, Density] = Field(
        1 / 128, description="share of each tile's coefficients that is sent, in (0, 1]; 28 bits each"
    )
    decay: Coefficient = Field(0.999, description="of the momentum, which is also the memory of what was not sent")

    @property
    def level(self) -> float | tuple[float, float]:
        return self.density

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        return all_gather(WORD_BYTES + TileLayout(bucket, self.check_level(level)).num_bytes, num_workers)


METHOD = Method(
    "exchange",
    DemoConfig,
    "trainers.methods.exchange.demo.exchange:build",
    papers=(Paper("Peng, Quesnelle, Kingma", "DeMo: decoupled momentum optimization", "arXiv:2411.19870", 2024),),
    beside={"optimizer": {"kind": "from_exchange"}},
)
