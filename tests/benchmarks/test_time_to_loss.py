"""The race to a loss: the specs of its arms, their rates, and the table for few seeds."""

import math
from pathlib import Path

import pytest
import time_to_loss
from races.auto_race import Race
from races.book import Book, commit, num_commits
from races.network import Network
from races.race import turned
from races.time_table import AUTO, MANY_SEEDS, later, paired, ratio_told, seconds_told, table, verdict
from time_to_loss import (
    ALONE,
    ARMS,
    BASELINES,
    CLEARLY_LATER,
    FIRST_RATE,
    RATES,
    contenders,
    next_rate,
    patience,
    rate_of,
    trial,
)

RACE = Race(mbps=100.0, budget_s=30.0, seed=3, target=2.2)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_job_with_the_same_budget_seed_and_data(arm: str) -> None:
    spec, auto = trial(RACE, "text-apart", 2, arm, 0.1), trial(RACE, "text-apart", 2, AUTO, 0.1)

    assert (spec.budget, spec.seed, spec.replica.workload) == (auto.budget, auto.seed, auto.replica.workload)
    assert (spec.controller.kind == "bo") == (arm == AUTO)


def row(
    arm: str,
    seed: int,
    seconds: float | None,
    *,
    kind: str = "race",
    rate: float = 0.3,
    before: float = 0.0,
    loss: float = 2.2,
) -> dict[str, object]:
    return {
        "kind": kind, "task": "text-apart", "hosts": 2, "mbps": 100.0, "seed": seed, "arm": arm, "rate": rate,
        "target": 2.2, "seconds": seconds, "steps": seconds and 10 * seconds, "seconds_taken": seconds or 30.0,
        "seconds_before": before, "bytes_sent": 1e6, "load": 1.0, "validations": [[0, 0.0, 9.0], [50, 5.0, loss]],
    }  # fmt: skip


def test_a_ratio_is_of_two_runs_with_one_seed() -> None:
    rows = [row(AUTO, 0, 10.0), row(AUTO, 1, 20.0), row("plain", 0, 20.0), row("plain", 1, None), row("plain", 2, 5.0)]

    assert paired(rows, "plain") == [2.0, math.inf]


def test_what_is_discarded_before_the_clock_counts_for_every_arm() -> None:
    rows = [row(AUTO, 0, 9.0, before=1.0), row("plain", 0, 18.0, before=2.0)]

    assert paired(rows, "plain") == [2.0]
    assert any("| auto | searched | 10.0 |" in each for each in table(rows))


def test_a_seed_with_which_auto_alone_missed_the_loss_is_lost_and_one_with_which_both_did_is_none() -> None:
    rows = [row(AUTO, seed, None) for seed in range(4)]
    rows += [row("plain", seed, seconds) for seed, seconds in enumerate((5.0, 6.0, 7.0, None))]

    assert paired(rows, "plain") == [0.0, 0.0, 0.0]
    assert "`plain` (`auto` missed it with 3 of 3 seeds)" in next(later(rows))


def test_auto_is_sooner_or_later_only_where_three_seeds_or_more_agree() -> None:
    assert verdict([1.9, 2.0, 2.2]) == "sooner"
    assert verdict([0.5, 0.6, 0.7]) == "later"
    assert verdict([0.9, 1.1, 1.2]) == verdict([1.0, 1.1, 1.2]) == "a tie"
    assert verdict([2.0, 2.0]) == verdict([math.inf]) == verdict([]) == "-"


def test_a_few_seeds_have_a_range_and_only_many_have_an_interval() -> None:
    assert ratio_told([3.0, 1.0, 2.0]) == "2.00 (range 1.00 to 3.00)"
    assert ratio_told([1.0, math.inf, 2.0]) == "2.00 (range 1.00 to not reached)"
    assert "(95 % 1.00 to 1.00)" in ratio_told([*[1.0] * 40, 9.0])
    assert "range" in ratio_told([1.0] * (MANY_SEEDS - 1))
    assert ratio_told([2.0]) == "2.00"


def test_an_arm_that_never_got_there_says_with_how_many_seeds_and_has_no_ratio() -> None:
    rows = [row(AUTO, 0, 10.0), row("plain", 0, None)]

    assert "| plain | 0.3 | not reached, 1 of 1 | - | 1.0 | 1 | - | - | - |" in table(rows)
    assert seconds_told([10.0, 20.0, None]) == "20.0 (not reached, 1 of 3)"


def test_a_baseline_takes_the_rate_of_the_grid_that_needs_the_fewest_steps() -> None:
    rows = [row("plain", 100, seconds, kind="grid", rate=rate) for rate, seconds in ((0.1, 9.0), (1.0, 5.0))]

    assert rate_of(rows, "text-apart", 2, "plain") == 1.0
    assert rate_of(rows, "text-apart", 2, AUTO) == FIRST_RATE


def test_where_no_rate_gets_to_the_loss_the_one_with_the_lowest_loss_is_raced() -> None:
    losses = ((FIRST_RATE, 2.7), (0.001, 2.5), (0.01, math.nan))
    rows = [row("plain", 100, None, kind="grid", rate=rate, loss=loss) for rate, loss in losses]

    assert rate_of(rows, "text-apart", 2, "plain") == 0.001


@pytest.mark.parametrize("best", RATES)
def test_a_grid_goes_on_until_both_neighbours_of_the_best_rate_are_worse(best: float) -> None:
    rows: list[dict[str, object]] = []
    while (rate := next_rate(rows, "text-apart", 2, "plain")) is not None:
        rows.append(row("plain", 100, 10.0 + abs(math.log(rate / best)), kind="grid", rate=rate))

    tried = {each["rate"] for each in rows}
    assert rate_of(rows, "text-apart", 2, "plain") == best
    assert {RATES[max(RATES.index(best) - 1, 0)], *RATES[RATES.index(best) :][:2]} <= tried


def test_a_grid_ends_at_a_run_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_loss, "attempt", lambda *_: 1)

    failed = time_to_loss.run_grid(Book(tmp_path / "rows.jsonl"), Network(2, "none"), RACE, "text-apart", "plain")

    assert failed == 1


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({0.001: 5.0, 0.003: 6.0}, "0.001 (edge)"),
        ({0.0003: 6.0, 0.001: 5.0, 0.003: 6.0}, "0.001"),
        ({0.0003: 4.0, 0.001: 5.0}, "0.001 (0.0003 is better)"),
    ],
)
def test_the_table_marks_a_rate_beyond_which_the_grid_is_open_and_one_that_is_not_the_best(
    grid: dict[float, float], said: str
) -> None:
    rows = [row("plain", 100, seconds, kind="grid", rate=rate) for rate, seconds in grid.items()]

    assert any(f"| plain | {said} |" in each for each in table([row("plain", 0, 9.0, rate=0.001), *rows]))


def test_an_arm_that_was_raced_again_at_a_better_rate_counts_by_it() -> None:
    rows = [row(AUTO, 0, 10.0), row("plain", 0, 20.0, rate=0.001), row("plain", 0, 15.0, rate=0.0003)]

    assert any("| plain | 0.0003 | 15.0 |" in each for each in table(rows))


def test_a_new_row_has_the_commit_that_was_there_when_its_program_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_first = commit()
    book = Book(tmp_path / "rows.jsonl")
    monkeypatch.setattr("races.book.commit", lambda: "another")
    book.add("race", [{"arm": AUTO}])

    assert Book(tmp_path / "rows.jsonl").rows == [{"kind": "race", "commit": at_first, "arm": AUTO}]


def test_where_there_is_no_git_a_row_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert commit() is None
    assert num_commits([{"commit": None}, {}, {"commit": "one"}]) == 1


def test_the_table_says_how_many_commits_a_ratio_mixes() -> None:
    rows = [row(AUTO, 0, 10.0), row(AUTO, 1, 10.0) | {"commit": "one"}]
    rows += [row("plain", seed, 10.0) | {"commit": "two"} for seed in (0, 1)]

    lines = [each.split(" | ") for each in table(rows)]
    assert [each[5] for each in lines if each[0] in ("| auto", "| plain")] == ["2", "2, 2 commits"]


def test_a_rate_of_the_grid_has_lost_once_it_is_clearly_later_than_the_best() -> None:
    rows = [row("plain", 100, seconds, kind="grid") for seconds in (90.0, None, 50.0)]

    assert patience(rows, "text-apart", 2, "plain") == CLEARLY_LATER * 500
    assert patience(rows, "text-apart", 2, "fp16") == math.inf


@pytest.mark.parametrize("arms", [ARMS, ARMS[:6], ARMS[:3]])
def test_no_arm_is_always_the_first(arms: tuple[str, ...]) -> None:
    assert len({turned(arms, seed, of=3)[0] for seed in range(3)}) == 3
    assert all(sorted(turned(arms, seed, of=3)) == sorted(arms) for seed in range(3))


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
    rows += [row("plain", 100, 5.0, kind="grid"), row("powersgd 4", 100, 5.0, kind="grid")]

    [said] = later(rows)

    assert "`plain` (0.50 of its time), `powersgd 4` (0.50 of its time), with each of 3 seeds" in said
    assert "at the best of 1 rates, uncharged" in said and "fp16" not in said


def test_a_baseline_that_is_ahead_with_two_seeds_is_not_said_to_be() -> None:
    assert not list(later([row(arm, seed, took) for arm, took in ((AUTO, 9.0), ("plain", 5.0)) for seed in (0, 1)]))
