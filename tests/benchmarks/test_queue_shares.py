"""The queue in simulated time: projects get their shares, and nobody waits for ever."""

import pytest

from benchmarks.queue_shares import LONGEST_S, NODES, RULES, SIZES, Simulation, due
from service.control.queue.capacity import total
from service.job.priority import Priority

MIXED = (*[Priority.NORMAL] * 6, Priority.LOW, Priority.LOW, Priority.HIGH, Priority.URGENT)
NUM_PROJECTS = len(due())


def longest_allowed_s(backlog: int) -> float:
    """Until the job is overdue, and until all that waits beside it would have run one after the other."""
    drained = NUM_PROJECTS * backlog * max(SIZES) * LONGEST_S / total(NODES).cpus
    return len(Priority) * RULES.aging_s + drained + LONGEST_S


def test_under_saturation_nobody_starves_and_everybody_ends() -> None:
    outcome = Simulation(400, backlog=10, priorities=MIXED).run()

    assert outcome.num_ended == 400
    assert outcome.longest_wait_s <= longest_allowed_s(10)
    assert outcome.waits[Priority.URGENT] < outcome.waits[Priority.LOW]
    assert outcome.used > 0.85


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_of_ten_thousand_jobs_each_project_gets_its_share(seed: int) -> None:
    outcome = Simulation(10_000, backlog=40, priorities=(Priority.NORMAL,), seed=seed).run()

    assert outcome.num_ended == 10_000
    assert outcome.shares == pytest.approx(due(), rel=0.05)
    assert outcome.longest_wait_s <= longest_allowed_s(40)
    assert outcome.used > 0.95
