"""Choose a run's optimizer before its first step, by the cost and the worth of a step (docs/decisions/0040)."""

from collections.abc import Collection, Mapping

from search.budget.link import StepCost, steps_that_fit
from search.budget.spending import Amounts
from search.optimizer_traits import OPTIMIZER_TRAITS


def best_optimizer(available: Amounts, steps: Mapping[str, StepCost]) -> str:
    """Return the optimizer with which the budget teaches the most: the steps that fit x what each is worth.

    Of equals, the first. `steps` has the cost of a step by optimizer.
    """
    return max(steps, key=lambda kind: steps_that_fit(available, steps[kind]) * OPTIMIZER_TRAITS[kind].step_worth)


def why_best(best: str, steps: Mapping[str, StepCost], *, timed: Collection[str] = ()) -> str:
    """Return in words why `best` was chosen. Only the steps of `timed` optimizers have known seconds."""
    return f"{best} is expected to learn most: {', '.join(_told(kind, steps[kind], kind in timed) for kind in steps)}"


def _told(kind: str, step: StepCost, is_timed: bool) -> str:
    taking = f" and takes {1e3 * step.seconds:.3g} ms" if is_timed else ""
    return f"a step of {kind} is worth {OPTIMIZER_TRAITS[kind].step_worth:g}{taking}"
