"""Measure a rank's steps: the time of each activity, and the wait of each step for the exchange."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainers.exchange.communication import Communication
from trainers.exchange.node_links import NodeLinks
from trainers.segment import StepTimes


class Stopwatch:
    """Measures a rank's times by activity, since its connections were made. Mutable."""

    def __init__(self, communication: Communication, node_links: NodeLinks, device: torch.device) -> None:
        self._communication, self._node_links = communication, node_links
        self.times_steps = device.type == "cpu"  # the host's clock does not see a GPU's work
        self._met_s = 0.0  # seconds inside averages, including waits for those in the background
        self._met_wire_s = 0.0  # seconds of collectives inside averages

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
        """Return the times so far, without `compute`."""
        wire_s = self._wire_s
        compress_s = self._communication.busy_s - (wire_s - self._met_wire_s)
        return StepTimes(compute=0.0, exposed=self.waited_s, compress=compress_s, wire=wire_s)

    def since(self, before: StepTimes, steps_s: float) -> StepTimes | None:
        """Return the times since `before` of steps that took `steps_s` seconds in all; None: they are not timed."""
        if not self.times_steps:
            return None
        took = {name: max(0.0, value - getattr(before, name)) for name, value in self.read()}
        return StepTimes(**took | {"compute": max(0.0, steps_s - took["exposed"])})


class RoundWait:
    """The mean wait per step for the exchange, over the last completed round.

    A round ends when ranks average, which may be after every step. The whole wait falls on the round's last step.
    """

    def __init__(self) -> None:
        self._seconds, self._num_steps = 0.0, 0  # of the round that has not ended yet
        self._per_step = math.nan

    def count(self, seconds: float, *, num_steps: int = 1, ends_round: bool) -> float:
        """Add the wait of `num_steps` steps. Returns the mean wait per step; nan before the first round has ended."""
        self._seconds += seconds
        self._num_steps += num_steps
        if ends_round and self._num_steps:
            self._per_step = self._seconds / self._num_steps
            self._seconds, self._num_steps = 0.0, 0
        return self._per_step
