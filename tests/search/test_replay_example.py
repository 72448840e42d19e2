"""The example that trains by a learned schedule works with every optimizer that a schedule may name."""

import re
import runpy
import socket
from pathlib import Path

import pytest

import wiretune
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.schedule import Schedule
from search.schedule_file import Entry, Provenance

EXAMPLE = Path(__file__).parents[2] / "examples" / "replay_schedule.py"
RATES = {
    "sgd": 0.1,
    "lars": 20.0,
    "adamw": 1e-3,
    "muon": 0.01,
    "schedulefree_sgd": 1.0,
    "schedulefree_adamw": 2.5e-3,
    "schedulefree_plus": 1.0,
}


def test_the_example_knows_every_optimizer_but_a_users_own_and_an_exchanges():
    assert RATES.keys() == OPTIMIZER_TRAITS.keys() - {"own", "from_exchange"}


@pytest.mark.parametrize("optimizer", RATES)
def test_the_example_trains_to_a_good_held_out_accuracy(tmp_path, capsys, optimizer):
    num_steps, rate = 30 if optimizer == "muon" else 120, RATES[optimizer]  # each of Muon's takes as long as ten
    entry = Entry(step=0, num_steps=num_steps, learning_rate=rate, final_learning_rate=rate / 2)
    path = tmp_path / "schedule.json"
    path.write_text(Schedule(optimizer=optimizer, num_steps=num_steps, entries=(entry,)).to_json())

    runpy.run_path(str(EXAMPLE))["main"](path)

    accuracy = re.search(rf"{num_steps} steps of {optimizer}: held-out accuracy (\S+)", capsys.readouterr().out)
    assert accuracy is not None and float(accuracy[1]) > 0.9


LIGHT, HEAVY = {"kind": "sgd", "momentum": 0.5}, {"kind": "sgd", "momentum": 0.95}
ENTRY = Entry(step=0, num_steps=2, learning_rate=0.1)


def learned(**of_job):
    """Return what a schedule says of the arm `tuned` of a job with these parts."""
    return Provenance(job_id="job", job={"workload": {"kind": "digits-mlp"}, **of_job}, arm="tuned", seed=0)


@pytest.mark.parametrize(
    ("of_run", "expected"),
    [
        ({"optimizer_options": {"momentum": 0.5}}, LIGHT),
        ({"provenance": learned(optimizer=LIGHT)}, LIGHT),
        ({"provenance": learned(optimizer=HEAVY, arms=[{"name": "tuned", "optimizer": LIGHT}])}, LIGHT),
        ({"provenance": learned(optimizer={"kind": "auto", "options": [{"kind": "adamw"}, LIGHT]})}, LIGHT),
        ({"provenance": learned(optimizer={"kind": "auto"})}, {"kind": "sgd"}),
    ],
    ids=["a loop", "a job", "an arm", "of several", "by default"],
)
def test_the_example_builds_the_optimizer_with_the_options_of_the_run(tmp_path, monkeypatch, of_run, expected):
    options, build = [], wiretune.build_optimizer
    monkeypatch.setattr(
        wiretune, "build_optimizer", lambda model, fields: options.append(fields) or build(model, fields)
    )
    path = tmp_path / "schedule.json"
    path.write_text(Schedule(optimizer="sgd", num_steps=2, entries=(ENTRY,), **of_run).to_json())

    runpy.run_path(str(EXAMPLE))["main"](path)

    assert options == [expected]


@pytest.mark.parametrize(
    ("of_run", "reason"),
    [
        (learned(workload={"kind": "own", "factory": "tumours:Tumours"}), "the workload `own`, .* trains `digits-mlp`"),
        (learned().model_copy(update={"arm": "sample-0", "sample": {"optimizer.momentum": 0.5}}), "a sample"),
    ],
    ids=["another workload", "a sample"],
)
def test_the_example_refuses_a_schedule_of_what_it_does_not_train(tmp_path, of_run, reason):
    path = tmp_path / "schedule.json"
    path.write_text(Schedule(optimizer="sgd", num_steps=2, entries=(ENTRY,), provenance=of_run).to_json())

    with pytest.raises(SystemExit, match=f"the rates are those of {reason}"):
        runpy.run_path(str(EXAMPLE))["main"](path)


def test_the_example_names_what_it_does_not_follow_and_nothing_else(tmp_path, capsys):
    first, second = (Entry(step=step, num_steps=1, learning_rate=0.1) for step in range(2))
    entries = first.model_copy(update={"values": {"period": 4}}), second
    path = tmp_path / "schedule.json"
    path.write_text(Schedule(optimizer="sgd", num_steps=2, entries=entries).to_json())

    runpy.run_path(str(EXAMPLE))["main"](path)

    assert re.findall("not followed here: (.*)", capsys.readouterr().out) == ["{'period': 4}"]


@pytest.mark.parametrize("optimizer", ["own", "from_exchange"])
def test_the_example_says_which_optimizer_it_does_not_have(tmp_path, optimizer):
    path = tmp_path / "schedule.json"
    entry = Entry(step=0, num_steps=2, learning_rate=0.1)
    path.write_text(Schedule(optimizer=optimizer, num_steps=2, entries=(entry,)).to_json())

    with pytest.raises(SystemExit, match=f"`{optimizer}`, which this script does not have"):
        runpy.run_path(str(EXAMPLE))["main"](path)


FOLLOWING = EXAMPLE.with_name("follow_schedule.py")


@pytest.fixture
def follow(tmp_path, capsys, monkeypatch):
    """Run the example on one process with a schedule of these entries; returns what it prints."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))

    def run(*entries):
        path = tmp_path / "schedule.json"
        num_steps = sum(entry.num_steps for entry in entries)
        path.write_text(Schedule(optimizer="sgd", num_steps=num_steps, entries=entries).to_json())
        runpy.run_path(str(FOLLOWING))["main"](path)
        return capsys.readouterr().out

    return run


def test_the_example_with_a_hook_follows_rates_and_levels(follow):
    said = follow(
        Entry(step=0, num_steps=2, learning_rate=0.2, level=0.05),
        Entry(step=2, num_steps=2, learning_rate=0.1, level=1.0),
    )

    rates, levels = zip(*re.findall(r"rate (\S+), level (\S+)", said), strict=True)
    assert rates == ("0.2", "0.2", "0.1", "0.1")
    assert levels == ("0.05", "0.05", "1", "1")


def test_the_example_with_a_hook_follows_rates_without_a_level(follow):
    assert "step 1: rate 0.2\n" in follow(Entry(step=0, num_steps=2, learning_rate=0.2))


def test_the_example_with_a_hook_says_that_a_rank_is_no_density(follow):
    with pytest.raises(SystemExit, match="level 4 is no density"):
        follow(Entry(step=0, num_steps=2, learning_rate=0.2, level=4))
