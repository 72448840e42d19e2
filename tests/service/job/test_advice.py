"""A valid but unwise job gets advice on what to change; a good one gets none."""

import re
from pathlib import Path
from typing import Any

import pytest

from api.documents import checked, parse_yaml
from service.job.advice import advice, searching_budget
from service.job.spec import JobSpec

RANGE = {"kind": "threshold", "density": [0.003, 0.1]}
#: No rate is told by its model, so it searches.
ADAMW = {"kind": "adamw", "learning_rate": 0.003}
JOBS = sorted((Path(__file__).parents[3] / "examples" / "jobs").glob("*.yaml"))


def advised(**changes: Any) -> tuple[str, ...]:
    return advice(JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"seconds": 60}} | changes))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_examples_need_no_advice(path: Path) -> None:
    assert advice(checked(JobSpec, parse_yaml(path.read_bytes()))) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exchange": RANGE, "budget": {"steps": 10_000}}, "does not count what a step sends"),
        ({"exchange": RANGE, "budget": {"bytes": 10**9}}, "does not count how fast the link is"),
        ({"budget": {"steps": 10_000}, "objective": {"every": 20_000}}, "give `every` 1000"),
        ({"exchange": RANGE, "workers": {"count": 1}}, "one worker exchanges nothing"),
        ({"exchange": RANGE, "workers": {"count": 4, "per_node": 4}}, "one node exchanges nothing"),
        ({"exchange": {"kind": "topk", "density": 0.01}}, "`adamw` learns slowly from 0.01 of a gradient's entries"),
        ({"sync": {"kind": "stl_sgd"}, "controller": {"kind": "cosine"}}, "give `controller: {kind: fixed}`"),
        ({"sync": {"kind": "stl_sgd"}, "controller": {"kind": "bo"}}, "give `controller: {kind: fixed}`"),
        (
            {"activations": {"kind": "dropit", "gamma": 0.3}, "controller": {"kind": "fixed"}},
            "give a `gamma` above 0.33",
        ),
        ({"params": {"workload.batch_size": {"choice": [16, 32]}}}, "14 of `sweep.samples` 16 would train again"),
        ({"controller": {"kind": "sobol"}, "optimizer": ADAMW, "budget": {"steps": 104}}, "give 105 steps"),
        ({"controller": {"kind": "local"}, "budget": {"steps": 209}}, "give 210 steps"),
        ({"workload": {"factory": "package.tumours:Tumours"}}, "import whichever `package.tumours` they find"),
        ({"controller": {"kind": "autolrs"}, "budget": {"steps": 2000}}, "7 steps, too few to forecast a stage of 67"),
        ({"controller": {"kind": "autolrs", "first_stage": 100}, "budget": {"steps": 5000}}, "give `first_stage` 140"),
        ({"controller": {"kind": "autolrs", "first_stage": 900}, "budget": {"steps": 900}}, "give 1800 steps"),
        ({"budget": {"steps": 10**7}, "objective": {"patience": 5}}, "`bo` plans by all of `budget.steps` 10000000"),
        ({"budget": {"steps": 10**7}, "objective": {"target": 0.1}}, "also if `objective.target` ends the run"),
    ],
)
def test_what_is_unwise_is_said_once_with_a_remedy(changes: dict[str, Any], words: str) -> None:
    (sentence,) = advised(**changes)

    assert words in sentence
    assert "give" in sentence


def test_a_budget_too_small_for_a_search_is_told_how_many_steps_one_takes() -> None:
    search = {"coarse_probe_steps": 6, "min_probe_steps": 20, "max_search_fraction": 0.1, "wide_probes": 3}

    (sentence,) = advised(controller={"kind": "bo", **search}, budget={"steps": 579}, seeds=[0, 1, 2])

    assert "give 580 steps" in sentence  # five probes of 6 steps by two workers, and two of 20 by both
    assert advised(controller={"kind": "bo", **search}, budget={"steps": 580}) == ()
    assert advised(controller={"kind": "bo"}, budget={"steps": 300}) == ()


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"workers": {"count": 1}}, 175),
        ({"workers": {"count": 2}}, 105),
        ({"workers": {"count": 4}}, 70),
        ({"workers": {"count": 4}, "partition": {"kind": "by_label"}}, 175),
    ],
)
def test_more_workers_search_in_shorter_runs_where_each_may_train_a_candidate(
    changes: dict[str, Any], least: int
) -> None:
    assert advised(budget={"steps": least}, optimizer=ADAMW, **changes) == ()
    assert f"give {least} steps" in advised(budget={"steps": least - 1}, optimizer=ADAMW, **changes)[0]
    assert advised(controller={"kind": "autolrs"}, budget={"steps": 6000}) == ()


EPOCHS = {"interval": 3, "epoch_steps": 50}
TOPK = {"kind": "topk", "density": 0.05}
DIRECTION = {"optimizer": {"kind": "from_exchange"}}
ZERO_ONE = {"kind": "zero_one_adam", "max_interval": 4, "freeze_steps": 90, "interval_steps": 30}
OPTIONS = ["sgd", {"kind": "lars", "warmup_steps": 60}]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"sync": {"kind": "stl_sgd", "first_stage": 100}}, 100),
        ({"sync": {"kind": "accordion_batch", **EPOCHS}}, 200),
        ({"exchange": {"kind": "onebit_adam", "freeze_steps": 70}, **DIRECTION}, 70),
        ({"exchange": ZERO_ONE, **DIRECTION}, 120),
        ({"exchange": TOPK | {"levels": {"kind": "warmup", "steps": 80}}}, 80),
        ({"exchange": TOPK | {"levels": {"kind": "accordion", "critical": 0.5, **EPOCHS}}}, 200),
        ({"optimizer": {"kind": "sgd", "warmup_steps": 60}}, 60),
        ({"optimizer": {"kind": "auto", "options": OPTIONS}, "controller": {"kind": "bo"}}, 60),
    ],
)
def test_what_begins_to_work_after_the_last_step_gets_a_value_with_which_it_works(
    changes: dict[str, Any], steps: int
) -> None:
    job = given = {"optimizer": {"kind": "sgd"}, "controller": {"kind": "fixed"}} | changes

    (sentence,) = _late(job, steps)
    for name, value in re.findall(r"`(\w+)` (\d+)", sentence.partition(": give ")[2]):
        job = _with_knob(job, name, int(value))

    assert f"takes {steps} steps until" in sentence
    assert _late(given, steps + 1) == _late(job, steps) == []


def _late(job: dict[str, Any], steps: int) -> list[str]:
    return [sentence for sentence in advised(**job, budget={"steps": steps}) if " steps until " in sentence]


def _with_knob(given: Any, name: str, value: int) -> Any:
    if isinstance(given, list):
        return [_with_knob(each, name, value) for each in given]
    if isinstance(given, dict):
        return {key: value if key == name else _with_knob(each, name, value) for key, each in given.items()}
    return given


def test_the_budget_advised_for_a_search_among_exchanges_has_room_to_compare_two() -> None:
    spec = JobSpec.model_validate(
        {"workload": {"kind": "digits-mlp"}, "budget": {"seconds": 1}, "optimizer": ADAMW, "exchange": {"kind": "auto"}}
    )

    budget = searching_budget(spec.trial(spec.arms[0], 0), steps=100, seconds=10, bytes_sent=0)

    assert budget is not None and budget.seconds is not None
    decades, finalists = 5 * 7, 2 * 14
    assert 0.2 * budget.seconds / 0.1 >= decades + finalists


def test_a_sweep_is_advised_on_as_the_job_without_it() -> None:
    params = {"workload.batch_size": {"integer": [16, 32]}}

    sentences = advised(params=params, optimizer=ADAMW, budget={"steps": 60})

    assert len(sentences) == 1
    assert sentences == advised(optimizer=ADAMW, budget={"steps": 60})


def test_only_the_arms_that_search_are_advised_on_searching() -> None:
    arms = [{"name": "tuned"}, {"name": "held", "controller": {"kind": "fixed"}}]

    sentences = advised(arms=arms, optimizer=ADAMW, budget={"steps": 60})
    assert [sentence.split(":")[0] for sentence in sentences] == ["arm `tuned`"]


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree_sgd", "muon"])
def test_no_budget_is_too_short_for_a_rate_that_the_model_tells(optimizer: str) -> None:
    named = {"kind": optimizer, "learning_rate": 0.1}

    assert advised(optimizer=named, budget={"steps": 60}) == ()
    (sentence,) = advised(optimizer=named, budget={"steps": 60}, controller={"kind": "bo", "first_search": "always"})
    assert "a search takes" in sentence


@pytest.mark.parametrize("optimizer", ["adamw", "schedulefree_adamw"])
def test_nor_for_one_that_is_usual_for_new_models_where_the_job_says_that_its_model_is_new(optimizer: str) -> None:
    job = {"optimizer": {"kind": optimizer}, "budget": {"steps": 60}}

    assert advised(**job, controller={"kind": "bo", "first_search": "unless_known"}) == ()
    assert len(advised(**job)) == 1


@pytest.mark.parametrize("place", [{"path": "/srv/models"}, {"code": "sha256:" + "0" * 64}], ids="".join)
def test_a_factory_with_a_place_to_import_it_from_needs_no_advice(place: dict[str, str]) -> None:
    assert advised(workload={"factory": "tumours:Tumours"} | place) == ()
