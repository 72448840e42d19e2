"""Exchanges that send every entry as a number. Pydantic only."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from trainers.spec.exchange import ExchangeBase
from trainers.spec.method import Competing, Method
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import HALF_BYTES, Traffic, all_reduce, dense_bucket
from trainers.traffic.sizes import WORD_BYTES


class DenseBase(ExchangeBase):
    """An exchange that loses nothing but what its format rounds off."""

    is_elastic: ClassVar[bool] = True

    def difference_conflict(self) -> str | None:
        return None


class NoneConfig(DenseBase):
    """Dense float32 gradients, all-reduced: the trivial compressor."""

    is_exact: ClassVar[bool] = True

    kind: Literal["none"] = "none"

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        return dense_bucket(bucket, num_workers)


class HalfBase(DenseBase):
    """An exchange that sends 16 bits of each entry; the loss goes in a collective of its own."""

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        return all_reduce(HALF_BYTES * bucket.num_elements, num_workers)

    def step_traffic(self, buckets: Sequence[Bucket], num_workers: int, level: float | None) -> Traffic:
        return super().step_traffic(buckets, num_workers, level) + all_reduce(WORD_BYTES, num_workers)


class Fp16Config(HalfBase):
    """Dense gradients, all-reduced in float16: half of the bytes."""

    kind: Literal["fp16"] = "fp16"


class Bf16Config(HalfBase):
    """Dense gradients, all-reduced in bfloat16: half of the bytes, float32's range."""

    kind: Literal["bf16"] = "bf16"


_BUILD = "trainers.methods.exchange.dense.exchange:build"
NONE = Method("exchange", NoneConfig, _BUILD, competing=Competing(defaults=(None,)))
FP16 = Method("exchange", Fp16Config, _BUILD, competing=Competing(defaults=(None,)))
BF16 = Method("exchange", Bf16Config, _BUILD, competing=Competing())
