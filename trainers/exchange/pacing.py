"""Emulate a link: make each collective last as long, in real time, as that link would take."""

import time
from typing import Protocol

from trainers.spec.link import EmulateLink, LinkConfig
from trainers.traffic.collectives import Traffic

#: A sleep wakes up late by about this much on Linux; the rest is spent spinning.
SPIN_S = 0.0001


class Pacer(Protocol):
    """Waits at the end of a collective, which began at `started` on the monotonic clock, as long as `link` asks."""

    @property
    def link(self) -> EmulateLink | None: ...
    def finish(self, started: float, traffic: Traffic) -> None: ...


class Unpaced:
    """Uses the network as it is."""

    link = None

    def finish(self, started: float, traffic: Traffic) -> None:
        return


class LinkPacer:
    """Ends no collective before start + bytes / rate + rounds x latency (full duplex)."""

    def __init__(self, link: EmulateLink) -> None:
        self.link = link

    def finish(self, started: float, traffic: Traffic) -> None:
        deadline = started + traffic.seconds(self.link)
        left = deadline - time.monotonic()
        if left > SPIN_S:
            time.sleep(left - SPIN_S)
        while time.monotonic() < deadline:
            pass


def build(link: LinkConfig) -> Pacer:
    """Return the pacer that `link` describes."""
    return LinkPacer(link) if isinstance(link, EmulateLink) else Unpaced()
