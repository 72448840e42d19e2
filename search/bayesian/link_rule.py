"""Choose the level that suits the budget: before the first step, and later on the link as measured."""

from search.bayesian import reasons
from search.bayesian.decision import Choice
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.budget import link, spending
from search.budget.link import DEAD_BAND, NUM_DENSITIES, Link, StepCost, best_density
from search.config import Budget
from search.curves.curve_summary import Ending
from search.space import SearchSpace


def with_best_density(space: SearchSpace, budget: Budget) -> SearchSpace:
    """Return `space` with the density to open with, if the budget caps bytes but not seconds."""
    best = _best_density(space, budget, Link(compute_s=0, seconds_per_byte=0))
    if best is None or space.guess.level is not None or budget.seconds is not None:
        return space
    return space.model_copy(update={"guess": space.guess.model_copy(update={"level": best})})


def measured_link(setup: SearchSetup, stage: Stage, batch_size: int | None) -> Link | None:
    """Return the link as measured by `stage`'s probes, or as known before if they do not show it.

    Steps show nothing if they differ by less than they scatter. Only probes of this `batch_size` count: others compute
    for longer or shorter, whatever the link. Probes that were too slow to finish count, those of single workers do not.
    A budget without seconds reads no clock, and knows no link.
    """
    if setup.budget.seconds is None:
        return None
    sending = {each.id for each in stage.candidates if not each.alone and each.values.batch_size == batch_size}
    steps = [
        StepCost(bytes=reading.bytes_sent / reading.num_steps, seconds=reading.step_seconds)
        for reading in stage.readings.values()
        if reading.num_steps and reading.step_seconds and reading.candidate_id in sending
    ]
    known = stage.line.link if batch_size == stage.incumbent.batch_size else None
    return known if known and link.is_hidden(known, steps) else link.fit(steps) or known


def changed_link(setup: SearchSetup, stage: Stage, ending: Ending, known: Link | None) -> Link | None:
    """Return the link after the commit of `stage`: a change in the waits of its steps counts as the link's.

    `known` is the link before. If waits are not measured, the machine may have changed instead: probes will show it.
    """
    assert stage.decision is not None
    used = stage.decision.values
    by_level = None if used.level is None else setup.space.bytes_at(used.level)
    sent = {each.option: each.bytes for each in setup.space.exchanges}.get(used.option or "", by_level)
    now, before = ending.signs.step, ending.signs.reference
    if known is None or "step_time" not in ending.events or not sent or now is None or before is None:
        return known
    per_byte = max(0.0, known.seconds_per_byte + now.longer_than(before) / sent)
    return known.model_copy(update={"seconds_per_byte": per_byte})


def follow_link(setup: SearchSetup, stage: Stage, choice: Choice) -> Choice:
    """Return `choice` at the level that the link suggests. If every stage searches, the search chooses the level."""
    measured, current = measured_link(setup, stage, choice.values.batch_size), choice.values.level
    if setup.config.revisit == "stages" or measured is None or current is None:
        return choice
    level = suggested_level(setup, measured, current)
    if level == current:
        return choice
    dense_s = (setup.space.dense_bytes or 0) * measured.seconds_per_byte
    reason = (
        f"{choice.reason}; the link asks for {reasons.level(setup, level)}, which is used: "
        f"a step computes for {1e3 * measured.compute_s:.3g} ms, a dense exchange takes {1e3 * dense_s:.3g} ms"
    )
    return choice._replace(values=choice.values.model_copy(update={"level": level}), reason=reason)


def suggested_level(setup: SearchSetup, link: Link, current: float) -> float:
    """Return the level that `link` suggests, or `current` if it is near, or the level is not searched."""
    best = _best_density(setup.space, setup.budget, link)
    if best is None or max(best, current) <= DEAD_BAND * min(best, current):
        return current
    return best


def _best_density(space: SearchSpace, budget: Budget, link: Link) -> float | None:
    """Return the density at which `budget` teaches the most; None: none is searched, or the bytes are not known."""
    axis = space.axis("level")
    if axis is None or space.dense_bytes is None:
        return None

    def cost(density: float) -> StepCost:
        sent = space.bytes_at(density) or 0.0
        return StepCost(bytes=sent, seconds=link.step_s(sent))

    return best_density(spending.caps(budget), axis.grid(NUM_DENSITIES), cost)
