"""Advice on a valid job, as sentences for the person who submits it. Nothing here refuses a job."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from search.config import (
    AutoLrsConfig,
    Budget,
    CosineConfig,
    LinearConfig,
    OffConfig,
    PolynomialConfig,
    StagedConfig,
    WideConfig,
    first_finalists,
    num_coarse,
)
from search.optimizer_traits import OPTIMIZER_TRAITS, usual_rate_told_by
from search.sweep.spec import num_combinations
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import OptimizerConfig, contenders
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.accordion_batch.spec import AccordionBatchConfig
from trainers.methods.sync.diloco.spec import OuterConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.spec.levels import AccordionConfig
from trainers.spec.partition import IidPartition
from trainers.spec.ranges import Config, Onset
from trainers.spec.workloads import OwnWorkload

#: A shorter probe does not show where its loss leads.
MIN_PROBE_STEPS = StagedConfig.model_fields["min_probe_steps"].default

#: On i.i.d. data, jobs with an outer momentum this high and fewer averages ended worse than without outer momentum.
HIGH_OUTER_MOMENTUM, MIN_AVERAGES = 0.9, 100

#: Up to this share of dropped entries, nothing is saved: each kept entry takes 4 bytes and 2 more for its index.
NOTHING_SAVED = 1 / 3

#: So many steps are taken for an upper bound where a run may end early: nobody expects to need them.
MANY_STEPS = 1_000_000

#: A method that takes effect late should do so within this share of the steps, as in the 1-bit Adam paper.
EARLY = 0.15


def advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each unwise choice, with a better one. Most jobs get none."""
    on_arms = (f"arm `{trial.arm}`: {said}" for trial in spec.arm_trials() for said in _on_an_arm(trial))
    return (*_on_the_job(spec), *on_arms)


def searching_budget(trial: TrialSpec, *, steps: int, seconds: float, bytes_sent: int) -> Budget | None:
    """Return the budget with its caps raised until a search has room, at the cost per step seen so far.

    Return None if the controller does not search in stages, the cost of a step is unknown, or there was room.
    """
    config, budget = trial.controller, trial.budget
    if not isinstance(config, StagedConfig) or not steps or _knows_rate(trial, config):
        return None
    needed = config.least_budget(_fewest_steps(trial, config))
    taken = {
        "steps": needed,
        "seconds": math.ceil(needed * seconds / steps),
        "bytes": math.ceil(needed * bytes_sent / steps),
    }
    given = {name: getattr(budget, name) for name in taken if getattr(budget, name) is not None}
    raised = {name: max(cap, taken[name]) for name, cap in given.items()}
    return None if raised == given else Budget(**raised)


def _on_the_job(spec: JobSpec) -> Iterator[str]:
    every, steps = spec.objective.every, spec.budget.steps
    if steps is not None and every > steps:
        yield (
            f"`objective.every` is {every} and `budget.steps` {steps}, so a trial is evaluated at its start and end "
            f"alone: give `every` {max(1, steps // 10)} for a curve"
        )
    workload = spec.workload
    if isinstance(workload, OwnWorkload) and workload.code is None and workload.path is None:
        module = workload.factory.partition(":")[0]
        yield (
            f"`workload` has neither `code` nor `path`: `wiretune run` takes the working folder, but the nodes of a "
            f"service import whichever `{module}` they find: give `wiretune submit --code FOLDER`, unless it is "
            "installed there"
        )
    num_samples, num_distinct = spec.num_samples, num_combinations(spec.params)
    if num_samples > num_distinct:
        yield (
            f"`params` have {num_distinct:.0f} combinations of values, so {num_samples - num_distinct:.0f} of "
            f"`sweep.samples` {num_samples} would train again what others train: give `samples: {num_distinct:.0f}`"
        )


def _on_an_arm(trial: TrialSpec) -> Iterator[str]:
    exchange, controller = trial.replica.exchange, trial.controller
    if isinstance(controller, StagedConfig):
        yield from _on_a_search(trial, controller)
        yield from _on_a_level(trial)
        yield from _on_a_period(trial)
        yield from _on_options(trial)
    if isinstance(controller, AutoLrsConfig):
        yield from _on_autolrs(trial.budget, controller)
    if fall := _fall(trial):
        yield from _on_a_decay(controller.kind, fall, trial.replica)
        yield from _on_an_upper_bound(trial)
    if isinstance(trial.replica.sync, EveryStepConfig):
        yield from _on_few_entries(trial.replica)
    yield from _on_late_effects(trial.replica, trial.budget.steps)
    if isinstance(trial.replica.activations, DropItConfig):
        yield from _on_dropping(trial.replica.activations)
    if isinstance(trial.replica.sync, OuterConfig) and isinstance(trial.replica.partition, IidPartition):
        yield from _on_an_outer_momentum(trial.budget, trial.replica.sync)
    if trial.workers.count == trial.workers.placed_together:
        one = "one worker" if trial.workers.count == 1 else "one node"
        if not isinstance(exchange, NoneConfig):
            yield f"{one} exchanges nothing: compression costs time and saves no bytes; give `exchange: {{kind: none}}`"
        if not isinstance(trial.replica.sync, EveryStepConfig | AccordionBatchConfig):
            yield f"{one} has nobody far away to train apart from; give `sync: {{kind: every_step}}`"


def _on_a_search(trial: TrialSpec, config: StagedConfig) -> Iterator[str]:
    steps = trial.budget.steps
    if steps is None or _knows_rate(trial, config):
        return
    probing, fraction = _fewest_steps(trial, config), config.search_fraction(steps)
    if fraction * steps < probing:
        yield (
            f"a search takes {probing} steps, and `max_search_fraction` {fraction:g} of `budget.steps` {steps} is "
            f"{math.floor(fraction * steps)}: give {config.least_budget(probing)} steps, a higher fraction, "
            "or `controller: {kind: off}` to keep the guess"
        )


def _knows_rate(trial: TrialSpec, config: StagedConfig) -> bool:
    """Return whether the run starts at the optimizer's usual rate without a search, so any budget is long enough."""
    if not isinstance(config, WideConfig) or trial.replica.menu or trial.searched:
        return False
    replicas = (trial.replica.model_copy(update={"optimizer": each}) for each in _may_train(trial))
    return all(config.trusts_usual(each.optimizer.kind) and _is_told_rate(each) for each in replicas)


def _may_train(trial: TrialSpec) -> Sequence[OptimizerConfig]:
    """Return the optimizers that may train the run. Under a budget in seconds, the machine's speed decides."""
    options = contenders(trial.replica.optimizer)
    if trial.budget.seconds is not None:
        return options
    return [max(options, key=lambda each: OPTIMIZER_TRAITS[each.kind].step_worth)]


def _is_told_rate(replica: ReplicaConfig) -> bool:
    told_by = usual_rate_told_by(replica.optimizer.kind)
    is_new = told_by == "weights" and replica.workload.is_new
    is_sharp = replica.steps_along_gradient and replica.clip is None  # otherwise only the model tells
    return told_by == "optimizer" or is_new or is_sharp


def _fewest_steps(trial: TrialSpec, config: StagedConfig) -> int:
    """Return the steps of the shortest useful search: two finalists, if it has finalists at all."""
    if not isinstance(config, WideConfig):
        return config.probes * config.min_probe_steps
    options = trial.replica.menu if trial.budget.counts_traffic else ()  # else the densest is used alone
    num_further = sum(each.name != "level" for each in trial.searched)
    first = first_finalists(config.wide_probes, has_ranges=bool(trial.searched), has_options=bool(options))
    finalists = first + max(0, len(options) - 1) + config.wide_probes_per_axis * num_further
    decades = (
        config.wide_decades
        if config.stated_rates is None
        else math.log10(config.stated_rates[1] / config.stated_rates[0])
    )
    rounds = math.ceil(num_coarse(decades) / trial.replica.num_alone(trial.workers.count))
    return rounds * config.coarse_probe_steps + min(2, finalists) * config.min_probe_steps


def _on_a_level(trial: TrialSpec) -> Iterator[str]:
    exchange, budget = trial.replica.exchange, trial.budget
    name = exchange.level_name
    if not isinstance(exchange.level, tuple) or budget.seconds is not None:
        return
    if budget.counts_traffic:
        yield (
            f"a budget in bytes does not count how fast the link is, so it says little of the {name}: give "
            f"`budget.seconds`, or one {name}"
        )
    else:
        yield (
            f"a budget in steps does not count what a step sends, so the {name} {exchange.densest:g} is used alone, "
            f"which leaves out least: give `budget.seconds` or `bytes`, or one {name}"
        )


def _on_few_entries(replica: ReplicaConfig) -> Iterator[str]:
    few = replica.exchange.few_entries
    if few is not None and replica.optimizer.kind == "adamw":
        yield (
            f"`adamw` learns slowly from {few:.2g} of a gradient's entries: give a higher `exchange.density`, "
            "`exchange: {kind: powersgd}`, or `optimizer: {kind: schedulefree_sgd}`"
        )


def _fall(trial: TrialSpec) -> str | None:
    """Return when the controller itself lowers the learning rate; None if it holds the rate."""
    controller = trial.controller
    decays = any(OPTIMIZER_TRAITS[each.kind].decays for each in contenders(trial.replica.optimizer))
    falls = []
    if isinstance(controller, CosineConfig | LinearConfig | PolynomialConfig):
        falls.append("in every step")
    if isinstance(controller, StagedConfig | AutoLrsConfig):
        falls.append("in some of its probes")
    if isinstance(controller, StagedConfig | OffConfig) and decays and controller.cooldown:
        falls.append(f"in each of the last {controller.cooldown:.0%} of the steps")
    return " and ".join(falls) or None


def _on_a_decay(controller: str, fall: str, replica: ReplicaConfig) -> Iterator[str]:
    exchange = replica.exchange
    levels = getattr(exchange, "levels", None)
    if isinstance(replica.sync, StlSgdConfig):
        yield (
            f"`stl_sgd` lowers the learning rate from stage to stage, and `{controller}` lowers it {fall}: "
            "give `controller: {kind: fixed}`"
        )
    if not isinstance(levels, AccordionConfig):
        return
    if levels.follow_decay:
        yield (
            f"`accordion` takes each fall of the learning rate for a critical regime, and `{controller}` lowers it "
            f"{fall}, in which all would be sent at `critical`: give `follow_decay: false`"
        )
    if isinstance(exchange.level, tuple):
        yield (
            f"`accordion` sends all at `critical` in its first {levels.interval + 1} epochs, and probes in them say "
            f"nothing of the {exchange.level_name}: give one {exchange.level_name}"
        )


def _on_an_upper_bound(trial: TrialSpec) -> Iterator[str]:
    """Check a budget that the run is not meant to use up: the controller plans by all of it."""
    steps, objective = trial.budget.steps, trial.objective
    ends = [name for name in ("patience", "target") if getattr(objective, name) is not None]
    if ends and steps is not None and steps >= MANY_STEPS:
        yield (
            f"`{trial.controller.kind}` plans by all of `budget.steps` {steps}, also if `objective.{ends[0]}` ends the "
            "run long before: give about as many as you expect to need, and `extend` the job if they were too few"
        )


def _on_late_effects(replica: ReplicaConfig, steps: int | None) -> Iterator[str]:
    parts = (replica.exchange, getattr(replica.exchange, "levels", None), replica.sync)
    onsets: list[tuple[Any, Onset | None]] = [
        (part, part.takes_effect_at()) for part in parts if isinstance(part, Config)
    ]
    for each in contenders(replica.optimizer):
        onsets.append((each, Onset(each.warmup_steps, "its learning rate is reached", ("warmup_steps",))))
    for part, onset in onsets:
        if steps is not None and onset is not None and onset.steps >= steps:
            share = EARLY * steps / onset.steps
            knobs = " and ".join(f"`{name}` {max(1, round(share * getattr(part, name)))}" for name in onset.knobs)
            yield (
                f"`{part.kind}` takes {onset.steps} steps until {onset.until}, and `budget.steps` is {steps}: "
                f"give {knobs}"
            )


def _on_dropping(config: DropItConfig) -> Iterator[str]:
    most = max(config.gamma) if isinstance(config.gamma, tuple) else config.gamma
    if 0 < most <= NOTHING_SAVED:
        yield (
            f"`dropit` with `gamma` {most:g} saves nothing: what it keeps of float32, and where that belongs, takes as "
            f"much as everything; give a `gamma` above {NOTHING_SAVED:.2f}"
        )


def _on_an_outer_momentum(budget: Budget, config: OuterConfig) -> Iterator[str]:
    """Count the averages, at the shortest period if it is searched. Only a budget in steps tells their number."""
    momentum = config.outer_momentum
    if budget.steps is None or isinstance(momentum, tuple) or momentum < HIGH_OUTER_MOMENTUM:
        return
    shortest = min(config.period) if isinstance(config.period, tuple) else config.period
    averages = budget.steps // shortest
    if averages < MIN_AVERAGES:
        yield (
            f"`budget.steps` {budget.steps} has room for {averages} averages, too few for an outer momentum of "
            f"{momentum:g} where workers see data alike, which then ends worse than plain averages: give "
            f"`outer_momentum` 0.5, or {MIN_AVERAGES * shortest} steps"
        )


def _on_a_period(trial: TrialSpec) -> Iterator[str]:
    replica, budget = trial.replica, trial.budget
    if not any(each.name == "period" for each in replica.ranges()):
        return
    if not budget.counts_traffic:
        yield "a budget in steps does not count what averages take, so it is for short periods: give `budget.seconds`"
    if not isinstance(replica.partition, IidPartition):
        yield (
            "probes are compared by training losses, and workers with data of their own lower theirs fastest while "
            "they train apart, which flatters long periods: give one `sync.period`"
        )


def _on_options(trial: TrialSpec) -> Iterator[str]:
    budget, menu = trial.budget, [option.name for option in trial.replica.menu]
    if menu and not budget.counts_traffic:
        yield (
            f"a budget in steps does not count what a step sends, so of the exchanges that compete the densest of "
            f"{', '.join(f'`{name}`' for name in menu)} is used alone: give `budget.seconds`"
        )


def _on_autolrs(budget: Budget, config: AutoLrsConfig) -> Iterator[str]:
    """Check the first stage, tau, and its search. Only a budget in steps tells their lengths in advance."""
    if budget.steps is None:
        return
    searched = config.num_probes * config.probe_fraction  # as a multiple of the stage
    lengths = sum(min(config.growth**stage, config.max_growth) for stage in range(config.num_stages))
    tau = config.first_stage or budget.steps / (lengths * (1 + searched))
    enough = MIN_PROBE_STEPS / config.probe_fraction
    if tau * searched >= budget.steps:
        yield (
            f"the first search takes {math.ceil(tau * searched)} steps and `budget.steps` is {budget.steps}, so none "
            f"opens: give {math.ceil(tau * (1 + searched))} steps, or a shorter `first_stage`"
        )
    elif tau < enough:
        remedy = f"`budget.steps` {math.ceil(enough * lengths * (1 + searched))}, fewer `num_stages`"
        yield (
            f"its first probes have {round(tau * config.probe_fraction)} steps, too few to forecast a stage of "
            f"{tau:.0f}: give {remedy if config.first_stage is None else f'`first_stage` {enough:.0f}'}, or use `bo`"
        )
