"""Hosts on this machine's loopback whose cables the product emulates, for where nobody lets us make a network.

A replica paces its messages as a link of that rate would. What is no replica, a control or a rival, is not slowed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from races.network import Sent

COUNTERS = Path("/proc/net/dev")
#: The numbers of an interface there: eight of what it received, then bytes and packets of what it sent.
BYTES_SENT, PACKETS_SENT = 8, 9


@dataclass
class Emulated:
    """`num_hosts` hosts. Mutable: the limit, which holds for the workers that are started after it."""

    num_hosts: int
    mbps: float | None = None
    interface: str = "lo"

    @property
    def link(self) -> dict[str, Any]:
        return {"mode": "measure"} if self.mbps is None else {"mode": "emulate", "mbps": self.mbps}

    def host(self, rank: int) -> None:
        return None

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def sent(self) -> list[Sent]:
        """Return an equal share of what went over the loopback, for each host: it has one counter for all."""
        lines = dict(line.split(":", 1) for line in COUNTERS.read_text().splitlines() if ":" in line)
        numbers = {name.strip(): line.split() for name, line in lines.items()}[self.interface]
        share = Sent(int(numbers[BYTES_SENT]) // self.num_hosts, int(numbers[PACKETS_SENT]) // self.num_hosts)
        return [share] * self.num_hosts

    def limit(self, mbps: float | None) -> None:
        self.mbps = mbps
