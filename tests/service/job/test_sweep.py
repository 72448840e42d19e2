"""Errors in `params` are reported early, with the field, the value, the allowed ones, and the place."""

import json
from typing import Any

import pytest

from api.documents import checked
from service.control.queue.capacity import Node, Shape
from service.control.queue.plan import sized
from service.errors import InvalidJob
from service.job.spec import JobSpec
from service.job.sweep import at, expected_cost
from service.wire.records import AttemptBrief

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd"},
    "budget": {"steps": 300},
    "exchange": {"kind": "topk", "density": 0.01},
    "controller": {"kind": "fixed"},
}
MOMENTUM = {"optimizer.momentum": {"uniform": [0.5, 0.95]}}


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidJob) as refused:
        checked(JobSpec, JOB | fields)
    return {problem.pointer: problem.message for problem in refused.value.problems}


def test_a_sweep_adds_its_samples_to_the_arms_and_each_trains_with_its_values() -> None:
    spec = checked(JobSpec, JOB | {"params": MOMENTUM, "sweep": {"samples": 3}, "seeds": [4, 5]})

    trials = list(spec.trials({"sample-1": {"optimizer.momentum": 0.7, "workload.batch_size": 16}}))

    assert [(each.arm, each.seed) for each in trials] == [
        ("tuned", 4), ("tuned", 5), ("sample-0", 4), ("sample-1", 4), ("sample-2", 4),
    ]  # fmt: skip
    assert len(trials) == spec.num_trials
    assert trials[3].replica.optimizer.momentum == 0.7 and trials[3].replica.workload.batch_size == 16
    assert trials[2].replica.optimizer == spec.optimizer  # it is not drawn yet
    assert all(each.rungs == spec.sweep_config.rungs() for each in trials)
    assert all(each.rungs == () for each in checked(JobSpec, JOB).trials())


def test_own_keyword_arguments_and_whole_parts_can_vary() -> None:
    own = {"factory": "model:make", "params": {"width": 8}}
    optimizers = [{"kind": "sgd", "learning_rate": 0.1}, {"kind": "adamw", "learning_rate": 0.001}]
    params = {"workload.params.width": {"integer": [4, 64]}, "optimizer": {"choice": optimizers}}
    spec = checked(JobSpec, JOB | {"workload": own, "params": params})

    changed = at(spec, {"workload.params.width": 32, "optimizer": optimizers[1]})

    assert changed.workload.params == {"width": 32}
    assert changed.optimizer.kind == "adamw"


@pytest.mark.parametrize(
    ("path", "choices", "found"),
    [
        ("workload.weights", [None, "a.st", "/b.st", "s3://c/d"], [None, "/home/me/a.st", "/b.st", "s3://c/d"]),
        ("workload.path", [None, "models", "/opt"], ["/home/me", "/home/me/models", "/opt"]),
        (
            "workload",
            [{"kind": "digits-mlp", "weights": "a.st"}, {"factory": "a:make"}],
            [{"kind": "digits-mlp", "weights": "/home/me/a.st"}, {"factory": "a:make", "path": "/home/me"}],
        ),
        ("workload.params.path", ["models", "others"], ["models", "others"]),
    ],
)
def test_files_of_samples_are_found_from_the_folder_as_those_of_the_job(
    path: str, choices: list[Any], found: list[Any]
) -> None:
    own = {"workload": {"factory": "model:make"}, "params": {path: {"choice": choices}}}
    spec = checked(JobSpec, JOB | own).resolved("/home/me")

    assert list(spec.params[path].ends()) == found
    assert checked(JobSpec, spec.model_dump(mode="json")) == spec


def test_a_samples_factory_from_the_jobs_package_is_not_looked_for_in_the_folder() -> None:
    own = {"factory": "model:make", "code": f"sha256:{'0' * 64}"}
    params = {"workload": {"choice": [{"factory": "model:make"}, {"factory": "model:other"}]}}
    spec = checked(JobSpec, JOB | {"workload": own, "params": params}).resolved("/home/me")

    assert all(at(spec, {"workload": each}).workload.path is None for each in spec.params["workload"].ends())


def test_a_keyword_argument_inside_one_that_the_job_leaves_out_can_vary() -> None:
    path = "workload.params.optim.rate"
    spec = checked(JobSpec, JOB | {"workload": {"factory": "model:make"}, "params": {path: {"uniform": [0.1, 1]}}})

    assert at(spec, {path: 0.5}).workload.params == {"optim": {"rate": 0.5}}


def test_what_a_sample_sets_is_a_copy_of_a_choice() -> None:
    options = {"depth": 2}
    own = {"workload": {"factory": "model:make", "params": {"options": {}}}}
    spec = JobSpec.model_validate(JOB | own)

    changed = at(spec, {"workload.params.options": options, "workload.params.options.depth": 3})

    assert changed.workload.params == {"options": {"depth": 3}} and options == {"depth": 2}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("sync.period", {"sync": {"kind": "diloco"}, "exchange": {"kind": "none"}}),
        ("accumulate", {}),
        ("optimizer.warmup_steps", {}),
        ("exchange.rank", {"exchange": {"kind": "powersgd", "rank": 2}}),
        ("workload.batch_size", {}),
    ],
)
@pytest.mark.parametrize(("form", "whole"), [("uniform", "integer"), ("log_uniform", "log_integer")])
def test_a_range_of_all_numbers_on_a_field_of_whole_ones_is_told_the_form_to_give(
    path: str, fields: dict[str, Any], form: str, whole: str
) -> None:
    found = problems(**fields, params={path: {form: [2, 8]}})

    assert list(found) == [f"/params/{path}/{form}"]
    assert f"`{path}` takes whole numbers" in found[f"/params/{path}/{form}"]
    assert found[f"/params/{path}/{form}"].endswith(f"give `{whole}`")
    assert checked(JobSpec, JOB | fields | {"params": {path: {whole: [2, 8]}}}).num_trials == 17


def test_a_sample_between_ends_that_fit_is_refused_if_it_does_not() -> None:
    sync = {"kind": "streaming_diloco", "period": 8, "fragments": 4}

    found = problems(sync=sync, exchange={"kind": "none"}, params={"sync.period": {"integer": [8, 32]}})

    message = found["/params/sync.period/integer"]
    assert "`sample-0` would have `sync.period` 18: `period` must be a multiple of `fragments` 4" in message


def test_a_stored_sample_that_no_trial_can_have_leaves_the_others_as_they_are() -> None:
    spec = JobSpec.model_validate(JOB | {"params": {"accumulate": {"uniform": [1, 8]}}, "sweep": {"samples": 2}})

    trials = {each.arm: each for each in spec.trials({"sample-0": {"accumulate": 3.5}, "sample-1": {"accumulate": 4}})}

    assert (trials["sample-0"].replica.accumulate, trials["sample-1"].replica.accumulate) == (1, 4)


@pytest.mark.parametrize(
    ("params", "pointer", "message"),
    [
        ({"workload.widht": {"integer": [1, 2]}}, "/params/workload.widht", "`workload` has no `widht`; available:"),
        ({"workload.kind": {"choice": ["a", "b"]}}, "/params/workload.kind", "vary the whole part"),
        ({"budget.steps": {"integer": [1, 2]}}, "/params/budget.steps", "not `budget`"),
        ({"clip.norm": {"uniform": [1, 2]}}, "/params/clip.norm", "`clip` is None"),
        (
            {"workload.batch_size": {"integer": [8, 2000]}},
            "/params/workload.batch_size/integer/1",
            "less than or equal to 1024, got 2000",
        ),
        (
            {"optimizer": {"choice": [{"kind": "sgd"}, {"kind": "adamx"}]}},
            "/params/optimizer/choice/1/kind",
            "unknown: `adamx`",
        ),
        (
            {"optimizer": {"choice": [{"kind": "sgd"}, {"kind": "sgd", "momentun": 1}]}},
            "/params/optimizer/choice/1/momentun",
            "there is no field `momentun`; did you mean `momentum`?",
        ),
        (
            {"exchange": {"choice": [{"kind": "none"}, {"kind": "topk", "density": 7}]}},
            "/params/exchange/choice/1/density",
            "`density` should be less than or equal to 1, got 7",
        ),
        (
            {"optimizer": {"choice": [{"kind": "sgd"}, {"kind": "sgd", "betas": [0.9, 0.99]}]}},
            "/params/optimizer/choice/1/betas",
            "`optimizer.kind: sgd` has no `betas`; kinds that have it:",
        ),
        ({"workload.params.width": {"integer": [1, 2]}}, "/params/workload.params.width", "`workload` has no `params`"),
        (
            {"workload.weights_of.job": {"choice": ["job-1", "job-2"]}},
            "/params/workload.weights_of.job",
            "vary the weights as a whole: `workload.weights_of: {choice: [{job: ...}, ...]}`",
        ),
        (
            {
                "optimizer.momentum": {"uniform": [0.5, 0.9]},
                "optimizer": {"choice": [{"kind": "sgd"}, {"kind": "lion"}]},
            },
            "/params/optimizer.momentum",
            "`optimizer` varies as a whole, and `optimizer.momentum` is in it",
        ),
        ({"optimizer.momentum": {"uniform": [0.9, 0.5]}}, "/params/optimizer.momentum", "low < high"),
    ],
)
def test_what_cannot_vary_is_told_with_its_place_and_what_is_allowed(params: Any, pointer: str, message: str) -> None:
    found = problems(params=params)

    assert message in found[pointer]


def test_all_samples_import_the_jobs_own_code() -> None:
    codes = [f"sha256:{digit * 64}" for digit in "01"]
    own = {"factory": "model:make", "code": codes[0]}

    found = problems(workload=own, params={"workload.code": {"choice": codes}})

    assert list(found) == ["/params/workload.code/choice/1"]
    assert "import the same package" in found["/params/workload.code/choice/1"]


def test_samples_of_other_factories_come_from_the_jobs_package() -> None:
    own = {"factory": "model:make", "code": f"sha256:{'0' * 64}"}
    params = {"workload": {"choice": [{"factory": "model:make"}, {"factory": "model:other"}]}}

    assert checked(JobSpec, JOB | {"workload": own, "params": params}).num_trials == 17


def test_values_that_do_not_go_together_are_told_though_each_does() -> None:
    params = {
        "controller": {"choice": [{"kind": "fixed"}, {"kind": "bo"}]},
        "exchange": {"choice": [{"kind": "none"}, {"kind": "topk", "density": [0.1, 0.2]}]},
    }

    found = problems(exchange={"kind": "none"}, controller={"kind": "bo"}, params=params)

    assert "do not go together" in found["/params"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"sweep": {"samples": 4}}, "/sweep"),
        ({"params": MOMENTUM, "sweep": {"samples": 257}}, "/sweep/samples"),
        ({"params": MOMENTUM, "sweep": {"first_rung": 0.4}}, "/sweep/first_rung"),
        ({"params": MOMENTUM, "budget": {"bytes": 10**9}, "sweep": {"cost": "bytes"}}, "/sweep/cost"),
        ({"params": MOMENTUM, "arms": [{"name": "sample-1"}]}, "/arms/0/name"),
        ({"params": MOMENTUM, "lanes": {"count": 2, "after": "insurance"}}, "/lanes/after"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(fields: Any, pointer: str) -> None:
    assert pointer in problems(**fields)


def test_the_cost_is_told_beforehand() -> None:
    spec = checked(JobSpec, JOB | {"params": MOMENTUM})

    assert expected_cost(spec) == (
        "17 trials (1 of arms and 16 samples, at most 4 at a time); samples are compared at 11% and 33% of the budget, "
        "and all are expected to take 5.1 times the budget, at most 17 times"
    )
    alone = checked(JobSpec, JOB | {"params": MOMENTUM, "sweep": {"scheduler": "none"}})
    assert expected_cost(alone).endswith("each with the whole budget")


@pytest.mark.parametrize("reduction", [2, 3, 10])
def test_asha_needs_a_rung_and_is_told_how_late_the_first_may_be(reduction: int) -> None:
    sweep = {"reduction": reduction, "first_rung": 1.01 / reduction}

    assert f"must be at most 1/{reduction}, got" in problems(params=MOMENTUM, sweep=sweep)["/sweep/first_rung"]
    for fits in ({"first_rung": 1 / reduction}, {"scheduler": "none"}):
        checked(JobSpec, JOB | {"params": MOMENTUM, "sweep": sweep | fits})
    stored = JobSpec.stored(JOB | {"params": MOMENTUM, "sweep": sweep})
    assert expected_cost(stored).endswith("each with the whole budget")


@pytest.mark.parametrize(("cpus", "expected"), [(2, 1), (4, 2), (7, 3), (64, 4)])
def test_as_many_trials_run_at_a_time_as_there_is_room_for_up_to_the_cap(cpus: int, expected: int) -> None:
    spec = checked(JobSpec, JOB | {"params": MOMENTUM, "sweep": {"at_once": 4}})
    shape = Shape.of(spec)

    size, trials, never = sized(shape, [Node(cpus=cpus)], {}, owner="ada", project="default")

    assert (trials, size.workers, never) == (expected, 2 * expected, "")
    assert Shape.of_json(spec.model_dump(mode="json")) == shape


def test_a_brief_of_an_earlier_release_is_read() -> None:
    brief = {"job_id": "job-1", "number": 1, "spec": JOB, "storage_url": "file:///s", "lease_s": 1, "renew_s": 1}
    found = AttemptBrief.model_validate(brief | {"max_silence_s": 1, "control": "run"})

    assert found.seen == () and found.trials_at_once is None


def test_a_brief_has_only_the_fields_that_the_job_was_stored_with() -> None:
    stored = checked(JobSpec, JOB | {"params": MOMENTUM}).model_dump(mode="json")
    for later in ("priority", "webhook"):  # as if the release that stored the job had known neither
        del stored[later]
    del stored["workers"]["patience_s"]
    brief = {"job_id": "job-1", "number": 1, "spec": stored, "storage_url": "file:///s", "lease_s": 1, "renew_s": 1}

    found = AttemptBrief.model_validate(brief | {"max_silence_s": 1, "control": "run"})

    assert found.model_dump(mode="json")["spec"] == json.loads(found.model_dump_json())["spec"] == stored
    assert AttemptBrief.model_validate_json(found.model_dump_json()) == found
