"""The bill adds up, and the schedule matches the training."""

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from search.curves.curve_summary import end_loss
from search.schedule_file import Entry
from search.types import Piece, Spent, Values
from service.cluster import learned_schedule
from service.cluster.measured import COMMIT_LOSSES, Measured
from service.cluster.segment_length import part_of_piece
from service.cluster.trial_ledger import Best, TrialLedger, is_clockless_turn
from service.wire.records import Bill
from trainers.segment import Segment, SegmentResult, StepTimes
from trainers.training.group import Recovery

_VALUES = Values(learning_rate=0.3, level=0.01)


def _result(first_step: int, num_steps: int, *, sent: int = 100, density: float | None = 0.01) -> SegmentResult:
    return SegmentResult(
        first_step=first_step,
        losses=(1.0,) * num_steps,
        step_seconds=(0.01,) * num_steps,
        bytes_sent=({"gradient": sent - 10, "control": 10}, {"gradient": sent - 20, "control": 10}),
        bytes_dense=1000 * num_steps,
        density=density,
        threshold=0.5,
    )


def _of_losses(losses: Iterable[float], *, first_step: int = 0) -> SegmentResult:
    told = tuple(map(float, losses))
    return _result(first_step, len(told)).model_copy(update={"losses": told})


def _segment(num_steps: int, rate: float, final: float | None = None) -> Segment:
    return Segment(num_steps=num_steps, learning_rate=rate, final_learning_rate=final, level=0.01)


def test_the_bill_is_that_of_the_busiest_worker_and_knows_the_searchs_share() -> None:
    progress = TrialLedger()

    progress.charge(_result(0, 5, sent=100), is_probe=True)
    progress.charge(_result(0, 10, sent=300), is_probe=False)

    assert progress.bytes == progress.bill.bytes_sent == 400
    assert progress.bill.bytes_search == 100
    assert sum(progress.bill.bytes_by_purpose.values()) == 400
    assert (progress.steps, progress.bill.steps_search, progress.bill.bytes_dense) == (15, 5, 15_000)


def test_what_all_workers_sent_and_how_long_they_were_held_is_billed_whoever_is_the_busiest() -> None:
    progress = TrialLedger()

    progress.charge(_result(0, 5, sent=100), is_probe=True)  # one sends 100, one 90
    progress.charge(_result(0, 10, sent=300), is_probe=False)
    progress.stop_clock(3.0, num_held=2)
    progress.stop_clock(5.0, num_held=4)

    assert progress.bill.bytes_of_all == 100 + 90 + 300 + 290
    assert progress.bill.seconds_of_workers == 3.0 * 2 + 2.0 * 4


def test_a_bill_of_an_earlier_release_goes_on_as_if_all_workers_had_sent_alike() -> None:
    progress = TrialLedger(bytes=500, seconds=10.0, bill=Bill(bytes_sent=500, seconds_training=10.0))

    progress.charge(_result(0, 5, sent=100), is_probe=False)
    progress.stop_clock(11.0, num_held=2)

    assert (progress.bill.bytes_of_all, progress.bill.seconds_of_workers) == (2 * 500 + 190, 22.0)


def test_steps_are_billed_by_the_workers_that_took_them() -> None:
    progress, some_away = TrialLedger(), _result(0, 10).model_copy(update={"steps_by_workers": {1: 4, 2: 6}})

    progress.charge_warm_up(some_away)
    progress.charge(some_away, is_probe=False)
    progress.charge(_result(10, 3), is_probe=False)

    assert progress.bill.steps_by_workers == {1: 4, 2: 9}


def test_a_density_of_an_earlier_release_goes_on_over_all_its_steps() -> None:
    measured = Measured.model_validate({"num_steps": 900, "density_sum": 9.0})

    measured.add(_result(900, 100, density=0.01))

    assert measured.density == pytest.approx(0.01)


def test_a_density_is_that_of_what_was_sent() -> None:
    progress, measured = TrialLedger(), Measured()
    for first, density in ((0, None), (10, 0.01), (20, None)):  # one average of the parameters in thirty steps
        measured.add(_result(first, 10, density=density))
        learned_schedule.append(progress.schedule, _segment(10, 0.1), _result(first, 10, density=density), "guess")

    assert measured.density == 0.01
    assert [entry.density for entry in progress.schedule] == [0.01]


def test_bytes_within_nodes_are_billed_apart_and_count_in_no_budget() -> None:
    progress = TrialLedger()

    progress.charge(
        _result(0, 5).model_copy(update={"bytes_within": ({"gradient": 70}, {"gradient": 50})}), is_probe=True
    )

    assert progress.bill.bytes_within_nodes == 70
    assert progress.bytes == progress.bill.bytes_sent == progress.bill.bytes_search == 100


def test_segments_with_the_same_values_are_one_schedule_entry() -> None:
    progress = TrialLedger()

    learned_schedule.append(progress.schedule, _segment(10, 0.1), _result(0, 10, density=0.01), "guess")
    learned_schedule.append(progress.schedule, _segment(30, 0.1), _result(10, 30, density=0.03), "guess")
    learned_schedule.append(progress.schedule, _segment(5, 0.2), _result(40, 5), "better")

    assert [(e.step, e.num_steps, e.learning_rate) for e in progress.schedule] == [(0, 40, 0.1), (40, 5, 0.2)]
    assert progress.schedule[0].density == (10 * 0.01 + 30 * 0.03) / 40


def test_a_commits_course_has_each_steps_wait_as_far_as_it_was_measured() -> None:
    measured = Measured()
    for result in (_result(0, 3).model_copy(update={"waits": (0.004, 0.5, 0.004)}), _result(3, 2)):
        measured.add(result)

    assert measured.trace.waits[:3] == (0.004, 0.5, 0.004)
    assert all(math.isnan(wait) for wait in measured.trace.waits[3:]) and measured.trace.num_steps == 5


@pytest.mark.parametrize("num_steps", [60, 500, 1000, 5000])
def test_a_commit_of_which_the_last_losses_are_kept_ends_where_all_of_it_does(num_steps: int) -> None:
    losses = tuple(np.linspace(2, 1, num_steps).tolist())
    whole, kept = Measured(), Measured(limit=COMMIT_LOSSES)
    for first in range(0, num_steps, 20):
        pushed = _result(first, 20).model_copy(update={"losses": losses[first : first + 20]})
        whole.add(pushed)
        kept.add(pushed)

    assert len(kept.losses) <= COMMIT_LOSSES
    ends = [end_loss(each.observation(None, Spent())) for each in (whole, kept)]
    assert ends[0] == ends[1] == pytest.approx(np.median(losses[-min(200, max(20, num_steps // 5)) :]))


def test_ramps_stay_apart() -> None:
    progress = TrialLedger()

    learned_schedule.append(progress.schedule, _segment(10, 0.1, 0.05), _result(0, 10), "cosine")
    learned_schedule.append(progress.schedule, _segment(10, 0.05, 0.0), _result(10, 10), "cosine")

    assert [e.final_learning_rate for e in progress.schedule] == [0.05, 0.0]


@given(num_steps=st.integers(1, 300), cuts=st.lists(st.integers(1, 40), max_size=40), kept=st.integers(1, 300))
def test_a_piece_that_is_pushed_in_parts_is_one_entry_with_the_rates_of_every_step(
    num_steps: int, cuts: list[int], kept: int
) -> None:
    piece, values = Piece(step=7, num_steps=num_steps, learning_rate=0.3, final_learning_rate=0.1), _VALUES
    whole = Segment(num_steps=num_steps, learning_rate=0.3, final_learning_rate=0.1)
    progress, trained = TrialLedger(), list[float]()
    learned_schedule.append(progress.schedule, _segment(7, 0.3), _result(0, 7), "decay")
    for cut in (*cuts, num_steps):
        left = piece.end - 7 - len(trained)
        if left and len(trained) < kept:
            part = part_of_piece(piece, values, step=7 + len(trained), num_steps=min(cut, left))
            learned_schedule.append(progress.schedule, part, _result(7 + len(trained), part.num_steps), "decay")
            trained += [part.learning_rate_at(index) for index in range(part.num_steps)]

    (_, entry), rates = progress.schedule, [whole.learning_rate_at(index) for index in range(len(trained))]
    told = Entry.model_validate(entry.model_dump())

    assert trained == rates == [told.learning_rate_at(7 + index) for index in range(len(trained))]
    assert entry.last_learning_rate == pytest.approx(trained[-1])
    assert (entry.piece_steps is None) == (len(trained) == num_steps)


def test_the_schedule_to_a_checkpoint_within_a_piece_has_its_rates_to_the_bit() -> None:
    progress = TrialLedger()
    learned_schedule.append(progress.schedule, _segment(40, 0.1, 0.02), _result(0, 40), "decay")

    (entry,) = progress.schedule_to(Best(checkpoint="here", score=1.0, step=15))
    told, whole = Entry.model_validate(entry.model_dump()), _segment(40, 0.1, 0.02)

    assert entry.num_steps == 15
    assert [told.learning_rate_at(step) for step in range(15)] == [whole.learning_rate_at(step) for step in range(15)]


def test_a_rewound_stage_leaves_the_schedule_and_stays_on_the_bill() -> None:
    progress = TrialLedger()
    opened = progress.model_copy(deep=True)
    progress.charge(_result(0, 10), is_probe=False)
    progress.step = 10
    learned_schedule.append(progress.schedule, _segment(10, 9.0), _result(0, 10), "too high")

    progress.rewind_to(opened, num_steps=10)

    assert progress.step == 0 and progress.schedule == []
    assert progress.bytes == 100 and progress.bill.steps_taken_back == 10


def test_a_promoted_probe_is_on_the_bill_as_committed() -> None:
    progress, result = TrialLedger(), _result(0, 10)
    progress.charge(result, is_probe=True)
    progress.charge_seconds(seconds_search=2.0)

    progress.promote(num_steps=10, num_bytes=100, seconds=1.5)

    bill = progress.bill
    assert (bill.steps_search, bill.bytes_search, bill.seconds_search) == (0, 0, 0.5)
    assert (progress.steps, bill.bytes_sent) == (10, 100)


def test_the_bill_says_what_each_option_took_and_what_of_it_was_searching() -> None:
    progress, result = TrialLedger(), _result(0, 10)
    for option in ("none", "powersgd 4", "powersgd 4"):
        progress.charge(result, is_probe=True, option=option)
    progress.charge(result, is_probe=False, option="powersgd 4")
    progress.promote(num_steps=10, num_bytes=100, seconds=0.1, option="powersgd 4")

    by_option = progress.bill.by_option
    assert {name: (took.steps, took.steps_search) for name, took in by_option.items()} == {
        "none": (10, 10),
        "powersgd 4": (30, 10),
    }
    assert sum(took.bytes_sent for took in by_option.values()) == progress.bill.bytes_sent
    assert by_option["powersgd 4"].seconds == pytest.approx(0.3)


def test_a_job_of_one_exchange_has_no_bill_by_option() -> None:
    progress = TrialLedger()
    progress.charge(_result(0, 10), is_probe=False)

    assert progress.bill.by_option == {}


def test_recovery_is_billed_once_apart_from_the_bytes_of_training() -> None:
    progress, before = TrialLedger(), Recovery(repairs=1, seconds=2.0, bytes=30)
    progress.charge_recovery(Recovery(), before)
    progress.charge_recovery(before, Recovery(repairs=3, seconds=7.0, bytes=50))

    bill = progress.bill

    assert (bill.repairs, bill.seconds_recovery, bill.bytes_recovery) == (3, 7.0, 50)
    assert (bill.bytes_sent, progress.bytes, progress.steps) == (0, 0, 0)


def test_progress_survives_json_with_a_diverged_loss() -> None:
    measured = Measured(losses=[1.0, float("nan"), float("inf")])

    again = Measured.model_validate_json(measured.model_dump_json())

    assert repr(again.losses) == repr(measured.losses)


def test_the_bill_says_the_most_that_was_kept_for_backward() -> None:
    progress = TrialLedger()

    for saved in (70, 90, 80):
        progress.charge(_result(0, 5).model_copy(update={"saved_bytes": saved}), is_probe=False)

    assert progress.bill.saved_bytes == 90


def test_the_bill_says_the_most_memory_that_a_worker_needed() -> None:
    progress = TrialLedger()

    for needed in (70, 90, 80):
        progress.charge(_result(0, 5).model_copy(update={"memory_bytes": needed}), is_probe=False)

    assert progress.bill.memory_bytes == 90


def test_the_split_of_time_is_of_the_steps_that_were_timed_alone() -> None:
    times = StepTimes(compute=0.04, exposed=0.02, compress=0.01, wire=0.03)
    progress = TrialLedger()

    progress.charge(_result(0, 5).model_copy(update={"times": times}), is_probe=True)
    progress.charge(_result(5, 5).model_copy(update={"times": times}), is_probe=False)
    progress.charge(_result(10, 7), is_probe=False)
    progress.charge_warm_up(_result(0, 3).model_copy(update={"times": times}))

    bill = progress.bill
    assert (bill.steps_timed, bill.seconds_compute, bill.seconds_exposed) == (10, 0.08, 0.04)
    assert (bill.seconds_compress, bill.seconds_wire) == (0.02, 0.06)


@pytest.mark.parametrize(
    ("loss", "patience"), [(0.5, math.inf), (0.499, math.inf), (0.495, 1.0), (0.48, 0.5), (0.25, 0.04), (0.9, math.inf)]
)
def test_the_larger_a_gain_is_the_earlier_it_is_worth_a_checkpoint(loss: float, patience: float) -> None:
    progress = TrialLedger(best=Best(checkpoint="there", score=0.5), score=loss)

    assert progress.best_patience == pytest.approx(patience)
    assert TrialLedger(score=loss).best_patience == 0  # of the first one


def test_every_evaluation_of_twenty_is_a_turn_for_a_checkpoint_however_shares_are_rounded() -> None:
    shares = [steps / 1000 for steps in range(0, 1001, 50)]

    assert all(is_clockless_turn(after - before, 1.0) for before, after in pairwise(shares))
    assert not any(is_clockless_turn(0.9 * (after - before), 1.0) for before, after in pairwise(shares))


def test_the_losses_before_an_evaluation_are_those_of_the_steps_that_stay() -> None:
    progress = TrialLedger()
    progress.commit(_of_losses(range(60)))
    start = progress.model_copy(deep=True)
    progress.commit(_of_losses(range(5), first_step=60))
    assert progress.recent == (*range(15, 60), *range(5)) and progress.step == 65

    progress.rewind_to(start, num_steps=5)

    assert progress.recent == tuple(range(10, 60)) and progress.step == 60
