"""Choose the optimizer of a run whose job names several, before the first step. Workers then keep only this one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from search.budget import spending
from search.budget.link import StepCost
from search.budget.optimizer_choice import best_optimizer, why_best
from search.config import ScheduleConfig
from search.types import Values
from service.cluster.exchange_probing import predicted
from service.cluster.first_steps import step_cost, warm_up
from service.cluster.opening import stated_space
from service.job.parts import TrialSpec
from trainers.methods.optimizer.spec import contenders
from trainers.segment import SegmentResult
from trainers.training.group import Group


class Chosen(NamedTuple):
    """The run with its chosen optimizer, the reason, and the steps that timed the options."""

    spec: TrialSpec
    why: str = ""  # empty if the job names only one
    tried: Sequence[SegmentResult] = ()


def choose_optimizer(spec: TrialSpec, groups: Sequence[Group]) -> Chosen:
    """Choose the best of the job's optimizers for `groups`, which are in the state before the first step.

    The best is the one by which the budget is expected to teach the most. Under a budget in seconds, each is timed for
    some steps. A schedule names the optimizer by which it was learned.
    """
    options = contenders(spec.replica.optimizer)
    if len(options) == 1:
        return Chosen(spec)
    if isinstance(spec.controller, ScheduleConfig):
        kind = spec.controller.schedule.optimizer
        return Chosen(built_with(spec, groups, kind), f"the schedule was learned by {kind}")
    kinds = [each.kind for each in options]
    tried = _timed(spec, groups[0], kinds) if spec.budget.seconds is not None else []
    timed = _fastest_steps(tried)
    # Untimed optimizers count as equally costly. One that diverged at once is left out, unless all did.
    steps = timed or dict.fromkeys(kinds, StepCost(bytes=1.0, seconds=1.0))
    best = best_optimizer(spending.caps(spec.budget), steps)
    lost = [f"{kind} diverged at once" for kind in kinds if tried and kind not in timed]
    why = "; ".join([why_best(best, steps, timed=timed), *lost])
    return Chosen(built_with(spec, groups, best), why, [result for _, result in tried])


def built_with(spec: TrialSpec, groups: Sequence[Group], kind: str) -> TrialSpec:
    """Return `spec` with only the optimizer of this kind, and rebuild all workers of `groups` with it."""
    own = _of_kind(spec, kind)
    for group in groups:
        _build(group, own)
    return own


def _build(group: Group, spec: TrialSpec) -> None:
    """Rebuild the workers of `group` with the optimizer of `spec`, unless they have it: they start with the first."""
    if contenders(group.config.optimizer)[0] != spec.replica.optimizer:
        group.rebuild(spec.replica)


def _of_kind(spec: TrialSpec, kind: str) -> TrialSpec:
    """Return `spec` with only the optimizer of this kind. The menu of competing exchanges does not change."""
    replica = spec.replica
    [optimizer] = (each for each in contenders(replica.optimizer) if each.kind == kind)
    changes: dict[str, Any] = {"optimizer": optimizer}
    if replica.menu:
        options = tuple(option.name for option in replica.menu)
        changes["exchange"] = replica.exchange.model_copy(update={"options": options})
    return spec.model_copy(update={"replica": replica.model_copy(update=changes)})


def _timed(spec: TrialSpec, group: Group, kinds: Sequence[str]) -> list[tuple[str, SegmentResult]]:
    """Time some steps with each of `kinds`, in order and in reverse, since other load on the machine varies.

    They use the exchange that sends least, so that the link, which is the same for all, does not hide compute time.
    """
    tried = []
    for kind in (*kinds, *reversed(kinds)):
        own = _of_kind(spec, kind)
        _build(group, own)
        tried.append((kind, warm_up(group, _sending_least(own, group))))
    return tried


def _sending_least(spec: TrialSpec, group: Group) -> Values:
    """Return the opening values at the level, or with the competing exchange, that sends least."""
    traffic, values = predicted(spec, group), stated_space(spec).sparsest
    least = min(traffic, key=lambda option: traffic[option].bytes, default=None)
    return values if least is None else values.model_copy(update={"option": least.name})


def _fastest_steps(tried: Sequence[tuple[str, SegmentResult]]) -> dict[str, StepCost]:
    """Return the cost of each optimizer's fastest step."""
    found: dict[str, StepCost] = {}
    for kind, result in tried:
        step = step_cost(result)
        if step is not None and (kind not in found or step.seconds < found[kind].seconds):
            found[kind] = step
    return found
