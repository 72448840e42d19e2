"""Synchronous training, the trivial policy. Pydantic only."""

from typing import ClassVar, Literal

from trainers.spec.exchange import ExchangeBase
from trainers.spec.method import Method
from trainers.spec.sync import Payload, SyncBase


class EveryStepConfig(SyncBase):
    """Gradients are exchanged in every step, so parameters never differ."""

    payload: ClassVar[Payload] = "gradient"

    kind: Literal["every_step"] = "every_step"

    def conflict(self, exchange: ExchangeBase, optimizer: str) -> str | None:
        return None


METHOD = Method("sync", EveryStepConfig, "trainers.methods.sync.every_step.policy:build")
