"""The race to a loss: what the arms state, whose rate they take, and when a ratio is a tie."""

import math

import pytest
from contest.auto_race import Race
from contest.time_table import AUTO, bootstrap, later, paired, table, verdict
from time_to_loss import ALONE, ARMS, BASELINES, CLEARLY_LATER, GRID, contenders, patience, rate_of, trial, turned

RACE = Race(mbps=100.0, budget_s=30.0, seed=3, target=2.2)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_job_with_the_same_budget_seed_and_data(arm: str) -> None:
    spec, auto = trial(RACE, "text-apart", 2, arm, 0.1), trial(RACE, "text-apart", 2, AUTO, 0.1)

    assert (spec.budget, spec.seed, spec.replica.workload) == (auto.budget, auto.seed, auto.replica.workload)
    assert (spec.controller.kind == "bo") == (arm == AUTO)


def row(arm: str, seed: int, seconds: float | None, *, kind: str = "race", rate: float = 0.3) -> dict[str, object]:
    return {
        "kind": kind, "task": "text-apart", "hosts": 2, "mbps": 100.0, "seed": seed, "arm": arm, "rate": rate,
        "target": 2.2, "seconds": seconds, "steps": seconds and 10 * seconds, "seconds_taken": seconds or 30.0,
        "bytes_sent": 1e6, "load": 1.0,
    }  # fmt: skip


def test_a_ratio_is_of_two_runs_with_one_seed() -> None:
    rows = [row(AUTO, 0, 10.0), row(AUTO, 1, 20.0), row("plain", 0, 20.0), row("plain", 1, None), row("plain", 2, 5.0)]

    assert paired(rows, "plain") == [2.0, math.inf]


def test_an_interval_with_1_in_it_is_a_tie() -> None:
    assert verdict(bootstrap([0.9, 1.0, 1.2])) == "a tie"
    assert verdict(bootstrap([1.9, 2.0, 2.2])) == "sooner"
    assert verdict(bootstrap([0.5, 0.6, 0.7])) == "later"


def test_a_baseline_takes_the_rate_of_the_grid_that_needs_the_fewest_steps() -> None:
    rows = [row("plain", 100, seconds, kind="grid", rate=rate) for rate, seconds in ((0.1, 9.0), (1.0, 5.0))]

    assert rate_of(rows, "text-apart", 2, "plain") == 1.0
    assert rate_of(rows, "text-apart", 2, AUTO) == GRID[0]


def test_a_rate_of_the_grid_has_lost_once_it_is_clearly_later_than_the_best() -> None:
    rows = [row("plain", 100, seconds, kind="grid") for seconds in (90.0, None, 50.0)]

    assert patience(rows, "text-apart", 2, "plain") == CLEARLY_LATER * 500
    assert patience(rows, "text-apart", 2, "fp16") == math.inf


@pytest.mark.parametrize("arms", [ARMS, ARMS[:6], ARMS[:3]])
def test_no_arm_is_always_the_first(arms: tuple[str, ...]) -> None:
    assert len({turned(arms, seed)[0] for seed in range(3)}) == 3
    assert all(sorted(turned(arms, seed)) == sorted(arms) for seed in range(3))


def test_a_baseline_that_no_rate_brought_to_the_loss_is_no_contender() -> None:
    rows = [row(arm, 100, None if arm == "DiLoCo 20" else 40.0, kind="grid") for arm in BASELINES if arm != ALONE]

    assert contenders(rows, "text-apart", 2) == tuple(arm for arm in ARMS if arm not in ("DiLoCo 20", ALONE))


def test_the_table_has_a_line_for_each_arm_and_says_what_the_grid_took() -> None:
    rows = [row(arm, seed, 10.0) for arm in ARMS for seed in range(3)] + [row("plain", 100, 40.0, kind="grid")]

    text = "\n".join(table(rows))

    assert all(f"| {arm} |" in text for arm in (AUTO, *BASELINES))
    assert "a tie" in text and "40 s, not charged" in text


def test_what_is_sooner_than_auto_is_said_in_a_sentence_for_each_network() -> None:
    rows = [row(arm, seed, 10.0) for arm in (AUTO, "fp16") for seed in range(3)]
    rows += [row(arm, seed, 5.0) for arm in ("plain", "powersgd 4") for seed in range(3)]

    [said] = later(rows)

    assert "`plain` (0.50 of its time), `powersgd 4` (0.50 of its time)" in said and "fp16" not in said
