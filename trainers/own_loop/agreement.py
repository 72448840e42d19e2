"""Compare between ranks what each was given: with other methods, or another model, they drift apart unseen."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn import Parameter

from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.own_loop.handle import OF_EXECUTION, num_ranks
from trainers.spec.refusals import cut


def check_agreement(given: Mapping[str, Any], device: torch.device) -> None:
    """Raise ValueError on all ranks, by name, for what was not `given` alike on all of them; collective.

    It is JSON-compatible. Fields that only say how a step runs may differ.
    """
    if num_ranks() == 1:
        return
    texts = [json.dumps(_without_execution(value), sort_keys=True) for value in given.values()]
    digests = torch.tensor([_digest(text) for text in texts], device=device)
    connection = Connection(num_ranks(), Unpaced(), Ledger())  # of the default group, before any other is made
    rows = connection.all_gather(digests, {"control": digests.nbytes}).tolist()
    for index, (name, text) in enumerate(zip(given, texts, strict=True)):
        for number, row in enumerate(rows):
            if row[index] != rows[0][index]:
                raise ValueError(
                    f"`{name}` must be the same on all ranks, and that of rank {number} differs from that of rank 0; "
                    f"on this rank it is {cut(text)}"
                )


def named_shapes(parameters: Iterable[tuple[str, Parameter]]) -> list[tuple[str, list[int]]]:
    """Return names and shapes of the trained `parameters`, in their order."""
    return [(name, [*each.shape]) for name, each in parameters if each.requires_grad]


def _without_execution(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _without_execution(each) for name, each in value.items() if name not in OF_EXECUTION}


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
