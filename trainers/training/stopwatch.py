"""Measures a rank's steps: what their time goes to, and how long each waits for the exchange."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainers.exchange.communication import Communication
from trainers.exchange.node_links import NodeLinks
from trainers.segment import StepTimes


class Stopwatch:
    """Mutable: the times of a rank since these connections were made, by what they went to."""

    def __init__(self, communication: Communication, node_links: NodeLinks, device: torch.device) -> None:
        self._communication, self._node_links = communication, node_links
        self.times_steps = device.type == "cpu"  # no clock of the host sees a GPU's work
        self._met_s = 0.0  # inside averages, waits for those beside training among them
        self._met_wire_s = 0.0  # of the wire's seconds, those inside averages

    @property
    def waited_s(self) -> float:
        """The time that training has waited for the exchange, or been inside an average."""
        return self._communication.exposed_s + self._met_s

    @property
    def _wire_s(self) -> float:
        """The seconds that this rank's collectives have taken."""
        return self._node_links.between.ledger.wire_s + self._node_links.within.ledger.wire_s

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Count the body as inside an average, unless it fails."""
        started, wire_s = time.monotonic(), self._wire_s
        yield
        self._met_s += time.monotonic() - started
        self._met_wire_s += self._wire_s - wire_s

    def read(self) -> StepTimes:
        """Return the times so far; `compute` is not among them."""
        wire_s = self._wire_s
        compress_s = self._communication.busy_s - (wire_s - self._met_wire_s)
        return StepTimes(compute=0.0, exposed=self.waited_s, compress=compress_s, wire=wire_s)

    def since(self, before: StepTimes, steps_s: float) -> StepTimes | None:
        """Return the times of steps that took `steps_s` together, since `before`; None where it times none."""
        if not self.times_steps:
            return None
        took = {name: max(0.0, value - getattr(before, name)) for name, value in self.read()}
        return StepTimes(**took | {"compute": max(0.0, steps_s - took["exposed"])})


class RoundWait:
    """The wait of a step for the exchange: that of one of the last round, on average.

    A round ends where ranks meet, which may be after every step. The last of its steps has all of its wait.
    """

    def __init__(self) -> None:
        self._seconds, self._num_steps = 0.0, 0  # of the round that has not ended yet
        self._per_step = math.nan

    def count(self, seconds: float, *, num_steps: int = 1, ends_round: bool) -> float:
        """Count what steps have waited; returns the wait of a step, nan before a round has ended."""
        self._seconds += seconds
        self._num_steps += num_steps
        if ends_round and self._num_steps:
            self._per_step = self._seconds / self._num_steps
            self._seconds, self._num_steps = 0.0, 0
        return self._per_step
