"""A strategy drives a line by the loop of a job: probes from one state, commits that stay, all on the budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from search import strategies
from search.config import BoConfig, Budget, ControllerConfig
from search.curves.curve_summary import end_loss
from search.curves.overfitting import Validation
from search.loop.orders import Loop, Order, Taken, Task, Told
from search.optimizer_traits import usual_rate_told_by
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Candidate, Decision, Forecast, Values
from suite.training import EVERY, Export, Line
from trainers.training.landscape import NUM_BATCHES

#: Gradients that tell how sharp a model is count as so many steps.
GRADIENTS_OF_LANDSCAPE = 2 * NUM_BATCHES
BO = BoConfig()


@dataclass
class Run:
    """The course of a run. Mutable while it goes on."""

    searched: int = 0
    taken_back: int = 0
    export: Export = field(default_factory=Export)
    exported: float = math.inf
    flattered: float = math.inf
    validation: Validation = field(default_factory=Validation)
    decisions: list[Decision] = field(default_factory=list)
    outcomes: list[tuple[Forecast, float]] = field(default_factory=list)  # of commits, and the losses they ended with

    def note(self, told: Sequence[Told]) -> None:
        """Count what was searched and taken back, but for the steps that a commit began with, and note the outcomes."""
        lengths, kept = dict[str, int](), 0  # of probes by id, and of commits since the run's first step
        for what, seen in told:
            num_steps = (0 if seen.trace is None else seen.trace.num_steps) + seen.diverged
            if isinstance(what, Candidate):
                lengths[what.id] = num_steps
                continue
            self.taken_back += (num_steps + kept * seen.started_over) * seen.rolled_back
            kept = 0 if seen.started_over else kept + num_steps * (not seen.rolled_back)
            if what.promoted is not None:
                del lengths[what.promoted]
            if what.forecast is not None and (loss := end_loss(seen)) is not None:
                self.outcomes.append((what.forecast, loss))
        self.searched = sum(lengths.values())


def searched(
    line: Line, guess: float, num_steps: int, seed: int, *, controller: ControllerConfig = BO, told: bool = True
) -> Run:
    """Train `line` from `guess` as a job does, by `bo` with its defaults unless another `controller` is given.

    Gradients that tell how sharp the model is are charged as steps that search. If not `told`, probes alone tell the
    rate.
    """
    space = space_of(line, controller, guess, told=told)
    left = num_steps - (0 if space.sharpness is None else GRADIENTS_OF_LANDSCAPE)
    run = train(line, strategies.build(controller, space=space, seed=seed, budget=Budget(steps=left)), left)
    run.searched += num_steps - left
    return run


def space_of(line: Line, controller: ControllerConfig, guess: float, *, told: bool = True) -> SearchSpace:
    """Return the space of a job that trains `line`: its rate, with what the model tells of it if `told`."""
    is_trusted = isinstance(controller, BoConfig) and controller.trusts_usual(line.kind)
    is_measured = told and is_trusted and usual_rate_told_by(line.kind) == "sharpness"
    return SearchSpace(
        optimizer=line.kind,
        batch_size=line.workload.batch_size,
        guess=Values(learning_rate=guess),
        weights=line.weights if told else None,
        starts_over=True,
        **(line.landscape() if is_measured else {}),
    )


def train(line: Line, strategy: Strategy, num_steps: int) -> Run:
    """Train `line` for `num_steps` steps, of probes and commits together, as `strategy` says.

    As a job does, it exports the best evaluated checkpoint where that is better than the end.
    """
    loop = Loop(strategy, Budget(steps=num_steps), clock=lambda: 0.0, holds=True)
    run, states = Run(decisions=loop.decisions), dict[str, Any](first=line.snapshot())
    run.export.look(line.evaluated(), 0.0)

    def carry_out(order: Order) -> Taken | None:
        rates = [values.learning_rate for values in order.steps]
        match order.task:
            case Task.SNAPSHOT:
                states["start"], states["validation"] = line.snapshot(), run.validation
            case Task.RESTORE:
                line.restore(states["start"])
                run.validation = states["validation"]
            case Task.START_OVER:
                line.restore(states["first"])
                run.validation, loop.overfits = run.validation.anew(), False
            case Task.HOLD:
                states["held"] = line.snapshot()
            case Task.KEEP:
                line.restore(states["held"])
            case Task.PROBE:
                return Taken(line.train(rates))
            case Task.COMMIT:
                taken = _commit(line, rates, run, spent=loop.spent().steps, num_steps=num_steps)
                loop.overfits = run.validation.overfits
                return taken
        return None

    loop.run(carry_out)
    run.note(loop.told)
    end = line.evaluated()
    run.exported, run.flattered = run.export.loss(end), run.export.flattered(end)
    return run


def _commit(line: Line, rates: Sequence[float], run: Run, *, spent: int, num_steps: int) -> Taken:
    """Train with `rates`, and look at the state at each evaluation of a job that has `spent` so many of `num_steps`."""
    losses, scales, alignments = list[float](), list[float](), list[float]()
    while len(losses) < len(rates) and all(map(math.isfinite, losses[-1:])):
        until = len(losses) + EVERY - line.step % EVERY
        losses += line.train(rates[len(losses) : until], scales=scales, alignments=alignments)
        if line.step % EVERY == 0 and math.isfinite(losses[-1]):
            found = run.export.look(line.evaluated(), (spent + len(losses)) / num_steps)
            run.validation = run.validation.after(found, line.recent, line.step)
    return Taken(losses, [0.01] * len(losses), scales, alignments)
