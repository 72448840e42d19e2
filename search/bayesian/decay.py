"""The decay of a plain optimizer's rate, linearly to 0 over the budget's last `cooldown` share."""

from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Proposal
from search.budget import spending
from search.types import Spent


def decay_share(setup: SearchSetup) -> float:
    """Return the last share of the budget in which the rate goes to 0."""
    return setup.config.cooldown if setup.traits.decays else 0.0


def decay_factor(setup: SearchSetup, spent: Spent) -> float:
    """Return the factor of the rate: 1, then linearly down to 0 over the budget's last `cooldown` share."""
    return spending.decay_factor(spending.fraction_spent(setup.budget, spent), share=decay_share(setup))


def is_decaying(setup: SearchSetup, spent: Spent) -> bool:
    """Return whether the rate is decaying: then nothing is searched."""
    return decay_factor(setup, spent) < 1


def commit_decay(setup: SearchSetup, start: Spent, part: float) -> float:
    """Return the share of the rate that decays away while the share `part` of what is left at `start` is spent."""
    spent = spending.fraction_spent(setup.budget, start)
    before, after = (
        spending.decay_factor(each, share=decay_share(setup)) for each in (spent, spent + part * (1 - spent))
    )
    return 1 - after / before if before else 0.0


def probe_decay(setup: SearchSetup, proposal: Proposal) -> float:
    """Return the last share of a probe in which its rate goes to 0: a finalist is a miniature of the run."""
    return decay_share(setup) if proposal.rung > 0 and proposal.origin != "wide" else 0.0
