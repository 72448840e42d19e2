"""Predict a model's usual learning rate before its first step, and decide whether a run may begin with it."""

import math

from search.bayesian.coarse_plan import past_rate
from search.bayesian.probe_costs import may_search_widely
from search.bayesian.rewards import diverged_values
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage, is_barred
from search.config import WideConfig

#: Standard deviations, in decades, of the best rate about the plateau's and about the usual one ...
PLATEAU_STD, USUAL_STD = 0.6, 0.2
#: ... except for this share of runs, whose best rate lies anywhere in this many decades.
UNUSUAL_SHARE, UNUSUAL_DECADES = 0.1, 6.0
#: The usual rate is divided by these powers of a model's sharpness and first loss (docs/decisions/0042). They add up to
#: 1, so c times the loss is trained at 1 / c of the rate.
SHARPNESS_POWER, LOSS_POWER = 0.8, 0.2


def usual_rate(setup: SearchSetup, stage: Stage) -> float | None:
    """Return the usual rate of the optimizer on this model.

    None: none is known, a probe diverged at it, or a stated range or past jobs say more.
    """
    rate = _told_rate(setup, stage)
    return None if rate is None or _is_barred(setup, stage, rate) else rate


def _told_rate(setup: SearchSetup, stage: Stage) -> float | None:
    knows_more = setup.config.stated_rates is not None or _past_leads(setup, stage)
    return None if knows_more else rate_of_model(setup)


def _past_leads(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the run's own search goes by what past jobs found: the cap has room for it.

    If only the rate is searched, what they found best must lie where this run would look.
    """
    tells = past_rate(setup, stage.prior) is not None if setup.is_of_rate_alone else past_tells(setup, stage)
    return tells and may_search_widely(setup, stage)


def _is_barred(setup: SearchSetup, stage: Stage, rate: float) -> bool:
    return is_barred(setup.opening.model_copy(update={"learning_rate": rate}), diverged_values(stage))


def rate_of_model(setup: SearchSetup) -> float | None:
    """Return the usual rate by the optimizer, and by the model before its first step; None: there is none.

    - AdamW moves an entry by about the rate in each step, so the rate is a share of the entries' size. In a chain of L
      matrices changes add up, and each may be smaller by the root of L (Yang et al., "Tensor Programs VI", ICLR 2024).
    - SGD moves an entry by rate x gradient: the sharper the loss, the sooner the gradient turns. With momentum a
      gradient is used 1 / (1 - momentum) times. A loss that is not above 0 has no scale, so no rate follows.
    - Muon's steps have singular values of one size, whatever the gradient, so one rate is usual for all models.
    """
    traits, weights = setup.traits, setup.space.weights
    sharpness, loss = setup.space.sharpness, setup.space.first_loss
    if traits.usual is None or traits.told_by == "optimizer":
        return traits.usual
    if traits.told_by == "weights":
        return None if weights is None else traits.usual * weights.scale / math.sqrt(weights.num_matrices)
    if sharpness is None or loss is None or loss <= 0:
        return None
    level = setup.opening.level if setup.space.level_name == "density" else None
    momentum, density = (1 - setup.space.momentum) ** traits.momentum_power, (level or 1.0) ** traits.density_power
    return float(traits.usual * momentum / density / sharpness**SHARPNESS_POWER / loss**LOSS_POWER)


def trusted_rate(setup: SearchSetup, stage: Stage) -> float | None:
    """Return the usual rate if a run may begin with it although no probe has shown it to train; else None.

    A rate that follows from the weights holds for new models, and may ruin one that was trained before. If a probe
    diverged at about that rate, the result is half of that probe's rate.
    """
    is_safe = setup.traits.told_by != "weights" or not setup.is_pretrained
    rate = _told_rate(setup, stage) if is_safe else None
    if rate is None or not _is_barred(setup, stage, rate):
        return rate
    lowest = min(values.learning_rate for values in diverged_values(stage))
    return lowest / 2 if lowest > rate / 2 else None


def begins_as_usual(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the run begins with the usual rate, without a probe (docs/decisions/0033).

    It does not if a person pins the rate, or asks for a search for which the cap has room.
    """
    config = setup.config
    return (
        not (stage.has_incumbent or stage.is_pinned)
        and not (stage.steered.search_asked and may_search_widely(setup, stage))
        and isinstance(config, WideConfig)
        and config.trusts_usual(setup.space.optimizer)
        and setup.is_of_rate_alone
        and trusted_rate(setup, stage) is not None
    )


def past_tells(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether a past job has searched all axes of this one."""
    return stage.prior.tells([axis.name for axis in setup.space.axes])


def expected_rate(asked: float, usual: float | None) -> float:
    """Return the expected best rate, given the rate `asked` by the plateau and the `usual` one.

    It is the mean of a posterior over the log rate: the weights say more about it than probes of seven steps. The prior
    is part normal and part flat, so the usual rate draws less on a run that is far from it (docs/decisions/0032).
    """
    if usual is None:
        return asked
    away, variance = math.log10(usual / asked), PLATEAU_STD**2 + USUAL_STD**2
    as_usual = (1 - UNUSUAL_SHARE) * math.exp(-(away**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    is_usual = as_usual / (as_usual + UNUSUAL_SHARE / UNUSUAL_DECADES)
    return float(asked * 10 ** (is_usual * away * PLATEAU_STD**2 / variance))
