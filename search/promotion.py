"""Which probe's steps a commit may begin with: those of a later stage's winner. The wide search is always rewound."""

from search.decision import choose
from search.evidence import scores
from search.reading import Reading
from search.stage import Probe, Problem, Stage
from search.types import Spent, Values


def winner(problem: Problem, stage: Stage, chosen: Values) -> Probe | None:
    """Return the probe that trained the `chosen` values to its end, if its steps may stay."""
    if not stage.has_incumbent or not problem.config.promote:
        return None
    judged = zip(stage.probes, scores(stage), strict=True)
    whole = (probe for probe, score in judged if score.reward is not None and not probe.reading.is_cut)
    return next((probe for probe in whole if probe.candidate.values == chosen), None)


def leading(problem: Problem, stage: Stage) -> str | None:
    """Return the id of the probe that would be promoted if the stage were decided now."""
    if not stage.has_incumbent or not stage.probes:
        return None
    probe = winner(problem, stage, choose(problem, stage).values)
    return probe.candidate.id if probe else None


def cost(reading: Reading | None) -> Spent:
    """Return what the steps of a promoted probe took; None: nothing was promoted."""
    if reading is None:
        return Spent()
    seconds = reading.num_steps * (reading.step_seconds or 0.0)
    return Spent(steps=reading.num_steps, bytes=reading.bytes_sent, seconds=seconds)
