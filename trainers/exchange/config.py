"""Every kind of gradient exchange and its knobs. Pydantic only, so that a job can be checked without torch."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from trainers.exchange.coded_config import (
    CserConfig as CserConfig,
    DistEfSgdConfig as DistEfSgdConfig,
    DoubleSqueezeConfig as DoubleSqueezeConfig,
    DriftingConfig as DriftingConfig,
    LiecSgdConfig as LiecSgdConfig,
    OneBitConfig as OneBitConfig,
    QsgdConfig as QsgdConfig,
    QuantizedBase as QuantizedBase,
    SignSgdConfig as SignSgdConfig,
    TernGradConfig as TernGradConfig,
    TwoWayConfig as TwoWayConfig,
)
from trainers.exchange.config_base import (
    HIGHEST_RANK,
    Coefficient as Coefficient,
    CorrectedConfig as CorrectedConfig,
    Density as Density,
    ExchangeBase as ExchangeBase,
    LevelName as LevelName,
    Period as Period,
    Rank as Rank,
    SteeredConfig as SteeredConfig,
    Threshold as Threshold,
)
from trainers.exchange.levels.config import (
    AccordionConfig,
    CalibratedConfig,
    CatConfig,
    LinkCost,
)
from trainers.spec.ranges import Conflict


class NoneConfig(ExchangeBase):
    """Dense float32 gradients, all-reduced: the trivial compressor."""

    kind: Literal["none"] = "none"


class Fp16Config(ExchangeBase):
    """Dense gradients, all-reduced in float16: half of the bytes."""

    kind: Literal["fp16"] = "fp16"


class Bf16Config(ExchangeBase):
    """Dense gradients, all-reduced in bfloat16: half of the bytes, float32's range."""

    kind: Literal["bf16"] = "bf16"


class SparseConfig(CorrectedConfig):
    """What all have that send some entries and keep the others in a memory."""

    memory: Literal["residual", "ef21", "none"] = Field(
        "residual",
        description="what becomes of the entries that are not sent: error feedback, EF21 (differences), or nothing",
    )
    momentum_correction: Coefficient | None = Field(
        None, description="momentum before compression (DGC); the optimizer's own must then be 0"
    )
    nesterov: bool = Field(False, description="of the momentum correction")
    masking: bool = Field(True, description="momentum correction: clear the momentum of what was sent")
    values: Literal["float16", "float32", "sign"] = Field(
        "float16",
        description="of an entry on the wire; what that rounds off stays in the memory. sign: a bit each, and the mean "
        "magnitude",
    )
    aggregate: Literal["auto", "gather", "sharded"] = Field(
        "auto",
        description="gather: each payload goes to all ranks; sharded: each rank sums a range; auto: the fewest bytes",
    )

    @property
    def has_error_memory(self) -> bool:
        """Whether what is not sent is added to later gradients."""
        return self.memory == "residual"

    @property
    def without_momentum(self) -> str | None:
        return None if self.momentum_correction is None else "momentum_correction: null"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.momentum_correction is not None and self.memory != "residual":
            yield Conflict("/memory", self.memory, f"`momentum_correction` needs `memory: residual`, got {self.memory}")
        if self.lr_corrected and self.memory != "residual":
            yield Conflict("/lr_corrected", True, f"`lr_corrected` needs `memory: residual`, got {self.memory}")
        if self.lr_corrected and self.momentum_correction is not None:
            message = (
                f"`lr_corrected` does not go with `momentum_correction`, got {self.momentum_correction:g}: give "
                "`momentum_correction: null`, or leave `lr_corrected` out"
            )
            yield Conflict("/lr_corrected", True, message)
        if self.nesterov and self.momentum_correction is None:
            yield Conflict("/nesterov", True, "`nesterov` needs `momentum_correction`: a number in [0, 1)")


class ByDensity(SparseConfig, SteeredConfig):
    """Sparse kinds whose level is a density."""

    density: Density | tuple[Density, Density] = Field(description="share of entries sent, in (0, 1]")

    @property
    def level(self) -> float | tuple[float, float]:
        return self.density


class ThresholdConfig(SparseConfig, SteeredConfig):
    """Send the entries of gradient + residual whose magnitude reaches a threshold (Sahu et al., 2021).

    A pair of numbers is searchable, one number is fixed. With `search: density` (default) the threshold
    follows from a sampled quantile; with `search: absolute` it is given by `threshold`.
    """

    kind: Literal["threshold"] = "threshold"
    search: Literal["density", "absolute"] = "density"
    density: Density | tuple[Density, Density] | None = Field(None, description="share of entries sent, in (0, 1]")
    threshold: Threshold | tuple[Threshold, Threshold] | None = Field(None, description="absolute cut-off, >= 0")
    hold: Literal["stage", "run"] = Field(
        "stage",
        description="stage, our choice: the density holds, the threshold follows; run: the threshold, as published",
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        wanted, other = self.level_name, "threshold" if self.search == "density" else "density"
        extra = getattr(self, other)
        if getattr(self, wanted) is None:
            message = f"`search: {self.search}` needs `{wanted}`: a number, or a pair [low, high]"
            yield Conflict(f"/{wanted}", None, message)
        if extra is not None:
            message = f"`{other}` has no effect with `search: {self.search}`; leave it out"
            yield Conflict(f"/{other}", extra, message)

    @property
    def level_name(self) -> Literal["density", "threshold"]:
        return "density" if self.search == "density" else "threshold"

    @property
    def level(self) -> float | tuple[float, float] | None:
        return self.density if self.search == "density" else self.threshold

    def level_conflict(self, level: float) -> str | None:
        if self.search == "density":
            return super().level_conflict(level)
        return None if level >= 0 else "must be >= 0 for a threshold"

    def _misfit(self) -> str | None:
        if not isinstance(self.levels, CalibratedConfig):
            return super()._misfit()
        if self.search == "density" and self.hold == "run":
            return None
        return "`calibrated` finds the threshold of a density, which then holds: give `search: density` and `hold: run`"


class TopKConfig(ByDensity):
    """Send the largest entries of gradient + residual (Alistarh et al., 2018)."""

    kind: Literal["topk"] = "topk"
    selection: Literal["sampled", "exact"] = Field(
        "sampled", description="sampled: the cut-off is a quantile of a sample, some 30x faster than exact"
    )
    scope: Literal["layer", "bucket", "global"] = Field(
        "bucket", description="what the density is a share of: each layer, each bucket, or the whole gradient"
    )

    def _misfit(self) -> str | None:
        if not isinstance(self.levels, CatConfig):
            return super()._misfit()
        if isinstance(self.density, tuple):
            return "`cat` chooses how much is sent: give one `density`, the most that it may choose"
        if self.scope != "bucket":
            return f"`cat` chooses for each bucket, which is a message: give `scope: bucket`, got {self.scope}"
        if self.levels.variant == "drawn" and (self.memory != "none" or self.values == "sign"):
            return "`variant: drawn` is right on average by itself: give `memory: none` and `values: float16`"
        return None


class RandomKConfig(ByDensity):
    """Send entries drawn at random, the same on all ranks, so that only values travel (Stich et al., 2018)."""

    kind: Literal["randomk"] = "randomk"
    values: Literal["float32"] = Field("float32", description="they are summed on their way")
    aggregate: Literal["auto"] = Field("auto", description="all-reduced: all ranks send the same entries")
    block: bool = Field(False, description="one block of neighbours at a random place, instead of single entries")


class DgcConfig(ByDensity):
    """Deep gradient compression: top-k of the accumulated momentum (Lin et al., 2018)."""

    kind: Literal["dgc"] = "dgc"
    density: Density | tuple[Density, Density] = Field(0.001, description="share of entries sent, in (0, 1]")
    momentum_correction: Coefficient | None = Field(
        0.9, description="momentum before compression; the optimizer's own must be 0"
    )
    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="norm of the mean gradient; a rank's own is clipped to 1/sqrt(N)"
    )


class GTopKConfig(ByDensity):
    """Send the largest entries of the sum, merged over a tree of ranks (Shi et al., 2019), and lose nothing."""

    kind: Literal["gtopk"] = "gtopk"
    aggregate: Literal["auto"] = Field("auto", description="up a tree of ranks, and down again")


class AdaCompConfig(SparseConfig):
    """Send, from each bin of neighbours, what the last step would make the largest (Chen et al., 2018)."""

    kind: Literal["adacomp"] = "adacomp"
    conv_bin: int = Field(
        50, ge=2, le=65_536, description="entries per bin in convolutions: weights of three dimensions or more"
    )
    other_bin: int = Field(500, ge=2, le=65_536, description="entries per bin elsewhere")


class PowerSgdConfig(CorrectedConfig, SteeredConfig):
    """Send a low-rank factorisation of each large matrix, the rest densely (Vogels et al., 2019)."""

    kind: Literal["powersgd"] = "powersgd"
    rank: Rank | tuple[Rank, Rank] = Field(4, description="of the factorisation")
    min_saving: float = Field(
        2.0, gt=1, description="factorise a matrix only if its factors have so many times fewer numbers"
    )
    values: Literal["float16", "float32"] = Field(
        "float16", description="of the first factors and of the rest on the wire; the second ones are float32"
    )

    @property
    def level_name(self) -> Literal["rank"]:
        return "rank"

    @property
    def highest_rank(self) -> int:
        """The highest that a step may have."""
        ranks = self.rank if isinstance(self.rank, tuple) else (self.rank,)
        critical = (int(self.levels.critical),) if isinstance(self.levels, AccordionConfig) else ()
        return max(*ranks, *critical, 1)

    @property
    def level(self) -> float | tuple[float, float]:
        return self.rank

    def level_conflict(self, level: float) -> str | None:
        return None if level >= 1 else "must be at least 1 for a rank"

    def _critical_fault(self, critical: float) -> str | None:
        highest = max(self.rank) if isinstance(self.rank, tuple) else self.rank
        if critical.is_integer() and highest < critical <= HIGHEST_RANK:
            return None
        return f"must be a whole number above the rank, {highest}, and at most {HIGHEST_RANK}, to send more"


SparseKind = ThresholdConfig | TopKConfig | RandomKConfig | DgcConfig | GTopKConfig | AdaCompConfig
SteeredKind = ThresholdConfig | TopKConfig | RandomKConfig | DgcConfig | GTopKConfig | PowerSgdConfig
QuantizedConfig = QsgdConfig | TernGradConfig | SignSgdConfig | OneBitConfig
ExchangeConfig = Annotated[
    NoneConfig
    | Fp16Config
    | Bf16Config
    | ThresholdConfig
    | TopKConfig
    | RandomKConfig
    | DgcConfig
    | GTopKConfig
    | AdaCompConfig
    | PowerSgdConfig
    | QsgdConfig
    | TernGradConfig
    | SignSgdConfig
    | OneBitConfig
    | DoubleSqueezeConfig
    | DistEfSgdConfig
    | CserConfig
    | LiecSgdConfig,
    Field(discriminator="kind"),
]


def reads_clock(exchange: ExchangeBase) -> bool:
    """Whether what is sent would follow from how long a link took that nobody states."""
    levels = exchange.levels if isinstance(exchange, SteeredConfig) else None
    return isinstance(levels, CatConfig) and isinstance(levels.cost, LinkCost)


def CompressionConfig(**fields: object) -> ExchangeConfig:
    """Return the exchange of the given `kind` and knobs, for a script of one's own; raises pydantic.ValidationError."""
    config: ExchangeConfig = TypeAdapter(ExchangeConfig).validate_python(fields)
    return config
