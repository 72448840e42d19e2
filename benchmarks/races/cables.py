"""What a race asks of the hosts that it runs on: of a real network (`network`), or of emulated cables (`emulated`)."""

from typing import Any, Protocol

from races.network import Sent


class Cables(Protocol):
    """Hosts, and the cables between them."""

    @property
    def num_hosts(self) -> int: ...

    @property
    def interface(self) -> str:
        """Of every host."""

    @property
    def link(self) -> dict[str, Any]:
        """The `link` of a replica, as in a job."""

    def host(self, rank: int) -> str | None:
        """Return the namespace of host `rank`; None: it has none of its own."""

    def address(self, rank: int) -> str: ...

    def sent(self) -> list[Sent]:
        """Return what each host has sent so far."""

    def limit(self, mbps: float | None) -> None:
        """Limit every cable to `mbps` megabits per second, each way; None: as fast as the machine is."""
