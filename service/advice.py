"""What of a legal job is unwise, in sentences for whoever submits it. Nothing here refuses."""

import math
from collections.abc import Iterator

from search.config import BoConfig
from service.spec import JobSpec, TrialSpec
from trainers.config import ThresholdConfig


def advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each unwise choice, with what to give instead; most jobs get none."""
    arms = spec.model_copy(update={"seeds": spec.seeds[:1]}).trials()
    return (*_on_the_job(spec), *(f"arm `{trial.arm}`: {sentence}" for trial in arms for sentence in _on_an_arm(trial)))


def _on_the_job(spec: JobSpec) -> Iterator[str]:
    every, steps = spec.objective.every, spec.budget.steps
    if steps is not None and every > steps:
        yield (
            f"`objective.every` is {every} and `budget.steps` {steps}, so a trial is evaluated at its start and end "
            f"alone: give `every` {max(1, steps // 10)} for a curve"
        )


def _on_an_arm(trial: TrialSpec) -> Iterator[str]:
    exchange, controller = trial.replica.exchange, trial.controller
    if isinstance(controller, BoConfig):
        yield from _on_a_search(trial, controller)
    if isinstance(exchange, ThresholdConfig) and trial.workers.count == 1:
        yield "one worker exchanges nothing: compression costs time and saves no bytes; give `exchange: {kind: none}`"


def _on_a_search(trial: TrialSpec, config: BoConfig) -> Iterator[str]:
    exchange, budget = trial.replica.exchange, trial.budget
    probing = config.wide_probes * config.min_probe_steps
    fraction = config.max_search_fraction
    enough = math.ceil(probing / fraction)
    if budget.steps is not None and budget.steps < enough:
        yield (
            f"{config.wide_probes} probes of {config.min_probe_steps} steps take {probing}, and `max_search_fraction` "
            f"{fraction:g} of `budget.steps` {budget.steps} is {math.floor(fraction * budget.steps)}: "
            f"give {enough} steps, a higher fraction, or `controller: {{kind: off}}` to keep the guess"
        )
    if isinstance(exchange, ThresholdConfig) and isinstance(exchange.level, tuple) and budget.seconds is None:
        unit, ignored = ("steps", "what a step sends") if budget.bytes is None else ("bytes", "how fast the link is")
        name = exchange.level_name
        yield (
            f"a budget in {unit} does not count {ignored}, so it says little of the {name}: give `budget.seconds`, "
            f"or one {name}"
        )
