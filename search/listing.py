"""Which exchanges compete after the link has changed: the short list of the job's, by what they cost there now."""

from dataclasses import replace

from search.link import Link, short_list
from search.reading import Ending
from search.space import OptionAxis
from search.stage import Problem, Stage


def changed_link(problem: Problem, stage: Stage, ending: Ending, known: Link | None) -> Link | None:
    """Return the link after the commit of `stage`: what its steps came to take more, or less, is put down to it.

    `known` is the link before. Where it is the machine that has changed, probes will show it.
    """
    assert stage.decision is not None
    sent = {each.option: each.bytes for each in problem.space.exchanges}.get(stage.decision.values.option or "", 0.0)
    now, before = ending.signs.step_seconds, ending.signs.reference_seconds
    if known is None or "step_time" not in ending.events or not sent or now is None or before is None:
        return known
    per_byte = max(0.0, known.seconds_per_byte + (now - before) / sent)
    return known.model_copy(update={"seconds_per_byte": per_byte})


def listed(problem: Problem, stage: Stage) -> Problem:
    """Return `problem` with the exchanges that compete from `stage` on, which is about to open.

    They change after steps came to take another time. What was tried lately stays among them.
    """
    found = _short_list(problem, stage)
    if found is None:
        return problem
    tried = {score.values.option for scores in stage.history for score in scores}
    wanted = {*found[0], stage.incumbent.option, *tried}
    dense_first = sorted(problem.space.exchanges, key=lambda each: -each.bytes)
    options = tuple(each.option for each in dense_first if each.option in wanted)
    competing = [OptionAxis(options=options)] if len(options) > 1 else []
    axes = (*problem.space.ranges, *competing)
    return replace(problem, space=problem.space.model_copy(update={"axes": axes}))


def promising(problem: Problem, stage: Stage) -> str | None:
    """Return the exchange that a run would open with on the link as it has become; None: it has not changed."""
    found = _short_list(problem, stage)
    return None if found is None else found[1]


def _short_list(problem: Problem, stage: Stage) -> tuple[tuple[str, ...], str] | None:
    link, exchanges = stage.link, problem.space.exchanges
    if link is None or not exchanges or "step_time" not in stage.events:
        return None
    costs = [each.model_copy(update={"cost": link.step_s(each.bytes) - each.spared}) for each in exchanges]
    return short_list(costs, link.compute_s)
