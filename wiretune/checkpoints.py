"""Load a handle's memory from a checkpoint of `torch.distributed.checkpoint`, whatever number of ranks saved it."""

import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from trainers.own_loop.handle import Handle, Residuals, name_of, num_ranks, rank


def load_memory(
    handle: Handle, folder: str | PathLike[str], *, key: str = "wiretune", residuals: Residuals = "mean"
) -> None:
    """Load what `torch.distributed.checkpoint.save({key: handle, ...}, checkpoint_id=folder)` has saved of all ranks.

    As many ranks as saved it each get their own memory back. Any other number inherits: `residuals` says whether as the
    mean of theirs, or without them (`Handle.inherit`). Call it on all ranks, attached and before the first step.

    Raises ValueError if the folder has no such memory, and for what `load_state_dict` and `inherit` refuse.
    """
    saved = SavedStates(folder, key)
    if len(saved) == num_ranks():
        handle.load_state_dict({name_of(rank()): saved[name_of(rank())]})
    else:
        handle.inherit(saved, residuals=residuals)


class SavedStates(Mapping[str, Mapping[str, Any]]):
    """The states of all ranks in a checkpoint, by `rank-0`, `rank-1`, ...; each is read when it is asked for.

    Raises ValueError if there are none under `key`.
    """

    def __init__(self, folder: str | PathLike[str], key: str) -> None:
        self._folder = folder
        metadata = FileSystemReader(folder).read_metadata()
        self._entries: dict[str, dict[str, Any]] = {}  # how each is stored, by rank and by its name in the checkpoint
        self._paths: dict[str, tuple[str | int, ...]] = metadata.planner_data or {}
        for name, entry in metadata.state_dict_metadata.items():
            first, *rest = self._paths.get(name, (name,))
            if first == key and rest and str(rest[0]).startswith("rank-"):
                self._entries.setdefault(str(rest[0]), {})[name] = entry
        if not self._entries:
            found = sorted({str(path[0]) for path in self._paths.values()})
            raise ValueError(
                f"`key` must be that of a handle in the checkpoint at {folder}, got `{key}`: it has {', '.join(found)}"
            )

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        flat: dict[str, Any] = {
            place: torch.empty(entry.size, dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else None
            for place, entry in self._entries[name].items()
        }
        with warnings.catch_warnings():  # torch warns that a process loads by itself
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(flat, checkpoint_id=self._folder, no_dist=True)
        state: dict[str, Any] = {"tensors": {}}
        for place, value in flat.items():
            _, _, part, *rest = self._paths[place]
            if rest:
                state[str(part)][str(rest[0])] = value
            else:
                state[str(part)] = value
        return state

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries, key=lambda name: int(name.removeprefix("rank-"))))

    def __len__(self) -> int:
        return len(self._entries)
