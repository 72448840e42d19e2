"""The level of a decision: what the link suggests, as this stage's probes and those before have measured it."""

from search import link
from search.decision import Choice
from search.link import Link, StepCost
from search.stage import Problem, Stage
from search.types import Values


def measured_link(problem: Problem, stage: Stage) -> Link | None:
    """Return the link by `stage`'s probes where they tell it, else as it was known before.

    Those with another batch size than the incumbent compute for longer, or shorter, whatever the link. A budget
    without seconds reads no clock, and knows no link.
    """
    if problem.budget.seconds is None:
        return None
    batch_size = stage.incumbent.batch_size  # another one computes for another time
    alike = (probe.reading for probe in stage.probes if probe.candidate.values.batch_size == batch_size)
    steps = [
        StepCost(bytes=reading.bytes_sent / reading.num_steps, seconds=reading.step_seconds)
        for reading in alike
        if reading.num_steps and reading.step_seconds
    ]
    return link.fit(steps) or stage.link


def follow_link(problem: Problem, stage: Stage, choice: Choice) -> Choice:
    """Return `choice` at the level that the link suggests; where every stage searches, the search chooses it."""
    measured, current = measured_link(problem, stage), choice.values.level
    if problem.config.revisit == "stages" or measured is None or current is None:
        return choice
    level = link.level(measured, problem.space, current)
    if level is None or level == current:
        return choice
    values = choice.values.model_copy(update={"level": level})
    return choice._replace(values=values, reason=f"{choice.reason}; {_words(problem, measured, values, current)}")


def _words(problem: Problem, measured: Link, values: Values, current: float) -> str:
    dense_s = (problem.space.dense_bytes or 0) * measured.seconds_per_byte
    return (
        f"the link asks for {problem.space.level_name} {values.level:.3g}: "
        f"a step computes for {1e3 * measured.compute_s:.3g} ms, a dense exchange takes {1e3 * dense_s:.3g} ms"
    )
