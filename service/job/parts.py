"""The parts of a job, as a user writes them. Each component declares its own knobs; this module composes them."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from search.config import BoConfig, Budget, Config, ControllerConfig
from search.sweep.spec import MAX_PARAMS, ParamPath, ParamRange, SweepConfig
from service.job.priority import Priority
from service.job.states import ENDS, Occasion
from trainers.methods.activations.keep.spec import KeepConfig
from trainers.methods.activations.spec import ActivationsConfig
from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.auto.spec import JobExchange
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import AdamWConfig, JobOptimizer
from trainers.methods.replica_config import MAX_THREADS, ReplicaConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.link import LinkConfig, MeasureLink, PerNode
from trainers.spec.partition import IidPartition, PartitionConfig
from trainers.spec.ranges import Conflict, Range, conflict_error
from trainers.spec.workloads import OwnWorkload, WorkloadConfig

#: The validation context of user input. It is stricter: jobs of earlier releases are read without it.
GIVEN = {"given": True}
#: The validation context of a job read from the database.
STORED = {"stored": True}
MAX_LABELS = 64
#: The smallest share of a core or GPU that a worker may request; Ray counts in ten-thousandths.
MIN_SHARE = 0.001
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _without_controls(text: str, info: ValidationInfo) -> str:
    if info.context == GIVEN and (found := _CONTROL.search(text)):
        where = f"{found[0]!r} at character {found.start() + 1}"
        raise ValueError(f"must have no control characters, such as NUL, tabs and line breaks, got {where}")
    return text


#: One line of text for people.
Name = Annotated[
    str,
    Field(min_length=1, max_length=100, json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}),
    AfterValidator(_without_controls),
]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"must have no NUL, got one at character {text.index(chr(0)) + 1}")
    return text


#: Several lines of text for people.
Notes = Annotated[
    str, Field(max_length=10_000, json_schema_extra={"pattern": r"^[^\x00]*$"}), AfterValidator(_without_nul)
]
Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


class Workers(Config):
    """The data-parallel workers of one training run."""

    count: int = Field(2, ge=1, le=1024)
    min: int | None = Field(
        None,
        ge=1,
        description="so few workers go on while there is no room for others: from the last checkpoint on, or with "
        "local updates at once, where they go on without those that are late, too; null: all or nobody",
    )
    patience_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="longest that room for a lost worker is waited for, as after the loss of a machine; then the job "
        "goes on from its last checkpoint, with as many workers as there is room for, or waits in the queue",
    )
    placement: Literal["pack", "spread"] = Field(
        "pack", description="pack: on as few machines as there is room on; spread: on as many as there are"
    )
    pace: Literal["equal", "own"] = Field(
        "equal", description="with `min`: own: a slower worker takes fewer steps between two averages, in equal time"
    )
    per_node: PerNode = Field(
        1,
        description="workers that are placed together on a machine and exchange as one: they add up their gradients, "
        "and one of them exchanges between nodes; auto: all that happen to be on one machine",
    )
    cpus: float = Field(1.0, gt=0, le=1024, description=f"per worker, at least {MIN_SHARE:g}")
    gpus: float = Field(0.0, ge=0, le=64, description=f"per worker; several are whole, a share {MIN_SHARE:g} at least")
    memory_gb: float | None = Field(
        None,
        ge=0.001,
        le=100_000,
        description="per worker, in billions of bytes: a machine gets as many workers as its memory holds; null: "
        "memory is not counted",
    )
    accelerator: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] | None = Field(
        None, description="with `gpus`: the kind of GPU that workers need, in Ray's words, such as `A100`; null: any"
    )
    start_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="longest that a worker may take to start: its process, imports, its data and its model",
    )
    reply_timeout_s: float = Field(
        300.0, gt=0, le=86_400, description="longest that a worker may evaluate, or read or write a checkpoint"
    )
    timeout_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="longest that workers wait for each other in an exchange; one that keeps the others waiting longer "
        "is replaced",
    )

    @field_validator("cpus", "gpus")
    @classmethod
    def _is_worth_counting(cls, share: float, info: ValidationInfo) -> float:
        if info.context == GIVEN and 0 < share < MIN_SHARE:
            least = f"0, or at least {MIN_SHARE:g}" if info.field_name == "gpus" else f"at least {MIN_SHARE:g}"
            raise ValueError(f"`{info.field_name}` must be {least}, got {share:g}")
        return share

    @field_validator("gpus")
    @classmethod
    def _only_one_gpu_is_shared(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError(f"`gpus` must be in [0, 1], or a whole number up to 64, got {gpus:g}")
        return gpus

    @property
    def resources(self) -> dict[str, float]:
        """One worker's resources, as Ray names them; memory is in bytes."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": math.floor((self.memory_gb or 0) * 1e9)}
        if self.accelerator is not None:
            asked[f"accelerator_type:{self.accelerator}"] = MIN_SHARE
        return {name: amount for name, amount in asked.items() if amount}

    @property
    def placed_together(self) -> int:
        """The number of workers that one machine must hold together."""
        return 1 if self.per_node == "auto" else self.per_node

    @property
    def least(self) -> int:
        """The number of workers that is enough to go on."""
        return self.count if self.min is None else self.min

    @model_validator(mode="after")
    def _fill_nodes(self) -> "Workers":
        size, gpus = self.placed_together, self.placed_together * self.gpus
        message = ""
        if self.accelerator is not None and not self.gpus:
            message = f"`accelerator` is about GPUs, so it needs `gpus` above 0; got `accelerator: {self.accelerator}`"
            raise conflict_error([Conflict("/accelerator", self.accelerator, message)])
        if self.min is not None and not 1 <= self.min <= self.count:
            message = f"`min` must be in [1, {self.count}], which is `count`; got {self.min}"
            raise conflict_error([Conflict("/min", self.min, message)])
        if self.min is not None and size > 0 and self.min % size:
            message = f"`per_node`, which is {size}, must divide `min`; got {self.min}"
            raise conflict_error([Conflict("/min", self.min, message)])
        if self.min is None and self.pace == "own":
            message = "`pace: own` needs `min`, as it is about workers that need not wait for each other"
            raise conflict_error([Conflict("/pace", self.pace, message)])
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


#: The metric that every workload has.
LOSS = "loss"
Direction = Literal["min", "max"]


class Objective(Config):
    """The metric that states are ranked by, how often it is evaluated on the committed line, and when that ends."""

    metric: str = Field(
        LOSS,
        min_length=1,
        max_length=60,
        description="`loss`, or a metric of the workload: which state is the best is judged by it",
    )
    direction: Direction | None = Field(None, description="which way the metric is better; null: as the workload says")
    on: Literal["validation"] = "validation"
    every: int = Field(50, ge=1, description="committed steps between evaluations")
    patience: int | None = Field(
        None, ge=1, description="end the run after so many evaluations in a row that are no better; null: never"
    )
    min_delta: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="with `patience`: what an evaluation has to be better by"
    )
    target: float | None = Field(
        None, allow_inf_nan=False, description="end the run once an evaluation is as good as this; null: never"
    )

    @model_validator(mode="after")
    def _waits_for_something(self) -> "Objective":
        if self.min_delta and self.patience is None:
            message = f"`min_delta` is for `patience`, which is not given: give both; got {self.min_delta:g}"
            raise conflict_error([Conflict("/min_delta", self.min_delta, message)])
        return self

    @field_validator("direction")
    @classmethod
    def _is_known_of_a_loss(cls, direction: Direction | None, info: ValidationInfo) -> Direction | None:
        """Drop a direction that the metric implies: earlier releases wrote `min`, and a clone may change the metric."""
        return None if direction == "min" and info.data.get("metric") == LOSS else direction

    def conflict(self, metrics: Mapping[str, Direction]) -> Conflict | None:
        """Return why this objective does not suit a workload with `metrics` besides its loss; None if it does."""
        known: dict[str, Direction] = {LOSS: "min", **metrics}
        if self.metric not in known:
            names = " or ".join(f"`{name}`" for name in known)
            message = f"this workload measures {names}, got `objective.metric: {self.metric}`"
            return Conflict("/objective/metric", self.metric, message)
        if self.direction not in (None, known[self.metric]):
            message = f"`{self.metric}` is better {known[self.metric]}, as the workload says: leave `direction` out"
            return Conflict("/objective/direction", self.direction, message)
        return None


class Limits(Config):
    """Bounds at which the job ends early, with the results that it has by then."""

    wall_seconds: float | None = Field(
        None,
        ge=1,
        le=31_536_000,
        description="time that the job may hold workers since it was submitted, retried or extended, over all its "
        "attempts and trials; waiting in the queue and pauses do not count. Then it is stopped. Null: no limit",
    )


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
    export: Literal["last", "best", "average"] = Field(
        "best",
        description="the evaluated state that `objective` ranks best, be it the weights or their average; or the "
        "weights, or the average, at the end",
    )


#: No user or password, since a job must hold no secret, and nothing that two parsers could read differently.
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(:(?P<port>[0-9]{1,5}))?([/?][!-~]*)?")


def _plain(url: str) -> str:
    found = _URL.fullmatch(url)
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f"`url` must be https://HOST[:PORT][/PATH], ASCII and without a password, got {url!r}")
    return url


WebhookUrl = Annotated[str, Field(max_length=2000), AfterValidator(_plain)]
Occasions = Annotated[tuple[Occasion, ...], Field(min_length=1, max_length=len(Occasion))]


class Webhook(Config):
    """Whom to tell what becomes of the job."""

    url: WebhookUrl = Field(description="gets a signed POST; https, unless the operator allows http")
    on: Occasions = Field(ENDS, description="what it is told of; default: the job's end")


class Arm(Config):
    """A way to choose values; what it sets replaces that part of the job."""

    name: Slug
    controller: ControllerConfig | None = None
    exchange: JobExchange | None = None
    sync: SyncConfig | None = None
    optimizer: JobOptimizer | None = None
    activations: ActivationsConfig | None = None
    blocks: BlocksConfig | None = None


#: The prefix of sample names; a number follows. Samples have such a name in place of an arm's.
SAMPLE_PREFIX = "sample-"
#: It stands where an arm has its name, and means the best trial.
BEST_TRIAL = "best"


class TrialSpec(Config):
    """One training run: one arm x one seed, or a sample, with every part resolved."""

    arm: str
    seed: int
    controller: ControllerConfig
    replica: ReplicaConfig
    workers: Workers
    lanes: Lanes = Lanes()
    budget: Budget
    objective: Objective
    checkpoint: Checkpointing
    rungs: tuple[float, ...] = ()  # shares of the budget at which the trial reports its progress

    @property
    def searched(self) -> list[Range]:
        """The ranges that the controller searches, if it searches."""
        return self.replica.searched(counts_traffic=self.budget.counts_traffic)[0]

    @property
    def trains_in_rounds(self) -> bool:
        """True if workers may train by themselves for some steps, or hold back gradients, under any choice."""
        return bool(self.replica.apart_under)

    def among(self, num_workers: int) -> "TrialSpec":
        """Return the same run with `num_workers` in each lane."""
        return self.model_copy(update={"workers": self.workers.model_copy(update={"count": num_workers})})


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, max_length=100)]


class JobParts(Config):
    """Everything that a job says, before its parts are checked against each other."""

    name: Name = "unnamed"
    workload: WorkloadConfig
    partition: PartitionConfig = Field(IidPartition(), description="how the training samples are divided among workers")
    workers: Workers = Workers()
    lanes: Lanes = Lanes()
    optimizer: JobOptimizer = AdamWConfig()
    exchange: JobExchange = NoneConfig()
    sync: SyncConfig = Field(EveryStepConfig(), description="what keeps the workers' parameters together")
    activations: ActivationsConfig = KeepConfig()
    blocks: BlocksConfig = Field(AllBlocksConfig(), description="which blocks of the model a step trains")
    controller: ControllerConfig = BoConfig()
    arms: tuple[Arm, ...] = Field((Arm(name="tuned"),), min_length=1, max_length=32)
    seeds: Seeds = (0,)
    budget: Budget
    limits: Limits = Limits()
    objective: Objective = Objective()
    link: LinkConfig = MeasureLink()
    checkpoint: Checkpointing = Checkpointing()
    accumulate: int = Field(1, ge=1, le=1024, description="micro-batches per optimizer step")
    clip: float | None = Field(None, gt=0, allow_inf_nan=False, description="global norm, after aggregation")
    precision: Literal["float32", "bf16"] = "float32"
    labels: dict[Slug, Name] = Field(default_factory=dict, max_length=MAX_LABELS)
    priority: Priority = Field(
        Priority.NORMAL, description="which jobs start before which; who may use which: docs/queue.md"
    )
    webhook: Webhook | None = None
    params: dict[ParamPath, ParamRange] = Field(
        default_factory=dict,
        max_length=MAX_PARAMS,
        description="fields that samples vary, by path: `workload.width`; each sample is a trial besides the arms",
    )
    sweep: SweepConfig | None = Field(None, description="how samples are drawn, ended early, and ranked")

    @property
    def code(self) -> str | None:
        """The digest of the job's code package, or None."""
        return self.workload.code if isinstance(self.workload, OwnWorkload) else None

    @property
    def sweep_config(self) -> SweepConfig:
        """The sweep over `params`, or the default one."""
        return self.sweep or SweepConfig()

    @property
    def num_samples(self) -> int:
        """The number of trials that are samples of `params`."""
        return self.sweep_config.samples if self.params else 0

    def trial(self, arm: Arm, seed: int) -> TrialSpec:
        """Return the training run of an arm and a seed, with all overrides applied. Conflicts are not checked."""
        shared = ReplicaConfig.model_fields.keys() & JobParts.model_fields.keys()
        of_job = {name: getattr(self, name) for name in shared}
        of_arm = {name: part for name in shared if (part := getattr(arm, name, None)) is not None}
        replica = ReplicaConfig.model_construct(
            **(of_job | of_arm),
            workers_per_node=self.workers.per_node,
            seed=seed,
            threads=max(1, min(int(self.workers.cpus), MAX_THREADS)),
            average=self.checkpoint.export != "last",
            collective_timeout_s=self.workers.timeout_s,
            start_timeout_s=self.workers.start_timeout_s,
            reply_timeout_s=self.workers.reply_timeout_s,
        )
        return TrialSpec.model_construct(
            arm=arm.name,
            seed=seed,
            controller=arm.controller or self.controller,
            replica=replica,
            workers=self.workers,
            lanes=self.lanes,
            budget=self.budget,
            objective=self.objective,
            checkpoint=self.checkpoint,
            rungs=self.sweep_config.rungs() if self.params else (),
        )
