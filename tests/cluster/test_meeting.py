"""Where the workers of a group meet."""

import socket
from urllib.parse import urlsplit

import pytest

from service.cluster.group import RankActor


def test_nobody_can_take_the_port_before_the_workers_meet() -> None:
    actor = RankActor.__new__(RankActor)  # whose own work is to ask Ray, and to build a replica
    actor.address = "127.0.0.1"

    first, second = (urlsplit(actor.rendezvous()) for _ in range(2))

    assert first.port != second.port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", second.port))
