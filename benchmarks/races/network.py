"""Hosts as network namespaces behind one switch, with a rate limit on both directions of every cable.

The switch is a bridge in a namespace of its own, so nothing appears in the machine's own network. A host's egress is
limited where it leaves the host, its ingress where it leaves the switch (tc tbf). Needs root and iproute2.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What a limit lets through at once: so much time at the limit's rate.
BURST_S = 0.001
#: The kernel cannot send less than a full frame at once.
LEAST_BURST = 2 * 1514
#: Longest wait in a queue before a packet is dropped.
QUEUE = "200ms"
#: No IPv6 address, whose neighbours would be asked for and counted as traffic.
QUIET = ("addrgenmode", "none")
#: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
HEADER_BYTES = 66
COMMAND_TIMEOUT_S = 30


class NoNetwork(Exception):
    """Namespaces cannot be made here; the message says what is missing."""


@dataclass(frozen=True)
class Sent:
    """The bytes, with all headers, and packets that a host has sent since the network was made."""

    bytes: int
    packets: int

    @property
    def payload(self) -> int:
        """The bytes without headers. Exact for TCP: acknowledgements carry none, and a large packet counts as one."""
        return self.bytes - HEADER_BYTES * self.packets

    def __sub__(self, before: "Sent") -> "Sent":
        return Sent(self.bytes - before.bytes, self.packets - before.packets)


@dataclass(frozen=True)
class Network:
    """`num_hosts` hosts behind one switch."""

    num_hosts: int
    name: str
    interface = "eth0"  # on every host

    @property
    def link(self) -> dict[str, Any]:
        """The `link` of a replica, as in a job: it measures the cable."""
        return {"mode": "measure"}

    def host(self, rank: int) -> str:
        """Return the namespace of host `rank`."""
        return f"{self.name}-{rank}"

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    @staticmethod
    def address(rank: int) -> str:
        return f"10.0.0.{rank + 1}"

    def sent(self) -> list[Sent]:
        """Return what each host has sent so far, as the switch's ports have received it."""
        links = {link["ifname"]: link for link in json.loads(run("ip", "-n", self.switch, "-s", "-j", "link", "show"))}
        received = [links[f"port{rank}"]["stats64"]["rx"] for rank in range(self.num_hosts)]
        return [Sent(each["bytes"], each["packets"]) for each in received]

    def limit(self, mbps: float | None) -> None:
        """Limit every cable to `mbps` megabits per second, each way; None: as fast as the machine is."""
        for rank in range(self.num_hosts):
            for place, device in ((self.host(rank), self.interface), (self.switch, f"port{rank}")):
                with contextlib.suppress(NoNetwork):  # there was no limit
                    run("tc", "-n", place, "qdisc", "del", "dev", device, "root")
                if mbps is not None:
                    run("tc", "-n", place, "qdisc", "add", "dev", device, "root", *token_bucket(mbps))

    def run_on_each(self, *program: str, timeout_s: float) -> None:
        """Run `program` on each host at once, with its rank as the last word. Raises SystemExit if one fails."""
        places = os.environ | {"GLOO_SOCKET_IFNAME": self.interface, "MASTER_ADDR": self.address(0)}
        started = [
            subprocess.Popen(["ip", "netns", "exec", self.host(rank), *program, str(rank)], env=places)
            for rank in range(self.num_hosts)
        ]
        try:
            failed = [each.args for each in started if each.wait(timeout=timeout_s)]
        finally:
            for each in started:
                each.kill()
        if failed:
            raise SystemExit(f"{failed[0]} failed")


def on_two_hosts(program: str, links: Sequence[str], *, timeout_s: float) -> int:
    """Run `program --rank RANK` on two hosts, once for each of `links`: Mbit/s, or `unlimited`.

    Returns the exit code: 2 if this machine lets us make no network.
    """
    try:
        with made(2) as hosts:
            for link in links:
                hosts.limit(None if link == "unlimited" else float(link))
                print(f"{link} Mbit/s", flush=True)
                hosts.run_on_each(sys.executable, program, "--rank", timeout_s=timeout_s)
    except NoNetwork as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def token_bucket(mbps: float) -> list[str]:
    """Return tc's words for a limit of `mbps` that saves up no more than a millisecond's worth of bytes."""
    burst = max(LEAST_BURST, round(BURST_S * mbps * 1e6 / 8))
    return ["tbf", "rate", f"{mbps}mbit", "burst", f"{burst}b", "latency", QUEUE]


@contextlib.contextmanager
def made(num_hosts: int) -> Iterator[Network]:
    """Make a network without limits, and remove it in the end; raises NoNetwork if this machine does not let us."""
    check()
    network = Network(num_hosts, f"wt{os.getpid()}")
    try:
        _make(network)
        yield network
    finally:
        _remove(network.name)


def check() -> None:
    """Raise NoNetwork unless this process can make namespaces; removes what dead processes have left."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise NoNetwork(f"{' and '.join(missing)} not found: install iproute2 (`apt-get install iproute2`)")
    if os.geteuid() != 0:
        raise NoNetwork("network namespaces need root: run this with sudo, or in a privileged container")
    for name in namespaces():
        owner = re.fullmatch(r"(wt(\d+))-(\d+|switch)", name)
        if owner and not Path(f"/proc/{owner[2]}").exists():
            _remove(owner[1])


def namespaces() -> list[str]:
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines()]


def _make(network: Network) -> None:
    run("ip", "netns", "add", network.switch)
    run("ip", "-n", network.switch, "link", "add", "switch", "type", "bridge")
    run("ip", "-n", network.switch, "link", "set", "switch", "up", *QUIET)
    for rank in range(network.num_hosts):
        host, port = network.host(rank), f"port{rank}"
        cable = ("type", "veth", "peer", "name", port, "netns", network.switch)
        run("ip", "netns", "add", host)
        run("ip", "-n", host, "link", "add", network.interface, *cable)
        run("ip", "-n", network.switch, "link", "set", port, "master", "switch", "up", *QUIET)
        run("ip", "-n", host, "address", "add", f"{network.address(rank)}/24", "dev", network.interface)
        run("ip", "-n", host, "link", "set", "lo", "up")
        run("ip", "-n", host, "link", "set", network.interface, "up", *QUIET)


def _remove(name: str) -> None:
    """Remove the namespaces of `name`; their cables go with them."""
    for namespace in namespaces():
        if re.fullmatch(rf"{name}-(\d+|switch)", namespace):
            run("ip", "netns", "del", namespace)


def run(*command: str) -> str:
    """Return the standard output of `command`; raises NoNetwork with its complaint if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise NoNetwork(f"{command[0]} not found: install iproute2") from error
    if done.returncode:
        raise NoNetwork(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
