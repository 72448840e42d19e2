"""The public names of Wiretune. Each is imported at its first use, so `import wiretune` loads neither torch nor ray."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.async_client import AsyncClient as AsyncClient
    from api.client import Client as Client
    from api.failures import ApiError as ApiError, Unreachable as Unreachable
    from api.jobs import AsyncJob as AsyncJob, Job as Job
    from search.bayesian.controller import Controller as Controller
    from search.config import BoConfig as BoConfig, Budget as Budget
    from search.schedule import Schedule as Schedule
    from search.space import SearchSpace as SearchSpace
    from search.types import (
        Candidate as Candidate,
        Decision as Decision,
        Observation as Observation,
        Spent as Spent,
        Values as Values,
    )
    from trainers.own_loop.attach import Attached as Attached
    from trainers.own_loop.ddp import (
        CompressedGradients as CompressedGradients,
        CompressionConfig as CompressionConfig,
        compress_gradients as compress_gradients,
    )
    from trainers.own_loop.fsdp import (
        CompressedReplicas as CompressedReplicas,
        compress_replicas as compress_replicas,
    )
    from trainers.own_loop.optimizer import build_optimizer as build_optimizer
    from trainers.workload import Workload as Workload, WorkloadError as WorkloadError
    from wiretune.loop import attach as attach
    from wiretune.tuner import Tuner as Tuner

_HOMES = {
    "ApiError": "api.failures",
    "AsyncClient": "api.async_client",
    "AsyncJob": "api.jobs",
    "Attached": "trainers.own_loop.attach",
    "BoConfig": "search.config",
    "Budget": "search.config",
    "Candidate": "search.types",
    "Client": "api.client",
    "CompressedGradients": "trainers.own_loop.ddp",
    "CompressedReplicas": "trainers.own_loop.fsdp",
    "CompressionConfig": "trainers.own_loop.ddp",
    "Controller": "search.bayesian.controller",
    "Decision": "search.types",
    "Job": "api.jobs",
    "Observation": "search.types",
    "Schedule": "search.schedule",
    "SearchSpace": "search.space",
    "Spent": "search.types",
    "Tuner": "wiretune.tuner",
    "Unreachable": "api.failures",
    "Values": "search.types",
    "Workload": "trainers.workload",
    "WorkloadError": "trainers.workload",
    "attach": "wiretune.loop",
    "build_optimizer": "trainers.own_loop.optimizer",
    "compress_gradients": "trainers.own_loop.ddp",
    "compress_replicas": "trainers.own_loop.fsdp",
}

__all__ = sorted(_HOMES)

#: The packages that come with this one, all in the same folder.
_OURS = ("api", "search", "service", "trainers")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'wiretune' has no attribute {name!r}")
    return getattr(_imported(_HOMES[name]), name)


def _imported(home: str) -> ModuleType:
    """Import a module of ours. Raises ImportError that names the user's module where one hides a package of ours."""
    try:
        return import_module(home)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        found = getattr(sys.modules.get(package), "__file__", None)
        if package not in _OURS or found is None or Path(found).parent == Path(__file__).parents[1] / package:
            raise
        raise ImportError(
            f"{found} hides Wiretune's package `{package}`: rename it, or start Python in another folder"
        ) from error


def __dir__() -> list[str]:
    return __all__
