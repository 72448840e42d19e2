"""Hosts that several workers share: neighbours talk within a host at once, and over its one limited cable to others."""

from dataclasses import dataclass
from typing import Any

from races.network import Network, Sent


@dataclass(frozen=True)
class SharedHosts:
    """`per_host` workers on each host of a network, which stand for hosts of their own where workers are counted."""

    network: Network
    per_host: int

    @property
    def num_hosts(self) -> int:
        return self.network.num_hosts * self.per_host

    @property
    def interface(self) -> str:
        return self.network.interface

    @property
    def link(self) -> dict[str, Any]:
        return self.network.link

    def host(self, rank: int) -> str:
        return self.network.host(rank // self.per_host)

    def address(self, rank: int) -> str:
        return self.network.address(rank // self.per_host)

    def sent(self) -> list[Sent]:
        """Return what each worker has sent so far: an equal share of what left its host."""
        hosts = [Sent(each.bytes // self.per_host, each.packets // self.per_host) for each in self.network.sent()]
        return [host for host in hosts for _ in range(self.per_host)]

    def limit(self, mbps: float | None) -> None:
        self.network.limit(mbps)
