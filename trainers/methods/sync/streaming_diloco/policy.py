"""Streaming DiLoCo: fragments of the model meet one after the other, and each average travels while the ranks train on.

Douillard et al. (2025), "Streaming DiLoCo with overlapping communication: towards a distributed free lunch",
Algorithm 2: quantised averages are the exchange's part here. `merge: add` is CoCoD-SGD's (Shen et al., 2019).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.outer import OuterSgd
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared import screen
from trainers.methods.sync.shared.averaging import Iterate, Meeting
from trainers.methods.sync.shared.background_thread import BackgroundThread
from trainers.methods.sync.shared.local import Local
from trainers.methods.sync.shared.screen import weighted
from trainers.methods.sync.streaming_diloco.fragments import divide
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.segment import Purpose
from trainers.snapshot import tensors_of
from trainers.workload import WorkloadError


class Arrived(NamedTuple):
    """The report of a fragment's average."""

    weight: float | None  # as `Screen` says
    diverged: bool
    density: float | None
    loss: float = math.nan  # mean over those that took part, when it was sent; it was not always saved

    @classmethod
    def saved(cls, saved: Sequence[Any]) -> Self:
        """Return a report from a state; earlier releases saved the bytes sent, two dicts before the loss."""
        return cls(*(each for each in saved if not isinstance(each, dict)))


class Fragment:
    """Some tensors of the iterate, which meet by themselves: anchor, outer optimizer, exchange and wires are their own.

    `config` is the replica's.
    """

    def __init__(self, config: ReplicaConfig, sync: StreamingDiLoCoConfig, iterate: Iterate, links: NodeLinks) -> None:
        self.iterate = iterate
        self.anchor = iterate.read().cpu() if sync.offload else iterate.read()
        self._links, self._wires = links, links.apart()
        self._meeting = Meeting(config.exchange, iterate, self._wires, seed=config.seed)
        self._outer, self._screen = OuterSgd(sync, self.anchor), screen.build(sync, self._wires)
        self.path = 0.0  # sum of the learning rates since it was last launched
        self._unbilled = Counter[Purpose](), Counter[Purpose]()  # bytes between nodes, and within this one

    def join(self) -> None:
        """Use the process groups of the ranks, of which others may be there than when this was built."""
        self._wires.num_ranks = self._links.num_ranks
        for ours, theirs in ((self._wires.between, self._links.between), (self._wires.within, self._links.within)):
            ours.group, ours.num_workers = theirs.group, theirs.num_workers

    def bill(self) -> None:
        """Have the ranks' ledgers count what was sent since the last call."""
        for connection, parts in zip((self._links.between, self._links.within), self.unbilled(), strict=True):
            connection.ledger.charge(parts, int)
        self._unbilled = Counter(), Counter()

    def unbilled(self) -> list[dict[Purpose, int]]:
        """Return the bytes that were sent and are not billed yet, by purpose: between nodes, and within this one."""
        self.owe([self._wires.between.ledger.take(), self._wires.within.ledger.take()])
        return [dict(+each) for each in self._unbilled]  # one node sends 0 bytes

    def owe(self, sent: Sequence[Mapping[Purpose, int]]) -> None:
        """Bill the bytes `sent`, as of `unbilled`, too."""
        for counted, parts in zip(self._unbilled, sent, strict=True):
            counted.update(parts)

    def average(self, moved: Tensor, outcome: Exchanged, update: Update, path: float, mean: Tensor) -> Arrived:
        """Write the mean of what the ranks `moved` over `mean`, both `(n,)`; collective."""
        weight, met = self._screen.weight(moved, outcome.loss, path), outcome
        if weight is not None:
            average, met = self._meeting.average(*weighted(moved, outcome, weight), update)
            mean.copy_(average)
        return Arrived(weight, met.diverged, met.density, met.loss)

    def follow(self, mean: Tensor, update: Update) -> None:
        """Move the anchor by what the ranks moved on average `(n,)`."""
        self.anchor -= self._outer.step(mean.to(self.anchor.device), update)

    def tensors(self) -> dict[str, Tensor]:
        exchange = tensors_of({"exchange": self._meeting.exchange})
        return {"anchor": self.anchor, "velocity": self._outer.velocity} | exchange

    def scalars(self) -> dict[str, Any]:
        return {"path": self.path, "screen": self._screen.scalars(), "exchange": self._meeting.exchange.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.path = scalars["path"]
        self._screen.load_scalars(scalars["screen"])
        self._meeting.exchange.load_scalars(scalars["exchange"])


class StreamingDiLoCo(Local):
    """Launches the fragments' averages in turn, one every `interval` steps, and takes each so many steps later.

    A fragment's average lands in `mean`, of which the first entries are used, and `sent` is where this rank was at
    the launch: at most one is under way. Its bytes are billed once, when the average is taken, undone or evaluated.
    A state has those that are not billed yet. Another process that goes on with it bills them. This one has billed them
    once it goes back to a state of its own, or to an older one.
    """

    def __init__(
        self,
        config: StreamingDiLoCoConfig,
        iterate: Iterate,
        fragments: list[Fragment],
        *,
        background: BackgroundThread[Arrived],
        gradients: Exchange,
    ) -> None:
        super().__init__(config.interval, iterate, gradients=gradients, exchange=gradients)
        self._overlap_steps = config.overlap_steps
        self._merge, self._mix = config.merge, config.mix
        self.agrees = config.fragments == 1 and not config.overlap_steps and config.merge != "mix"
        self._fragments, self._background = fragments, background
        largest = max((fragment.iterate.read() for fragment in fragments), key=len)
        self._mean, self._sent = torch.zeros_like(largest), torch.zeros_like(largest)
        self._turn = 0  # of the fragment that is averaged next
        self._num_launched = 0  # averages, those that were undone included: a state that is loaded takes none back
        self._arrived: Arrived | None = None  # and not taken yet

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        for fragment in self._fragments if update.is_trained else ():
            fragment.path += update.learning_rate
        outcome = super().advance(outcome, update)
        if self._since == self._period - self._overlap_steps:
            self._launch(outcome, update)
        return outcome

    def _steps_left(self, update: Update) -> int:
        return self._period - self._since  # the configuration's: no other is asked for

    def _launch(self, outcome: Exchanged, update: Update) -> None:
        fragment = self._fragments[self._turn]
        mean, sent = (vector[: len(fragment.anchor)] for vector in (self._mean, self._sent))
        sent.copy_(fragment.iterate.read())
        path, fragment.path = fragment.path, 0.0
        fragment.join()
        self._num_launched += 1
        self._background.launch(
            partial(fragment.average, fragment.anchor.to(sent.device) - sent, outcome, update, path, mean)
        )

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        if not self._overlap_steps:
            self._launch(outcome, update)
        self.settle()
        assert self._arrived is not None
        arrived, self._arrived = self._arrived, None
        fragment = self._fragments[self._turn]
        if arrived.diverged:
            return DIVERGED
        self._turn = (self._turn + 1) % len(self._fragments)
        is_lost = not arrived.weight and not (math.isfinite(outcome.loss) and is_finite(self._iterate.read()))
        self._take(fragment, arrived, update)
        if arrived.weight:
            return replace(outcome, density=arrived.density)
        if is_lost:
            self._go_back()
        loss = outcome.loss if arrived.weight is None else arrived.loss
        return replace(outcome, loss=loss, density=arrived.density, is_left_out=True)

    def _go_back(self) -> None:
        """Put this rank at the anchors: a fragment that stays as it is would make the others not finite again."""
        for fragment in self._fragments:
            fragment.iterate.write(fragment.anchor)
            fragment.path = 0.0

    def _take(self, fragment: Fragment, arrived: Arrived, update: Update) -> None:
        """Move the anchor, if there is an average, and have the rank go on from it with what its own steps add."""
        mean, sent = (vector[: len(fragment.anchor)] for vector in (self._mean, self._sent))
        if arrived.weight is not None:
            fragment.follow(mean, update)
        if not arrived.weight or self._merge == "replace":  # one that is left out has nothing to add
            fragment.iterate.write(fragment.anchor)
            return
        local = fragment.iterate.read()
        anchor = fragment.anchor.to(local.device)
        fragment.iterate.write(anchor + (local - sent) if self._mix is None else torch.lerp(anchor, local, self._mix))

    def settle(self) -> None:
        try:
            self._wait()
        finally:  # an average that is lost with a peer was sent too
            self._fragments[self._turn].bill()

    def _wait(self) -> None:
        """Wait for what is under way, without billing it: the clock decides when some states are saved."""
        self._arrived = self._background.wait() or self._arrived

    def tensors(self) -> dict[str, Tensor]:
        self._wait()  # whoever reads or writes the state must not meet what is under way
        own = tensors_of({str(index): fragment for index, fragment in enumerate(self._fragments)})
        return own | {"mean": self._mean, "sent": self._sent}

    def scalars(self) -> dict[str, Any]:
        self._wait()
        return super().scalars() | {
            "turn": self._turn,
            "launched": self._num_launched,
            "unbilled": self._fragments[self._turn].unbilled(),
            "arrived": None if self._arrived is None else list(self._arrived),
            "fragments": [fragment.scalars() for fragment in self._fragments],
        }

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.settle()  # an average that is undone was sent all the same
        super().load_scalars(scalars)
        self._turn, arrived = scalars["turn"], scalars["arrived"]
        self._arrived = None if arrived is None else Arrived.saved(arrived)
        for fragment, own in zip(self._fragments, scalars["fragments"], strict=True):
            fragment.load_scalars(own)
        if (launched := scalars.get("launched", 1)) > self._num_launched:  # earlier releases saved no number
            self._num_launched = launched
            self._fragments[self._turn].owe(scalars.get("unbilled") or unbilled_in(arrived))


def unbilled_in(arrived: Sequence[Any] | None) -> list[dict[Purpose, int]]:
    """Return the bytes in a report that an earlier release saved, as of `Fragment.unbilled`."""
    return [each for each in arrived or () if isinstance(each, dict)] or [{}, {}]


def build(config: StreamingDiLoCoConfig, parts: PolicyParts) -> StreamingDiLoCo:
    """Return the policy from where the parameters are now. Raises WorkloadError if they are too few to divide."""
    parameters, trained = list(parts.optimizer.parameters.values()), parts.optimizer.iterate()
    if config.fragments > len(parameters):
        raise WorkloadError(
            f"`fragments` must be at most {len(parameters)}, the tensors of parameters that the model trains, got "
            f"{config.fragments}"
        )
    fragments = []
    for places in divide([parameter.numel() for parameter in parameters], config.fragments):
        own = [trained[start + place] for start in range(0, len(trained), len(parameters)) for place in places]
        iterate = Iterate(own, num_parameters=sum(parameters[place].numel() for place in places))
        fragments.append(Fragment(parts.config, config, iterate, parts.node_links))
    background = BackgroundThread[Arrived](parts.buffer.gradient.device, threads=parts.config.threads)
    return StreamingDiLoCo(config, parts.iterate, fragments, background=background, gradients=parts.alone())
