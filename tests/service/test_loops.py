"""Background loops survive a failed round and notice pauses that were too long."""

import math
from contextlib import nullcontext

import pytest

from service.control.reconciling import loops
from service.control.reconciling.loops import Loops
from service.control.reconciling.uptime import Uptime
from service.errors import Unavailable

LEASE_S, START = 15.0, 1000.0


class Clocks:
    """One that a sleeping machine stops, `steady`, and one that it does not; a loop's rests turn both.

    It takes the place of the event for which a loop rests. The loop ends after the last rest.
    """

    def __init__(self):
        self.steady, self.slept, self.rests = 0.0, 0.0, []

    def now(self):
        return START + self.steady + self.slept

    def monotonic(self):
        return self.steady

    def is_set(self):
        return not self.rests

    def wait(self, _):
        self.steady += self.rests.pop(0)


class Telemetry:
    def round(self, _):
        return nullcontext()


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(loops, "time", clocks)
    return clocks


@pytest.fixture
def uptime():
    return Uptime(lease_s=LEASE_S, failed_at=lambda: -math.inf, now=START, steady=0.0)


@pytest.fixture
def run(clocks, uptime):
    """Call a round again and again, with rests that take so long each and should take a second."""

    def run(act, rests):
        clocks.rests = list(rests)
        loop = Loops({"jobs": act}, telemetry=Telemetry(), uptime=uptime, clock=clocks.now)
        loop._stopping = clocks
        loop._run("jobs", 1.0)

    return run


@pytest.mark.parametrize(
    ("asleep_s", "rest_s", "counts"),
    [(0.0, 1.0, True), (3600.0, 1.0, False), (0.0, 9.0, False)],
    ids=["awake", "asleep_in_a_round", "stopped_in_a_rest"],
)
def test_drivers_have_a_lease_anew_after_time_that_the_service_did_not_live_through(
    run, clocks, uptime, asleep_s, rest_s, counts
):
    run(lambda _: None, [1.0] * 20)

    def sleep(_):
        clocks.slept += asleep_s

    run(sleep, [rest_s])

    assert uptime.leases_count(clocks.now() + LEASE_S) is counts
    assert uptime.leases_count(clocks.now() + LEASE_S + 1)


@pytest.mark.parametrize("error", [Unavailable("the database does not answer"), RuntimeError("why")])
def test_a_round_that_fails_is_followed_by_the_next(run, error):
    times = []

    def fail_at_first(now):
        times.append(now)
        if len(times) == 1:
            raise error

    run(fail_at_first, [1.0, 1.0])

    assert times == [START, START + 1]
