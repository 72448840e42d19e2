"""The level of a decision: what the link suggests, as this stage's probes and those before have measured it."""

from search.bayesian import reasons
from search.bayesian.decision import Choice
from search.bayesian.stage import SearchSetup, Stage
from search.budget import link
from search.budget.link import DEAD_BAND, Link, StepCost, rule
from search.space import SearchSpace


def measured_link(setup: SearchSetup, stage: Stage, batch_size: int | None) -> Link | None:
    """Return the link by `stage`'s probes where they tell it, else as it was known before.

    Steps that by what is known differ less than they scatter tell nothing.
    Steps with another batch size than `batch_size` compute for longer, or shorter, whatever the link. Probes that were
    too slow to go on tell it too, those of single workers do not. A budget without seconds reads no clock, and knows no
    link.
    """
    if setup.budget.seconds is None:
        return None
    sending = {each.id for each in stage.candidates if not each.alone and each.values.batch_size == batch_size}
    steps = [
        StepCost(bytes=reading.bytes_sent / reading.num_steps, seconds=reading.step_seconds)
        for reading in stage.readings.values()
        if reading.num_steps and reading.step_seconds and reading.candidate_id in sending
    ]
    known = stage.link if batch_size == stage.incumbent.batch_size else None
    return known if known and link.is_hidden(known, steps) else link.fit(steps) or known


def follow_link(setup: SearchSetup, stage: Stage, choice: Choice) -> Choice:
    """Return `choice` at the level that the link suggests; where every stage searches, the search chooses it."""
    measured, current = measured_link(setup, stage, choice.values.batch_size), choice.values.level
    if setup.config.revisit == "stages" or measured is None or current is None:
        return choice
    level = _suggested(measured, setup.space, current)
    if level == current:
        return choice
    dense_s = (setup.space.dense_bytes or 0) * measured.seconds_per_byte
    reason = (
        f"{choice.reason}; the link asks for {reasons.level(setup, level)}: "
        f"a step computes for {1e3 * measured.compute_s:.3g} ms, a dense exchange takes {1e3 * dense_s:.3g} ms"
    )
    return choice._replace(values=choice.values.model_copy(update={"level": level}), reason=reason)


def _suggested(link: Link, space: SearchSpace, current: float) -> float:
    """Return the level that `link` suggests, or `current` where that is near, or the level is not searched."""
    axis = space.axis("level")
    if axis is None or space.dense_bytes is None:
        return current
    suggested = rule(link.compute_s, space.dense_bytes * link.seconds_per_byte, (axis.low, axis.high))
    is_near = max(suggested, current) <= DEAD_BAND * min(suggested, current)
    return current if is_near else suggested
