"""CSER: workers apply by themselves what their signs get wrong, and reset it now and then. Pydantic only."""

from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import Period
from trainers.spec.method import Method, Paper
from trainers.spec.optimizer import OptimizerBase
from trainers.spec.ranges import first
from trainers.spec.two_way import DriftingConfig, Shapes, is_plain
from trainers.traffic.buckets import Bucket, split
from trainers.traffic.collectives import NOTHING, Traffic, all_gather
from trainers.traffic.sizes import WORD_BYTES


class CserConfig(DriftingConfig):
    """Workers apply what their signs get wrong by themselves, and reset it every `period` steps (Xie et al., 2020)."""

    fitting_knobs: ClassVar[str] = "momentum: 0.0, weight_decay: 0.0"

    kind: Literal["cser"] = "cser"
    period: Period = Field(8, description="steps from one reset of the errors to the next")

    def fits(self, optimizer: OptimizerBase) -> bool:
        decays = optimizer.kind == "sgd" and bool(first(getattr(optimizer, "weight_decay", 0.0)))
        return is_plain(optimizer) and not decays

    def bucket_traffic(
        self, bucket: Bucket, num_workers: int, level: float | None, *, num_payloads: int = 1
    ) -> Traffic:
        """Return the traffic of a bucket's signs to all, with the loss; `num_payloads` is 2 where errors ride along."""
        payload = self.layout(bucket.num_elements, self.block).num_bytes
        return all_gather(WORD_BYTES + num_payloads * payload, num_workers)

    def meeting_traffic(self, shapes: Shapes, *, num_workers: int, num_iterates: int = 1) -> Traffic:
        buckets = split(shapes, self)
        return sum((self.bucket_traffic(each, num_workers, None, num_payloads=2) for each in buckets), NOTHING)


METHOD = Method(
    "exchange",
    CserConfig,
    "trainers.methods.exchange.cser.exchange:build",
    policy="trainers.methods.sync.shared.local_error:Drifting",
    papers=(
        Paper(
            "Xie, Zheng, Koyejo, Gupta, Li, Lin",
            "CSER: communication-efficient SGD with error reset",
            "NeurIPS",
            2020,
        ),
    ),
    beside={"optimizer": {"kind": "sgd", "momentum": 0}},
)
