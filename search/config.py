"""Every knob of the controller, declared once. Pydantic only, so that a job can be checked without torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator


def _whole(given: object) -> object:
    if isinstance(given, bool):
        raise ValueError(f"should be a whole number, got {given}")
    return given


#: A whole number above 0; `true` is none, 1e9 is one.
Count = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


#: More axes than this are not searched, the learning rate among them: a run can afford a dozen probes.
MAX_DIMENSIONS = 4


class Config(BaseModel):
    """Base of every configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(Config):
    """What a training run may spend; with several caps, whichever is reached first ends it."""

    seconds: PositiveFloat | None = Field(None, ge=0.01, le=1e9, description="elapsed seconds on the training clock")
    steps: Count | None = Field(None, le=10**12, description="optimizer steps, search included")
    bytes: Count | None = Field(None, le=10**18, description="bytes sent by one worker, search included")

    @model_validator(mode="after")
    def _has_a_cap(self) -> "Budget":
        if self.seconds is None and self.steps is None and self.bytes is None:
            raise ValueError("a budget needs at least one of `seconds`, `steps`, `bytes`")
        return self


class FixedConfig(Config):
    """The user's guess, held constant."""

    kind: Literal["fixed"] = "fixed"


class CosineConfig(Config):
    """The guess annealed to zero over the budget by half a cosine (Loshchilov & Hutter, 2017, eq. 5, one cycle)."""

    kind: Literal["cosine"] = "cosine"


class LinearConfig(Config):
    """The guess, decayed linearly to zero over the budget."""

    kind: Literal["linear"] = "linear"


#: Last share of the budget in which a plain optimizer's rate goes linearly to 0.
CoolDown = Annotated[float, Field(ge=0, le=0.5)]


class OffConfig(Config):
    """The guess without any search: held constant, and for plain optimizers decayed to zero at the end."""

    kind: Literal["off"] = "off"
    cooldown: CoolDown = Field(
        0.15, description="last share of the budget, decayed linearly to 0 (plain optimizers; Schedule-Free needs none)"
    )


class PastJobs(Config):
    """Jobs that succeeded, with the same optimizer and exchange, whose wide searches the first one may learn from."""

    jobs: tuple[Annotated[str, Field(max_length=100)], ...] = Field(min_length=1, max_length=5)

    @field_validator("jobs")
    @classmethod
    def _are_distinct(cls, jobs: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(jobs)) < len(jobs):
            raise ValueError(f"`jobs` must be distinct, got {list(jobs)}")
        return jobs


def _form_of(transfer: object) -> str:
    return "named" if isinstance(transfer, dict | PastJobs) else "auto"


#: `auto`: the newest jobs that are like this one.
Transfer = Annotated[
    Annotated[PastJobs, Tag("named")] | Annotated[Literal["auto"], Tag("auto")], Discriminator(_form_of)
]


class BoConfig(Config):
    """One wide Bayesian-optimisation search, then a trust region around the incumbent at every stage."""

    kind: Literal["bo"] = "bo"
    revisit: Literal["stages"] = Field("stages", description="when a later search opens: at every stage")
    num_stages: int = Field(4, ge=1, le=12, description="commits take 1 : 2 : 4 : ... of the budget")
    wide_probes: int = Field(7, ge=5, le=16, description="probes of the first, wide search over rate and level")
    wide_probes_per_axis: int = Field(2, ge=0, le=8, description="more of them for each further axis")
    transfer: Transfer | None = Field(
        None, description="past jobs to learn from: `{jobs: [...]}`, or `auto`, the newest 5 that are like this one"
    )
    probes: int = Field(3, ge=2, le=8, description="probes of a later stage, the incumbent among them")
    wide_decades: PositiveFloat = Field(4.0, le=8, description="decades of learning rate the wide search covers")
    probe_fraction: PositiveFloat = Field(0.1, le=0.5, description="a probe's share of its stage's commit")
    max_search_fraction: PositiveFloat = Field(0.20, le=0.9, description="most of the budget that probes may spend")
    min_probe_steps: int = Field(20, ge=4, description="a probe is not shortened below this")
    max_up: float = Field(2.0, gt=1, description="most a later stage may multiply the learning rate by")
    max_down: float = Field(0.25, gt=0, lt=1, description="most a later stage may shrink the learning rate to")
    max_level_move: float = Field(
        4.0, gt=1, description="most a later stage may multiply or divide the level by, and each further axis"
    )
    switch_probability: float = Field(0.95, ge=0.5, lt=1, description="switch only if this sure to be better")
    min_gain: float = Field(0.002, ge=0, description="and better by this share of the loss")
    cooldown: CoolDown = Field(
        0.15, description="last share of the budget, decayed linearly to 0 (plain optimizers; Schedule-Free needs none)"
    )


ControllerConfig = Annotated[
    BoConfig | FixedConfig | CosineConfig | LinearConfig | OffConfig, Field(discriminator="kind")
]

#: Kinds that the job language knows and a later release builds; refused by name until then.
FUTURE_CONTROLLERS = ("schedule", "autolrs", "local", "sobol")


class OptimizerTraits(Config):
    """What the wide search must know of an optimizer kind."""

    centre: float = Field(description="the wide search is centred on guess x centre")
    pick: float = Field(description="the run uses the search's minimum x pick")
    cools_down: bool = Field(description="whether the rate must decay at the end of the budget")


#: Centres and picks as tuned on small image and text tasks: short probes prefer too high a rate, most of
#: all under Adam; Schedule-Free (Defazio et al., 2024) wants 10-50x SGD's rate and needs no decay.
OPTIMIZER_TRAITS: dict[str, OptimizerTraits] = {
    "sgd": OptimizerTraits(centre=1.0, pick=0.4, cools_down=True),
    "adamw": OptimizerTraits(centre=1.0, pick=0.4, cools_down=True),
    "schedulefree_sgd": OptimizerTraits(centre=20.0, pick=1.0, cools_down=False),
    "schedulefree_adamw": OptimizerTraits(centre=3.0, pick=0.5, cools_down=False),
    "own": OptimizerTraits(centre=1.0, pick=0.4, cools_down=True),  # taken for a plain one
}
