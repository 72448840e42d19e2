"""The optimizers that step the parameters, and their knobs. Pydantic only: a job is checked without torch."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from trainers.spec.method import Method, Paper
from trainers.spec.optimizer import OptimizerBase
from trainers.spec.ranges import Conflict, Range
from trainers.spec.refusals import cut


def _one_guess(given: object) -> object:
    if isinstance(given, list | tuple):
        raise ValueError(
            f"`learning_rate` must be one number, your guess, got {cut(str(list(given)))}: the controller searches "
            "around it, from `controller.min_learning_rate` to `controller.max_learning_rate`"
        )
    return given


LearningRate = Annotated[float, Field(ge=1e-8, le=1e3, allow_inf_nan=False), BeforeValidator(_one_guess)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
WeightDecay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _one_number(given: object) -> object:
    if isinstance(given, list | tuple):
        raise ValueError(
            "Schedule-Free averages with its momentum, which cannot change during a run: give one number, not a range"
        )
    return given


#: The interpolation beta of Schedule-Free.
Interpolation = Annotated[float, BeforeValidator(_one_number), Field(gt=0, lt=1)]


class SgdConfig(OptimizerBase):
    """`torch.optim.SGD`."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: LearningRate = 0.1
    momentum: Momentum | tuple[Momentum, Momentum] = 0.9
    nesterov: bool | tuple[bool, bool] = False
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.0
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.nesterov and self.momentum == 0:
            yield Conflict("/momentum", self.momentum, "`nesterov` needs `momentum` > 0, got 0")


class LarsConfig(OptimizerBase):
    """Steps in proportion to each layer's weights (LARS, You et al., 2017), for large batches."""

    kind: Literal["lars"] = "lars"
    learning_rate: LearningRate = Field(10.0, description="times `trust` and the layer's length over its gradient's")
    momentum: Momentum | tuple[Momentum, Momentum] = 0.9
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.0
    trust: float = Field(0.001, gt=0, le=1, description="of a layer's length, what a step at rate 1 moves it")
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class AdamWConfig(OptimizerBase):
    """`torch.optim.AdamW`."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 1e-3
    betas: tuple[Momentum | tuple[Momentum, Momentum], Momentum] = Field(
        (0.9, 0.999), description="the first is the momentum"
    )
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.01
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")

    @classmethod
    def searchable(cls) -> frozenset[str]:
        return super().searchable() | {"momentum"}

    def set_to(self, values: Mapping[str, Any]) -> Self:
        betas = (values.get("momentum", self.betas[0]), self.betas[1])
        return super().set_to({name: value for name, value in values.items() if name != "momentum"} | {"betas": betas})

    def ranges(self) -> Iterator[Range]:
        if isinstance(self.betas[0], tuple):
            yield Range("momentum", "betas/0", self.betas[0])
        yield from super().ranges()


class ScheduleFreeSgdConfig(OptimizerBase):
    """`schedulefree.SGDScheduleFree` (Defazio et al., 2024)."""

    kind: Literal["schedulefree_sgd"] = "schedulefree_sgd"
    learning_rate: LearningRate = 0.1
    momentum: Interpolation = Field(0.9, description="the interpolation beta")
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.0
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class ScheduleFreeAdamWConfig(OptimizerBase):
    """`schedulefree.AdamWScheduleFree` (Defazio et al., 2024)."""

    kind: Literal["schedulefree_adamw"] = "schedulefree_adamw"
    learning_rate: LearningRate = 2.5e-3
    betas: tuple[Interpolation, Momentum] = (0.9, 0.999)
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.0
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class ScheduleFreePlusConfig(OptimizerBase):
    """ScheduleFree+: Polyak's step along AdamW's direction, averaged (Defazio, 2026).

    The step follows from the loss, so the loss must have a least value of about 0: below 0 there are no steps.
    """

    kind: Literal["schedulefree_plus"] = "schedulefree_plus"
    learning_rate: LearningRate = Field(1.0, description="times Polyak's step")
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    interpolation: Interpolation = Field(0.9, description="the interpolation beta")
    l1_momentum: Momentum = Field(0.9, description="of the average of the gradient's L1 norm, which divides the step")
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = Field(
        0.0, description="times the squared step: rather 20 or 50 than 0.1"
    )
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class MuonConfig(OptimizerBase):
    """Muon for matrices and kernels (Jordan, 2024), AdamW for the rest, at one learning rate.

    Orthogonal steps are scaled to the size of AdamW's (Liu et al., 2025, section 2.2), so that one rate and one weight
    decay serve both. Embeddings are AdamW's, and so are vectors: biases, norms.
    """

    amplifies_rounding: ClassVar[bool] = True

    kind: Literal["muon"] = "muon"
    learning_rate: LearningRate = Field(0.01, description="of steps that are scaled to the size of AdamW's")
    momentum: Momentum = Field(0.95, description="Nesterov's, of Muon's parameters")
    betas: tuple[Momentum, Momentum] = Field((0.9, 0.999), description="of AdamW's parameters")
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = 0.01
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class FromExchangeConfig(OptimizerBase):
    """Step by the direction that the exchange returns; momentum, and what scales the step, are the exchange's."""

    kind: Literal["from_exchange"] = "from_exchange"
    learning_rate: LearningRate = Field(1e-3, description="times the exchange's direction, of the size of AdamW's")
    weight_decay: WeightDecay | tuple[WeightDecay, WeightDecay] = Field(0.01, description="decoupled, as AdamW's")
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


class OwnOptimizerConfig(OptimizerBase):
    """The workload's own `optimizer`; the learning rate multiplies the rates of its parameter groups."""

    amplifies_rounding: ClassVar[bool] = True  # it may

    kind: Literal["own"] = "own"
    learning_rate: LearningRate = 1.0
    warmup_steps: int = Field(0, ge=0, description="linear ramp from the first step")


_OfKnownWorth = (
    SgdConfig
    | LarsConfig
    | AdamWConfig
    | MuonConfig
    | ScheduleFreeSgdConfig
    | ScheduleFreeAdamWConfig
    | ScheduleFreePlusConfig
)
#: Those that can compete: it is known what a step of theirs is worth.
ContenderConfig = Annotated[_OfKnownWorth, Field(discriminator="kind")]
OptimizerConfig = Annotated[_OfKnownWorth | FromExchangeConfig | OwnOptimizerConfig, Field(discriminator="kind")]
ContenderKind = Literal["sgd", "lars", "adamw", "muon", "schedulefree_sgd", "schedulefree_adamw", "schedulefree_plus"]

#: Those whose weights are an average that they keep: workers that train apart exchange both iterates.
AVERAGING = frozenset({"schedulefree_sgd", "schedulefree_adamw", "schedulefree_plus"})


def num_iterates(optimizer: str) -> int:
    """Return how many vectors of the model's size an `optimizer` of this kind trains."""
    return 2 if optimizer in AVERAGING else 1


def _of_kind(given: object) -> object:
    """Return a kind by itself as what has all its defaults."""
    return {"kind": given} if isinstance(given, str) else given


#: An optimizer, or its kind alone: `adamw`.
Contender = Annotated[
    ContenderConfig, BeforeValidator(_of_kind, json_schema_input_type=ContenderKind | ContenderConfig)
]


class AutoOptimizerConfig(OptimizerBase):
    """The run trains by the option whose steps teach most for what they cost, chosen before the first step."""

    kind: Literal["auto"] = "auto"
    options: tuple[Contender, ...] = Field(
        (MuonConfig(), AdamWConfig()),
        min_length=2,
        max_length=7,
        description="what competes, as `adamw`, or with knobs: `{kind: sgd, learning_rate: 0.05}`. Of several that "
        "are worth the same it is the first",
    )

    @property
    def learning_rate(self) -> float:
        """The first option's guess."""
        return self.options[0].learning_rate

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        kinds = [option.kind for option in self.options]
        if len(set(kinds)) < len(kinds):
            yield Conflict("/options", kinds, f"`options` must be of distinct kinds, got {kinds}")
        for index, option in enumerate(self.options):
            for each in option.ranges():
                yield Conflict(
                    f"/options/{index}/{each.field}",
                    list(each.pair),
                    f"`{each.field.partition('/')[0]}` of an optimizer that competes must be one number, got "
                    f"{list(each.pair)}: of what trains the learning rate alone is searched",
                )


LARS = Paper("You, Gitman, Ginsburg", "Large batch training of convolutional networks", "arXiv:1708.03888", 2017)
_SCHEDULE_FREE = Paper("Defazio, Yang, Mehta, Mishchenko, Khaled, Cutkosky", "The road less scheduled", "NeurIPS", 2024)
METHODS = (
    Method("optimizer", SgdConfig),
    Method("optimizer", LarsConfig, papers=(LARS,)),
    Method(
        "optimizer",
        AdamWConfig,
        papers=(Paper("Loshchilov, Hutter", "Decoupled weight decay regularization", "ICLR", 2019),),
    ),
    Method(
        "optimizer",
        MuonConfig,
        papers=(
            Paper(
                "Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein",
                "Muon: an optimizer for hidden layers in neural networks",
                "kellerjordan.github.io/posts/muon",
                2024,
            ),
            Paper("Liu, Su et al.", "Muon is scalable for LLM training", "arXiv:2502.16982", 2025),
        ),
    ),
    Method("optimizer", ScheduleFreeSgdConfig, papers=(_SCHEDULE_FREE,)),
    Method("optimizer", ScheduleFreeAdamWConfig, papers=(_SCHEDULE_FREE,)),
    Method(
        "optimizer",
        ScheduleFreePlusConfig,
        papers=(
            Paper(
                "Defazio",
                "ScheduleFree+: Scaling learning-rate-free & schedule-free learning to large language models",
                "arXiv:2605.19095",
                2026,
            ),
        ),
    ),
    Method("optimizer", FromExchangeConfig, beside={"exchange": {"kind": "demo"}}),
    Method("optimizer", OwnOptimizerConfig),
    Method("optimizer", AutoOptimizerConfig),
)
#: What a job's `optimizer` may be.
JobOptimizer = Annotated[OptimizerConfig | AutoOptimizerConfig, Field(discriminator="kind")]


def contenders(optimizer: JobOptimizer) -> tuple[OptimizerConfig, ...]:
    """Return the optimizers of which one trains the run: of a plain one, itself."""
    return optimizer.options if isinstance(optimizer, AutoOptimizerConfig) else (optimizer,)
