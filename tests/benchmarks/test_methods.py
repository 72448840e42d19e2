"""The comparison of all methods: its completeness, and the pure parts of its table."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import methods
import pytest
from races import methods_table, ours, rates
from races.book import Book
from races.methods import METHODS

from trainers.methods.activations.spec import ActivationsConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.levels import CostConfig, LevelsConfig


def kinds_of(union: object) -> set[str]:
    """Return the kinds of a union of configurations that are told apart by `kind`."""
    return {member.model_fields["kind"].default for member in get_args(get_args(union)[0])}


@pytest.mark.parametrize(
    ("part", "union"),
    [
        ("exchange", ExchangeConfig),
        ("sync", SyncConfig),
        ("blocks", BlocksConfig),
        ("activations", ActivationsConfig),
    ],
)
def test_every_kind_that_a_job_may_choose_is_compared(part: str, union: object) -> None:
    trivial = {"none", "every_step", "all", "keep"}
    assert kinds_of(union) - trivial <= {arm[part]["kind"] for arm in METHODS.values() if part in arm}


def test_every_policy_of_a_level_is_compared() -> None:
    compared = [arm["exchange"]["levels"] for arm in METHODS.values() if "levels" in arm.get("exchange", {})]

    assert kinds_of(LevelsConfig) - {"static"} == {levels["kind"] for levels in compared}
    costs = {levels.get("cost", {"kind": "link"})["kind"] for levels in compared if levels["kind"] == "cat"}
    assert kinds_of(CostConfig) == costs


#: Workers are forked, which no thread of this process's torch may meet: so, a process of its own.
EMULATED = """
import json, os
os.environ["OMP_NUM_THREADS"] = "1"
from races.emulated import Emulated
from races.team import Team

hosts = Emulated(2)
hosts.limit(20)
with Team(hosts, {"exchange": {"kind": "none"}}, task="text", seed=0) as team:
    team.wait()
    team.begin(0.01)
    block = team.run(3)
print(json.dumps([block.seconds, block.sent[0].payload, sum(block.ledgers[0].values())]))
"""


def test_an_emulated_cable_is_no_faster_than_its_limit_and_counts_what_it_carries() -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", EMULATED],
        env=os.environ | paths,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seconds, counted, ledger = json.loads(ran.stdout)

    assert seconds >= ledger * 8 / 20e6
    assert counted >= ledger > 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_valid_piece_of_a_job(name: str) -> None:
    ours.configuration(METHODS[name], "images", seed=0)


def run(arm: str, *losses: float, step_s: float = 1.0, kind: str = "run") -> dict[str, object]:
    """Return a row with these losses of the hosts' mean model; the own ones are higher."""
    return {
        "kind": kind, "task": "images", "arm": arm, "race": 1, "rate": 0.1, "hosts": 4, "mbps": 100.0, "seed": 0,
        "wire_bytes": 1e3, "block_seconds": [9.0, step_s, step_s], "block_steps": 1, "steps_taken": 3,
        "validations": [[1, 1.0, loss + 1, loss] for loss in losses],
    }  # fmt: skip


def test_the_loss_in_the_end_is_that_of_the_lower_model_over_the_last_looks() -> None:
    assert methods_table.final_loss(run("x", 9.0, 3.0, 2.0, 1.0)) == 2.0


def test_a_model_that_has_diverged_has_no_loss() -> None:
    assert methods_table.final_loss(run("x", 9.0, 3.0, 2.0, math.nan)) == math.inf


def test_of_two_runs_the_later_one_counts() -> None:
    results = methods_table.Results([run("x", 9.0, 9.0, 9.0), run("x", 1.0, 2.0, 3.0)])
    assert results.loss("images", "x") == 2.0


def test_who_is_worse_than_no_exchange_is_tried_at_all_rates(tmp_path: Path) -> None:
    book = Book(tmp_path / "rows.jsonl")
    for arm, rate, loss in (("nosync", 0.04, 2.0), ("x", 0.02, 3.0), ("x", 0.04, 2.5), ("x", 0.08, 3.0)):
        book.add("rates", [run(arm, loss, loss, loss, kind="rates") | {"rate": rate}])

    tried = []
    while (rate := methods.next_rate(book, "images", "x")) is not None:
        tried.append(rate)
        book.add("rates", [run("x", 3.0, 3.0, 3.0, kind="rates") | {"rate": rate}])

    assert sorted(tried) == [rate for rate in rates.GRID if rate not in (0.02, 0.04, 0.08)]
    assert methods.next_rate(book, "images", "nosync") == 0.08  # goes on downhill


def test_a_steps_time_is_compared_turn_by_turn_without_the_first_one() -> None:
    rows = [run("nosync", kind="pace", step_s=0.5), run("x", kind="pace", step_s=1.5)]
    assert methods_table.Results(rows).over("nosync", "images", "x") == 3.0


def test_a_steps_time_is_not_that_of_the_run_whose_loss_is_told() -> None:
    results = methods_table.Results([run("x", 1.0, 2.0, 3.0, step_s=9.0), run("x", kind="pace", step_s=1.5)])
    assert (results.loss("images", "x"), results.step("images", "x")) == (2.0, 1500.0)


def test_a_run_takes_its_steps_and_what_a_race_did_not_see_it_send() -> None:
    rows = [run("x", 1.0, 2.0, 3.0) | {"wire_bytes": 150_000}, run("x", kind="pace")]
    rows[1] |= {"wire_bytes": 100_000, "block_seconds": [0.4, 0.1, 0.1]}

    # three steps, and 50 kB more in each, which are 4 ms at 100 Mbit/s
    assert methods_table.Results(rows).seconds("images", "x") == pytest.approx(3 * (0.2 + 0.004))
    # of other data the model's steps are the same
    rows[0]["task"] = "images-apart"
    assert methods_table.Results(rows).seconds("images-apart", "x") == pytest.approx(3 * (0.2 + 0.004))


def test_a_claim_whose_methods_were_not_run_says_so() -> None:
    measured = dict(methods_table.claims(methods_table.Results([])))
    assert measured and all(told.startswith("not measured: ") for told in measured.values())
