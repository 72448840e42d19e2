"""A refused job lists every problem at once: the place, the given value, the allowed ones."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from search.bayesian.controller import Controller
from search.config import BoConfig
from search.space import SearchSpace
from search.types import MAX_LEARNING_RATE, MIN_LEARNING_RATE, Values
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in
from trainers.methods.optimizer.spec import LearningRate

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"seconds": 10}}
RANGE = {"kind": "threshold", "density": [0.003, 0.1]}
SCHEDULE: dict[str, Any] = {
    "format": "wiretune.schedule/1",
    "optimizer": "adamw",
    "num_steps": 10,
    "entries": [{"step": 0, "num_steps": 10, "learning_rate": 0.1}],
}
SGD, ADAMW, DIGITS = {"kind": "sgd"}, {"kind": "adamw"}, {"kind": "digits-mlp"}
FREE = SGD | {"momentum": [0.8, 0.9], "nesterov": [False, True]}
SIZES = DIGITS | {"batch_size": [16, 32]}
DILOCO = {"kind": "diloco"}
COSINE = {"controller": {"kind": "cosine"}}
ABSOLUTE = {"kind": "threshold", "search": "absolute"}


def refused(changes: dict[str, Any]) -> dict[str, Problem]:
    return {problem.pointer: problem for problem in problems_in(JOB | changes)}


def accepted(changes: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate(JOB | changes)


def test_an_optimizer_takes_the_learning_rates_that_a_controller_may_use():
    taken = TypeAdapter(LearningRate).json_schema()

    assert (taken["minimum"], taken["maximum"]) == (MIN_LEARNING_RATE, MAX_LEARNING_RATE)


@pytest.mark.parametrize(
    ("changes", "pointer", "value", "allowed"),
    [
        ({"workload": {"kind": "mnist"}}, "/workload/kind", "mnist", "digits-mlp"),
        ({"controller": {"kind": "bo", "transfer": "avto"}}, "/controller/transfer", "avto", "be `auto` or `{jobs"),
        ({"controller": {"kind": "bo", "transfer": {"jobs": []}}}, "/controller/transfer/jobs", None, "at least 1"),
        ({"controller": {"kind": "bo", "transfer": {"job": []}}}, "/controller/transfer/job", None, "no field"),
        ({"controller": {"kind": "fixed", "transfer": "auto"}}, "/controller/transfer", "auto", "have it: `bo`"),
        ({"exchange": {"kind": "zip"}}, "/exchange/kind", "zip", "none, fp16, bf16, threshold"),
        ({"optimizer": {"kind": "sdg"}}, "/optimizer/kind", "sdg", "did you mean `sgd`"),
        ({"optimizer": {"kind": "sgd", "learning_rate": 0}}, "/optimizer/learning_rate", 0, "equal to 0.00000001"),
        ({"optimizer": {"kind": "sgd", "learning_rate": 1e-9}}, "/optimizer/learning_rate", 1e-9, "0.00000001"),
        ({"optimizer": {"kind": "sgd", "momentum": 0, "nesterov": True}}, "/optimizer/momentum", 0, "> 0"),
        ({"exchange": {"kind": "threshold", "density": 1.5}}, "/exchange/density", 1.5, "less than or equal to 1"),
        ({"exchange": {"kind": "threshold", "density": [0.1, 0.003]}}, "/exchange/density", [0.1, 0.003], "low < high"),
        ({"exchange": ABSOLUTE | {"threshold": [2, 1]}}, "/exchange/threshold", [2, 1], "low < high"),
        ({"exchange": ABSOLUTE | {"threshold": [0, 1]}}, "/exchange/threshold", [0, 1], "must be > 0"),
        ({"exchange": ABSOLUTE | {"threshold": -1}}, "/exchange/threshold", -1, "equal to 0"),
        ({"exchange": {"kind": "threshold", "density": 2, "threshold": 1}}, "/exchange/density", 2, "equal to 1"),
        ({"exchange": {"kind": "threshold"}}, "/exchange/density", None, "needs `density`"),
        ({"exchange": ABSOLUTE}, "/exchange/threshold", None, "needs `threshold`"),
        ({"exchange": RANGE | {"threshold": 0.5}}, "/exchange/threshold", 0.5, "no effect"),
        (
            {"arms": [{"name": "a"}, {"name": "b", "exchange": RANGE | {"density": [0.1, 0.003]}}]},
            "/arms/1/exchange/density",
            [0.1, 0.003],
            "low < high",
        ),
        (
            {"arms": [{"name": "a", "exchange": RANGE, "controller": {"kind": "cosine"}}]},
            "/arms/0/exchange/density",
            [0.003, 0.1],
            "one number",
        ),
        ({"optimizer": SGD | {"momentum": [0.98, 0.8]}}, "/optimizer/momentum", [0.98, 0.8], "low < high"),
        ({"optimizer": SGD | {"momentum": [0, 0.8]}}, "/optimizer/momentum", [0, 0.8], "must be > 0"),
        ({"optimizer": SGD | {"momentum": [0.8, 1.5]}}, "/optimizer/momentum/1", 1.5, "less than 1"),
        ({"optimizer": SGD | {"weight_decay": [0, 0.1]}}, "/optimizer/weight_decay", [0, 0.1], "must be > 0"),
        ({"optimizer": SGD | {"nesterov": [True, True]}}, "/optimizer/nesterov", [True, True], "[false, true]"),
        ({"optimizer": ADAMW | {"betas": [[0.9, 0.8], 0.99]}}, "/optimizer/betas/0", [0.9, 0.8], "low < high"),
        (
            {"optimizer": {"kind": "schedulefree_sgd", "momentum": [0.8, 0.9]}},
            "/optimizer/momentum",
            None,
            "one number",
        ),
        (
            {"optimizer": {"kind": "schedulefree_plus", "interpolation": [0.8, 0.9]}},
            "/optimizer/interpolation",
            None,
            "one number",
        ),
        ({"workload": DIGITS | {"batch_size": [64, 16]}}, "/workload/batch_size", [64, 16], "low < high"),
        ({"workload": DIGITS | {"batch_size": [16, 1000]}}, "/workers/count", 2, "[1, 1]"),
        ({"optimizer": SGD | {"momentum": [0.8, 0.9]}} | COSINE, "/optimizer/momentum", [0.8, 0.9], "one number"),
        ({"exchange": RANGE, "workload": SIZES, "optimizer": FREE}, "/exchange/density", RANGE["density"], "at most 3"),
        (
            {"optimizer": SGD | {"learning_rate": [0.01, 0.1]}},
            "/optimizer/learning_rate",
            None,
            "guess, got [0.01, 0.1]",
        ),
        ({"workers": {"count": 0}}, "/workers/count", 0, "greater than or equal to 1"),
        ({"workers": {"count": [1, 2]}}, "/workers/count", None, "must be one number, got [1, 2]: it is not searched"),
        ({"workers": {"count": 45}}, "/workers/count", 45, "[1, 44]"),
        (
            {"workload": {"kind": "mnist5k-cnn", "batch_size": 1000}, "workers": {"count": 5}},
            "/workers/count",
            5,
            "[1, 4]",
        ),
        ({"lanes": {"count": 1, "after": "batch"}}, "/lanes/count", 1, "2 to 16"),
        ({"lanes": {"count": 2, "after": "batch"}, "workers": {"count": 23}}, "/workers/count", 23, "[1, 22]"),
        ({"workload": {"kind": "stdlib-lm", "size": "1B"}}, "/workload/size", "1B", "25M"),
        ({"workers": {"gpus": 1.5}}, "/workers/gpus", 1.5, "whole number"),
        ({"workers": {"memory_gb": 0}}, "/workers/memory_gb", 0, "greater than or equal to 0.001"),
        ({"workers": {"accelerator": "A100"}}, "/workers/accelerator", "A100", "needs `gpus` above 0"),
        ({"workers": {"count": 4, "per_node": 3}}, "/workers/per_node", 3, "divide `count`, which is 4"),
        ({"workers": {"count": 4, "per_node": 0}}, "/workers/per_node", 0, "at least 1"),
        ({"workers": {"count": 4, "min": 2, "per_node": 0}}, "/workers/per_node", 0, "at least 1"),
        ({"workers": {"count": 2, "min": 3}}, "/workers/min", 3, "[1, 2]"),
        ({"workers": {"pace": "own"}}, "/workers/pace", "own", "needs `min`"),
        ({"workers": {"min": 1, "pace": "own"}}, "/workers/pace", "own", "train by themselves between averages"),
        ({"workers": {"count": 4, "min": 3, "per_node": 2}}, "/workers/min", 3, "must divide `min`"),
        ({"workers": {"min": 1}, "sync": DILOCO, "exchange": {"kind": "powersgd"}}, "/workers/min", 1, "sparse_loco"),
        ({"workers": {"min": 1}, "sync": {"kind": "streaming_diloco"}}, "/workers/min", 1, "give `overlap_steps: 0`"),
        ({"workers": {"min": 2, "per_node": 2}, "sync": DILOCO}, "/workers/min", 2, "each is a node"),
        ({"workers": {"min": 1}, "sync": DILOCO, "lanes": {"count": 2}}, "/workers/min", 1, "leave out `lanes`"),
        ({"workers": {"per_node": "all"}}, "/workers/per_node", "all", "available: auto"),
        ({"workers": {"count": 3, "per_node": 3, "gpus": 0.5}}, "/workers/per_node", 3, "whole number"),
        ({"workers": {"count": 2, "per_node": 2}, "budget": {"bytes": 10**6}}, "/budget/bytes", 10**6, "never end"),
        ({"workers": {"timeout_s": 0}}, "/workers/timeout_s", 0, "greater than 0"),
        ({"link": {"mode": "emulate", "mbps": 1e-300}}, "/link/mbps", 1e-300, "equal to 0.001"),
        ({"link": {"mode": "emulate", "mbps": 1e7}}, "/link/mbps", 1e7, "equal to 1000000"),
        ({"budget": {"seconds": -1}}, "/budget/seconds", -1, "greater than or equal to 0.01"),
        ({"budget": {}}, "/budget", None, "at least one of `seconds`, `steps`, `bytes`"),
        ({"link": {"mode": "emulate"}}, "/link/mbps", None, "required"),
        ({"seeds": [1, 1]}, "/seeds", [1, 1], "distinct"),
        ({"seeds": 3}, "/seeds", 3, "`seeds` must be a list, as [3], got 3"),
        ({"exchange": RANGE | {"density": [0.1, 0.2, 0.3]}}, "/exchange/density", None, "takes at most 2 items, got 3"),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "/arms", ["a", "a"], "distinct"),
        ({"exchange": RANGE, "controller": {"kind": "fixed"}}, "/exchange/density", [0.003, 0.1], "one number"),
        ({"budgets": 3}, "/budgets", 3, "there is no field"),
    ],
)
def test_a_bad_value_is_named_with_its_place_and_what_is_allowed(
    changes: dict[str, Any], pointer: str, value: object, allowed: str
) -> None:
    problem = refused(changes)[pointer]

    assert problem.value == value
    assert allowed in problem.message


@pytest.mark.parametrize("kind", ["bo", "sobol", "local"])
def test_a_range_is_taken_by_those_who_search_it(kind: str) -> None:
    assert accepted({"exchange": RANGE, "controller": {"kind": kind}}).controller.kind == kind


@pytest.mark.parametrize("kind", ["autolrs", "off", "fixed", "cosine", "linear", "schedule"])
def test_a_range_is_refused_for_those_who_do_not(kind: str) -> None:
    controller = {"kind": kind} | ({"schedule": SCHEDULE} if kind == "schedule" else {})
    problem = refused({"exchange": RANGE, "controller": controller})["/exchange/density"]

    assert f"is `{kind}`: give one number" in problem.message


def test_the_schedule_of_another_optimizer_is_refused_with_what_would_fit() -> None:
    schedule = SCHEDULE | {"optimizer": "sgd"}
    arms = [{"name": "a"}, {"name": "b", "controller": {"kind": "schedule", "schedule": schedule}}]
    problem = refused({"arms": arms})["/arms/1/controller/schedule/optimizer"]

    assert "`adamw`: give `optimizer: {kind: sgd}`" in problem.message
    arms[1] |= {"optimizer": {"kind": "sgd"}}
    assert accepted({"arms": arms}).arms[1].controller is not None


def test_a_scheduled_level_must_be_one_of_the_exchange() -> None:
    entry = SCHEDULE["entries"][0] | {"level": 3.0}
    controller = {"kind": "schedule", "schedule": SCHEDULE | {"entries": [entry]}}
    pointer = "/controller/schedule/entries/0/level"

    assert (
        "must be in (0, 1] for a density, got 3"
        in refused({"controller": controller, "exchange": RANGE | {"density": 0.1}})[pointer].message
    )
    assert accepted({"controller": controller, "exchange": ABSOLUTE | {"threshold": 0.1}})
    assert accepted({"controller": controller})  # dense: there is no level to set


@pytest.mark.parametrize(
    ("exchange", "level", "message"),
    [
        ({"kind": "powersgd", "rank": 2}, 4, r"must be in [1, 2] for a rank, since the factors"),
        ({"kind": "dion", "rank_fraction": 0.25}, 0.5, r"must be in (0, 0.25], since the factors"),
    ],
)
def test_a_scheduled_rank_is_at_most_the_one_that_factors_are_kept_for(
    exchange: dict[str, Any], level: float, message: str
) -> None:
    optimizer = {"kind": "from_exchange" if exchange["kind"] == "dion" else "schedulefree_sgd"}

    def follow(level: float) -> dict[str, Any]:
        entry = SCHEDULE["entries"][0] | {"level": level}
        schedule = SCHEDULE | {"optimizer": optimizer["kind"], "entries": [entry]}
        return {"exchange": exchange, "optimizer": optimizer, "controller": {"kind": "schedule", "schedule": schedule}}

    assert message in refused(follow(level))["/controller/schedule/entries/0/level"].message
    assert accepted(follow(level / 2))


CSER = {"exchange": {"kind": "cser"}, "optimizer": SGD | {"momentum": 0}}


@pytest.mark.parametrize(
    ("values", "parts", "message"),
    [
        ({"momentum": 0.9}, {"optimizer": SGD | {"momentum": 0}}, "give `optimizer: {momentum: 0.9}`"),
        ({"outer_momentum": 0.5}, {"sync": DILOCO}, "give `sync: {outer_momentum: 0.5}`"),
        ({"weight_decay": 0.1}, CSER, "with `cser` each worker steps by a gradient of its own"),
        ({"momentum": 0.9}, {"optimizer": {"kind": "schedulefree_sgd"}}, "nothing here has a `momentum`"),
        ({"momentum": 0.0, "nesterov": True}, {"optimizer": SGD}, "`nesterov` needs `momentum` > 0"),
        ({"period": 3}, {"sync": {"kind": "streaming_diloco"}}, "nothing here has a `period`"),
        ({"share": 0.01}, {"optimizer": SGD, "blocks": {"kind": "jointspar"}}, "`min_chance` must be at most `share`"),
        ({"batch_size": 5000}, {}, "`batch_size`: Input should be less than or equal to 1024, got 5000"),
    ],
)
def test_what_a_schedule_sets_must_fit_what_the_job_trains_with(
    values: dict[str, Any], parts: dict[str, Any], message: str
) -> None:
    found = refused(parts | _setting(values, parts))

    assert message in found["/controller/schedule/entries/0/values"].message


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"momentum": 0.8, "weight_decay": 0.1, "nesterov": True, "batch_size": 64}, {"optimizer": SGD}),
        ({"momentum": 0.0}, {"optimizer": SGD}),
        ({"momentum": 0.8}, {"optimizer": ADAMW | {"betas": [0.0, 0.999]}}),
        ({"momentum": 0.8, "optimizer": "sgd"}, {"optimizer": {"kind": "auto", "options": ["adamw", "sgd"]}}),
        ({"period": 3, "outer_momentum": 0.0}, {"sync": DILOCO | {"outer_momentum": 0.9}}),
    ],
)
def test_what_a_search_may_change_a_schedule_may_set(values: dict[str, Any], parts: dict[str, Any]) -> None:
    assert accepted(parts | _setting(values, parts))


def _setting(values: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return a controller whose schedule sets `values`, for the optimizer of `parts`."""
    kind = values.get("optimizer", parts.get("optimizer", ADAMW)["kind"])
    entry = SCHEDULE["entries"][0] | {"values": values}
    return {"controller": {"kind": "schedule", "schedule": SCHEDULE | {"optimizer": kind, "entries": [entry]}}}


def test_a_schedule_is_given_itself_where_nobody_reads_files() -> None:
    found = refused({"controller": {"kind": "schedule", "path": "schedule.json"}})

    assert "give `schedule` itself" in found["/controller"].message


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"min_learning_rate": 0.1}, "give both"), ({"min_learning_rate": 1, "max_learning_rate": 0.1}, "must be below")],
)
@pytest.mark.parametrize("kind", ["autolrs", "bo", "sobol", "local"])
def test_a_range_of_rates_has_two_ends_in_order(kind: str, limits: dict[str, float], said: str) -> None:
    assert said in refused({"controller": {"kind": kind} | limits})["/controller"].message


@pytest.mark.parametrize("kind", ["bo", "autolrs"])
def test_a_guess_outside_the_stated_range_of_rates_is_refused_where_it_is_given(kind: str) -> None:
    limits = {"kind": kind, "min_learning_rate": 0.01, "max_learning_rate": 0.05}
    high = {"kind": "sgd", "learning_rate": 0.06}

    of_the_job = refused({"controller": limits, "optimizer": high})
    assert "[0.01, 0.05], got 0.06" in of_the_job["/optimizer/learning_rate"].message
    of_an_arm = refused({"controller": {"kind": "off"}, "arms": [{"name": "a"}, {"name": "b", "controller": limits}]})
    assert "[0.01, 0.05], got 0.001" in of_an_arm["/optimizer/learning_rate"].message
    assert of_an_arm["/optimizer/learning_rate"].arms == ("b",)
    assert accepted({"controller": limits, "optimizer": high | {"learning_rate": 0.05}})


@pytest.mark.parametrize(
    "factory", ["mine", "mine:", ":build", "my model:build", "mine:1st", "mine:a:b", "../mine:build"]
)
def test_a_factory_is_named_by_module_and_attribute(factory: str) -> None:
    assert "must be `package.module:name`" in refused({"workload": {"factory": factory}})["/workload/factory"].message


def test_a_workload_needs_a_kind_or_a_factory() -> None:
    assert set(refused({"workload": {}})) == {"/workload/kind"}
    assert set(refused({"workload": {"kind": "own"}})) == {"/workload/factory"}
    assert accepted({"workload": {"factory": "a.b:c.d"}}).workload.kind == "own"


def test_own_code_and_files_are_found_from_the_folder_of_the_command() -> None:
    def resolved(**workload: Any) -> Any:
        return accepted({"workload": {"factory": "mine:build"} | workload}).resolved("/home/me").workload

    assert resolved().path == "/home/me"
    assert resolved(path="models").path == "/home/me/models"
    assert resolved(path="/opt/models").path == "/opt/models"
    assert resolved(weights="start.safetensors").weights == "/home/me/start.safetensors"
    assert resolved(weights="s3://bucket/start.safetensors").weights == "s3://bucket/start.safetensors"


@pytest.mark.parametrize(("given", "shown"), [(["job-a"], "['job-a']"), ("job-a", "'job-a'"), (7, "7"), (True, "True")])
def test_past_jobs_are_auto_or_named_in_jobs(given: Any, shown: str) -> None:
    found = refused({"controller": {"kind": "bo", "transfer": given}})

    assert found["/controller/transfer"].message == f"`transfer` must be `auto` or `{{jobs: [job-...]}}`, got {shown}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"deep": [float("nan")]}])
def test_parameters_of_a_factory_are_plain_json(value: Any) -> None:
    found = refused({"workload": {"factory": "mine:build", "params": {"a": value}}})

    assert "`params` must be plain JSON" in found["/workload/params"].message


def test_every_problem_is_named_at_once() -> None:
    found = refused({"workers": {"count": 0}, "optimizer": {"kind": "x"}, "link": {"mode": "y"}, "seeds": []})

    assert set(found) == {"/workers/count", "/optimizer/kind", "/link/mode", "/seeds"}


def test_all_that_does_not_fit_together_is_named_at_once() -> None:
    found = refused(
        {
            "arms": [{"name": "a"}, {"name": "a"}],
            "seeds": [1, 1],
            "workers": {"count": 45},
            "exchange": RANGE,
            "controller": {"kind": "fixed"},
        }
    )

    assert set(found) == {"/arms", "/seeds", "/workers/count", "/exchange/density"}


def test_all_that_does_not_fit_in_a_part_is_named_at_once() -> None:
    found = refused({"exchange": {"kind": "threshold", "threshold": 0.5}})

    assert set(found) == {"/exchange/density", "/exchange/threshold"}


@pytest.mark.parametrize("gpus", [0, 0.25, 1, 3])
def test_one_gpu_may_be_shared_and_several_are_whole(gpus: float) -> None:
    assert JobSpec.model_validate(JOB | {"workers": {"gpus": gpus}}).workers.gpus == gpus


def test_the_workers_timeout_is_that_of_every_collective():
    spec = next(JobSpec.model_validate(JOB | {"workers": {"timeout_s": 600}}).trials())

    assert spec.replica.collective_timeout_s == 600


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "schedulefree_sgd", "schedulefree_adamw"])
def test_the_lowest_rate_that_is_accepted_opens_a_search(optimizer: str) -> None:
    spec = JobSpec.model_validate(JOB | {"optimizer": {"kind": optimizer, "learning_rate": 1e-8}})
    space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=spec.optimizer.learning_rate))

    candidate = Controller(space, BoConfig(), 0, budget=spec.budget).ask()

    assert candidate is not None and candidate.values.learning_rate >= 1e-8


def test_an_arm_replaces_its_parts_of_the_job_and_keeps_the_rest() -> None:
    spec = JobSpec.model_validate(
        JOB
        | {
            "exchange": RANGE,
            "seeds": [3, 4],
            "arms": [
                {"name": "tuned"},
                {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}},
            ],
        }
    )

    trials = list(spec.trials())

    assert [(trial.arm, trial.seed) for trial in trials] == [("tuned", 3), ("tuned", 4), ("dense", 3), ("dense", 4)]
    assert [trial.replica.exchange.kind for trial in trials] == ["threshold", "threshold", "none", "none"]
    assert {trial.replica.optimizer.learning_rate for trial in trials} == {0.001}
    assert [trial.replica.seed for trial in trials] == [3, 4, 3, 4]


@pytest.mark.parametrize(
    ("changes", "pointer", "said"),
    [
        ({"optimizer": {"learning_rate": 0.2}}, "/optimizer/kind", "`kind` is required"),
        ({"link": {"mbps": 10}}, "/link/mode", "`mode` is required"),
        ({"labels": {"kind": "iid", "iid": 1}}, "/labels/iid", "`iid` should be a valid string, got 1"),
        ({"arms": []}, "/arms", "at least 1 items, got 0"),
        ({"budget": {"steps": True}}, "/budget/steps", "whole number"),
        ({"budget": {"seconds": 1e308}}, "/budget/seconds", "less than or equal to"),
        ({"checkpoint": {"every_seconds": float("inf")}}, "/checkpoint/every_seconds", "finite"),
    ],
)
def test_a_problem_is_told_in_the_jobs_own_words(changes: dict[str, Any], pointer: str, said: str) -> None:
    found = refused(changes)

    assert set(found) == {pointer}
    assert said in found[pointer].message


def test_an_item_that_is_refused_does_not_make_its_list_too_short() -> None:
    assert set(refused({"arms": [{"name": "bad name!"}]})) == {"/arms/0/name"}


def test_momentum_is_not_applied_both_before_and_after_compression() -> None:
    problem = refused({"exchange": {"kind": "dgc"}, "optimizer": {"kind": "sgd", "momentum": 0.9}})["/exchange"]

    assert "optimizer: {kind: sgd, momentum: 0}" in problem.message
    assert JobSpec(**JOB | {"exchange": {"kind": "dgc"}, "optimizer": {"kind": "sgd", "momentum": 0}})
