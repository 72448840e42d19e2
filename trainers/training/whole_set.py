"""Compute metrics of a whole data set: collect every rank's predictions on the first one, in the set's order.

Symbols: n samples, N ranks. Rank i evaluates the samples i, i + N, i + 2 N, ...
"""

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.workload import Workload, WorkloadError

#: Tensors by name, with one row for each sample.
Predictions = Mapping[str, Tensor]
#: The name, type and shape of a row of each of them.
Layout = Sequence[tuple[str, torch.dtype, tuple[int, ...]]]

#: Types that NumPy, or the functions of most libraries, do not take.
_HALF = (torch.float16, torch.bfloat16)
_CHECKSUM_BYTES = 8


def predicts(workload: Workload) -> bool:
    """Return whether `workload` has metrics of the whole set. Raises WorkloadError if it lacks a part of them."""
    methods = ("predictions", "compute_metrics")
    own = [name for name in methods if _is_own(workload, name)]
    if len(own) == 1:
        [lacking] = {*methods} - {*own}
        raise WorkloadError(
            f"{type(workload).__name__} has a method `{own[0]}` and no `{lacking}`: write both, or neither"
        )
    if own and not workload.metrics:
        raise WorkloadError(
            f"{type(workload).__name__} has a method `compute_metrics` and no `metrics`: name in `metrics` what it "
            'returns, and which way is better, such as `{"auc": "max"}`'
        )
    return bool(own)


def _is_own(workload: Workload, name: str) -> bool:
    """Return whether the workload replaces the method `name`, in its class or by a function as its attribute."""
    method = getattr(workload, name)
    return callable(method) and getattr(method, "__func__", None) is not getattr(Workload, name)


def checked(predicted: Any, num_samples: int) -> dict[str, Tensor]:
    """Return a batch of `num_samples` predictions in host memory, sorted by name.

    Raises WorkloadError unless they are tensors with one row for each sample.
    """
    if not isinstance(predicted, Mapping) or not predicted or not all(isinstance(name, str) for name in predicted):
        raise WorkloadError(
            f"`predictions` must return tensors by name, such as {{'scores': scores}}; got a {type(predicted).__name__}"
        )
    for name, tensor in predicted.items():
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise WorkloadError(f"`predictions` must return dense tensors; `{name}` is a {_kind(tensor)}")
        if not tensor.ndim or len(tensor) != num_samples:
            raise WorkloadError(
                f"`predictions` must return one row for each of the batch's {num_samples} samples; `{name}` has shape "
                f"{tuple(tensor.shape)}"
            )
    # Copies: a view would keep all of its tensor in memory, and a model may write its output to the same place again.
    copies = {name: predicted[name].detach().to("cpu", copy=True) for name in sorted(predicted)}
    return {name: copy.resolve_conj().resolve_neg().contiguous() for name, copy in copies.items()}


def _kind(value: Any) -> str:
    return f"tensor of layout {value.layout}" if isinstance(value, Tensor) else type(value).__name__


def metrics(
    workload: Workload,
    batches: list[Predictions],
    links: NodeLinks,
    *,
    num_samples: int,
    evaluated: Collection[str],
    loss: float,
) -> dict[str, float]:
    """Return what the workload computes from all ranks' predictions; collective, and equal on all ranks.

    `batches` are those of this rank, and are freed. `evaluated` is what `evaluate` returned here; empty: it has no
    samples. Without a finite `loss`, that of the whole set, nothing is computed, and no such metric is finite. Raises
    WorkloadError if the workload returns other metrics than it is to.
    """
    names = list(workload.metrics)
    whole = gathered(batches, links, num_samples) if math.isfinite(loss) else {}
    # Of the first rank, which alone has all predictions, and always has samples.
    values = _computed(workload, whole) if whole else {name: math.nan for name in names if name not in evaluated}
    table = torch.tensor([[values.get(name, 0.0), name in values] for name in names], dtype=torch.float64)
    links.tell(table)
    computed = {name: value for name, (value, is_given) in zip(names, table.tolist(), strict=True) if is_given}
    if evaluated:
        _require_each_once(names, evaluated, computed)
    return computed


def _computed(workload: Workload, whole: Predictions) -> dict[str, float]:
    computed = workload.compute_metrics(whole)
    if not isinstance(computed, Mapping):
        raise WorkloadError(f"`compute_metrics` must return numbers by name, such as {{'auc': 0.9}}; got {computed!r}")
    if unknown := [name for name in computed if name not in workload.metrics]:
        raise WorkloadError(
            f"`compute_metrics` returned {unknown}, and `metrics` names {list(workload.metrics)}: name them there too"
        )
    return {name: _number(name, value) for name, value in computed.items()}


def _number(name: str, value: Any) -> float:
    try:
        number = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WorkloadError(f"`compute_metrics` must return numbers; `{name}` is {value!r}") from error
    if number.ndim:
        raise WorkloadError(f"`compute_metrics` must return scalars; `{name}` has shape {tuple(number.shape)}")
    return float(number)


def _require_each_once(names: Sequence[str], evaluated: Collection[str], computed: Collection[str]) -> None:
    if both := [name for name in names if name in evaluated and name in computed]:
        raise WorkloadError(f"`evaluate` and `compute_metrics` both returned {both}: leave them out of one")
    if neither := [name for name in names if name not in evaluated and name not in computed]:
        raise WorkloadError(
            f"`metrics` names {neither}, which neither `evaluate` nor `compute_metrics` returned: return or remove them"
        )


def gathered(batches: list[Predictions], links: NodeLinks, num_samples: int) -> dict[str, Tensor]:
    """Return the predictions `(n, ...)` of all ranks in the order of the set, on the first rank; {} on the others.

    Collective. Frees `batches`, and takes about twice the memory of the result for a moment. Raises WorkloadError if
    layouts differ.
    """
    layout = _layout_of_all(batches)
    packed = _packed(batches, layout)
    batches.clear()
    parts = links.gather(packed)
    whole: dict[str, Tensor] = {}
    if parts:
        whole = {name: torch.empty(num_samples, *shape, dtype=dtype) for name, dtype, shape in layout}
    for place, part in enumerate(parts):
        _unpack(part, layout, {name: tensor[place :: len(parts)] for name, tensor in whole.items()})
    return {name: tensor.float() if tensor.dtype in _HALF else tensor for name, tensor in whole.items()}


def _layout_of_all(batches: Sequence[Predictions]) -> Layout:
    """Return the layout of this rank's batches; of none, that without tensors."""
    layouts = [_layout(batch) for batch in batches] or [()]
    for layout in layouts:
        if layout != layouts[0]:
            raise WorkloadError(_differs(layouts[0], layout))
    return layouts[0]


def _layout(batch: Predictions) -> Layout:
    return tuple((name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in batch.items())


def _differs(first: Layout, other: Any) -> str:
    return (
        "`predictions` must return the same names for all batches, and rows of the same types and shapes (pad them to "
        f"one length); got {first} for one batch and {other} for another"
    )


def _packed(batches: Sequence[Predictions], layout: Layout) -> Tensor:
    """Return this rank's predictions as bytes, tensor after tensor, behind a checksum of their layout.

    Without samples there are no bytes.
    """
    checksum = [torch.tensor([_checksum(layout)])] if batches else []
    tensors = [*checksum, *(batch[name] for name, *_ in layout for batch in batches)]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *(each.reshape(-1).view(torch.uint8) for each in tensors)])


def _checksum(layout: Layout) -> int:
    return zlib.crc32(repr(layout).encode())


def _unpack(part: Tensor, layout: Layout, rows: Predictions) -> None:
    """Copy the bytes that a rank packed to its `rows` of each tensor."""
    if not part.numel():
        return
    if _read(part[:_CHECKSUM_BYTES], torch.int64).item() != _checksum(layout):
        raise WorkloadError(_differs(layout, "others"))
    packed = torch.split(part[_CHECKSUM_BYTES:], [rows[name].nbytes for name, *_ in layout])
    for (name, dtype, _), content in zip(layout, packed, strict=True):
        rows[name].copy_(_read(content, dtype).view(rows[name].shape))


def _read(content: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes as numbers `(k,)`. They are copied, since those of a slice may begin anywhere."""
    return content.clone().view(dtype)
