"""Everything that one rank needs to train, declared once. Pydantic only, so that a job can be checked without torch."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainers.methods.activations.keep.spec import KeepConfig
from trainers.methods.activations.spec import ActivationsConfig
from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.auto.spec import LOCAL, Beside, JobExchange, Option, menu, options_conflict
from trainers.methods.optimizer.spec import JobOptimizer, exchange_conflict
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.exchange import UpdateConfig
from trainers.spec.link import LinkConfig, MeasureLink
from trainers.spec.partition import IidPartition, PartitionConfig
from trainers.spec.ranges import Config, Conflict, Range
from trainers.spec.sync import LocalUpdatesConfig
from trainers.spec.workloads import WorkloadConfig

#: Neighbouring workers that share a node, at least 1; `auto`: those that are found on one machine.
PerNode = int | Literal["auto"]
MAX_THREADS = 256


class ReplicaConfig(Config):
    """All that one rank needs to train, besides its rank and its peers."""

    workload: WorkloadConfig
    partition: PartitionConfig = IidPartition()
    optimizer: JobOptimizer
    exchange: JobExchange
    sync: SyncConfig = EveryStepConfig()
    activations: ActivationsConfig = KeepConfig()
    blocks: BlocksConfig = AllBlocksConfig()
    link: LinkConfig = MeasureLink()
    workers_per_node: PerNode = Field(1, description="that exchange as one; auto: all that are on one machine")
    seed: int = Field(0, ge=0, lt=2**31)
    accumulate: int = Field(1, ge=1, le=1024, description="micro-batches per optimizer step")
    clip: float | None = Field(None, gt=0, allow_inf_nan=False, description="global norm, after aggregation")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: autocast of forward and loss")
    threads: int = Field(1, ge=1, le=MAX_THREADS, description="torch threads per worker")
    start_timeout_s: float = Field(600.0, gt=0, description="of a worker's start: imports, data, the model")
    reply_timeout_s: float = Field(300.0, gt=0, description="of all else that is no step: evaluation, checkpoints")
    collective_timeout_s: float = Field(60.0, gt=0, description="a collective that takes longer is an error")

    @property
    def menu(self) -> tuple[Option, ...]:
        """The options that compete in `exchange: {kind: auto}`; with one kind, none do."""
        return menu(self.exchange, **self._beside())

    @property
    def apart_under(self) -> tuple[str, ...]:
        """The choices that leave workers with parameters of their own: kinds of `sync` or `exchange`, options."""
        policies = () if isinstance(self.sync, EveryStepConfig) else (self.sync.kind,)
        drifting = (self.exchange.kind,) if self.exchange.drifts else ()
        return (*policies, *drifting, *(option.name for option in self.menu if option.kind == LOCAL))

    @property
    def period(self) -> int:
        """The steps from one average of workers that train apart to the next; 1: there is none, or it is searched."""
        stated = self.sync.period if isinstance(self.sync, LocalUpdatesConfig) else 1
        return 1 if isinstance(stated, tuple) else stated

    def num_alone(self, num_workers: int) -> int:
        """Return how many values `num_workers` workers can try at a time, each by one that exchanges nothing.

        Only 1, by all of them together, where a worker alone shows little of the run: where workers train apart and
        meet again, where a step trains some blocks, where exchanges are compared, make the update or apply the
        momentum, or where data differ.
        """
        is_alike = isinstance(self.partition, IidPartition) and isinstance(self.blocks, AllBlocksConfig)
        is_update = isinstance(self.exchange, UpdateConfig) or self.exchange.without_momentum is not None
        by_exchange = self.menu or self.apart_under or is_update
        return num_workers if is_alike and not by_exchange else 1

    def _beside(self) -> Beside:
        return Beside(optimizer=self.optimizer.kind, per_node=self.workers_per_node, partition=self.partition.kind)

    def ranges(self) -> Iterator[Range]:
        """Yield what is searched as a pair, each with its place in the job."""
        for part in ("workload", "optimizer", "exchange", "sync", "activations", "blocks"):
            for each in getattr(self, part).ranges():
                yield each._replace(field=f"{part}/{each.field}")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what does not fit together, each at its part."""
        yield from super().conflicts()
        if message := self.sync.conflict(self.exchange, self.optimizer.kind):
            yield Conflict("/sync", self.sync.kind, message)
        if message := self.blocks.conflict(self.exchange, self.sync, self.optimizer.kind):
            yield Conflict("/blocks", self.blocks.kind, message)
        if message := exchange_conflict(self.optimizer, self.exchange.kind):
            yield Conflict("/optimizer", self.optimizer.kind, message)
        if message := self.exchange.optimizer_conflict(self.optimizer, clip=self.clip):
            yield Conflict("/exchange", self.exchange.kind, message)
        if message := options_conflict(self.exchange, **self._beside()):
            yield Conflict("/exchange/options", getattr(self.exchange, "options", None), message)
