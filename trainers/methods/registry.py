"""Every method that a job can choose, ours and other people's: the list from which all others follow. Pydantic only.

A package adds methods of its own by an entry point in the group `wiretune.methods`, whose object is a `Method`.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union

from pydantic import Field

from trainers.methods.activations.dropit import spec as dropit
from trainers.methods.activations.keep import spec as keep
from trainers.methods.blocks.all import spec as all_blocks
from trainers.methods.blocks.jointspar import spec as jointspar
from trainers.methods.exchange.adacomp import spec as adacomp
from trainers.methods.exchange.blockwise import spec as blockwise
from trainers.methods.exchange.cser import spec as cser
from trainers.methods.exchange.demo import spec as demo
from trainers.methods.exchange.dense import spec as dense
from trainers.methods.exchange.dgc import spec as dgc
from trainers.methods.exchange.dion import spec as dion
from trainers.methods.exchange.dist_ef_sgd import spec as dist_ef_sgd
from trainers.methods.exchange.doublesqueeze import spec as doublesqueeze
from trainers.methods.exchange.gtopk import spec as gtopk
from trainers.methods.exchange.liec_sgd import spec as liec_sgd
from trainers.methods.exchange.onebit import spec as onebit
from trainers.methods.exchange.onebit_adam import spec as onebit_adam
from trainers.methods.exchange.powersgd import spec as powersgd
from trainers.methods.exchange.qsgd import spec as qsgd
from trainers.methods.exchange.randomk import spec as randomk
from trainers.methods.exchange.signsgd import spec as signsgd
from trainers.methods.exchange.sparse_loco import spec as sparse_loco
from trainers.methods.exchange.terngrad import spec as terngrad
from trainers.methods.exchange.threshold import spec as threshold
from trainers.methods.exchange.topk import spec as topk
from trainers.methods.exchange.zero_one_adam import spec as zero_one_adam
from trainers.methods.optimizer import spec as optimizer
from trainers.methods.sync.accordion_batch import spec as accordion_batch
from trainers.methods.sync.cocod_sgd import spec as cocod_sgd
from trainers.methods.sync.diloco import spec as diloco
from trainers.methods.sync.every_step import spec as every_step
from trainers.methods.sync.local_sgd import spec as local_sgd
from trainers.methods.sync.overlap_local_sgd import spec as overlap_local_sgd
from trainers.methods.sync.stl_sgd import spec as stl_sgd
from trainers.methods.sync.streaming_diloco import spec as streaming_diloco
from trainers.methods.sync.vrl_sgd import spec as vrl_sgd
from trainers.spec import partition
from trainers.spec.method import OPEN, Method, Part

GROUP = "wiretune.methods"

OURS: tuple[Method, ...] = (
    dense.NONE,
    dense.FP16,
    dense.BF16,
    threshold.METHOD,
    topk.METHOD,
    randomk.METHOD,
    dgc.METHOD,
    gtopk.METHOD,
    adacomp.METHOD,
    powersgd.METHOD,
    qsgd.METHOD,
    terngrad.METHOD,
    signsgd.METHOD,
    onebit.METHOD,
    doublesqueeze.METHOD,
    dist_ef_sgd.METHOD,
    blockwise.METHOD,
    sparse_loco.METHOD,
    cser.METHOD,
    liec_sgd.METHOD,
    demo.METHOD,
    dion.METHOD,
    onebit_adam.METHOD,
    zero_one_adam.METHOD,
    every_step.METHOD,
    local_sgd.METHOD,
    diloco.METHOD,
    streaming_diloco.METHOD,
    stl_sgd.METHOD,
    vrl_sgd.METHOD,
    cocod_sgd.METHOD,
    overlap_local_sgd.METHOD,
    accordion_batch.METHOD,
    all_blocks.METHOD,
    jointspar.METHOD,
    keep.METHOD,
    dropit.METHOD,
    *optimizer.METHODS,
    *partition.METHODS,
)


def _from_elsewhere(entry: EntryPoint, known: set[tuple[str, str]]) -> Method:
    """Load another package's method. Raises ImportError that names the package if it is none, or its name is taken."""
    package = entry.dist.name if entry.dist else entry.value
    try:
        method = entry.load()
    except Exception as error:
        raise ImportError(f"the method `{entry.name}` of the package {package} cannot be imported: {error}") from error
    if not isinstance(method, Method):
        raise ImportError(f"{entry.value} of the package {package} must be a trainers.spec.method.Method")
    if method.part not in OPEN:
        raise ImportError(f"the package {package} adds `{method.kind}` to {method.part}; open to others: {OPEN}")
    if (method.part, method.kind) in known:
        raise ImportError(f"the package {package} names its {method.part} `{method.kind}`, which there is already")
    return method


def _registered() -> tuple[Method, ...]:
    found = list(OURS)
    for entry in entry_points(group=GROUP):
        found.append(_from_elsewhere(entry, {(each.part, each.kind) for each in found}))
    return tuple(found)


METHODS = _registered()


def of(part: Part) -> tuple[Method, ...]:
    """Return the methods that a job can choose at `part`."""
    return tuple(method for method in METHODS if method.part == part)


def get(part: Part, kind: str) -> Method:
    """Return the method of that name. Raises KeyError if there is none."""
    return {method.kind: method for method in of(part)}[kind]


def union(part: Part, *others: Any) -> Any:
    """Return the type of a job's `part` for pydantic: any of its methods' configurations, or `others`, by `kind`."""
    configs = (*(method.config for method in of(part)), *others)
    return Annotated[Union[configs], Field(discriminator="kind")]  # noqa: UP007  (of a tuple)
