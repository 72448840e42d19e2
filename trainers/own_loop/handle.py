"""Handles of a user's own loop have a state in common, which each rank saves and loads."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.segment import Purpose
from trainers.snapshot import Kept, Stateful, load_scalars, part_of, scalars_of, tensors_of

log = logging.getLogger("wiretune.attach")
#: What becomes of the residuals of another number of ranks.
Residuals = Literal["mean", "drop"]
#: Fields that say how a step runs. A memory goes on with others.
OF_EXECUTION = frozenset({"overlap", "offload"})
#: Numbers that lay out a memory: owners keep parts of buckets, in whole blocks. It goes on with no others.
OF_LAYOUT = frozenset({"bucket_mib", "block"})


def rank() -> int:
    """Return the rank of this process in the default group; 0 without one."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    """Return the number of ranks in the default group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


def name_of(number: int) -> str:
    """Return the key of this rank in a state."""
    return f"rank-{number}"


class Handle:
    """The state of one model's exchange, of named parts. It is this rank's own: each rank saves and loads its.

    `methods` are the plain fields of what the state is a memory of, and `peers` the ranks of which each holds a part of
    what this rank's exchange keeps. None: the leaders of the nodes, whose numbers are those of the default group.
    """

    def __init__(
        self,
        parts: Mapping[str, Stateful],
        methods: Mapping[str, Any],
        node_links: NodeLinks,
        *,
        peers: Sequence[int] | None = None,
    ) -> None:
        self.node_links = node_links
        self._parts, self._methods = parts, methods
        self._peers = [*(node_links.topology.leaders if peers is None else peers)]
        self._place = {"rank": rank(), "num_ranks": num_ranks()}
        self._is_fresh = True  # nothing has been loaded

    @property
    def _has_stepped(self) -> bool:
        """True once the exchange has taken a step."""
        raise NotImplementedError

    def take_bytes(self, *, within_node: bool = False) -> dict[Purpose, int]:
        """Return the bytes sent to other nodes since the last such call, by purpose, or within this rank's node.

        Under FSDP2 each replica of the model is a node.
        """
        return (self.node_links.within if within_node else self.node_links.between).ledger.take()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's memory under a key of its own, so that a checkpoint of all ranks has that of each.

        It is `tensors` by name, and the JSON text `fields`: what is no tensor, of which methods, and whose it is.
        """
        tensors = {name: tensor.clone() for name, tensor in tensors_of(self._parts).items()}
        fields = {"scalars": scalars_of(self._parts), "methods": self._methods, "peers": self._peers, **self._place}
        # As text: a checkpoint flattens what it finds, and drops what is empty.
        return {name_of(rank()): {"tensors": tensors, "fields": json.dumps(fields | self._settings())}}

    def _settings(self) -> dict[str, Any]:
        """Return what else the state has, JSON-compatible."""
        return {}

    def _set(self, own: Mapping[str, Any]) -> None:
        """Take over the settings of `own`, a state without its key."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`, which this rank of as many ranks has saved; it may hold the states of others, too.

        Raises ValueError if it is not like that, and changes nothing then.
        """
        if conflict := self.conflict(state):
            raise ValueError(conflict)
        own = _own(state)
        tensors, before = tensors_of(self._parts), scalars_of(self._parts)
        try:
            load_scalars(self._parts, own["scalars"])
        except (KeyError, TypeError, ValueError) as error:
            load_scalars(self._parts, before)
            raise ValueError(
                f"`state` must be of the same exchange and model: its scalars do not fit, {error}"
            ) from None
        for name, tensor in tensors.items():  # of a dense exchange there are none
            tensor.copy_(own["tensors"][name])
        self._is_fresh = False
        self._set(own)

    def conflict(self, state: Mapping[str, Any]) -> str | None:
        """Return why `state` cannot be loaded, by who has saved it, of which methods and shapes; None: it can."""
        own = _own(state)
        saved_by = {name: own.get(name) for name in self._place}
        if saved_by != self._place:
            wanted, given = ("rank {rank} of {num_ranks}".format(**each) for each in (self._place, saved_by))
            remedy = (
                ": give the states of all ranks to `inherit`, or, without them, load the model before you attach it"
                if saved_by["num_ranks"] != num_ranks()
                else ""
            )
            return f"`state` must be what {wanted} has saved, got that of {given}{remedy}"
        if field := _differing_field(own.get("methods", {}), self._methods):  # 0.1.0 saved none
            return f"`state` must be of the same methods, but for their numbers: {field}"
        expected, got = shapes_of(tensors_of(self._parts)), shapes_of(own["tensors"])
        if expected != got:
            return f"`state` must be of the same exchange, model and number of ranks: {expected}, got {got}"
        return None

    @torch.no_grad()
    def inherit(self, states: Mapping[str, Mapping[str, Any]], *, residuals: Residuals) -> None:
        """Go on from `states`, which another number of ranks has saved: of all of them, as `rank-0`, `rank-1`, ...

        With `mean` each rank begins with the mean of their residuals: what was not sent yet is sent later. With `drop`
        it begins without them; moments and counts, such as those of a warm-up, go on. Each rank gives the same
        `states`, before its first step; they are read one after the other. A warning on rank 0 says what became of
        them.

        Raises ValueError for a part that no other number of ranks can take over (of `sync`, and of exchanges whose
        ranks drift apart), and for states that are not all there or of other methods. It changes nothing then.
        """
        if residuals not in get_args(Residuals):
            raise ValueError(f"`residuals` must be 'mean' or 'drop', got {residuals!r}")
        self._check_heir()
        first = _of_rank(states, self._peers[0])
        if missing := [each for each in map(name_of, range(first["num_ranks"])) if each not in states]:
            raise ValueError(f"`states` must be of all {first['num_ranks']} ranks, and `{missing[0]}` is missing")
        peers = first.get("peers", range(first["num_ranks"]))  # which was not always saved
        with _unchanged_by_failure(self._parts):
            for index, number in enumerate(peers):
                self._take(_of_rank(states, number), index=index, of=len(peers))
        for part in self._parts.values() if residuals == "drop" else ():
            if (residual := part.tensors().get("residual")) is not None:
                residual.zero_()
        self._is_fresh = False
        self._set(first)
        if rank() == 0:
            became = {
                "mean": "each rank begins with the mean of their residuals",
                "drop": "their residuals are dropped",
            }
            log.warning("memories of %d ranks go on in %d: %s", first["num_ranks"], num_ranks(), became[residuals])

    def _check_heir(self) -> None:
        """Raise ValueError unless each part can take over those of another number of ranks, and has nothing yet."""
        if self._has_stepped or not self._is_fresh:
            raise ValueError("`inherit` must come before the first step and without another state: attach anew")
        for name, part in self._parts.items():
            if not hasattr(part, "inherit"):
                raise ValueError(
                    f"`{name}` must go on with as many ranks, as each keeps what others cannot take: load the model "
                    "before you attach it, and leave the state out"
                )

    def _take(self, own: Mapping[str, Any], *, index: int, of: int) -> None:
        """Have each part inherit from the state of one rank."""
        if field := _differing_field(own.get("methods", {}), self._methods):
            raise ValueError(field)
        for name, part in self._parts.items():
            assert hasattr(part, "inherit")  # `_check_heir` has looked
            part.inherit(Kept(part_of(own["tensors"], name), own["scalars"][name], index=index, of=of))


@contextmanager
def _unchanged_by_failure(parts: Mapping[str, Stateful]) -> Iterator[None]:
    """Put `parts` back if the body finds that a state does not fit, and raise ValueError."""
    tensors, scalars = {name: each.clone() for name, each in tensors_of(parts).items()}, scalars_of(parts)
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        for name, tensor in tensors_of(parts).items():
            tensor.copy_(tensors[name])
        load_scalars(parts, scalars)
        raise ValueError(f"`states` must be of the same exchange and model: {error}") from error


def _own(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of this rank without its key; earlier releases saved it like that.

    Of a state of other ranks alone it is the first, which is then refused by its number.
    """
    if name_of(rank()) in state:
        return _unpacked(state[name_of(rank())])
    others = [name for name in state if name.startswith("rank-")]
    return _unpacked(state[others[0]] if others else state)


def _of_rank(states: Mapping[str, Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    """Return the state of rank `number` without its key. Raises ValueError if it is missing."""
    if name_of(number) not in states:
        raise ValueError(f"`states` must have `{name_of(number)}`, got {', '.join(states) or 'none'}")
    state = states[name_of(number)]
    return _unpacked(state.get(name_of(number), state))


def _unpacked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    if "fields" not in state:
        return state
    fields: dict[str, Any] = json.loads(state["fields"])
    return {"tensors": state.get("tensors", {}), **fields}


def _differing_field(saved: Any, now: Any, *, name: str = "") -> str | None:
    """Return in which field two configurations differ, and how. None: in what a memory goes on with.

    That is another density, or one where a range was searched, and a field that only one has: a release may add it.
    """
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        common = sorted((saved.keys() & now.keys()) - OF_EXECUTION, key=lambda field: (field != "kind", field))
        fields = (_differing_field(saved[each], now[each], name=f"{name}.{each}".lstrip(".")) for each in common)
        return next((field for field in fields if field), None)
    are_amounts = _is_amount(saved) and _is_amount(now)
    lays_out = are_amounts and name.rpartition(".")[2] in OF_LAYOUT
    if saved == now or (are_amounts and not lays_out):
        return None
    reason = ", which lays out the memory," if lays_out else ""
    return f"`{name}`{reason} is {now!r} here, got {saved!r}"


def _is_amount(value: Any) -> bool:
    """Return whether `value` is a number, or a range, which is a pair of them."""
    pair = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in pair)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `tensors` by name."""
    return {name: tuple(each.shape) for name, each in tensors.items()}
