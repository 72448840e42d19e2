"""The controller's knowledge of each optimizer: where its good rates lie, and what one of its steps is worth."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class OptimizerTraits(BaseModel):
    """The traits of an optimizer kind that the controller uses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    centre: float = Field(description="the wide search is centred on guess x centre")
    pick: float = Field(description="the run uses the middle of the plateau x pick")
    decays: bool = Field(description="whether the rate must decay at the end of the budget")
    length_power: float = Field(0.0, description="the best rate of a run falls with this power of its length")
    rises: bool = Field(False, description="whether a commit's own gradients may raise the rate")
    wakes: bool = Field(False, description="whether the rate may rise while a model learns nothing, until it does")
    usual: float | None = Field(
        None,
        description="the usual rate: for a loss of 1 and a sharpness of 1 without momentum, for weights of scale 1 in "
        "a single matrix, or for all models; None: there is none",
    )
    told_by: Literal["sharpness", "weights", "optimizer"] = Field(
        "weights", description="what the usual rate follows from: a property of the model, or the optimizer alone"
    )
    step_worth: float = Field(1.0, description="how many steps of `adamw` teach as much as one of its own")
    momentum_power: float = Field(0.0, description="the usual rate is multiplied by this power of 1 - momentum")
    density_power: float = Field(0.0, description="the usual rate is divided by this power of the exchange's density")
    ramps: bool = Field(False, description="whether the rate must rise slowly in a model with many matrices")


#: `pick` was chosen by benchmarks/suite/constants.py (docs/decisions/0014); an unknown kind has SGD's, the lowest.
#: `length_power` of AdamW is that of Bjorck et al., "Scaling Optimal LR Across Token Horizons" (ICLR 2025); SGD showed
#: none (docs/decisions/0025). `usual` was chosen in the same way as `pick` (docs/decisions/0032 to 0035, 0042, 0045),
#: and so was `step_worth` (0040, 0043).
OPTIMIZER_TRAITS: dict[str, OptimizerTraits] = {
    "sgd": OptimizerTraits(
        centre=1.0,
        pick=0.35,
        decays=True,
        rises=True,
        wakes=True,
        usual=0.8,
        told_by="sharpness",
        momentum_power=0.75,
        step_worth=0.6,
    ),
    "lars": OptimizerTraits(  # as SGD, which it scales
        centre=1.0, pick=0.35, decays=True, rises=True, wakes=True, step_worth=0.6
    ),
    "adamw": OptimizerTraits(
        centre=1.0, pick=1.2, decays=True, length_power=0.32, rises=True, wakes=True, usual=0.4, ramps=True
    ),
    "muon": OptimizerTraits(
        centre=1.0, pick=0.14, decays=True, rises=True, wakes=True, usual=0.01, told_by="optimizer", step_worth=1.75
    ),
    "schedulefree_sgd": OptimizerTraits(
        centre=20.0,
        pick=1.5,
        decays=False,
        wakes=True,
        usual=1.75,
        told_by="sharpness",
        density_power=0.1,
        step_worth=0.6,
    ),
    "schedulefree_adamw": OptimizerTraits(centre=3.0, pick=1.5, decays=False, usual=0.5),
    "schedulefree_plus": OptimizerTraits(
        centre=1.0, pick=0.3, decays=False, usual=0.42, told_by="optimizer", step_worth=0.4
    ),
    # as AdamW, since steps are scaled to its size; but it does not rise: a direction with momentum in it always agrees
    # with the update before
    "from_exchange": OptimizerTraits(centre=1.0, pick=1.2, decays=True, length_power=0.32),
    "own": OptimizerTraits(centre=1.0, pick=0.35, decays=True),
}


def usual_rate_told_by(optimizer: str) -> Literal["sharpness", "weights", "optimizer"] | None:
    """Return what the usual rate of `optimizer` follows from; None: it has none."""
    traits = OPTIMIZER_TRAITS.get(optimizer)
    return None if traits is None or traits.usual is None else traits.told_by
