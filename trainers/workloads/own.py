"""A user's own workload: imported by name, called with the job's parameters."""

import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sized
from functools import reduce
from typing import Any

from torch import nn
from torch.utils.data import IterableDataset

from trainers import random_state
from trainers.spec.workloads import OwnWorkload
from trainers.workload import EvaluatedSet, Workload, WorkloadError, evaluated_sets
from trainers.workloads import remote_data

#: The methods that every run calls: the others are for jobs that ask for them.
CALLED = ("model", "loss", "evaluate", "collate", "parameter_groups")


def load(config: OwnWorkload) -> Workload:
    """Return what the factory makes; the same on every rank, as far as it draws from the global generators.

    Raises WorkloadError if there is no such factory, it makes something else, or data that it names cannot be had.
    """
    made_by = factory(config)
    try:
        inspect.signature(made_by).bind(**config.params, **config.data)
    except TypeError as error:
        given = "`workload.params` and `workload.data`" if config.data else "`workload.params`"
        raise WorkloadError(f"{given} do not suit `{config.factory}`: {error}") from error
    arguments = config.params | remote_data.fetched(config.data)
    with random_state.seeded(0):
        workload = made_by(**arguments)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"`{config.factory}` must return a trainers.workload.Workload, got {type(workload).__name__}"
        )
    _check_methods(workload, config.factory)
    _check_data(workload, config.factory)
    _check_metrics(workload.metrics, config.factory)
    return workload


def _check_methods(workload: Workload, factory: str) -> None:
    """Raise WorkloadError if an attribute of `workload` hides a method that it will be asked for.

    A function may replace a method that has a default.
    """
    given = vars(workload)
    for name in (each for each in CALLED if each in given):
        is_function = callable(given[name]) and not isinstance(given[name], nn.Module)
        if name in Workload.__abstractmethods__ or not is_function:
            raise WorkloadError(
                f"`{factory}` sets `self.{name}` to a {type(given[name]).__name__}, which hides the method `{name}`: "
                f"give the attribute another name, such as `self.own_{name}`"
            )


def _check_data(workload: Workload, factory: str) -> None:
    missing = [name for name in ("training", "validation") if not hasattr(workload, name)]
    if missing:
        raise WorkloadError(f"`{factory}` made a workload without {' and '.join(missing)}; set it in `__init__`")
    for name, data in evaluated_sets(workload).items():
        _check_evaluated(name, data, factory)


def _check_evaluated(name: EvaluatedSet, data: Any, factory: str) -> None:
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise WorkloadError(
            f"`{name}` is a {type(data).__name__}, which has no samples by index: give a map-style data set"
        )
    if not isinstance(data, Sized) or not len(data):
        raise WorkloadError(f"`{name}` of `{factory}` must be a data set with a length of at least 1")


def _check_metrics(metrics: Any, factory: str) -> None:
    if not isinstance(metrics, Mapping):
        raise WorkloadError(
            f"`metrics` of `{factory}` must map each name to `min` or `max`, as in {{'accuracy': 'max'}}; got a "
            f"{type(metrics).__name__}"
        )
    for name, direction in metrics.items():
        _check_metric(name, direction)


def _check_metric(name: object, direction: object) -> None:
    if name == "loss":
        raise WorkloadError("`metrics` names `loss`, which is measured anyway; leave it out")
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name)):
        raise WorkloadError(f"`metrics` names {name!r}: letters, digits, `_`, `.` and `-` are allowed, up to 60")
    if direction not in ("min", "max"):
        raise WorkloadError(f"`metrics` says that `{name}` is better {direction!r}: `min` and `max` are allowed")


def factory(config: OwnWorkload) -> Any:
    """Return what `config.factory` names, imported; raises WorkloadError where there is no such thing."""
    module, _, name = config.factory.partition(":")
    if config.path is not None and config.path not in sys.path:
        sys.path.insert(0, config.path)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the user's module was found, and lacks one of its own
        given = {"path": config.path, "code": config.code}
        places = [f"in `workload.{field}` {value}, or" for field, value in given.items() if value is not None]
        place = places[0] if places else "(neither `workload.path` nor `workload.code` is given)"
        raise WorkloadError(
            f"`workload.factory`: there is no module `{error.name}` {place} among the workers' installed packages"
        ) from error
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError as error:
        raise WorkloadError(f"`workload.factory`: module `{module}` has no `{name}`") from error
