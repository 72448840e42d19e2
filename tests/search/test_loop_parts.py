"""What all loops share: series of steps, how far probes and commits go, and which failure is the last."""

import math

import pytest
from hypothesis import given, strategies as st

from search.budget.link import StepCost
from search.config import Budget
from search.loop.endings import Failure, course_at_end, futile
from search.loop.pacing import look_steps, part_of, probe_parts, probe_values, until_totals, within
from search.loop.series import COMMIT_LOSSES, Series
from search.types import Allowance, Candidate, Course, Spent, Values

RATE = Values(learning_rate=0.1)


def failures(*lengths: int, rates: tuple[float, ...] = (64, 16, 4, 1, 0.25, 0.06)) -> list[Failure]:
    """Return commits in a row that diverged after so many steps each."""
    return [
        Failure(values=Values(learning_rate=rate), num_steps=num) for rate, num in zip(rates, lengths, strict=False)
    ]


@pytest.mark.parametrize(
    ("lengths", "is_last"),
    [
        ((), False),
        ((150,), False),
        ((150, 150), False),  # a lower rate may last
        ((150, 150, 150), True),
        ((12, 40, 150), False),  # lower rates do last longer ...
        ((12, 150, 150, 150), True),  # ... up to there
        ((150, 151, 152), False),
        ((3, 3, 3, 3, 3), False),  # so soon the rate may be far too high ...
        ((3, 3, 3, 3, 3, 3), True),  # ... but not for ever
        ((3, 3, 3, 3, 3, 4), False),
        ((0,), False),
        ((0, 0), True),  # before any update
        ((0, 3), False),
    ],
)
def test_commits_that_fail_at_one_place_whatever_the_rate_are_the_last(lengths: tuple[int, ...], is_last: bool) -> None:
    assert bool(futile(failures(*lengths))) == is_last


def test_what_failed_twice_by_one_decision_is_not_tried_again() -> None:
    assert futile(failures(20, 900, rates=(0.1, 0.1)))


@pytest.mark.parametrize("rates", [(1.2, 0.96, 1.28), (0.001, 0.06, 0.015)])
def test_a_higher_rate_that_lasts_no_longer_says_nothing_of_lower_ones(rates: tuple[float, ...]) -> None:
    assert not futile(failures(150, 150, 76, rates=rates))


def test_what_shows_that_no_rate_helps_are_the_last_failures_alone() -> None:
    assert [each.num_steps for each in futile(failures(3, 150, 150, 150))] == [150, 150, 150]


@pytest.mark.parametrize(
    ("diverged", "asked", "is_over", "is_better", "course"),
    [
        (True, "go_on", True, True, "roll_back"),
        (False, "roll_back", True, True, "end"),
        (False, "roll_back", True, False, "roll_back"),
        (False, "roll_back", False, True, "roll_back"),
        (False, "go_on", True, True, "go_on"),
    ],
)
def test_a_commit_is_rolled_back_unless_its_state_is_the_better_one_to_end_with(
    diverged: bool, asked: Course, is_over: bool, is_better: bool, course: Course
) -> None:
    seen = Series(diverged=diverged).observation(None, Spent())

    assert course_at_end(lambda _: asked, seen, is_over=lambda: is_over, is_better=lambda: is_better) == course


@pytest.mark.parametrize(("is_over", "course"), [(False, "start_over"), (True, "end")])
def test_a_run_that_is_over_does_not_start_over(is_over: bool, course: Course) -> None:
    seen = Series().observation(None, Spent())

    assert course_at_end(lambda _: "start_over", seen, is_over=lambda: is_over, is_better=lambda: False) == course


def test_a_series_ends_before_the_first_loss_that_is_not_finite() -> None:
    series = Series()

    series.extend([1.0, 0.5, math.nan, 0.4], step_seconds=[1.0] * 4, alignments=[0.5] * 4, bytes_sent=400)

    assert (series.losses, series.num_steps, series.bytes_sent) == ([1.0, 0.5], 2, 200)
    assert series.diverged and series.trace.num_steps == 2 and series.trace.aligned == 1.0


@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=30))
def test_a_limited_series_keeps_its_end_and_knows_its_course(lengths: list[int]) -> None:
    whole, kept = Series(), Series(limit=COMMIT_LOSSES)
    for length in lengths:
        losses = [1 / (1 + whole.num_steps + index) for index in range(length)]
        whole.extend(losses, step_seconds=losses)
        kept.extend(losses, step_seconds=losses)

    assert kept.losses == whole.losses[-COMMIT_LOSSES:]
    assert kept.trace.model_dump_json() == whole.trace.model_dump_json()
    assert kept.num_steps == sum(lengths)


def test_a_promoted_probe_begins_a_commit_without_its_alignments() -> None:
    probe = Series()
    probe.extend([1.0] * 300, alignments=[0.5] * 300)

    commit = probe.as_commit()

    assert (commit.num_steps, len(commit.losses), commit.limit) == (300, COMMIT_LOSSES, COMMIT_LOSSES)
    assert commit.trace.aligned == 0.0 < probe.trace.aligned


def test_a_series_goes_on_from_its_json() -> None:
    series = Series(limit=3)
    series.extend([1.0, 2.0], step_seconds=[0.1, 0.2])

    again = Series.model_validate_json(series.model_dump_json())

    assert again.model_dump_json() == series.model_dump_json()


def test_a_probe_ends_at_the_earlier_of_its_allowance_and_the_budget() -> None:
    spent = Spent(steps=90, bytes=500, seconds=2.0)

    until = within(until_totals(spent, Allowance(steps=20, seconds=1.0)), Budget(steps=100))

    assert until == Allowance(steps=100, seconds=3.0)


def test_a_quarter_of_a_probe_is_whole_steps() -> None:
    assert part_of(Allowance(steps=21, min_steps=7), 0.25) == Allowance(steps=6, min_steps=2)


def test_the_parts_of_a_probe_end_within_the_budget_and_have_their_least_steps() -> None:
    parts = [*probe_parts(Allowance(steps=21, min_steps=7), Spent(steps=90), Budget(steps=100))]

    assert [(part.until.steps, part.least) for part in parts] == [(96, 2), (100, 4), (100, 6), (100, 7)]
    assert [part.is_last for part in parts] == [False, False, False, True]


def test_a_finalists_rate_falls_with_what_its_probe_has_spent() -> None:
    allowance = Allowance(seconds=10.0)
    candidate = Candidate(id="0-1", stage=0, values=RATE, allowance=allowance, origin="finalist", decay=0.5)
    own, cost = Spent(steps=5, seconds=5.0), StepCost(bytes=0, seconds=1.0)

    rates = [probe_values(candidate, own, cost, num).learning_rate for num in (0, 1, 5)]

    assert rates == pytest.approx([0.1, 0.08, 0.0])


@pytest.mark.parametrize(("steps", "between"), [(100, 10), (2000, 40)])
def test_a_commit_is_looked_at_every_fiftieth_but_not_after_every_few_steps(steps: int, between: int) -> None:
    assert look_steps(Allowance(steps=steps), Spent(), None, num_done=0) == between
