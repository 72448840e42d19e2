"""AdaComp: from each bin, what one more step by the same gradient would make its largest. Pydantic only."""

from typing import Literal

from pydantic import Field

from trainers.spec.method import Method, Paper
from trainers.spec.sparse import SparseConfig
from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.collectives import Traffic, capacity_for

#: What is sent of a bin of neighbours, before it was ever measured.
ENTRIES_PER_BIN = 2


class AdaCompConfig(SparseConfig):
    """Send of each bin what one more step by the same gradient would make its largest (Chen et al., 2018)."""

    kind: Literal["adacomp"] = "adacomp"
    conv_bin: int = Field(
        50, ge=2, le=65_536, description="entries per bin in convolutions: weights of three dimensions or more"
    )
    other_bin: int = Field(500, ge=2, le=65_536, description="entries per bin elsewhere")

    def bin_size(self, layer: Layer) -> int:
        """Return the entries of a layer's bins; a convolution, along any axes, has three dimensions or more."""
        return self.conv_bin if len(layer.shape) > 2 else self.other_bin

    def first_capacity(self, bucket: Bucket) -> int:
        """Return the entries to make room for as long as none were measured."""
        num_bins = sum(-(-layer.num_elements // self.bin_size(layer)) for layer in bucket.layers)
        return capacity_for(ENTRIES_PER_BIN * num_bins, bucket.num_elements)

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        """Return the traffic at the measured density `level`; None: as before the first measurement."""
        if level is None:
            return self.fewest_bytes(bucket, num_workers, self.first_capacity(bucket))
        if level == 1:
            return self.fewest_bytes(bucket, num_workers, self.capacity(bucket, level))
        return super().bucket_traffic(bucket, num_workers, level)


METHOD = Method(
    "exchange",
    AdaCompConfig,
    "trainers.methods.exchange.adacomp.exchange:build",
    papers=(
        Paper(
            "Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan",
            "AdaComp: adaptive residual gradient compression for data-parallel distributed training",
            "AAAI",
            2018,
        ),
    ),
)
