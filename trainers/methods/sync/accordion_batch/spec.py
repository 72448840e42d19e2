"""Accordion on batches. Pydantic only."""

from typing import ClassVar, Literal

from pydantic import Field

from trainers.spec.exchange import ExchangeBase
from trainers.spec.levels import ACCORDION, RegimeConfig
from trainers.spec.method import Method
from trainers.spec.sync import Payload, SyncBase


class AccordionBatchConfig(RegimeConfig, SyncBase):
    """Exchange every gradient in critical regimes, and then those of `factor` steps as one (Agarwal et al., 2021)."""

    payload: ClassVar[Payload] = "gradient"
    sets_rates: ClassVar[bool] = True

    kind: Literal["accordion_batch"] = "accordion_batch"
    factor: int = Field(8, ge=2, le=1024, description="by which batch and learning rate grow")

    def exchange_conflict(self, exchange: ExchangeBase) -> str | None:
        if exchange.drifts:
            return (
                f"`accordion_batch` holds gradients, and `{exchange.kind}` applies them on each worker: give "
                "`exchange: {kind: doublesqueeze}`, or `sync: {kind: every_step}`"
            )
        if exchange.level_policy == "static":
            return None
        return (
            f"`accordion_batch` changes the batch, and `levels: {{kind: {exchange.level_policy}}}` the level: give "
            "`levels: {kind: static}`, or `sync: {kind: every_step}`"
        )


METHOD = Method(
    "sync",
    AccordionBatchConfig,
    "trainers.methods.sync.accordion_batch.policy:AccordionBatch",
    papers=(ACCORDION,),
    least={"epoch_steps": 100},
)
