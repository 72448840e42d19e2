"""Choose a run's optimizer before its first step, by what a step costs and what it is worth (docs/decisions/0040)."""

from collections.abc import Mapping

from search.budget.link import StepCost, steps_that_fit
from search.budget.spending import Amounts
from search.config import OPTIMIZER_TRAITS


def best_optimizer(available: Amounts, steps: Mapping[str, StepCost]) -> str:
    """Return the optimizer by which a budget teaches the most: by the steps that fit, and what each is worth.

    Of equals it is the first. `steps` has what a step of each costs.
    """
    return max(steps, key=lambda kind: steps_that_fit(available, steps[kind]) * OPTIMIZER_TRAITS[kind].step_worth)


def why_best(available: Amounts, steps: Mapping[str, StepCost]) -> str:
    """Return in words why the best of them is."""
    return f"{best_optimizer(available, steps)} is expected to learn most: {', '.join(_told(available, steps))}"


def _told(available: Amounts, steps: Mapping[str, StepCost]) -> list[str]:
    worth = {kind: f"a step of {kind} is worth {OPTIMIZER_TRAITS[kind].step_worth:g}" for kind in steps}
    if "seconds" not in available:
        return [*worth.values()]
    return [f"{words} and takes {1e3 * steps[kind].seconds:.3g} ms" for kind, words in worth.items()]
