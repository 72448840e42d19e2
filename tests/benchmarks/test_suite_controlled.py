"""What a controlled run of the suite counts is what a job's bill counts."""

import pytest

pytest.importorskip("tests.support.suite_packages")

from suite.controlled import Run

from search.loop.orders import Told
from search.trace import Trace
from search.types import Allowance, Decision, Observation, Spent, Values


def _commit(num_steps: int, **ended: bool) -> Told:
    losses = (1.0,) * num_steps
    decision = Decision(
        stage=0, values=Values(learning_rate=0.1), reason="", switched=False, commit_until=Allowance(steps=100)
    )
    trace = Trace().extended(losses, losses, losses)
    seen = Observation(
        candidate_id=None, losses=losses, step_seconds=(), trace=trace, bytes_sent=0, spent=Spent(), **ended
    )
    return Told(decision, seen)


def test_a_run_that_starts_over_takes_back_all_steps_since_its_first() -> None:
    over, back = {"rolled_back": True, "started_over": True}, {"rolled_back": True}
    run = Run()

    run.note([_commit(30), _commit(5, **back), _commit(40), _commit(10, **over), _commit(50), _commit(7, **back)])

    assert run.taken_back == 5 + (30 + 40 + 10) + 7
