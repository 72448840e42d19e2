"""Overload of the machine is named if something is late, and nowhere else."""

import pytest

from trainers import overload
from trainers.training.call_results import Outcome, WorkerLost, judge

CLAUSE = "the machine is overloaded, load 40 on 2 cores"
SILENCE, DEATH, PEER_LOST = (Outcome(kind, "what it says") for kind in ("silence", "death", "peer_lost"))


@pytest.mark.parametrize(
    ("load", "num_cores", "said"),
    [
        (40.2, 2, CLAUSE),
        (4.0, 1, "the machine is overloaded, load 4 on 1 core"),
        (6.0, 2, None),
        (40.0, 64, None),
        (0.0, 1, None),
    ],
)
def test_load_counts_by_core(load: float, num_cores: int, said: str | None) -> None:
    assert overload.at(load, num_cores) == said


@pytest.mark.parametrize(("outcome", "is_late"), [(SILENCE, True), (PEER_LOST, True), (DEATH, False)])
def test_a_worker_that_is_late_there_is_explained_and_one_that_died_is_not(outcome: Outcome, is_late: bool) -> None:
    with pytest.raises(WorkerLost) as lost:
        judge({0: outcome}, CLAUSE)

    assert (CLAUSE in str(lost.value)) is is_late
    with pytest.raises(WorkerLost) as lost:
        judge({0: outcome})
    assert "overloaded" not in str(lost.value)
