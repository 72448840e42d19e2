"""Limit the cost of probing: each stage's share of the budget, and whether one more probe fits."""

import math

from search.bayesian.coarse_plan import coarse_plan
from search.bayesian.decay import is_decaying
from search.bayesian.setup import ESTIMATED_PART, KEPT_PART, MOST_FINALIST_STEPS, SearchSetup
from search.bayesian.stage import Proposal, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.config import FINALISTS
from search.curves.curve_summary import Reading
from search.space import distance
from search.types import SEARCHED, Allowance, Candidate, Refusal, Spent, Values

#: The search's cap must hold at least this many finalists, however costly one is.
MIN_FINALISTS = 2
#: Fewer coarse probes than this do not bracket a rate.
MIN_COARSE = 3
#: A later search compares at least the incumbent and one rival.
MIN_PROBES = 2
#: From this share of the budget on nothing is searched: the rest is too short to gain from it.
LAST_SEARCH = 0.9
#: Where searches open on events, one may take this share of what probes may still spend.
EVENT_PART = 0.5
#: The values that the cost of a step depends on.
COSTLY = tuple(name for name, searched in SEARCHED.items() if searched.costs)


def costly(values: Values) -> tuple[float | str | None, ...]:
    """Return those of `values` that decide the cost of a step."""
    return tuple(getattr(values, name) for name in COSTLY)


class StepCosts:
    """Mutable: the latest cost of a step, by combination of the values that it depends on.

    Where coarse probes train alone, the cost for all workers begins with what the warm-up showed.
    """

    def __init__(self, setup: SearchSetup) -> None:
        self._known: dict[tuple[float | str | None, ...], tuple[Values, Amounts]] = {}
        if setup.space.num_alone > 1 and setup.space.step is not None:
            self._known[costly(setup.opening)] = setup.opening, setup.planned_step_cost

    def record(self, setup: SearchSetup, values: Values, reading: Reading) -> None:
        if reading.num_steps:
            cost = spending.measured_step_cost(setup.budget, reading)
            self._known[costly(values)] = values, cost

    def of(self, values: Values) -> Amounts | None:
        """Return the cost of a step with the known values nearest to `values`; None: their exchange is new."""
        known = [each for each in self._known.values() if each[0].option == values.option]
        if not known:
            return None
        return min(known, key=lambda each: distance(each[0], values, COSTLY))[1]

    def likely(self, values: Values) -> Amounts | None:
        """Return the cost of a step with `values`, or with another exchange if theirs is new; None: none is known."""
        others = (cost for _, cost in self._known.values())
        return self.of(values) or next(others, None)


def search_cap(setup: SearchSetup) -> Amounts:
    """Return the cap: what all probes of a run together may spend."""
    return spending.scale(spending.caps(setup.budget), setup.search_fraction)


def room(setup: SearchSetup, search: Spent, spent: Spent) -> Amounts:
    """Return what all further probes together may spend: at most half of the rest of the run, which uses the result."""
    left = spending.subtract(search_cap(setup), spending.amounts(setup.budget, search))
    return spending.least(left, spending.scale(spending.remaining(setup.budget, spent), 1 / 2))


def probe_amounts(setup: SearchSetup, stage: Stage) -> Amounts:
    """Return what each probe of `stage` should spend: the same for all, fixed when the stage opens.

    Finalists of the wide search share what the coarse probes left of the cap, up to `MOST_FINALIST_STEPS` each. One
    more may extend their range. If the rate alone is searched, it uses what is kept for later searches, else it has a
    share of its own.

    A later probe gets `probe_fraction` of its stage's commit, but no more than an equal part of what probes may still
    spend: of the stage's share of that where every stage searches, else of half.
    """
    config, budget = setup.config, setup.budget
    if not stage.has_incumbent:
        share = spending.scale(search_cap(setup), 1 - KEPT_PART[config.revisit])
        left = spending.subtract(share, spending.amounts(budget, stage.search_coarse))
        longest = MOST_FINALIST_STEPS / max(MOST_FINALIST_STEPS, setup.num_steps or 0.0)
        return spending.least(
            spending.scale(left, 1 / most_finalists(setup)), spending.scale(spending.caps(budget), longest)
        )
    part = setup.commit_part(stage.index, stage.line.num_taken_back, stage.opened)
    of_commit = spending.scale(spending.remaining(budget, stage.opened), part * config.probe_fraction)
    free = room(setup, stage.search_before, stage.opened)
    of_room = part if config.revisit == "stages" else EVENT_PART
    return spending.least(of_commit, spending.scale(free, of_room / config.probes))


def most_finalists(setup: SearchSetup) -> int:
    """Return the most finalists that share the wide search's budget, with one that extends their range."""
    return max(setup.wide_probes, FINALISTS) + (not setup.is_of_rate_alone)


def most_amounts(setup: SearchSetup, stage: Stage) -> Amounts:
    """Return the most that a probe of `stage` may cost: the smallest useful number of them must fit."""
    if not stage.has_incumbent:
        return spending.scale(search_cap(setup), 1 / MIN_FINALISTS)
    return spending.scale(room(setup, stage.search_before, stage.opened), 1 / MIN_PROBES)


def probe_allowance(
    setup: SearchSetup, stage: Stage, costs: StepCosts, *, proposal: Proposal, search: Spent, spent: Spent
) -> Allowance | None:
    """Return what a probe of the `proposal` may spend, or None if it does not fit.

    Coarse probes have a length of their own. Any other probe has at least `min_probe_steps`, and sees an average if the
    cap has room for that. Running probes keep their reserve. A later stage opens only if its control and one rival fit:
    a control alone decides nothing.
    """
    if proposal.origin == "wide":
        num_steps = setup.coarse_steps
        has_room = spending.fits(coarse_cost(setup, stage, 1 + len(stage.pending)), room(setup, search, spent))
        return Allowance(steps=num_steps, min_steps=num_steps) if has_room else None
    wanted, left, cost = probe_amounts(setup, stage), room(setup, search, spent), costs.of(proposal.values)
    is_opening = stage.has_incumbent and not stage.candidates
    num_reserved = len(stage.pending) + (MIN_PROBES if is_opening else 1)
    least, longest = setup.config.min_probe_steps, steps_to_see_average(setup, stage, costs, proposal.values)
    of_one = setup.space.longest_period + 1  # steps of a probe that sees one average, in case two do not fit
    for num_steps in (longest, *((of_one,) if least < of_one < longest else ()), least):
        shortest = shortest_probe(setup, cost, num_steps)
        has_room = spending.fits(spending.scale(spending.most(wanted, shortest), num_reserved), left)
        if has_room and spending.fits(shortest, most_amounts(setup, stage)):
            return spending.allowance(wanted, min_steps=num_steps)
    return None


def steps_to_see_average(setup: SearchSetup, stage: Stage, costs: StepCosts, values: Values) -> int:
    """Return the fewest steps of a probe of `stage`: enough that its last loss is after an average, if there are any.

    Where exchanges compete it is after two averages, if they fit: these show better whether workers drift apart. All
    exchanges get the same number, since they are compared at equal cost. But a probe is not made longer for the others'
    sake before the cost of its step is known: it may be the most costly. If longer probes leave no room for as many as
    of `min_probe_steps`, the result is `min_probe_steps`.
    """
    is_known = costs.of(values) is not None or [*spending.caps(setup.budget)] == ["steps"]
    period = setup.space.longest_period if is_known else setup.space.period_of(values)
    shortest = setup.config.min_probe_steps
    counts = (2, 1) if setup.space.options else (1,)
    lengths = [max(shortest, count * period + 1) for count in counts if period > 1]
    left = room(setup, stage.search_before, stage.opened)
    left = spending.subtract(left, spending.amounts(setup.budget, stage.search_coarse))
    cost = step_amounts(setup, costs.likely(values))
    wanted = setup.config.probes if stage.has_incumbent else most_finalists(setup)
    number = min(wanted, math.floor(spending.num_steps(left, cost) / shortest)) if any(cost.values()) else wanted
    return next((each for each in lengths if spending.fits(spending.scale(cost, number * each), left)), shortest)


def step_amounts(setup: SearchSetup, step_cost: Amounts | None) -> Amounts:
    """Return the cost of a step, 0 in units where it is not known: before the first step, only steps are."""
    known = {**dict.fromkeys(spending.caps(setup.budget), 0.0), **(step_cost or {})}
    return known | ({"steps": 1.0} if "steps" in known else {})


def shortest_probe(setup: SearchSetup, step_cost: Amounts | None, num_steps: int | None = None) -> Amounts:
    """Return the cost of `num_steps` (by default `min_probe_steps`), 0 in units where it is not known."""
    return spending.scale(step_amounts(setup, step_cost), num_steps or setup.config.min_probe_steps)


def is_too_slow(setup: SearchSetup, stage: Stage, reading: Reading) -> bool:
    """Return whether a probe that has not reached its least number of steps costs too much to go on."""
    candidate = next(each for each in stage.candidates if each.id == reading.candidate_id)
    least = candidate.allowance.min_steps
    if reading.diverged or not 0 < reading.num_steps < least:
        return False
    shortest = spending.scale(spending.measured_step_cost(setup.budget, reading), least)
    return not spending.fits(shortest, most_amounts(setup, stage))


def coarse_cost(setup: SearchSetup, stage: Stage, num_probes: int) -> Amounts:
    """Return what `num_probes` coarse probes cost. Those of one round cost as much as one.

    Several groups of workers spend steps and bytes of their own, but the same seconds. The first finished probe shows
    the cost of a step, and before it the warm-up.
    """
    first = _first_timed(stage)
    known = setup.coarse_step_cost if first is None else spending.measured_step_cost(setup.budget, first)
    cost = step_amounts(setup, known)
    at_once = dict.fromkeys(cost, setup.space.num_alone)
    if "seconds" in cost:
        at_once["seconds"] *= setup.space.num_lanes
    num_steps = {unit: setup.coarse_steps * math.ceil(num_probes / at_once[unit]) for unit in cost}
    return {unit: num_steps[unit] * each for unit, each in cost.items()}


def _first_timed(stage: Stage) -> Reading | None:
    return next((reading for reading in stage.readings.values() if reading.num_steps), None)


def least_search(setup: SearchSetup, stage: Stage) -> Amounts:
    """Return the cost of the shortest wide search: all coarse probes that are planned."""
    return coarse_cost(setup, stage, len(coarse_plan(setup, stage)))


def has_room_for_wide(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the shortest wide search fits under the cap, or may fit: steps of the warm-up may be slow."""
    needed = dict(least_search(setup, stage))
    if "seconds" in needed and _first_timed(stage) is None:
        needed["seconds"] *= ESTIMATED_PART
    return spending.fits(needed, search_cap(setup))


def may_search_widely(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the wide search has room, or enough probes to decide by: steps may cost more than was expected."""
    return stage.rung > 0 or len(stage.probes) >= MIN_COARSE or has_room_for_wide(setup, stage)


def has_room_for_search(setup: SearchSetup, costs: StepCosts, *, values: Values, search: Spent, spent: Spent) -> bool:
    """Return whether a later search could open now, and leave enough of the budget to gain from."""
    if is_decaying(setup, spent) or spending.fraction_spent(setup.budget, spent) >= LAST_SEARCH:
        return False
    needed = spending.scale(shortest_probe(setup, costs.of(values)), MIN_PROBES)
    return spending.fits(needed, room(setup, search, spent))


def too_expensive(setup: SearchSetup, stage: Stage, costs: StepCosts, proposal: Proposal) -> Refusal:
    """Refuse a proposal for which there is no room."""
    values, origin, _ = proposal
    shortest, most = shortest_probe(setup, costs.of(values)), most_amounts(setup, stage)
    over = _over(shortest, most)
    if not over:
        reason = "what is left of the search's share is too little"
        return Refusal(values=values, origin=origin, kind="no_room", reason=reason)
    return Refusal(
        values=values, origin=origin, kind="too_slow", reason=_words(setup.config.min_probe_steps, over, shortest, most)
    )


def too_slow(setup: SearchSetup, stage: Stage, candidate: Candidate, reading: Reading) -> Refusal:
    """Refuse a candidate whose first steps showed that a probe of it costs too much."""
    least = candidate.allowance.min_steps
    shortest = shortest_probe(setup, spending.measured_step_cost(setup.budget, reading), least)
    most = most_amounts(setup, stage)
    reason = _words(least, _over(shortest, most), shortest, most)
    return Refusal(values=candidate.values, origin=candidate.origin, kind="too_slow", reason=reason)


def _over(shortest: Amounts, most: Amounts) -> str:
    """Return the unit in which a probe costs too much, or an empty string."""
    return next((unit for unit, quantity in shortest.items() if quantity > most[unit]), "")


def _words(steps: int, unit: str, shortest: Amounts, most: Amounts) -> str:
    return f"{steps} steps take {shortest[unit]:.3g} {unit}, a probe may take {most[unit]:.3g}"
