"""The configuration of exchanges that send every entry as a code of a few bits. Pydantic only."""

from typing import ClassVar, Literal

from trainers.spec.exchange import ExchangeBase
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import Traffic, all_gather
from trainers.traffic.sizes import WORD_BYTES, CodedLayout


class QuantizedBase(ExchangeBase):
    """An exchange that sends every entry with few bits."""

    memory: ClassVar[Literal["residual", "none"]] = "none"

    def layout(self, num_entries: int, num_layers: int) -> CodedLayout:
        """Return what is sent of a bucket, behind the loss."""
        raise NotImplementedError(f"`{self.kind}` does not say what it sends")

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        layout = self.layout(bucket.num_elements, len(bucket.layers))
        return all_gather(WORD_BYTES + layout.num_bytes, num_workers)

    def difference_conflict(self) -> str | None:
        return f"`{self.kind}` here keeps no error" if self.memory == "none" else None
