"""The comparison of `auto` with its options: the runs, their ends, and the pure parts of its table."""

import inspect
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import auto
import pytest
from races import auto_table
from races.auto_race import ARMS, Race, Watcher, trial
from races.hosts import HostGroup
from races.turns import Turns

from service.wire.records import Bill, Billed, Control, MetricPoints, TrialFinished, TrialStarted

RACE = Race(mbps=100.0, budget_s=30.0, seed=3, target=0.5)


def test_workers_on_hosts_do_all_that_a_group_of_workers_must() -> None:
    assert not inspect.isabstract(HostGroup)


@pytest.mark.parametrize("arm", ARMS)
def test_all_runs_on_a_link_differ_in_their_exchange_alone(arm: str) -> None:
    ours, auto = trial(RACE, arm), trial(RACE, "auto")
    parts = {"exchange": auto.replica.exchange, "sync": auto.replica.sync}

    assert ours.model_copy(update={"replica": ours.replica.model_copy(update=parts)}) == auto
    assert ours.replica.workers_per_node == 1


def test_a_run_is_stopped_at_the_loss_which_it_reached_between_two_looks() -> None:
    watcher = Watcher(target=0.5, patience_s=100.0)
    watcher.report(TrialStarted(trial_id="run", arm="auto", seed=0, backend="gloo", device="cpu"))
    for step, seconds, loss in ((0, 0.0, 2.0), (50, 1.0, 1.0), (100, 2.0, 0.0)):
        asked = watcher.asked()
        watcher.report(_look(step, seconds, loss))
    told = watcher.told(_finished(Bill(seconds_training=2.0)))

    assert (asked, watcher.asked()) == (Control.RUN, Control.STOP)
    assert (told["steps"], told["seconds"]) == (75, 1.5)


def test_a_run_that_diverges_has_reached_nothing() -> None:
    watcher = Watcher(target=0.5, patience_s=100.0)
    watcher.report(_look(0, 0.0, 2.0), _look(50, 1.0, None))

    assert watcher.asked() is Control.RUN
    assert watcher.told(_finished(Bill()))["seconds"] is None


def test_the_best_option_is_the_soonest_at_the_loss_and_auto_is_compared_with_it_seed_by_seed() -> None:
    rows = [
        *(_row("none", seed, 30.0) for seed in (0, 1)),
        *(_row("fp16", seed, seconds) for seed, seconds in ((0, 20.0), (1, 10.0))),
        *(_row("powersgd 4", seed, None) for seed in (0, 1)),
        *(_row("auto", seed, seconds, before=1.0) for seed, seconds in ((0, 19.0), (1, 11.0))),
    ]

    assert auto_table.best_option(rows) == "fp16"
    assert auto_table.quotients_with("fp16", rows) == [1.0, 1.2]
    assert auto_table.verdict(rows)[4].endswith("does not hold")


def test_an_auto_that_never_got_there_is_endlessly_slower() -> None:
    rows = [_row("none", 0, 30.0), _row("auto", 0, None)]

    assert auto_table.quotients_with("none", rows) == [float("inf")]


def test_a_disturbed_run_counts_on_neither_side_and_what_then_lacks_a_seed_of_auto_is_not_compared() -> None:
    rows = [_row(arm, seed, 20.0 + seed) for arm in ("auto", "none", "fp16") for seed in (0, 1, 2)]
    rows[5] |= {"seconds": None, "load": 7.3}

    [race] = auto_table.all_races(rows)
    assert auto_table.options_raced(race) == ["none", "fp16"]
    assert auto_table.options_compared(race) == ["fp16"]
    assert [each.partition(": ")[2].partition(".")[0] for each in auto_table.notes(rows)] == [
        "`none` with seed 2 is left out",
        "`none` is not compared, since it lacks a seed",
    ]

    [race] = auto_table.all_races([row | {"load": 7.3 if row["seed"] == 2 else 1.0} for row in rows])
    assert auto_table.options_compared(race) == ["none", "fp16"]
    assert len(auto_table.quotients_with("none", race)) == 2


def test_only_a_race_that_was_disturbed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, again = auto.Book(tmp_path / "rows.jsonl"), list[tuple[float | None, list[str]]]()
    monkeypatch.setattr(auto.network.Network, "limit", lambda *_: None)
    monkeypatch.setattr(auto, "run_race", lambda book, hosts, race, arms: again.append((race.mbps, arms)) or 0)
    for link, mbps, load in (("unlimited", None, 1.0), ("100", 100.0, 7.3)):
        race = Race(mbps, budget_s=auto.BUDGETS[link], seed=0, target=auto.TARGET)
        book.add("run", [_row(arm, 0, 9.0) | asdict(race) | {"load": load} for arm in ("auto", "none")])

    arms = ["auto", "none"]
    auto.run_all(book, auto.network.Network(2, "none"), Namespace(seeds=[0], links=["unlimited", "100"], arms=arms))

    assert again == [(100.0, arms)]


def test_an_option_that_did_not_get_there_with_a_seed_before_is_left_out(tmp_path: Path) -> None:
    book, arms = auto.Book(tmp_path / "rows.jsonl"), ["auto", "none", "fp16"]
    first, second = (Race(mbps=100.0, budget_s=30.0, seed=seed, target=0.5) for seed in (0, 1))
    book.add("run", [_row("auto", 0, None), _row("none", 0, 9.0), _row("fp16", 0, None)])

    assert auto.contenders(book, first, arms) == arms
    assert auto.contenders(book, second, arms) == ["auto", "none"]


def test_the_next_turn_is_that_of_the_run_that_has_had_the_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("races.turns.time.monotonic", lambda: clock[0])
    turns, order = Turns(["one", "two"]), list[str]()

    def run(name: str) -> None:
        for seconds in (3.0, 3.0, 3.0):
            turns.wait(name)
            order.append(name)
            clock[0] += seconds if name == "one" else 2 * seconds
        turns.leave(name)

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(run, "two"), pool.submit(run, "one")]:
            ended.result(timeout=60)

    assert order == ["one", "two", "one", "one", "two", "two"]


def test_a_run_counts_the_time_of_its_own_turns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("races.turns.time.monotonic", lambda: clock[0])
    turns = Turns(["one", "two"])
    clock[0] = 4.0
    turns.leave("one")
    clock[0] = 9.0

    assert (turns.wait("two"), turns.seconds("two")) == (0.0, 5.0)


def test_a_run_that_is_too_slow_for_the_fewest_steps_is_stopped_before_its_time() -> None:
    slow, fast = (Watcher(target=0.5, patience_s=100.0, least_steps=1000) for _ in range(2))
    for watcher, steps in ((slow, 150), (fast, 250)):
        watcher.report(_billed(Bill(seconds_training=30.0, seconds_search=10.0, steps=steps)))

    searching = Watcher(target=0.5, patience_s=100.0, least_steps=1000)
    searching.report(_billed(Bill(seconds_training=30.0)))

    assert (slow.asked(), fast.asked(), searching.asked()) == (Control.STOP, Control.RUN, Control.RUN)


def test_an_option_that_auto_used_and_that_was_not_raced_alone_is_named() -> None:
    rows = [_row("none", 0, 20.0), _row("auto", 0, 20.0)]

    assert list(auto_table.notes(rows)) == ["- 100 Mbit/s: `fp16` was not raced alone, though `auto` used it."]
    assert not list(auto_table.notes([*rows, _row("fp16", 0, 30.0)]))


def test_a_race_whose_runs_are_of_several_commits_says_so() -> None:
    rows = [_row("fp16", 0, 20.0) | {"commit": "one"}, _row("auto", 0, 20.0) | {"commit": "two"}]

    assert list(auto_table.notes(rows)) == ["- 100 Mbit/s: its runs are of 2 commits."]


def test_a_run_without_options_has_the_seeds_that_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["auto.py", "run"])

    assert set(auto.parse().seeds) == {row["seed"] for row in auto.Book(auto.FILE).rows}


def test_where_nothing_got_there_no_option_is_best() -> None:
    assert auto_table.best_option([_row("none", 0, None), _row("auto", 0, 3.0)]) is None


def test_a_race_is_judged_at_the_loss_that_auto_has_reached_with_every_seed() -> None:
    fast = [[0, 0.0, 2.0], [50, 10.0, 0.4]]
    slow = [[0, 0.0, 2.0], [50, 10.0, 1.0], [100, 30.0, 0.534]]
    rows = [
        _row("auto", 0, 9.0) | {"validations": fast},
        _row("auto", 1, None) | {"validations": slow},
        _row("none", 0, 9.0) | {"validations": fast},
        _row("none", 1, None) | {"validations": [[0, 0.0, 1.54], [50, 10.0, 0.54]]},
    ]
    told = auto_table.judged(rows)

    assert {row["target"] for row in told} == {0.54}
    assert [row["seconds"] for row in told] == pytest.approx([9.125, 29.742489, 9.125, 10.0])
    assert auto_table.judged([rows[0], rows[2]]) == [rows[0], rows[2]]


def test_auto_is_said_to_use_what_most_steps_that_stayed_were_by() -> None:
    by_option = {"none": {"steps": 90, "steps_search": 90}, "fp16": {"steps": 50, "steps_search": 20}}

    assert auto_table.options_used([_row("auto", 0, 3.0) | {"by_option": by_option}]) == ["fp16"]


def _look(step: int, seconds: float, loss: float | None) -> MetricPoints:
    return MetricPoints(trial_id="run", name="validation_loss", steps=(step,), seconds=(seconds,), values=(loss,))


def _billed(bill: Bill) -> Billed:
    return Billed(trial_id="run", bill=bill)


def _finished(bill: Bill) -> TrialFinished:
    return TrialFinished(
        trial_id="run", outcome="completed", validation_loss=0.4, schedule=(), bill=bill, weights_url=None
    )


def _row(arm: str, seed: int, seconds: float | None, *, before: float = 0.0) -> dict[str, Any]:
    used = {"fp16": {"steps": 9, "steps_search": 0}}
    return {
        "mbps": 100.0, "budget_s": 30.0, "target": 0.5, "seed": seed, "arm": arm, "seconds": seconds,
        "seconds_before": before, "by_option": used if arm == "auto" else {}, "load": 1.0,
        "validations": [[0, 0.0, 2.0], [50, 10.0, 0.5]],
    }  # fmt: skip
