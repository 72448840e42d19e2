"""Refuse probes that cost too much, and say how much."""

from search.bayesian.probe_costs import StepCosts, most_amounts, shortest_probe
from search.bayesian.stage import Proposal, SearchSetup, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves.curve_summary import Reading
from search.types import Candidate, Refusal


def too_expensive(setup: SearchSetup, stage: Stage, costs: StepCosts, proposal: Proposal) -> Refusal:
    """Refuse a proposal for which there is no room."""
    values, origin, _ = proposal
    shortest, most = shortest_probe(setup, costs.of(values)), most_amounts(setup, stage)
    over = _over(shortest, most)
    if not over:
        reason = "what is left of the search's share is too little"
        return Refusal(values=values, origin=origin, kind="no_room", reason=reason)
    return Refusal(values=values, origin=origin, kind="too_slow", reason=_words(setup, over, shortest, most))


def too_slow(setup: SearchSetup, stage: Stage, candidate: Candidate, reading: Reading) -> Refusal:
    """Refuse a candidate whose first steps showed that a probe of it costs too much."""
    shortest = shortest_probe(setup, spending.step_cost(setup.budget, reading))
    most = most_amounts(setup, stage)
    reason = _words(setup, _over(shortest, most), shortest, most)
    return Refusal(values=candidate.values, origin=candidate.origin, kind="too_slow", reason=reason)


def _over(shortest: Amounts, most: Amounts) -> str:
    """Return the unit in which a probe costs too much, or an empty string."""
    return next((unit for unit, quantity in shortest.items() if quantity > most[unit]), "")


def _words(setup: SearchSetup, unit: str, shortest: Amounts, most: Amounts) -> str:
    steps = setup.config.min_probe_steps
    return f"{steps} steps take {shortest[unit]:.3g} {unit}, a probe may take {most[unit]:.3g}"
