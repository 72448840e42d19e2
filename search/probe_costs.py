"""What probing may cost: shares of the budget by stage, and whether one more probe fits."""

from search import spending
from search.reading import Reading
from search.space import distance
from search.spending import Amounts
from search.stage import Problem, Stage
from search.types import Allowance, Spent, Values

#: Share of the budget of a wide search over rate and level (of which each of its probes gets an equal part).
WIDE_SHARE = 0.08


class StepCosts:
    """Mutable: the latest cost of a step with each level and batch size that was trained with."""

    def __init__(self) -> None:
        self._known: dict[tuple[float | None, int | None], tuple[Values, Amounts]] = {}

    def record(self, problem: Problem, values: Values, reading: Reading) -> None:
        if reading.num_steps:
            cost = spending.step_cost(problem.budget, reading)
            self._known[values.level, values.batch_size] = values, cost

    def of(self, values: Values) -> Amounts | None:
        """Return the cost of a step with `values`, that of the nearest known ones; None before the first step."""
        known = self._known.values()
        if not known:
            return None
        return min(known, key=lambda each: distance(each[0], values, ("level", "batch_size")))[1]


def room(problem: Problem, search: Spent, spent: Spent) -> Amounts:
    """Return what all probes to come may still spend together."""
    cap = spending.scale(spending.caps(problem.budget), problem.config.max_search_fraction)
    left = spending.subtract(cap, spending.amounts(problem.budget, search))
    return spending.least(left, spending.remaining(problem.budget, spent))


def probe_amounts(problem: Problem, stage: Stage) -> Amounts:
    """Return what each probe of `stage` should spend: the same for all of them, fixed when the stage opened.

    The wide search's probes share 8 % of the budget; more of them, for further axes, get as much each. A later probe
    gets `probe_fraction` of its stage's commit, but no more than an equal part of its stage's share of what searching
    may still spend.
    """
    config, budget = problem.config, problem.budget
    if stage.index == 0:
        share = min(WIDE_SHARE / config.wide_probes, config.max_search_fraction / problem.wide_probes)
        return spending.scale(spending.caps(budget), share)
    shares = problem.shares(stage.index)
    part = shares[0] / sum(shares)
    of_commit = spending.scale(spending.remaining(budget, stage.opened), part * config.probe_fraction)
    free = room(problem, stage.search_before, stage.opened)
    return spending.least(of_commit, spending.scale(free, part / config.probes))


def probe_allowance(
    problem: Problem, stage: Stage, costs: StepCosts, *, values: Values, search: Spent, spent: Spent
) -> Allowance | None:
    """Return what a probe with `values` may spend, or None if that would pass `max_search_fraction`.

    A probe is at least `min_probe_steps` long; what still runs is reserved. A later stage opens only if its
    control and one rival fit: alone, a control decides nothing.
    """
    wanted, cost = probe_amounts(problem, stage), costs.of(values)
    if cost is None:
        cost = dict.fromkeys(wanted, 0.0) | ({"steps": 1.0} if "steps" in wanted else {})
    needed = spending.most(wanted, spending.scale(cost, problem.config.min_probe_steps))
    is_opening = stage.index > 0 and not stage.candidates
    num_reserved = len(stage.pending) + (2 if is_opening else 1)
    if not spending.fits(spending.scale(needed, num_reserved), room(problem, search, spent)):
        return None
    return spending.allowance(wanted, min_steps=problem.config.min_probe_steps)


def is_in_cooldown(problem: Problem, spent: Spent) -> bool:
    """Whether the rate is being decayed: nothing is searched then."""
    return problem.traits.cools_down and cooldown_factor(problem, spent) < 1


def cooldown_factor(problem: Problem, spent: Spent) -> float:
    """Return what the rate is multiplied by: 1, and linearly to 0 over the budget's last `cooldown` share."""
    share = problem.config.cooldown if problem.traits.cools_down else 0.0
    return spending.cooldown_factor(spending.fraction_spent(problem.budget, spent), share=share)
