"""The model of a rank: built from a seed, checked, loaded with starting weights, and lent other weights to evaluate."""

import hashlib
import math
import statistics
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from trainers import random_state
from trainers.exchange.step_result import is_finite
from trainers.methods.sync.shared.differing import INTEGERS
from trainers.training import checkpoint
from trainers.training.checkpoint import CheckpointError
from trainers.workload import Workload, WorkloadError

#: Training batches per rank that the evaluated iterate's statistics are taken from.
NUM_BATCHES = 16
#: A direction of a matrix stands out if its singular value is this multiple of that of independent entries. Shorter
#: sides do not show it, and longer ones no better. The power method finds what stands out in so many rounds.
STANDS_OUT, LEAST_SIDE, MOST_SIDE, NUM_ROUNDS = 1.2, 8, 4096, 12


def norms_that_track(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers whose running statistics follow the training; those in evaluation mode are frozen."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [layer for layer in layers if layer.training and layer.running_mean is not None]


def norm_statistics(model: nn.Module, layers: Sequence[_BatchNorm]) -> dict[str, Tensor]:
    """Return the running means and variances of `layers` by their names in `model`."""
    wanted = {id(tensor) for layer in layers for tensor in (layer.running_mean, layer.running_var)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) in wanted}


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that `state_dict` holds, by their names in `model`, which need not be those that it gives."""
    transient = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in transient}


def forget_lost(model: nn.Module) -> None:
    """Begin running statistics anew that are not finite: they would stay so for ever."""
    for layer in norms_that_track(model):
        if not all(map(is_finite, norm_statistics(model, [layer]).values())):
            layer.reset_running_stats()


@contextmanager
def counting_anew(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Have the statistics of `layers` start again, as plain means over the batches that follow."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


#: Wrappers that shard a model, or copy it to several devices, by class name; those of FSDP2 begin with it.
_WRAPPERS = ("FullyShardedDataParallel", "DataParallel", "DeepSpeedEngine")
#: Where torch keeps what makes such wrappers.
_DISTRIBUTED = ("torch/distributed/", "torch/nn/parallel/")
#: What safetensors cannot write.
_UNWRITTEN = (torch.complex32, torch.complex128)
#: Names listed in a message before it says how many more there are.
_NAMED = 5


def replaced_buffer(model: nn.Module, held: Mapping[str, Tensor]) -> str | None:
    """Return a sentence if the model put another tensor in the place of a buffer that is `held`; None: it did not."""
    for name, buffer in model.named_buffers():
        if _is_elsewhere(buffer, held.get(name)):
            return f"the model replaced its buffer `{name}`: change it in place (`copy_`, `mul_`, ...)"
    return None


def replaced_parameter(model: nn.Module, held: Mapping[str, Tensor]) -> str | None:
    """Return a sentence if one of the parameters that are `held`, detached, has its values elsewhere; None: none has.

    `.data = ...`, a move such as `.to`, and an RNN's `flatten_parameters` on a GPU put them there.
    """
    for name, parameter in model.named_parameters():
        if name in held and _is_elsewhere(parameter, held[name]):
            return (
                f"the model replaced its parameter `{name}`, as `.data = ...` and `.to` do: change it in place "
                "(`copy_`, `mul_`, ...), and move the model before it is trained"
            )
    return None


def changed_training(model: nn.Module, trained: Collection[str]) -> str | None:
    """Return a sentence if the model has unfrozen a parameter, or frozen one of those `trained`; None: it has not."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in trained:
            return (
                f"the model trains its parameter `{name}`, which was frozen when it was built, and nothing steps by "
                "its gradient: train it from the start, and keep it out of the loss (`detach`) for as long as it rests"
            )
        if name in trained and not parameter.requires_grad:
            return (
                f"the model froze its parameter `{name}`, which is trained: freeze it in `model`, or keep it out of "
                "the loss (`detach`) for a while"
            )
    return None


def _is_elsewhere(tensor: Tensor, known: Tensor | None) -> bool:
    # A sparse one has no place in memory to compare.
    return tensor is not known and (known is None or tensor.data_ptr() != known.data_ptr())


def build(
    workload: Workload,
    seed: int,
    *,
    device: torch.device | None = None,
    weights_url: str | None = None,
    sha256: str | None = None,
) -> nn.Module:
    """Return the model of `seed`, the same on every rank, with the weights at `weights_url` if one is given.

    Their file must have the hash `sha256`; None: any.

    A model that draws its weights on a GPU must draw them on `device`. The global generators are left as they were.
    Raises WorkloadError for a model that cannot be trained here.
    """
    with random_state.seeded(seed, device):
        model = _bare(workload)
    _check(model)
    _begin_training(model)
    if weights_url is not None:
        load_weights(model, weights_url, sha256=sha256)
    return model


def _begin_training(model: nn.Module) -> None:
    """Put `model` in training mode, as a loop does; parts that are in evaluation mode alone stay so."""
    parts = [module for module in model.modules() if model.training and not module.training]
    if not model.training or any(map(_switches, model.modules())):  # which may keep parts in evaluation mode
        model.train()
        for part in parts:
            part.eval()


def _bare(workload: Workload) -> nn.Module:
    """Return the workload's model; raises WorkloadError if it tries to distribute itself, which fails in torch."""
    try:
        return workload.model()
    except (RuntimeError, ValueError) as error:
        places = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(word in place for place in places for word in _DISTRIBUTED):
            raise WorkloadError(
                f"`model` wraps or shards the model for an exchange of its own ({type(error).__name__}: {error}): "
                "return the bare model, which every worker holds whole"
            ) from error
        raise


def is_scattered(module: nn.Module) -> bool:
    """Return whether a wrapper holds the parameters of `module` in pieces, or in several copies."""
    kind = type(module).__name__
    return kind in _WRAPPERS or kind.startswith("FSDP")


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"`model` must return a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "DistributedDataParallel" or is_scattered(module):
            raise WorkloadError(
                f"module `{name or 'model'}` is a {kind}: a model that is sharded, or wrapped for another exchange, "
                "cannot be trained here; return the bare model, which every worker holds whole"
            )
        if isinstance(module, nn.SyncBatchNorm):
            raise WorkloadError(
                f"module `{name or 'model'}` is a SyncBatchNorm, which waits for all ranks in every forward pass: "
                "return BatchNorm; its statistics are each rank's own, and evaluation averages them"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise WorkloadError(
                f"`max_norm` of module `{name or 'model'}` ({kind}) shortens the rows of a rank's own batch: "
                "clip the whole table in `loss` `if model.training`, which is the same on all ranks"
            )
        if _has_extra_state(module):
            raise WorkloadError(
                f"module `{name or 'model'}` ({kind}) has a state of its own (`get_extra_state`), which is neither put "
                "back when training is rewound nor exported: keep it in a buffer"
            )
    for name, parameter in model.named_parameters():
        _check_parameter(name, parameter)
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            _check_written(f"{kind} `{name}`", tensor)
    if fault := overlap(model):
        raise WorkloadError(fault)


def _has_extra_state(module: nn.Module) -> bool:
    if type(module).get_extra_state is nn.Module.get_extra_state:
        return False
    state = module.get_extra_state()
    return state is not None and not (isinstance(state, Tensor) and not state.numel())


def overlap(model: nn.Module) -> str | None:
    """Return which parameter or buffer of `model` has several entries in one place, as `expand` makes them; None: none.

    Torch refuses to write to such a tensor, and training that is rewound or resumed has to.
    """
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            shape, strides = tuple(tensor.shape), tensor.stride() if tensor.layout is torch.strided else ()
            if any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=False)):
                return (
                    f"{kind} `{name}` of shape {shape} has strides {strides}: several entries lie in one place, as "
                    "`expand` puts them, and cannot be written to; add `.clone()`"
                )
    return None


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if "DTensor" in (type(parameter).__name__, type(parameter.data).__name__):  # its import takes half a second
        raise WorkloadError(
            f"parameter `{name}` is sharded (DTensor, as FSDP and tensor parallelism make them); "
            "return the bare model, which every worker holds whole"
        )
    if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
        raise WorkloadError(f"parameter `{name}` has no values yet; initialise it in `model`")
    if parameter.requires_grad and parameter.dtype != torch.float32:
        raise WorkloadError(
            f"parameter `{name}` is {parameter.dtype}; trained parameters must be torch.float32 "
            "(`precision: bf16` computes in bfloat16), others must be frozen"
        )
    if parameter.requires_grad and not parameter.numel():
        raise WorkloadError(
            f"parameter `{name}` is trained and has no entries, its shape is {tuple(parameter.shape)}: freeze it, or "
            "leave it out"
        )


def _check_written(name: str, tensor: Tensor) -> None:
    """Raise WorkloadError for a tensor that no checkpoint can hold."""
    if tensor.layout is not torch.strided:
        raise WorkloadError(f"{name} is sparse ({tensor.layout}), which no checkpoint holds: add `.to_dense()`")
    for bit, remedy in ((tensor.is_conj(), "resolve_conj"), (tensor.is_neg(), "resolve_neg")):
        if bit:
            raise WorkloadError(f"{name} is a view that computes its values when they are read: add `.{remedy}()`")
    if tensor.dtype in _UNWRITTEN:
        raise WorkloadError(
            f"{name} is {tensor.dtype}, which no checkpoint holds: keep it as torch.complex64, or as real numbers "
            "(`torch.view_as_real`)"
        )


def plain_name(name: str) -> str:
    """Return the name of a tensor without what `torch.compile(model)` puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def named_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of `model.state_dict()`, as a model is named that is not compiled."""
    state = model.state_dict().items()
    return {plain_name(name): tensor for name, tensor in state if isinstance(tensor, Tensor)}


def load_weights(model: nn.Module, url: str, *, sha256: str | None = None) -> None:
    """Copy the safetensors file `url` into `model`; raises WorkloadError unless its hash, every name and shape fit.

    A tensor that the model uses under several names (tied) may be given under one of them.
    """
    try:
        given = {plain_name(name): tensor for name, tensor in checkpoint.read_tensors(url, sha256=sha256).items()}
    except CheckpointError as error:
        raise WorkloadError(f"`workload.weights`: {error}") from error
    wanted = named_state(model)
    covered = {wanted[name].data_ptr() for name in given.keys() & wanted.keys()}
    missing = [name for name in wanted if name not in given and wanted[name].data_ptr() not in covered]
    shapes = [name for name in given.keys() & wanted.keys() if given[name].shape != wanted[name].shape]
    faults = {"lacks": missing, "has no place for": [*(given.keys() - wanted.keys())], "has other shapes of": shapes}
    told = [f"{fault} {_listed(names)}" for fault, names in faults.items() if names]
    if told:
        raise WorkloadError(f"`workload.weights`: {url} does not fit the model: it {'; it '.join(told)}")
    with torch.no_grad():
        for name, tensor in given.items():
            wanted[name].copy_(tensor)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(f"`{name}`" for name in ordered[:_NAMED]) + more


def fingerprint(model: nn.Module, workload: Workload) -> str:
    """Return a hash of starting weights and what is known of the data: equal on all ranks, and after a resume.

    A test set is left out: no step and no choice depends on it, so a run that has got another one may resume.
    """
    sizes = [len(data) for data in (workload.training, workload.validation) if isinstance(data, Sized)]
    digest = hashlib.sha256(repr((sizes, workload.data_version)).encode())
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def matrices(parameters: Iterable[Tensor]) -> tuple[int, float] | None:
    """Return how many of `parameters` are matrices, and the geometric mean of the root mean squares of their entries.

    Those of zeros alone do not count: an adapter begins with one. None: none is left.
    """
    local = [getattr(each, "to_local", lambda each=each: each)().detach() for each in parameters if each.dim() > 1]
    squares = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 / max(1, each.numel()) for each in local]
    logs = [math.log(square) / 2 for square in squares if 0 < square < math.inf]
    return (len(logs), math.exp(sum(logs) / len(logs))) if logs else None


def looks_trained(parameters: Iterable[Tensor]) -> bool:
    """Return whether most matrices among `parameters`, at least two, have a direction that stands out.

    Gradients are of low rank, so training makes such directions. New matrices have independent entries, and none. A
    model that was trained little may look new.
    """
    found = [share for each in parameters if (share := standing_out(each)) is not None]
    return len(found) > 1 and statistics.median_low(found) > STANDS_OUT


def standing_out(parameter: Tensor) -> float | None:
    """Return the largest singular value of a matrix as a multiple of that of independent entries; None: it is small.

    With mean 0 and variance 1, an m x n matrix of those has about sqrt(m) + sqrt(n) (Bai and Yin, Annals of
    Probability, 1993). Means and sizes of rows are taken out, since those of new matrices may differ.
    """
    local = getattr(parameter, "to_local", lambda: parameter)().detach()
    if local.dim() < 2 or min(len(local), local.numel() // max(1, len(local))) < LEAST_SIDE:
        return None
    rows = local.flatten(1)[:MOST_SIDE, :MOST_SIDE].float()
    rows = nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1) * math.sqrt(rows.shape[1])
    found = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows.device)
    for _ in range(NUM_ROUNDS):
        found = nn.functional.normalize(rows.T @ (rows @ found), dim=0)
    return float((rows @ found).norm()) / sum(math.sqrt(side) for side in rows.shape)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all of `model` in evaluation mode for a while, and then each part back into its own.

    A module may do something when its mode changes: loralib's merge their adapters into frozen weights. What that
    rounds off the parameters of such a module is put back.
    """
    modes = {module: module.training for module in model.modules()}
    switching = [parameter for module in modes if _switches(module) for parameter in module.parameters(recurse=False)]
    kept = [(parameter, parameter.data, parameter.data.clone()) for parameter in switching]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():  # parents first: each sets the modes of its children
            if module.training != is_training:
                module.train(is_training)
        for parameter, place, values in kept:
            parameter.data = place.copy_(values)


def _switches(module: nn.Module) -> bool:
    """Return whether `module` has a `train` of its own, which `eval` calls too."""
    return type(module).train is not nn.Module.train


@contextmanager
def untouched(model: nn.Module) -> Iterator[Tensor]:
    """Raise WorkloadError if an evaluation changes the values of a parameter, also if it does so behind torch's back.

    Ranks have shares of different sizes of the validation set, so theirs would drift apart. Yields a sum of the bits of
    each parameter, as int64 on the host.
    """
    before = _sums(model)
    yield before
    for name, differs in zip(dict(model.named_parameters()), (_sums(model) != before).tolist(), strict=True):
        if differs:
            raise WorkloadError(f"`evaluate` changed `{name}`: do that only `if model.training`")


def _sums(model: nn.Module) -> Tensor:
    """Return the sum of each parameter's entries as whole numbers, which wraps around; no copy is made."""
    bits = [each.detach().view(INTEGERS[each.itemsize]) for each in model.parameters()]
    # To sum 32 bits in 64 takes a CPU 15 times as long.
    return torch.stack([each.sum(dtype=torch.promote_types(each.dtype, torch.int32)).long().cpu() for each in bits])


@contextmanager
def lent(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Have `model` compute with `weights` (parameters and buffers by name) for a while, without a copy."""
    live: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {name: live[name].data for name in weights}
    for name, tensor in weights.items():
        live[name].data = tensor
    try:
        yield
    finally:
        for name, tensor in kept.items():
            live[name].data = tensor
