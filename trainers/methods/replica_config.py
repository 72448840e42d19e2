"""Everything that one rank needs to train, declared once. Pydantic only, so that a job can be checked without torch."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from trainers.methods.activations.keep.spec import KeepConfig
from trainers.methods.activations.spec import ActivationsConfig
from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.auto.spec import LOCAL, Beside, JobExchange, Option, menu, options_conflict
from trainers.methods.optimizer.spec import JobOptimizer, OptimizerConfig, contenders
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.exchange import UpdateConfig
from trainers.spec.link import LinkConfig, MeasureLink, PerNode
from trainers.spec.partition import IidPartition, PartitionConfig
from trainers.spec.ranges import Config, Conflict, Range
from trainers.spec.sync import LocalUpdatesConfig
from trainers.spec.workloads import WorkloadConfig

MAX_THREADS = 256
#: The parts of a replica with values that a search may change.
_PARTS = ("workload", "optimizer", "exchange", "sync", "activations", "blocks")
#: Values with a memory that is made before the first step, unless they are 0.
_REMEMBERED = ("momentum", "outer_momentum")


class ReplicaConfig(Config):
    """All that one rank needs to train, besides its rank and its peers."""

    workload: WorkloadConfig
    weights_sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="of the file that `workload.weights` names; null: it is not checked"
    )
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
    average: bool = Field(False, description="keep an average of the weights too, which may be evaluated and exported")
    start_timeout_s: float = Field(600.0, gt=0, description="of a worker's start: imports, data, the model")
    reply_timeout_s: float = Field(300.0, gt=0, description="of all else that is no step: evaluation, checkpoints")
    collective_timeout_s: float = Field(60.0, gt=0, description="a collective that takes longer is an error")

    @property
    def menu(self) -> tuple[Option, ...]:
        """The options that compete in `exchange: {kind: auto}`, whichever optimizer trains; with one kind, none do."""
        first, *others = (menu(self.exchange, **self._beside(each)) for each in contenders(self.optimizer))
        return tuple(option for option in first if all(option in other for other in others))

    @property
    def averages_parameters(self) -> bool:
        """True where ranks average their parameters every few steps, and no gradients."""
        return self.sync.payload == "parameters"

    @property
    def parameters_may_differ(self) -> bool:
        """True where each rank has parameters of its own between two averages."""
        return self.averages_parameters or self.exchange.drifts

    @property
    def amplifies_rounding(self) -> bool:
        """True where ranks that round differently may step apart by much more than they round."""
        return any(part.amplifies_rounding for part in (self.exchange, *contenders(self.optimizer)))

    @property
    def differ_under(self) -> str:
        """The kind of `sync` or `exchange` under which parameters may differ; for messages where they may."""
        return self.sync.kind if self.averages_parameters else self.exchange.kind

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

    @property
    def steps_along_gradient(self) -> bool:
        """True where a step is one of SGD along about the mean gradient, with what the optimizer makes of it."""
        return (
            self.optimizer.kind in ("sgd", "schedulefree_sgd") and self.exchange.keeps_scale and self.num_alone(2) == 2
        )

    @property
    def follows_link(self) -> bool:
        """True where the level is the density of what every step sends, which no policy changes."""
        return (
            self.exchange.is_by_density
            and self.exchange.level_policy == "static"
            and isinstance(self.sync, EveryStepConfig)
        )

    def _beside(self, optimizer: OptimizerConfig) -> Beside:
        return Beside(optimizer=optimizer.kind, per_node=self.workers_per_node, partition=self.partition.kind)

    def ranges(self) -> Iterator[Range]:
        """Yield what is searched as a pair, each with its place in the job."""
        for part in _PARTS:
            for each in getattr(self, part).ranges():
                yield each._replace(field=f"{part}/{each.field}")

    def searched(self, *, counts_traffic: bool) -> tuple[list[Range], float | None]:
        """Return the ranges to search, and the level to open with; None: the search says.

        Unless the budget counts what a step sends, a sparser gradient saves nothing: the densest level is used alone.
        """
        level, ranges = self.exchange.level, list(self.ranges())
        if counts_traffic:
            return ranges, None if isinstance(level, tuple) else level
        return [each for each in ranges if each.name != "level"], self.exchange.densest

    def setting_conflict(self, values: Mapping[str, Any], *, optimizer: str) -> str | None:
        """Return why a run cannot be set to searched `values`, by name, while it trains; None: it can.

        `optimizer` is the kind of the one that trains: this one's, or one of those that the job names.
        """
        parts: dict[str, Config] = {name: getattr(self, name) for name in _PARTS}
        parts["optimizer"] = next(each for each in contenders(self.optimizer) if each.kind == optimizer)
        changed, left = dict[str, Config](), values.keys() - {"option", "optimizer"}  # which name what trains
        for name, part in parts.items():
            own = {each: values[each] for each in part.searchable() & left}
            left -= own.keys()
            for each in _REMEMBERED:
                if own.get(each) and getattr(part, each, None) == 0:
                    return (
                        f"`{each}` cannot become {own[each]:g} where `{name}` has 0, which keeps no memory of it: give "
                        f"`{name}: {{{each}: {own[each]:g}}}`"
                    )
            try:
                changed |= {name: part.set_to(own)} if own else {}
            except ValidationError as error:
                return _first_fault(error)
        if left:
            return f"nothing here has a `{min(left)}` that a search could change: leave it out of the schedule"
        conflict = next(self.model_copy(update=changed).conflicts(), None)
        return conflict and conflict.message

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what does not fit together, each at its part."""
        yield from super().conflicts()
        found = dict[str, Conflict]()
        for optimizer in contenders(self.optimizer):
            for conflict in self._conflicts_with(optimizer):
                found.setdefault(conflict.pointer, conflict)  # the first that does not fit says what to do
        yield from found.values()

    def _conflicts_with(self, optimizer: OptimizerConfig) -> Iterator[Conflict]:
        """Yield what does not fit together under `optimizer`, which may be the one that trains."""
        if message := self.sync.conflict(self.exchange, optimizer.kind):
            yield Conflict("/sync", self.sync.kind, message)
        if message := self.blocks.conflict(self.exchange, self.sync, optimizer.kind):
            yield Conflict("/blocks", self.blocks.kind, message)
        if message := self.exchange.optimizer_conflict(optimizer, clip=self.clip):
            yield Conflict("/exchange", self.exchange.kind, message)
        if message := options_conflict(self.exchange, **self._beside(optimizer)):
            yield Conflict("/exchange/options", getattr(self.exchange, "options", None), message)


def _first_fault(error: ValidationError) -> str:
    """Return what is wrong with the first field, with its name and its value."""
    fault = error.errors(include_url=False)[0]
    place = fault["loc"][:1]  # none, if it is about several fields
    return f"`{place[0]}`: {fault['msg']}, got {fault['input']!r}" if place else fault["msg"]
