"""The job, as a user writes it. Every knob is declared beside its component; this page composes them."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from search.config import MAX_DIMENSIONS, BoConfig, Budget, ControllerConfig, LocalConfig, StagedConfig
from service.job.checks.auto import contender_conflicts, option_conflicts
from service.job.checks.rates import rate_conflicts
from service.job.checks.schedules import schedule_conflicts
from trainers.exchange.fitting import unfit
from trainers.spec.config import (
    ActivationsConfig,
    AllBlocksConfig,
    BlocksConfig,
    EveryStepConfig,
    IidPartition,
    JobExchange,
    JobOptimizer,
    KeepConfig,
    LarsConfig,
    LinkConfig,
    MeasureLink,
    NoneConfig,
    OwnWorkload,
    PartitionConfig,
    PerNode,
    ReplicaConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
    SyncConfig,
    WorkloadConfig,
    blocks_misfit,
    misfit,
    reads_clock,
)
from trainers.spec.ranges import Conflict, Range, conflict_error
from trainers.traffic.shapes import has_labels, num_samples

Name = Annotated[str, Field(min_length=1, max_length=100)]
Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Workers(Config):
    """The data-parallel workers of one training run."""

    count: int = Field(2, ge=1, le=1024)
    per_node: PerNode = Field(
        1,
        description="workers that are placed together on a machine and exchange as one: they add up their gradients, "
        "and one of them exchanges between nodes; auto: all that happen to be on one machine",
    )
    cpus: float = Field(1.0, gt=0, le=1024, description="per worker")
    gpus: float = Field(0.0, ge=0, le=64, description="per worker; several are whole ones")
    reply_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="longest that a worker may load data, evaluate, or read or write a checkpoint",
    )
    timeout_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="longest that workers wait for each other in an exchange; one that keeps the others waiting longer "
        "is replaced",
    )

    @field_validator("gpus")
    @classmethod
    def _only_one_gpu_is_shared(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError(f"`gpus` must be in [0, 1], or a whole number up to 64, got {gpus:g}")
        return gpus

    @property
    def placed_together(self) -> int:
        """Workers that one machine has to hold."""
        return 1 if self.per_node == "auto" else self.per_node

    @model_validator(mode="after")
    def _fill_nodes(self) -> "Workers":
        size, gpus = self.placed_together, self.placed_together * self.gpus
        message = ""
        if size < 1 or self.count % size:
            message = f"`per_node` must be at least 1 and divide `count`, which is {self.count}, or `auto`; got {size}"
        elif gpus > 1 and not gpus.is_integer():
            message = f"`per_node` x `gpus` must be at most 1, or a whole number; got {size} x {self.gpus:g}"
        if message:
            raise conflict_error([Conflict("/per_node", self.per_node, message)])
        return self


class Lanes(Config):
    """Worker groups of one training run; each has `workers`. They probe side by side."""

    count: int = Field(1, ge=1, le=16)
    after: Literal["idle", "insurance", "batch"] = Field(
        "idle",
        description="what the spare lanes do after the first search: wait for the next one; one trains the guess as a "
        "second line, and the better line is kept; or all join the main line, whose batch grows `count` times",
    )

    @model_validator(mode="after")
    def _has_spare_ones(self) -> "Lanes":
        if self.after != "idle" and self.count < 2:
            message = f"`after: {self.after}` needs a `count` of 2 to 16, got {self.count}"
            raise conflict_error([Conflict("/count", self.count, message)])
        return self


class Objective(Config):
    """What is evaluated, and how often on the committed line."""

    metric: Literal["loss"] = "loss"
    direction: Literal["min"] = "min"
    on: Literal["validation"] = "validation"
    every: int = Field(50, ge=1, description="committed steps between evaluations")


class Checkpointing(Config):
    every_seconds: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="within a commit; stage starts and ends always are"
    )
    keep: int = Field(
        2,
        ge=1,
        le=100,
        description="newest checkpoints that stay, besides the best one and those that something goes on from",
    )
    export: Literal["last", "best"] = Field(
        "best", description="the weights of the end, or of the checkpoint with the lowest validation loss if lower"
    )


class Arm(Config):
    """A way to choose values; what it sets replaces that part of the job."""

    name: Slug
    controller: ControllerConfig | None = None
    exchange: JobExchange | None = None
    sync: SyncConfig | None = None
    optimizer: JobOptimizer | None = None
    activations: ActivationsConfig | None = None
    blocks: BlocksConfig | None = None


class TrialSpec(Config):
    """One training run: one arm x one seed, with every part resolved."""

    arm: str
    seed: int
    controller: ControllerConfig
    replica: ReplicaConfig
    workers: Workers
    lanes: Lanes = Lanes()
    budget: Budget
    objective: Objective
    checkpoint: Checkpointing


class JobSpec(Config):
    """A job: what to train, over which link, how values are chosen, and what it may spend."""

    name: Name = "unnamed"
    workload: WorkloadConfig
    partition: PartitionConfig = Field(IidPartition(), description="how the training samples are divided among workers")
    workers: Workers = Workers()
    lanes: Lanes = Lanes()
    optimizer: JobOptimizer = ScheduleFreeSgdConfig()
    exchange: JobExchange = NoneConfig()
    sync: SyncConfig = Field(EveryStepConfig(), description="what keeps the workers' parameters together")
    activations: ActivationsConfig = KeepConfig()
    blocks: BlocksConfig = Field(AllBlocksConfig(), description="which blocks of the model a step trains")
    controller: ControllerConfig = BoConfig()
    arms: tuple[Arm, ...] = Field((Arm(name="tuned"),), min_length=1, max_length=32)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field((0,), min_length=1, max_length=100)
    budget: Budget
    objective: Objective = Objective()
    link: LinkConfig = MeasureLink()
    checkpoint: Checkpointing = Checkpointing()
    accumulate: int = Field(1, ge=1, le=1024, description="micro-batches per optimizer step")
    clip: float | None = Field(None, gt=0, allow_inf_nan=False, description="global norm, after aggregation")
    precision: Literal["float32", "bf16"] = "float32"
    labels: dict[Slug, Name] = Field(default_factory=dict, max_length=64)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "JobSpec":
        conflicts = [
            *self._repeated(),
            *self._bytes_that_nobody_sends(),
            *self._steps_beyond_the_data(),
            *self._labels_that_are_not_there(),
            *self._momentum_twice(),
            *self._syncs_that_do_not_fit(),
            *self._blocks_that_do_not_fit(),
            *self._clocks_without_seconds(),
            *self._exchanges_that_do_not_fit(),
            *self._ranges_that_are_not_searched(),
            *rate_conflicts(self),
            *option_conflicts(self),
            *contender_conflicts(self),
            *schedule_conflicts(self),
        ]
        if conflicts:
            raise conflict_error(conflicts)
        return self

    def _repeated(self) -> Iterator[Conflict]:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            yield Conflict("/arms", names, f"arms need distinct names, got {names}")
        if len(set(self.seeds)) < len(self.seeds):
            yield Conflict("/seeds", list(self.seeds), f"seeds must be distinct, got {list(self.seeds)}")

    def _bytes_that_nobody_sends(self) -> Iterator[Conflict]:
        if self.budget.counts_bytes_alone and self.workers.count == self.workers.placed_together:
            yield Conflict(
                "/budget/bytes",
                self.budget.bytes,
                "one node sends nothing, so `budget.bytes` alone would never end the job: add `seconds` or `steps`",
            )

    def _steps_beyond_the_data(self) -> Iterator[Conflict]:
        samples = num_samples(self.workload)
        if samples is None or isinstance(self.workload, OwnWorkload):
            return  # the workers find out
        given = self.workload.batch_size
        batch_size = given if isinstance(given, int) else max(given)
        joined = self.lanes.count if self.lanes.after == "batch" else 1
        lanes = f" of {joined} lanes" if joined > 1 else ""
        most = samples // (batch_size * self.accumulate * joined)
        if self.workers.count > most:
            yield Conflict(
                "/workers/count",
                self.workers.count,
                f"`count` must be in [1, {most}], got {self.workers.count}: a step takes {batch_size} samples x "
                f"{self.accumulate} micro-batches per worker{lanes}, and `{self.workload.kind}` has {samples}",
            )

    def _labels_that_are_not_there(self) -> Iterator[Conflict]:
        kind = self.partition.kind
        if kind != "iid" and has_labels(self.workload) is False:
            yield Conflict(
                "/partition",
                kind,
                f"`partition` {kind} divides samples by their labels, and those of `{self.workload.kind}` have none: "
                "give `partition: {kind: iid}`, or a workload that classifies",
            )

    def _momentum_twice(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            exchange, optimizer = arm.exchange or self.exchange, arm.optimizer or self.optimizer
            has_none = isinstance(optimizer, SgdConfig | LarsConfig) and optimizer.momentum == 0
            if exchange.without_momentum and not (optimizer.kind == "own" or has_none):
                plain = optimizer.kind if isinstance(optimizer, SgdConfig | LarsConfig) else "sgd"
                yield Conflict(
                    f"/arms/{index}/exchange" if arm.exchange else "/exchange",
                    exchange.kind,
                    f"arm `{arm.name}`: `{exchange.kind}` here applies momentum before it compresses: give `optimizer: "
                    f"{{kind: {plain}, momentum: 0}}`, or the exchange `{exchange.without_momentum}`",
                )

    def _syncs_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            sync, exchange = arm.sync or self.sync, arm.exchange or self.exchange
            if message := misfit(sync, exchange, (arm.optimizer or self.optimizer).kind):
                place = f"/arms/{index}/sync" if arm.sync else "/sync"
                yield Conflict(place, sync.kind, f"arm `{arm.name}`: {message}")

    def _blocks_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            blocks, optimizer = arm.blocks or self.blocks, arm.optimizer or self.optimizer
            message = blocks_misfit(blocks, arm.exchange or self.exchange, arm.sync or self.sync, optimizer.kind)
            if message:
                place = f"/arms/{index}/blocks" if arm.blocks else "/blocks"
                yield Conflict(place, blocks.kind, f"arm `{arm.name}`: {message}")

    def _clocks_without_seconds(self) -> Iterator[Conflict]:
        """Yield exchanges that would measure the link where no decision may depend on a clock."""
        if self.budget.seconds is not None or not isinstance(self.link, MeasureLink):
            return
        for index, arm in enumerate(self.arms):
            exchange = arm.exchange or self.exchange
            if reads_clock(exchange):
                yield Conflict(
                    f"/arms/{index}/exchange/levels/cost" if arm.exchange else "/exchange/levels/cost",
                    "link",
                    f"arm `{arm.name}`: `{exchange.kind}` here measures what the link takes, which a budget "
                    "without `seconds` does not allow: give `cost: {kind: packet}`, `budget.seconds`, or "
                    "`link: {mode: emulate}`",
                )

    def _exchanges_that_do_not_fit(self) -> Iterator[Conflict]:
        for index, arm in enumerate(self.arms):
            exchange = arm.exchange or self.exchange
            if message := unfit(exchange, arm.optimizer or self.optimizer, clip=self.clip):
                place = f"/arms/{index}/exchange" if arm.exchange else "/exchange"
                yield Conflict(place, exchange.kind, f"arm `{arm.name}`: {message}")

    def _ranges_that_are_not_searched(self) -> Iterator[Conflict]:
        found: dict[str, Conflict] = {}
        for index, arm in enumerate(self.arms):
            for conflict in self._ranges_of(index, arm):
                found.setdefault(conflict.pointer, conflict)  # arms share the job's parts
        yield from found.values()

    def _ranges_of(self, index: int, arm: Arm) -> Iterator[Conflict]:
        """Yield a conflict for each range that `arm` has and does not search."""
        controller = arm.controller or self.controller
        most = MAX_DIMENSIONS - 1
        for number, (pointer, each) in enumerate(self.placed_ranges(index, arm), start=1):
            reason = ""
            if not isinstance(controller, StagedConfig):
                reason = (
                    f"a range needs a controller that searches it (`bo`, `sobol`; `local` the level), and that of arm "
                    f"`{arm.name}` is `{controller.kind}`"
                )
            elif isinstance(controller, LocalConfig) and each.name != "level":
                reason = f"the controller `local` of arm `{arm.name}` searches rate and level alone"
            elif number > most:
                reason = f"at most {most} values are searched beside the learning rate, and this is number {number}"
            if reason:
                yield Conflict(pointer, list(each.pair), f"{reason}: give one number, got {json.dumps(each.pair)}")

    def placed_ranges(self, index: int, arm: Arm) -> Iterator[tuple[str, Range]]:
        """Yield what `arm` has a range for, by its place in the job."""
        for part in ("exchange", "sync", "optimizer", "workload", "activations", "blocks"):
            own = getattr(arm, part, None)
            place = f"/arms/{index}/{part}" if own else f"/{part}"
            for each in (own or getattr(self, part)).ranges():
                yield f"{place}/{each.field}", each

    def resolved(self, folder: str) -> "JobSpec":
        """Return the job with its own code and files found from `folder`, as a shell finds them."""
        return self.model_copy(update={"workload": self.workload.resolved(folder)})

    @property
    def num_workers(self) -> int:
        """Workers of one training run, in all lanes."""
        return self.lanes.count * self.workers.count

    def trials(self) -> Iterator[TrialSpec]:
        """Yield the job's training runs, arm by arm, with every override applied."""
        for arm in self.arms:
            for seed in self.seeds:
                yield self._trial(arm, seed)

    def _trial(self, arm: Arm, seed: int) -> TrialSpec:
        replica = ReplicaConfig(
            workload=self.workload,
            partition=self.partition,
            optimizer=arm.optimizer or self.optimizer,
            exchange=arm.exchange or self.exchange,
            sync=arm.sync or self.sync,
            activations=arm.activations or self.activations,
            blocks=arm.blocks or self.blocks,
            link=self.link,
            workers_per_node=self.workers.per_node,
            seed=seed,
            accumulate=self.accumulate,
            clip=self.clip,
            precision=self.precision,
            threads=max(1, int(self.workers.cpus)),
            collective_timeout_s=self.workers.timeout_s,
            reply_timeout_s=self.workers.reply_timeout_s,
        )
        return TrialSpec(
            arm=arm.name,
            seed=seed,
            controller=arm.controller or self.controller,
            replica=replica,
            workers=self.workers,
            lanes=self.lanes,
            budget=self.budget,
            objective=self.objective,
            checkpoint=self.checkpoint,
        )
