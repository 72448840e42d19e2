"""Compare what the ranks built: parameters by their bits, buffers and samples by a few numbers of each.

The machines of a job may decode pictures, or compute tables, a little differently, so numbers need only be close.
Samples that differ are told in the log alone: they may be random, or name files of a rank's own.
"""

import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from trainers import random_state
from trainers.training.call_results import Built
from trainers.workload import Workload, WorkloadError, evaluated_sets

log = logging.getLogger("wiretune.likeness")

#: Numbers, or a text that must be the same, by the name of what they describe. JSON-compatible.
Likeness = Mapping[str, Sequence[float] | str]
#: Samples of a data set, and entries of a tensor, that are looked at.
NUM_SAMPLES, NUM_ENTRIES = 4, 1 << 16
#: Times that a sample is fetched before it counts as the same each time: some augmentations act now and then.
NUM_FETCHES = 8
#: How the names of what samples have begin: differences of these are no reason to refuse.
_SAMPLES = "samples of "
#: Numbers that differ by less are alike: relative to the larger one, or below this.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
#: Names in a message before it says how many more there are.
_NAMED = 5


def of(model: nn.Module, workload: Workload, device: torch.device) -> Likeness:
    """Return what all ranks should have alike before the first step.

    A data set whose samples differ from fetch to fetch has no numbers. If `loader_processes` read the data, they are
    not opened here: the processes would inherit open files, and read them at each other's places.
    """
    found: dict[str, Sequence[float] | str] = {
        f"parameter `{name}`": f"{zlib.crc32(_bytes(parameter)):08x}" for name, parameter in model.named_parameters()
    }
    found |= {f"buffer `{name}`": sketch(buffer) for name, buffer in model.named_buffers()}
    sets: dict[str, Any] = {"training": workload.training} | {**evaluated_sets(workload)}
    found["the sizes of the data, or `data_version`"] = repr(
        ([len(each) for each in sets.values() if isinstance(each, Sized)], workload.data_version)
    )
    found |= {f"the split of `{name}`": _split(data) for name, data in sets.items() if isinstance(data, Subset)}
    if not workload.loader_processes:
        found |= {
            f"{_SAMPLES}`{name}`": _lasting_samples(data, device)
            for name, data in sets.items()
            if not hasattr(data, "batches")
        }
    return found


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def require_alike(who: str, built: Sequence[Built]) -> None:
    """Raise WorkloadError unless `who` built the same models and splits; log a warning where only samples differ."""
    found = [each.likeness for each in built]
    names = dict.fromkeys(name for each in found for name in differing(found[0], each))
    tensors = [name for name in names if not name.startswith(_SAMPLES)]
    if tensors or len({each.fingerprint for each in built}) > 1:
        raise WorkloadError(
            f"{who} built different models or data from one seed{named(tensors)}: draw random numbers from the "
            "global generators of torch, NumPy and Python only, and read the same files everywhere"
        )
    samples = [name for name in names if all(each.get(name) for each in found)]
    if samples:
        log.warning(
            "%s read different data%s: unless these are random, or name files of one machine, read the same files "
            "everywhere, and draw splits from the global generators of torch, NumPy and Python",
            who,
            named(samples),
        )


def differing(mine: Likeness, theirs: Likeness) -> list[str]:
    """Return the names of what is not alike, also of what only one of them has."""
    return [name for name in {**mine, **theirs} if not _are_alike(mine.get(name), theirs.get(name))]


def named(differing: Sequence[str]) -> str:
    """Return the first of the names that are `differing`, in brackets, for a message; "" if there are none."""
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return f" ({', '.join(differing[:_NAMED])}{more} differ)" if differing else ""


def _are_alike(mine: Sequence[float] | str | None, theirs: Sequence[float] | str | None) -> bool:
    if mine is None or theirs is None or isinstance(mine, str) or isinstance(theirs, str):
        return mine == theirs
    return are_close(mine, theirs)


def are_close(mine: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether both have as many numbers, which are close one by one."""
    return len(mine) == len(theirs) and all(
        a == b or math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(mine, theirs, strict=True)
    )


def _split(data: Dataset[Any]) -> str:
    """Return a checksum of the indices in `data`, and in the subset that it may be of. Other keys do not count."""
    checksum = 0
    while isinstance(data, Subset):
        with suppress(TypeError, ValueError, RuntimeError):
            checksum = zlib.crc32(_bytes(torch.as_tensor(data.indices).long()), checksum)
        data = data.dataset
    return f"{checksum:08x}"


def _lasting_samples(data: Any, device: torch.device) -> list[float]:
    """Return the numbers of a few samples of `data`; none if they change, as those with a generator of their own do.

    Nor has what cannot be read one by one: `collate` may yet make batches of it.
    """
    try:
        first = _samples(data, device)
        repeats = (_samples(data, device) for _ in range(NUM_FETCHES - 1))
        return first if all(are_close(first, again) for again in repeats) else []
    except Exception as error:  # a user's code; training would say more of a fault than a comparison that only warns
        log.info("samples are not compared between the workers: %s", error)
        return []


def _samples(data: Any, device: torch.device) -> list[float]:
    """Return the numbers of a few samples, spread over `data`. Each is drawn from the same generators on every rank."""
    last = len(data) - 1
    with random_state.seeded(0, device):
        places = sorted({round(last * part / (NUM_SAMPLES - 1)) for part in range(NUM_SAMPLES)})
        return [number for place in places for number in _numbers(data[place])]


def _numbers(sample: Any) -> Iterator[float]:
    """Yield a few numbers of each part of a sample. Parts of unknown types have none."""
    match sample:
        case Tensor() if sample.layout is torch.strided:
            yield from sketch(sample)
        case bool() | int() | float():
            yield float(sample)
        case str() | bytes():
            yield float(zlib.crc32(sample.encode() if isinstance(sample, str) else sample))
        case Mapping():
            for value in sample.values():
                yield from _numbers(value)
        case tuple() | list():
            for value in sample:
                yield from _numbers(value)
        case _ if hasattr(sample, "__array_interface__") and (array := np.asarray(sample)).dtype.kind in "biufc":
            yield from sketch(torch.from_numpy(array.copy()))


def sketch(tensor: Tensor) -> list[float]:
    """Return the size of `tensor`, its norm, and its direction's component along a fixed one.

    That of another tensor is another one, and rounding hardly moves it. Only some entries of a large one count.
    """
    entries = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = entries.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // NUM_ENTRIES)].double().cpu()
    norm = float(torch.linalg.vector_norm(some))
    along = torch.randn(len(some), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [float(len(flat)), norm, float(some @ along) / norm if norm else 0.0]
