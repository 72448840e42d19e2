"""Silence counts only once the service, its database, its clock and Ray have been up for long enough."""

import math

import pytest

from service.control.reconciling.uptime import Uptime

LEASE_S, HOUR_S = 15.0, 3600.0


class Database:
    """Failed last at `failed_at`, in seconds since the epoch."""

    failed_at = -math.inf


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def uptime(database):
    """Up since 1000 s, by the clock; 0 s by the steady one."""
    return Uptime(lease_s=LEASE_S, failed_at=lambda: database.failed_at, now=1000.0, steady=0.0)


def test_silence_counts_after_a_lease_and_a_wait_after_an_hour_of_ray(uptime):
    uptime.note_ray(1000.0, answers=True)

    assert [uptime.leases_count(1000 + after_s) for after_s in (LEASE_S, LEASE_S + 1)] == [False, True]
    assert [uptime.waits_count(1000 + after_s) for after_s in (HOUR_S, HOUR_S + 1)] == [False, True]


def test_a_pause_counts_once_its_user_had_a_day_with_or_without_ray(uptime, database):
    def counts(after_s):
        return uptime.pauses_count(1000 + after_s, is_last_chance=False)

    assert [counts(after_s) for after_s in (24 * HOUR_S, 24 * HOUR_S + 1)] == [False, True]

    database.failed_at = 24 * HOUR_S

    assert not counts(24 * HOUR_S + 1)


def test_the_last_chance_of_a_pause_is_an_hour_that_no_failure_of_the_database_prolongs(uptime, database):
    database.failed_at = 1000 + HOUR_S

    counted = [uptime.pauses_count(1000 + after_s, is_last_chance=True) for after_s in (HOUR_S, HOUR_S + 1)]

    assert counted == [False, True]


def test_no_wait_counts_while_ray_is_away_and_it_has_the_hour_anew(uptime):
    uptime.note_ray(1000.0, answers=True)
    uptime.note_ray(1001.0, answers=False)
    assert not uptime.waits_count(1e9)

    uptime.note_ray(2000.0, answers=True)
    uptime.note_ray(3000.0, answers=True)

    assert not uptime.waits_count(2000 + HOUR_S) and uptime.waits_count(2001 + HOUR_S)


@pytest.mark.parametrize(
    ("now", "steady", "late_s"),
    [(4601.0, 1.0, 0.0), (500.0, 1.0, 0.0), (1010.0, 10.0, 9.0)],
    ids=["slept_or_set_forward", "set_back", "stopped"],
)
def test_time_that_the_service_did_not_live_through_counts_for_nobody(uptime, now, steady, late_s):
    uptime.note(now, steady, late_s=late_s)

    assert not uptime.leases_count(now + LEASE_S) and uptime.leases_count(now + LEASE_S + 1)


def test_a_clock_is_steady_a_minute_after_a_start_and_an_hour_after_it_jumped(uptime):
    assert [uptime.is_clock_steady(1000 + after_s) for after_s in (60, 61)] == [False, True]

    for now, steady in ((1e9, 10.0), (1020.0, 20.0)):  # far ahead, and back
        uptime.note(now, steady)

        assert [uptime.is_clock_steady(now + after_s) for after_s in (HOUR_S, HOUR_S + 1)] == [False, True]


def test_a_late_round_says_nothing_of_the_clock(uptime):
    uptime.note(1100.0, 100.0, late_s=99.0)

    assert uptime.is_clock_steady(1100.0) and not uptime.leases_count(1100.0)


def test_a_rest_as_long_as_it_should_be_changes_nothing(uptime):
    for second in range(1, 17):
        uptime.note(1000.0 + second, float(second), late_s=0.1)

    assert uptime.leases_count(1016.0)


def test_a_failure_of_the_database_gives_drivers_a_lease(uptime, database):
    database.failed_at = 1100.0

    assert not uptime.leases_count(1100 + LEASE_S) and uptime.leases_count(1101 + LEASE_S)


def test_a_failure_in_a_round_counts_in_that_round(uptime, database):
    database.failed_at = 2000.5

    assert not uptime.leases_count(2000.0)
