"""Checkpoints on any storage that fsspec reaches: safetensors files, then a manifest of their checksums.

A checkpoint is a folder: `shared.safetensors` (equal on all ranks, written by rank 0),
`rank-<i>.safetensors` (each rank's own state), `manifest.json`, without which there is no checkpoint.
Scalars are JSON in a file's metadata.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor

from trainers import filesystem
from trainers.exchange.topology import Nodes, Topology
from trainers.snapshot import Inheriting, Kept, State, Stateful, fit, load_scalars, part_of, scalars_of, tensors_of

MANIFEST = "manifest.json"
SHARED = "shared.safetensors"
FORMAT = 5
#: Tensors by `part.name`, and scalars by part.
Read = tuple[dict[str, Tensor], dict[str, Any]]


class CheckpointError(Exception):
    """A checkpoint is missing, damaged or of another training run; the message names the file."""


class Shard(BaseModel):
    """A written file and its checksum."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    num_bytes: int


class Manifest(BaseModel):
    """The files of a complete checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    num_workers: int  # that wrote it
    nodes: Nodes  # that the workers were on
    shards: tuple[Shard, ...]
    order: Literal["groups", "model"] = "groups"  # of parameters in flat vectors; 0.1.0 says nothing

    def shard(self, name: str) -> Shard:
        """Return the file of this name."""
        return next(shard for shard in self.shards if shard.name == name)


def own_name(rank: int) -> str:
    """Return the name of a rank's own file."""
    return f"rank-{rank}.safetensors"


def packed(state: State, *, rank: int) -> dict[str, bytes]:
    """Return what `rank` writes of a checkpoint, by file: a copy, which later steps do not change."""
    files = {own_name(rank): _packed(state.own)}
    return files | {SHARED: _packed(state.shared)} if rank == 0 else files


def write(url: str, files: Mapping[str, bytes]) -> list[Shard]:
    """Write a rank's `packed` files of a checkpoint at the folder `url`; `commit_manifest` completes it."""
    for name, content in files.items():
        filesystem.write(f"{url}/{name}", content)
    return [
        Shard(name=name, sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
        for name, content in files.items()
    ]


def commit_manifest(url: str, shards: Iterable[Shard], nodes: Nodes | None = None) -> None:
    """Make the checkpoint at `url` valid: all `shards` of all ranks have been written. None: each rank is a node."""
    shards = tuple(shards)
    num_workers = len(shards) - 1
    nodes = nodes or Topology.stated(num_workers, 1).nodes
    manifest = Manifest(format=FORMAT, num_workers=num_workers, nodes=nodes, shards=shards, order="model")
    filesystem.write(f"{url}/{MANIFEST}", manifest.model_dump_json(indent=1).encode())


def load(url: str, state: State, manifest: Manifest, *, rank: int) -> None:
    """Copy the checkpoint at `url`, which `manifest` lists, into the live state of `rank`, of as many ranks.

    Raises CheckpointError, before any value has changed, if a file is missing, damaged or does not fit.
    """
    files = [(state.shared, SHARED), (state.own, own_name(rank))]
    read = [(parts, f"{url}/{name}", *_read(url, manifest.shard(name))) for parts, name in files]
    for parts, file, tensors, _ in read:
        _check_fixed(parts, tensors, file)
    for parts, file, tensors, _ in read:
        _fit(parts, tensors, file)
    for parts, _, tensors, scalars in read:
        _take(parts, tensors, scalars)


def inherit(
    url: str,
    shared: Mapping[str, Stateful],
    manifest: Manifest,
    *,
    of_ranks: Mapping[str, Inheriting],
    of_nodes: Mapping[str, Inheriting],
) -> None:
    """Take over a checkpoint of other ranks, or nodes: `shared` parts as they were, of the others a share.

    `of_nodes` are what leaders have for their nodes. Raises CheckpointError as `load` does, but of a file that is found
    damaged only when others were taken over: they are read one after the other, for memory's sake.
    """
    _take(shared, *_read_for(shared, url, manifest.shard(SHARED)))
    leaders = Topology.of(manifest.nodes).leaders
    for rank in range(manifest.num_workers):
        tensors, scalars = _read(url, manifest.shard(own_name(rank)))
        for parts, ranks in ((of_ranks, range(manifest.num_workers)), (of_nodes, leaders)):
            for name, part in parts.items() if rank in ranks else ():
                kept = Kept(part_of(tensors, name), scalars[name], index=ranks.index(rank), of=len(ranks))
                try:
                    part.inherit(kept)
                except KeyError as missing:
                    raise CheckpointError(f"{url}/{own_name(rank)} has no {missing} for `{name}`") from missing


def read_tensors(url: str, *, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of the safetensors file `url`.

    Raises CheckpointError if it is missing, is none, or has another hash than `sha256`.
    """
    content = _read_bytes(url)
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise CheckpointError(f"{url} has changed: its SHA-256 is {found}, and must be {sha256}")
    try:
        tensors: dict[str, Tensor] = load_tensors(content)
    except SafetensorError as error:
        raise CheckpointError(f"{url} is not a safetensors file: {error}") from error
    return tensors


def weights(tensors: Mapping[str, Tensor]) -> bytes:
    """Return `tensors` as a safetensors file."""
    return save_tensors(_on_host(tensors))


def _packed(parts: Mapping[str, Stateful]) -> bytes:
    return save_tensors(_on_host(tensors_of(parts)), metadata={"scalars": json.dumps(scalars_of(parts))})


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` on the host, each in memory of its own: safetensors refuses views of one another."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        found[name] = host.clone() if host.untyped_storage().data_ptr() in taken else host
        taken.add(found[name].untyped_storage().data_ptr())
    return found


def read_manifest(url: str) -> Manifest:
    """Return what the checkpoint at `url` consists of; raises CheckpointError if there is none of this format."""
    try:
        manifest = Manifest.model_validate_json(_read_bytes(f"{url}/{MANIFEST}"))
    except ValidationError as error:
        raise CheckpointError(f"{url}/{MANIFEST} is damaged: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{url}/{MANIFEST} is of format {manifest.format}; needed is format {FORMAT}")
    return manifest


def _read(url: str, shard: Shard) -> Read:
    content = _read_bytes(f"{url}/{shard.name}")
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise CheckpointError(f"{url}/{shard.name} is damaged: its SHA-256 is not the manifest's {shard.sha256}")
    # safetensors begin with the length of a header in JSON, 8 bytes little-endian
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return load_tensors(content), json.loads(header["__metadata__"]["scalars"])


def _read_for(parts: Mapping[str, Stateful], url: str, shard: Shard) -> Read:
    """Return what `parts` can take as it is; their set of tensors is fitted to it."""
    tensors, scalars = _read(url, shard)
    _check_fixed(parts, tensors, f"{url}/{shard.name}")
    _fit(parts, tensors, f"{url}/{shard.name}")
    return tensors, scalars


def _check_fixed(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], file: str) -> None:
    """Raise CheckpointError if the parts whose set of tensors cannot change do not fit: before others change theirs."""
    fixed = {name: part for name, part in parts.items() if not hasattr(part, "fit")}
    others = parts.keys() - fixed.keys()
    _check(fixed, {name: each for name, each in tensors.items() if name.partition(".")[0] not in others}, file)


def _fit(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], file: str) -> None:
    fit(parts, tensors)
    _check(parts, tensors, file)


def _check(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], file: str) -> None:
    live = {name: tensor.shape for name, tensor in tensors_of(parts).items()}
    if live != {name: tensor.shape for name, tensor in tensors.items()}:
        raise CheckpointError(f"{file} holds the state of another model, optimizer or exchange")


def _take(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
    for name, live in tensors_of(parts).items():
        live.copy_(tensors[name])
    load_scalars(parts, scalars)


def _read_bytes(url: str) -> bytes:
    try:
        return filesystem.read(url)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise CheckpointError(f"{url} is missing") from error
