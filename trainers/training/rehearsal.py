"""Train a few steps and evaluate once, in this process: whether a workload can be trained, before a job is spent on it.

`python -m trainers.training.rehearsal` reads a `RehearsalOrder` from standard input and writes a line of JSON for
whatever it begins, and for whatever came of it; what the workload itself prints goes to standard error.
"""

import inspect
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, JsonValue
from torch import Tensor

from trainers.methods.optimizer.spec import contenders
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Evaluation, Segment, SegmentResult
from trainers.spec.ranges import first
from trainers.spec.workloads import OwnWorkload, WorkloadConfig
from trainers.traffic.collectives import num_elements
from trainers.training import feed
from trainers.training.finite_objective import value_of, why_not_finite
from trainers.training.peak_memory import peak_bytes
from trainers.training.replica import Replica
from trainers.workload import Batch, Workload, WorkloadError
from trainers.workloads import own, registry

#: The first step builds what others reuse, so those after the first three tell how long a step takes.
NUM_STEPS = 3
#: Further steps are timed for so many seconds, but no more steps than this.
TIMED_S, MOST_TIMED = 1.0, 20
_Tell = Callable[[str], None]


class Rehearsed(BaseModel):
    """The result of a rehearsal. Times are of this machine, with one worker that exchanges nothing."""

    num_parameters: int
    num_trained: int
    num_training: int | None  # samples; None: a stream
    num_validation: int
    num_test: int = 0  # 0: there is no test set
    shapes: tuple[tuple[int, ...], ...] = ()  # of the trained parameters
    batch: str
    losses: tuple[float, ...]
    validation: dict[str, float]
    remarks: tuple[str, ...] = ()  # sentences about what did not go as the job says
    seconds_loading: float
    seconds_step: float  # the median
    spread_step: float  # four of five steps took so many times it, or a part of it, at most
    seconds_evaluation: float
    bytes_kept: int  # for backward
    bytes_peak: int  # of this process, so far


class Parameter(BaseModel):
    """A parameter of a factory."""

    name: str
    is_required: bool
    default: JsonValue = None
    is_json: bool = True  # whether a job can give the default
    annotation: str = ""


class RehearsalOrder(BaseModel):
    """The things to look at: arms of a job, parameters of a factory, or whether built-in workloads find their data."""

    arms: dict[str, ReplicaConfig] = {}
    lowest_rates: dict[str, float] = {}  # by arm that searches its learning rate: to train with, if the guess diverges
    metric: str | None = None  # that must be finite on the validation set; None: none must
    num_workers: int = 1
    factory: OwnWorkload | None = None
    built_in: tuple[WorkloadConfig, ...] = ()


def rehearse(
    config: ReplicaConfig,
    num_workers: int,
    tell: _Tell,
    workload: Workload | None = None,
    *,
    lowest_rate: float | None = None,
    metric: str | None = None,
) -> tuple[Workload, Rehearsed]:
    """Train `NUM_STEPS` steps alone, on data as rank 0 of `num_workers` gets them, and evaluate on each set.

    `workload` saves building it anew; it is returned. `lowest_rate` and `metric` are as in a `RehearsalOrder`. Raises
    WorkloadError for what cannot be trained.
    """
    tell("importing the workload and loading its data")
    started = time.monotonic()
    torch.set_num_threads(config.threads)
    workload = workload or registry.build(config.workload)
    _require_measured(workload, metric)
    loading = time.monotonic() - started
    tell("building the model")
    replica = Replica(config.model_copy(update={"workers_per_node": 1}), 0, 1, workload=workload)
    tell("fetching the first batch")
    place = feed.Place(0, 0, 0)
    batch = shapes(feed.build(workload, config, num_workers).batch(place, None))
    tell("training: forward and backward of the first batches")
    segment, result, remarks = _trained(replica, _segment(config), lowest_rate)
    tell("timing steps")
    seconds, spread = _timed(replica, segment, result.step_seconds[-1])
    tell("evaluating on the validation set")
    evaluation, evaluating = _evaluated(replica, metric)
    num_test = 0
    if workload.test is not None:
        tell("evaluating on the test set")
        num_test = replica.evaluate(on="test").num_samples
    parameters = list(replica.model.parameters())
    training: Any = workload.training
    return workload, Rehearsed(
        num_parameters=sum(each.numel() for each in parameters),
        num_trained=num_elements(replica.shapes),  # `requires_grad` tells of the blocks drawn last
        num_training=len(training) if isinstance(training, Sized) else None,
        num_validation=evaluation.num_samples,
        num_test=num_test,
        shapes=tuple(map(tuple, replica.shapes)),
        batch=batch,
        losses=result.losses,
        validation={"loss": evaluation.loss, **evaluation.metrics},
        remarks=remarks,
        seconds_loading=loading,
        seconds_step=seconds,
        spread_step=spread,
        seconds_evaluation=evaluating,
        bytes_kept=result.saved_bytes,
        bytes_peak=peak_bytes(torch.device("cpu")),
    )


def _require_measured(workload: Workload, metric: str | None) -> None:
    measured = ("loss", *workload.metrics)
    if metric is not None and metric not in measured:
        names = " or ".join(f"`{name}`" for name in measured)
        raise WorkloadError(f"this workload measures {names}, got `objective.metric: {metric}`")


def _segment(config: ReplicaConfig) -> Segment:
    """Return the order of the rehearsal: the job's guess, and of what is searched the first value."""
    optimizer = contenders(config.optimizer)[0]
    searched = {each.name: each.pair[0] for each in config.ranges()}
    level = None if config.menu or config.exchange.level is None else first(config.exchange.level)
    values = {"level": level} | searched
    return Segment(num_steps=NUM_STEPS, learning_rate=optimizer.learning_rate, **values)


def _train(replica: Replica, segment: Segment) -> SegmentResult:
    """Take the steps of `segment`; exchanges that compete need other workers, so none is used then."""
    return replica.run_alone(segment) if replica.config.menu else replica.run(segment)


def _trained(
    replica: Replica, segment: Segment, lowest_rate: float | None
) -> tuple[Segment, SegmentResult, tuple[str, ...]]:
    """Train `segment`, or if that diverges, its steps at the `lowest_rate`. Return what was trained, and remarks.

    Raises WorkloadError if the loss is not finite.
    """
    result = _train(replica, segment)
    remarks: tuple[str, ...] = ()
    if result.diverged and result.losses and lowest_rate is not None:
        remarks = (_remark(len(result.losses), segment.learning_rate, lowest_rate),)
        replica.reset()
        segment = segment.model_copy(update={"learning_rate": lowest_rate})
        result = _train(replica, segment)
    if result.diverged:
        is_searched = lowest_rate is not None
        raise WorkloadError(_why_diverged(len(result.losses), segment.learning_rate, is_searched=is_searched))
    return segment, result, remarks


def _timed(replica: Replica, segment: Segment, last_s: float) -> tuple[float, float]:
    """Return the median seconds of a step, and the factor around it that holds four of five; `last_s`: the last one's.

    A step that takes longer than all the time there is for this is not taken again.
    """
    num_steps = min(MOST_TIMED, int(TIMED_S / last_s))
    taken = _train(replica, segment.model_copy(update={"num_steps": num_steps})).step_seconds if num_steps else ()
    seconds = taken or (last_s,)  # the loss may stop being finite in the first of them
    low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
    return float(middle), float(max(high / middle, middle / low))


def _evaluated(replica: Replica, metric: str | None) -> tuple[Evaluation, float]:
    """Evaluate, and return how many seconds it took. If `metric` is not finite, evaluate the new model instead.

    The steps that were timed may have diverged. Raises WorkloadError if it is not finite then either.
    """
    started = time.monotonic()
    evaluation = replica.evaluate()
    seconds = time.monotonic() - started
    if metric is not None and not math.isfinite(value_of(evaluation, metric)):
        replica.reset()
        evaluation = replica.evaluate()
        if not math.isfinite(value_of(evaluation, metric)):
            raise WorkloadError(why_not_finite(evaluation, metric))
    return evaluation, seconds


def _remark(step: int, learning_rate: float, lowest_rate: float) -> str:
    return (
        f"the loss is not finite after {step} steps at your guess, learning rate {learning_rate:g}, so these steps "
        f"were taken at {lowest_rate:g}. The controller searches the rate; a lower `optimizer.learning_rate` spares it "
        "probes that diverge"
    )


def _why_diverged(step: int, learning_rate: float, *, is_searched: bool) -> str:
    if step == 0:
        return (
            "the loss of the first batch, or its gradient, is not finite before any update: look at `loss` and the data"
        )
    if is_searched:
        return (
            f"the loss is not finite after {step} steps, even at learning rate {learning_rate:g}: look at `loss`, and "
            "scale the inputs and targets"
        )
    return f"the loss is not finite after {step} steps at learning rate {learning_rate:g}: give a lower one"


def shapes(batch: Batch) -> str:
    """Return the shapes of a batch in words: `(32x64 float32, 32 int64)`."""
    match batch:
        case Tensor():
            size = "x".join(map(str, batch.shape)) or "scalar"
            return f"{size} {str(batch.dtype).removeprefix('torch.')}"
        case Mapping():
            return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in batch.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(map(shapes, batch)) + ")"
        case _:
            return type(batch).__name__


def parameters(config: OwnWorkload) -> list[Parameter]:
    """Return the factory's parameters, in order; raises WorkloadError where it cannot be imported."""
    named = inspect.signature(own.factory(config)).parameters.values()
    return [_parameter(each) for each in named if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _parameter(of: inspect.Parameter) -> Parameter:
    annotation = "" if of.annotation is of.empty else inspect.formatannotation(of.annotation)
    if of.default is of.empty:
        return Parameter(name=of.name, is_required=True, annotation=annotation)
    try:
        default = json.loads(json.dumps(of.default, allow_nan=False))
    except (TypeError, ValueError):
        return Parameter(name=of.name, is_required=False, is_json=False, annotation=annotation)
    return Parameter(name=of.name, is_required=False, default=default, annotation=annotation)


def why(error: Exception, folders: tuple[str, ...]) -> str:
    """Return an error in one sentence, with the user's own line that it came through last."""
    if isinstance(error, WorkloadError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [each for each in frames if each.filename.startswith(folders)]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, ModuleNotFoundError):
        said += "; install it, here and on every node that trains"
    return f"{said} ({own_frames[-1].filename}, line {own_frames[-1].lineno})" if own_frames else said


def _answers(order: RehearsalOrder, tell: _Tell) -> Iterator[tuple[str, Any]]:
    """Yield what was asked for, by its name."""
    workload = None
    for arm, config in order.arms.items():
        lowest_rate = order.lowest_rates.get(arm)
        workload, found = rehearse(
            config, order.num_workers, tell, workload, lowest_rate=lowest_rate, metric=order.metric
        )
        yield arm, found.model_dump(mode="json")
    if order.factory is not None:
        tell("importing the factory")
        yield order.factory.factory, [of.model_dump(mode="json") for of in parameters(order.factory)]
    for each in order.built_in:
        tell(f"loading the data of {each.kind}")
        try:
            registry.build(each)
        except WorkloadError as error:
            yield each.kind, str(error)
        else:
            yield each.kind, None


def main() -> None:
    """Do as standard input says."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = RehearsalOrder.model_validate_json(sys.stdin.read())
    own_workloads = [order.factory, *(config.workload for config in order.arms.values())]
    folders = tuple(path for each in own_workloads if (path := getattr(each, "path", None)))
    try:
        for name, found in _answers(order, lambda doing: print(json.dumps({"doing": doing}), file=out)):
            print(json.dumps({"name": name, "found": found}), file=out)
    except Exception as error:  # the border of the process: whatever the user's code raises is told
        print(json.dumps({"failed": why(error, folders)}), file=out)


if __name__ == "__main__":
    main()
