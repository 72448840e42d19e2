"""Tuners that somebody would take instead, each charged for every optimizer step that it tries.

A study may spend N steps in all. It ends with the model of its best trial by validation loss, which is what its user
gets. That very loss is reported, so the choice among trials flatters a study a little. Only steps are charged: a study
evaluates as often as it likes. All of them know only the guess, search within two decades of it, and try the guess
itself first.

- **Optuna**: TPE with the Hyperband pruner (eta 3, three brackets). A trial has N / 3 steps and decays linearly to 0
  over them: of N / 2, N / 3 and N / 4 this had the lowest median, on seven tasks of 300 steps.
  TPE starts after 3 random trials, since no bracket sees more than a dozen.
- **ASHA** (Li et al., 2020): Optuna's SuccessiveHalvingPruner, which is their asynchronous algorithm, with random
  search, eta 4 and three rungs, as in the paper. Trials are those of Optuna.
- **PBT** (Jaderberg et al., 2017): four members of N / 4 steps each, in turn. Nine times, the worst member takes the
  weights, the optimizer's state and the rate of the best (truncation), and multiplies the rate by 0.8 or 1.2. Its rates
  have no other schedule: perturbing is the schedule.
- **PB2** (Parker-Holder et al., 2020): the same, but the copy's rate is chosen by Ray Tune's own bandit: a Gaussian
  process of what the loss fell by in each interval, over time and the logarithm of the rate.
- **GreedyLR** (Subramanian et al., 2025): one run of N steps. The rate is divided by 0.95 after 11 steps in a row at
  which the mean of the last 50 training losses reached a new low, and multiplied by it after 11 without. Factor,
  patience, window and threshold are the defaults of Hugging Face's `GreedyLR`. The mean is optional there, and meant
  for noisy losses as these of single batches. Its bounds, 1e-3 and 1, do not suit these tasks, and its restart
  after 500 decreases at the lower bound lies beyond these runs.

A diverged trial counts as an infinite loss.
"""

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from ray.tune.schedulers.pb2 import _select_config as select

from suite.training import EVERY, Evaluated, Export

#: Rates are searched from the guess divided by this, to the guess times this.
RANGE = 100.0
#: Trials of full length that the budget of a study pays for, and members of PBT and PB2.
NUM_WHOLE, POPULATION = 3, 4
#: Parts of a member's run in PBT and PB2; it exploits between them.
NUM_INTERVALS = 10
PERTURBATIONS = (0.8, 1.2)


class Model(Protocol):
    """A model in training, which can be put back to where it was."""

    def train(self, rates: Sequence[float]) -> list[float]:
        """Take a step with each of `rates`; returns the losses, up to the first that is not finite."""

    def evaluate(self) -> float: ...

    def evaluated(self) -> Evaluated: ...

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any) -> None: ...


@dataclass
class Study:
    """A budget of steps, what is left of it, and the best model so far. Mutable."""

    model: Model
    num_steps: int
    spent: int = 0
    num_trials: int = 0
    loss: float = math.inf
    rate: float | None = None
    export: Export = field(default_factory=Export)  # of a study of one run
    _best: Any = None

    @property
    def left(self) -> int:
        return self.num_steps - self.spent

    def train(self, rates: Sequence[float]) -> list[float]:
        """Take a step with each of `rates`, no more than are left, and charge them."""
        losses = self.model.train(rates[: self.left])
        self.spent += len(losses)
        return losses

    def evaluate(self) -> float:
        """Return the validation loss, infinite where the model diverged."""
        loss = self.model.evaluate()
        return loss if math.isfinite(loss) else math.inf

    def end_trial(self, loss: float, rate: float) -> None:
        """Keep the model as it is now, if no earlier trial ended lower."""
        self.num_trials += 1
        if loss < self.loss:
            self.loss, self.rate, self._best = loss, rate, self.model.snapshot()

    def finish(self) -> None:
        """Put the model back to the end of the best trial; where all diverged it stays as it is."""
        if self._best is not None:
            self.model.restore(self._best)


# -- trials that are pruned --------------------------------------------------------------------------------


def hyperband(study: Study, guess: float, seed: int) -> None:
    eta, longest = 3, study.num_steps // NUM_WHOLE
    rungs = _rungs(longest, eta)
    pruner = HyperbandPruner(min_resource=rungs[0], max_resource=longest, reduction_factor=eta)
    _prune(study, guess, TPESampler(seed=seed, n_startup_trials=3), pruner, rungs)


def asha(study: Study, guess: float, seed: int) -> None:
    eta = 4
    rungs = _rungs(study.num_steps // NUM_WHOLE, eta)
    pruner = SuccessiveHalvingPruner(min_resource=rungs[0], reduction_factor=eta)
    _prune(study, guess, RandomSampler(seed=seed), pruner, rungs)


def _rungs(longest: int, eta: int) -> list[int]:
    """Return the steps at which a trial is judged: at its end, and at about that by `eta` and by its square."""
    shortest = max(1, longest // eta**2)
    return sorted({shortest, min(shortest * eta, longest), longest})


def _prune(study: Study, guess: float, sampler: BaseSampler, pruner: BasePruner, rungs: Sequence[int]) -> None:
    """Train trials from the study's start until its budget is spent."""
    # Hyperband draws a trial's bracket from the study's name.
    trials = optuna.create_study(study_name="rates", sampler=sampler, pruner=pruner)
    trials.enqueue_trial({"rate": guess})
    start = study.model.snapshot()
    while study.left:
        trial = trials.ask()
        rate = trial.suggest_float("rate", guess / RANGE, guess * RANGE, log=True)
        study.model.restore(start)
        loss, num_steps = _trial(study, trial, rate, rungs)
        study.end_trial(loss, rate)
        is_whole = num_steps == rungs[-1]
        trials.tell(trial, loss if is_whole else None, TrialState.COMPLETE if is_whole else TrialState.PRUNED)


def _trial(study: Study, trial: optuna.Trial, rate: float, rungs: Sequence[int]) -> tuple[float, int]:
    """Return the validation loss where the trial ended, and the steps that it took."""
    rates = [rate * (1 - step / rungs[-1]) for step in range(rungs[-1])]
    end = 0
    for rung in rungs:
        end += len(study.train(rates[end:rung]))
        loss = study.evaluate()
        trial.report(loss, end)
        if end < rung or loss == math.inf or not study.left or trial.should_prune():
            break
    return loss, end


# -- a population ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A model of the population and its rate."""

    state: Any
    rate: float
    loss: float = math.inf


class Interval(NamedTuple):
    """A member's steps from one exploit to the next: where in its run they end, and the losses around them."""

    end: int
    num_steps: int
    rate: float
    before: float
    after: float


#: Gives the rate of a copy of the best member, by what all did before and by the rates of other copies of this round.
Explore = Callable[[Member, Sequence[Interval], Sequence[float]], float]


def pbt(study: Study, guess: float, seed: int) -> None:
    random = np.random.default_rng(seed)

    def perturbed(best: Member, history: Sequence[Interval], taken: Sequence[float]) -> float:
        return best.rate * float(random.choice(PERTURBATIONS))

    _evolve(study, _drawn(guess, random), perturbed)


def pb2(study: Study, guess: float, seed: int) -> None:
    np.random.seed(seed)  # Ray searches from points that it draws from there

    def selected(best: Member, history: Sequence[Interval], taken: Sequence[float]) -> float:
        return bandit_rate(best, history, taken, low=guess / RANGE, high=guess * RANGE)

    _evolve(study, _drawn(guess, np.random.default_rng(seed)), selected)


def _drawn(guess: float, random: np.random.Generator) -> list[float]:
    return [guess, *map(float, guess * RANGE ** random.uniform(-1, 1, POPULATION - 1))]


def _evolve(study: Study, rates: Sequence[float], explore: Explore) -> None:
    """Train a member at each of `rates`; between intervals the worst go on from the best, at rates to explore."""
    start, loss = study.model.snapshot(), study.evaluate()
    members, history = [Member(start, rate, loss) for rate in rates], list[Interval]()
    length = study.num_steps // POPULATION
    ends = sorted({round(length * part / NUM_INTERVALS) for part in range(NUM_INTERVALS + 1)})
    for begin, end in itertools.pairwise(ends):
        if begin:
            members = exploited(members, history, explore)
        after = [_advanced(study, member, end - begin) for member in members]
        history += [
            Interval(end, end - begin, old.rate, old.loss, new.loss) for old, new in zip(members, after, strict=True)
        ]
        members = after
    for member in members:
        study.model.restore(member.state)
        study.end_trial(member.loss, member.rate)


def _advanced(study: Study, member: Member, num_steps: int) -> Member:
    study.model.restore(member.state)
    study.train([member.rate] * num_steps)
    return replace(member, loss=study.evaluate(), state=study.model.snapshot())


def exploited(members: Sequence[Member], history: Sequence[Interval], explore: Explore) -> list[Member]:
    """Return the population with the worst quarter, and all that diverged, replaced by copies of the best."""
    ranked = sorted(range(len(members)), key=lambda index: members[index].loss)
    best = members[ranked[0]]
    worst = set(ranked[-len(members) // 4 :]) | {index for index in ranked if members[index].loss == math.inf}
    after, taken = list(members), list[float]()
    for index in sorted(worst):
        taken.append(explore(best, history, taken))
        after[index] = replace(best, rate=taken[-1])
    return after


def bandit_rate(best: Member, history: Sequence[Interval], taken: Sequence[float], *, low: float, high: float) -> float:
    """Return the rate with the highest upper bound on what the best member's next interval gains.

    The bound is that of Ray Tune's PB2, over the logarithm of the rate. Intervals that diverged tell it nothing. Where
    it cannot be fitted the rate stays.
    """
    sound = [each for each in history if math.isfinite(each.after) and math.isfinite(each.before)]
    own = [each for each in sound if (each.rate, each.after) == (best.rate, best.loss)]
    if not own:
        return best.rate
    known = np.array([(each.end, -each.before, math.log10(each.rate)) for each in sound])
    gained = np.array([(each.before - each.after) / each.num_steps for each in sound])
    now = np.array([own[-1].end, -own[-1].before])
    others = np.log10(np.array(taken))[:, None] if taken else None
    bounds = {"rate": (math.log10(low), math.log10(high))}
    with warnings.catch_warnings(action="ignore"):  # a length scale may lie at an end of its range
        try:
            (power,) = select(known, gained, others, now, bounds, num_f=len(now))
        except (np.linalg.LinAlgError, ValueError):
            return best.rate
    return float(10**power)


# -- a rate that follows the loss --------------------------------------------------------------------------


@dataclass
class GreedyRate:
    """GreedyLR's rate, from one step to the next. Mutable."""

    rate: float
    low: float
    high: float
    factor: float = 0.95
    patience: int = 10
    threshold: float = 1e-6
    best: float = math.inf
    num_good: int = 0
    num_bad: int = 0
    window: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def update(self, loss: float) -> None:
        """Set the rate of the next step, after one with this training loss."""
        self.window.append(loss)
        mean = math.fsum(self.window) / len(self.window)
        if mean < self.best - self.threshold:
            self.best, self.num_good, self.num_bad = mean, self.num_good + 1, 0
        else:
            self.num_good, self.num_bad = 0, self.num_bad + 1
        if self.num_good > self.patience:
            self.rate, self.num_good = min(self.rate / self.factor, self.high), 0
        elif self.num_bad > self.patience:
            self.rate, self.num_bad = max(self.rate * self.factor, self.low), 0


def greedy(study: Study, guess: float, seed: int) -> None:
    greedy_rate = GreedyRate(guess, low=guess / RANGE, high=guess * RANGE)
    while study.left:
        (loss,) = study.train([greedy_rate.rate])
        if not math.isfinite(loss):
            break
        greedy_rate.update(loss)
        if study.spent % EVERY == 0:
            study.export.look(study.model.evaluated(), study.spent / study.num_steps)
    study.end_trial(study.evaluate(), greedy_rate.rate)


#: Runs a study whose guess and seed are given.
Tuner = Callable[[Study, float, int], None]
TUNERS: dict[str, Tuner] = {"Optuna": hyperband, "ASHA": asha, "PBT": pbt, "PB2": pb2, "GreedyLR": greedy}


def tune(name: str, model: Model, num_steps: int, guess: float, seed: int) -> Study:
    """Run the tuner of that name on a fresh model, and leave its best model there.

    Raises ValueError if the budget does not pay for a step of each of its trials.
    """
    if num_steps < POPULATION:
        raise ValueError(f"`num_steps` must be at least {POPULATION}, one for each member of PBT, got {num_steps}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = Study(model, num_steps)
    TUNERS[name](study, guess, seed)
    study.finish()
    return study
