"""The verbs of a job, by HTTP, by the client, and from a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from typer.testing import CliRunner

from api.cli import job_file, main
from api.client import Client
from api.failures import ApiError
from api.http.examples import EXAMPLE_JOB
from service.control.access.rules import LOCAL, Principal
from service.control.store import Store
from service.job.changes import differences, patched
from service.job.spec import JobSpec
from service.job.states import ALLOWED_IN, JobState, Verb
from service.wire.access import NewKey, Role
from service.wire.records import TrialStarted
from tests.api.conftest import Reporting
from tests.support.reported import finished

run_cli = CliRunner()


def test_every_verb_is_a_route_that_answers_the_job_or_a_409_with_what_is_allowed(http: TestClient) -> None:
    job_id = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]

    given = {Verb.EXTEND: {"seconds": 80}, Verb.STEER: {"search_now": True}}
    answers = {verb: http.post(f"/v1/jobs/{job_id}:{verb}", json=given.get(verb, {})) for verb in Verb}

    assert {verb for verb, answer in answers.items() if answer.status_code == 202} == {"pause", "resume", "cancel"} | {
        *("retry", "steer")  # in their order: queued, paused, queued, cancelled, queued
    }
    for verb in ("stop", "extend"):
        document = answers[Verb(verb)].json()
        assert (document["status"], document["type"]) == (409, "/problems/illegal-transition")
        needed = " or ".join(ALLOWED_IN[Verb(verb)])
        assert f"is queued: `{verb}` is for one that is {needed}; what it allows now: `pause`, " in document["detail"]


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "cancel", "retry"])
def test_a_verb_without_a_body_refuses_one_and_says_where_parameters_go(http: TestClient, verb: str) -> None:
    job_id = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]

    answer = http.post(f"/v1/jobs/{job_id}:{verb}", json={"workers": 3})

    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert "`?workers=3`" in answer.json()["detail"]
    assert http.get(f"/v1/jobs/{job_id}").json()["version"] == 1
    assert http.post(f"/v1/jobs/{job_id}:cancel", content=b" { }\n").status_code == 202


@pytest.mark.parametrize(
    ("verb", "state", "body"),
    [
        ("resume", "paused", None),
        ("retry", "cancelled", None),
        ("extend", "succeeded", {"steps": 20}),
        ("clone", "", {}),
    ],
)
def test_a_job_of_user_code_does_not_go_on_where_that_is_not_allowed_any_more(
    http: TestClient, store: Store, verb: str, state: str, body: Any
) -> None:
    own = JobSpec.model_validate({"workload": {"factory": "mine:build"}, "budget": {"steps": 10}})
    reporting = Reporting(store, own)
    if state == "succeeded":
        reporting.post(
            TrialStarted(trial_id=reporting.trial("tuned"), arm="tuned", seed=0, backend="gloo", device="cpu")
        )
        reporting.finish()
    elif state:
        {"paused": store.pause, "cancelled": store.cancel}[state](reporting.job_id)
        store.attempts.lose(reporting.job_id, 1, reason="its driver ended")
    before = store.job(reporting.job_id)
    assert before.state == (state or "starting")

    for workers in ("", "?workers=3") if verb != "clone" else ("",):
        answer = http.post(f"/v1/jobs/{before.id}:{verb}{workers}", json=body)

        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/workload/factory"]
    assert store.job(before.id) == before


def test_the_clients_verbs_are_those_of_the_service(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    job_id = reporting.job_id

    extended = client.extend(job_id, seconds=80)
    assert (extended.state, extended.spec.budget.seconds) == (JobState.QUEUED, 80)
    assert "`tuned.0` goes on from its end, step 200; `dense.0` goes on from its end, step 200" in extended.reason
    assert client.trials(job_id)[0].weights_url is not None  # until there are others

    states = [verb(job_id).state for verb in (client.pause, client.resume, client.cancel)]
    assert states == [JobState.PAUSED, JobState.QUEUED, JobState.SUCCEEDED]  # it has its result until it is extended
    client.extend(job_id, seconds=80)
    reporting.store.attempts.begin(job_id)
    reporting.store.attempts.lose(job_id, 2, reason="lost")
    assert [verb(job_id).state for verb in (client.cancel, client.retry)] == [JobState.CANCELLED, JobState.QUEUED]
    assert client.stop(job_id).reason == "stopped early by test"
    with pytest.raises(ApiError, match="was stopped already"):
        client.stop(job_id)


def test_a_budget_that_is_no_larger_is_refused_with_its_pointer(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    for caps, pointer in (({"seconds": 1.0}, "/seconds"), ({"steps": 10}, "/steps"), ({}, "/")):
        with pytest.raises(ApiError) as refusal:
            client.extend(reporting.job_id, **caps)  # type: ignore[arg-type]
        assert refusal.value.status == 422 and pointer in str(refusal.value)


@pytest.mark.usefixtures("at")
def test_a_job_is_extended_by_seeds_alone_from_the_client_and_from_a_terminal(
    client: Client, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    job_id = reporting.job_id

    extended = client.extend(job_id, seeds=[3, 5])
    assert (extended.spec.seeds, extended.reason) == ((0, 3, 5), "extended by test: new seeds: 3, 5")
    client.cancel(job_id)
    told = run_cli.invoke(main.app, ["extend", job_id, "--seeds", "3,5", "--json"])

    assert (told.exit_code, json.loads(told.stdout)["spec"]["seeds"]) == (0, [0, 3, 5])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "2,x"], "--seeds takes whole numbers with commas between them, e.g. 2,3, got 'x'"),
        (["--seeds", "1,0"], "/seeds/1: the job already has the seed 0"),
        (["--samples", "4"], "/samples: the job has no `params`"),
    ],
)
@pytest.mark.usefixtures("at")
def test_seeds_and_samples_that_a_job_cannot_get_are_refused_on_the_terminal_by_name(
    reporting: Reporting, options: list[str], said: str
) -> None:
    reporting.run_to_the_end()

    result = run_cli.invoke(main.app, ["extend", reporting.job_id, *options])

    assert result.exit_code == 2 and said in " ".join(result.stderr.split())


def test_new_samples_that_the_job_would_not_allow_are_refused_as_at_a_submission(
    client: Client, store: Store, job: JobSpec
) -> None:
    parts = {
        "sync": {"kind": "streaming_diloco", "period": 8, "fragments": 4},
        "exchange": {"kind": "none"},
        "arms": [{"name": "a"}],
        "params": {"sync.period": {"integer": [8, 32]}},
        "sweep": {"samples": 1, "seed": 4},
    }
    swept = Reporting(store, JobSpec.model_validate(job.model_dump(mode="json") | parts))
    for trial in client.trials(swept.job_id):
        swept.post(finished(trial.trial_id))
    swept.finish()

    with pytest.raises(ApiError, match=r"`sample-1` would have `sync\.period` 18") as refusal:
        client.extend(swept.job_id, samples=2)

    assert refusal.value.status == 422
    assert client.job(swept.job_id).view.state is JobState.SUCCEEDED


def test_a_clone_is_the_job_with_the_changes_that_its_answer_shows(client: Client, job: JobSpec) -> None:
    source = client.submit(job)
    changes: dict[str, Any] = {"budget": {"seconds": 80}, "exchange": {"kind": "topk", "density": 0.01}}

    shown = client.clone(source.id, changes, dry_run=True)
    made = client.clone(source.id, changes, idempotency_key="k")
    again = client.clone(source.id, changes, idempotency_key="k")

    assert (shown.job, shown.changes) == (None, made.changes)
    assert made.job is not None and made.job == again.job and made.job.spec == shown.spec
    fields = {change.pointer: (change.before, change.after) for change in made.changes}
    assert fields["/budget/seconds"] == (40, 80)
    assert fields["/exchange/kind"] == ("threshold", "topk")
    assert not any(pointer.startswith("/arms") for pointer in fields)
    assert len(client.jobs().jobs) == 2


def test_a_clone_of_another_owners_job_does_not_tell_their_webhook(http: TestClient, store: Store) -> None:
    store.settings = store.settings.model_copy(update={"webhook_secret": SecretStr(f"whsec_{'A' * 43}=")})
    told = {"url": "https://chat.example/annas"}
    anna = Principal(name="anna", role=Role.SUBMITTER, project="red")
    source = store.add_job(JobSpec.model_validate(EXAMPLE_JOB | {"webhook": told}), by=anna)[0].id

    def clone(owner: str, changes: dict[str, Any]) -> Any:
        key = store.keyring.create(NewKey(name=owner, project="red"), by=LOCAL).secret
        headers = {"Authorization": f"Bearer {key}"}
        return http.post(f"/v1/jobs/{source}:clone", json=changes, headers=headers).json()

    copied, own, named = clone("bert", {}), clone("anna", {}), clone("bert", {"webhook": {"url": told["url"] + "2"}})

    assert copied["spec"]["webhook"] is None and copied["changes"][0]["pointer"] == "/webhook"
    assert (own["spec"]["webhook"]["url"], own["changes"]) == (told["url"], [])
    assert named["spec"]["webhook"]["url"] == told["url"] + "2"


def test_a_webhook_that_the_service_would_not_call_is_no_edit(http: TestClient) -> None:
    job_id = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]

    answer = http.patch(f"/v1/jobs/{job_id}", json={"webhook": {"url": "https://chat.example/x"}})

    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/webhook/url"
    assert http.get(f"/v1/jobs/{job_id}").json()["version"] == 1


def test_a_repeated_clone_is_the_first_one_though_its_source_was_edited_meanwhile(client: Client, job: JobSpec) -> None:
    source, changes = client.submit(job), {"budget": {"seconds": 80}}
    made = client.clone(source.id, changes, idempotency_key="k")

    client.edit(source.id, labels={"team": "vision"})
    again = client.clone(source.id, changes, idempotency_key="k")

    assert made.job is not None and again.job == made.job
    for other, patch in ((source.id, {"budget": {"seconds": 90}}), (made.job.id, changes)):
        with pytest.raises(ApiError, match="send a new key with a new job"):
            client.clone(other, patch, idempotency_key="k")


def test_a_job_that_is_submitted_with_its_source_is_a_clone_of_it(http: TestClient) -> None:
    source = http.post("/v1/jobs", json=EXAMPLE_JOB).json()

    made = http.post("/v1/jobs", params={"source": source["id"]}, json=EXAMPLE_JOB).json()

    assert source["source"] is None and made["source"] == source["id"]


@pytest.mark.parametrize("exists", [True, False])
def test_no_job_is_a_clone_of_one_that_its_owner_does_not_see(http: TestClient, store: Store, exists: bool) -> None:
    by = Principal(name="carl", role=Role.SUBMITTER, project="blue")
    hidden = store.add_job(JobSpec.model_validate(EXAMPLE_JOB), by=by)[0].id if exists else "job-none"
    key = store.keyring.create(NewKey(name="k", owner="anna", project="red", role=Role.SUBMITTER), by=LOCAL).secret

    answer = http.post(f"/v1/jobs?source={hidden}", json=EXAMPLE_JOB, headers={"Authorization": f"Bearer {key}"})

    assert answer.status_code == 404 and answer.json()["detail"] == f"there is no job `{hidden}`"


@pytest.mark.parametrize("changes", ["{labels: {a: b, 2: c}}", "{budget: {seconds: 80}, 2: c}"])
def test_a_clone_by_yaml_whose_names_are_no_text_is_refused(
    http: TestClient, client: Client, job: JobSpec, changes: str
) -> None:
    source = client.submit(job)

    answer = http.post(f"/v1/jobs/{source.id}:clone", content=changes, headers={"Content-Type": "application/yaml"})

    assert answer.status_code == 422 and "a name must be text, got `2`" in answer.text


def test_a_clone_that_is_no_valid_job_is_refused_with_the_pointer_into_it(client: Client, job: JobSpec) -> None:
    source = client.submit(job)

    with pytest.raises(ApiError) as refusal:
        client.clone(source.id, {"workers": {"count": 0}})

    assert [error.pointer for error in refusal.value.errors] == ["/workers/count"]


SWEPT = EXAMPLE_JOB | {
    "params": {"accumulate": {"integer": [2, 8]}, "exchange": {"choice": [{"kind": "none"}, {"kind": "fp16"}]}},
    "sweep": {"samples": 10, "sampler": "bo"},
}


def test_a_clone_of_a_sample_trains_what_the_sample_trains_and_sweeps_nothing(client: Client) -> None:
    source = client.submit(SWEPT)
    sample = next(each for each in source.trials() if each.arm == "sample-3")
    assert sample.sample is not None and sample.sample.values is not None

    made = source.clone({"budget": {"seconds": 80}, "seeds": [5]}, trial="sample-3").spec

    before = source.spec.trials({"sample-3": sample.sample.values})
    expected = next(each.replica for each in before if each.arm == "sample-3").model_copy(update={"seed": 5})
    [run] = made.trials()
    assert run.replica == expected and made.budget.seconds == 80
    assert (made.params, made.sweep) == ({}, None)
    named_by_id = source.clone({}, trial=sample.trial_id).spec
    assert (named_by_id.accumulate, named_by_id.exchange) == (made.accumulate, made.exchange)


def test_a_clone_of_an_arm_has_what_the_arm_sets_as_the_jobs_own(client: Client) -> None:
    source = client.submit(EXAMPLE_JOB)

    made = source.clone({}, trial="dense").spec

    assert [each for each in source.spec.trials() if each.arm == "dense"] == list(made.trials())
    assert made.exchange.kind == "none"


def test_a_clone_of_the_best_trial_is_of_that_which_the_report_names(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    best = client.report(reporting.job_id).best_trial

    made = client.job(reporting.job_id).clone({}, trial="best").spec

    assert best == f"{reporting.job_id}.{made.arms[0].name}.0"


def test_a_clone_of_no_trial_or_of_a_sample_that_is_not_drawn_is_refused(client: Client) -> None:
    source = client.submit(SWEPT)

    for trial, why in (("sample-99", "no arm, sample or trial"), ("sample-9", "no values yet")):
        with pytest.raises(ApiError, match=why) as refusal:
            source.clone({}, trial=trial)
        assert (refusal.value.status, refusal.value.errors[0].pointer) == (422, "/trial")
    with pytest.raises(ApiError, match="once all trials have finished"):
        client.submit(EXAMPLE_JOB).clone({}, trial="best")


def test_a_key_of_a_clone_is_for_the_trial_that_it_named(client: Client) -> None:
    source = client.submit(SWEPT)
    made = client.clone(source.id, {}, trial="sample-1", idempotency_key="k")

    assert client.clone(source.id, {}, trial="sample-1", idempotency_key="k").job == made.job
    with pytest.raises(ApiError, match="send a new key"):
        client.clone(source.id, {}, trial="sample-2", idempotency_key="k")


BASE = {"a": {"b": 1, "c": 2}, "list": [1, 2], "kind": {"kind": "x", "of_x": 1}}


@pytest.mark.parametrize(
    ("patch", "result"),
    [
        ({}, BASE),
        ({"a": {"b": 3}}, BASE | {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": None}}, BASE | {"a": {"c": 2}}),
        ({"list": [3]}, BASE | {"list": [3]}),
        ({"new": {"deep": {"x": None, "y": 1}}}, BASE | {"new": {"deep": {"y": 1}}}),
        ({"kind": {"kind": "x", "more": 2}}, BASE | {"kind": {"kind": "x", "of_x": 1, "more": 2}}),
        ({"kind": {"kind": "z"}}, BASE | {"kind": {"kind": "z"}}),
    ],
)
def test_changes_are_a_merge_patch_in_which_another_kind_replaces_the_whole(patch: Any, result: Any) -> None:
    assert patched(BASE, patch) == result


@pytest.mark.parametrize("place", [("labels",), ("workload", "params"), ("workload", "params", "deep")])
@pytest.mark.parametrize("name", ["kind", "mode"])
def test_where_people_choose_the_names_a_kind_is_a_name_like_any_other(place: tuple[str, ...], name: str) -> None:
    base: Any = {name: "a", "other": "stays"}
    patch: Any = {name: "b"}
    result: Any = base | patch
    for part in reversed(place):
        base, patch, result = {part: base}, {part: patch}, {part: result}

    assert patched(base, patch) == result


@pytest.mark.parametrize(
    ("text", "patch"),
    [
        ("budget.seconds=80", {"budget": {"seconds": 80}}),
        ("workload.params.width=8", {"workload": {"params": {"width": 8}}}),
        ("labels.v1.2=x", {"labels": {"v1.2": "x"}}),
        ("params.optimizer.momentum.choice=[0.1, 0.2]", {"params": {"optimizer.momentum": {"choice": [0.1, 0.2]}}}),
        ("params.optimizer.momentum={uniform: [0, 1]}", {"params": {"optimizer.momentum": {"uniform": [0, 1]}}}),
        (
            "params.workload.params.choice={integer: [1, 2]}",
            {"params": {"workload.params.choice": {"integer": [1, 2]}}},
        ),
        ("params.clip=null", {"params": {"clip": None}}),
        ("labels.paper=2", {"labels": {"paper": "2"}}),
        ("labels.draft= yes", {"labels": {"draft": "yes"}}),
        ("labels.paper=null", {"labels": {"paper": None}}),
        ("name=2024", {"name": "2024"}),
        ("name=1e3", {"name": "1e3"}),
        ("name='2024 b'", {"name": "2024 b"}),
        ("name=null", {"name": None}),
    ],
)
def test_a_setting_leads_to_its_field_though_names_of_params_and_labels_have_dots(text: str, patch: Any) -> None:
    made: dict[str, Any] = {}

    job_file._assign(made, text)

    assert made == patch


def test_equal_jobs_do_not_differ_and_arms_are_compared_one_by_one(job: JobSpec) -> None:
    fewer = JobSpec.model_validate(EXAMPLE_JOB | {"arms": EXAMPLE_JOB["arms"][:1]})

    assert differences(job, job) == ()
    assert [change.pointer for change in differences(job, fewer)] == ["/arms/1"]


def test_a_terminal_shows_what_differs_and_a_script_reads_the_id(at: str, client: Client, job: JobSpec) -> None:
    source = client.submit(job).id

    made = run_cli.invoke(main.app, ["clone", source, "--set", "budget.seconds=80", "--set", "labels.team=me"])
    dry = run_cli.invoke(main.app, ["clone", source, "--dry-run", "--json"])
    bad = run_cli.invoke(main.app, ["clone", source, "--set", "budget"])
    comment = run_cli.invoke(main.app, ["clone", source, "--dry-run", "--set", "name=#1"])
    removed = run_cli.invoke(main.app, ["clone", source, "--dry-run", "--set", "labels=null"])
    alone = run_cli.invoke(main.app, ["clone", source, "--trial", "dense", "--set", "budget.seconds=80"])
    named = run_cli.invoke(main.app, ["clone", source, "--dry-run", "--name", "7", "--label", "team=me"])

    assert "/budget/seconds: 40.0 -> 80" in made.stderr and "/labels/team: None -> me" in made.stderr
    assert client.job(made.stdout.strip()).spec.budget.seconds == 80
    assert json.loads(dry.stdout)["changes"] == [] and json.loads(dry.stdout)["job"] is None
    assert bad.exit_code == 2 and "FIELD=VALUE" in bad.stderr
    assert comment.exit_code == 2 and "--set name=#1: '#1' says nothing in YAML" in comment.stderr
    assert removed.exit_code == 0
    assert [arm.name for arm in client.job(alone.stdout.strip()).spec.arms] == ["dense"]
    assert "-> 7" in named.stderr and "/labels/team: None -> me" in named.stderr


def test_changes_come_from_a_file_and_null_gives_a_default(at: str, client: Client, tmp_path: Path) -> None:
    source = client.submit(EXAMPLE_JOB | {"clip": 2.0}).id
    changes = tmp_path / "changes.yaml"
    changes.write_text("clip: null\nname: another")

    made = run_cli.invoke(main.app, ["clone", source, "--changes", str(changes), "--set", "seeds=[1, 2]"])

    spec = client.job(made.stdout.strip()).spec
    assert (spec.clip, spec.name, spec.seeds) == (None, "another", (1, 2))


def test_a_terminals_verbs_say_where_the_job_is_then(at: str, reporting: Reporting) -> None:
    reporting.start("tuned")
    job_id = reporting.job_id

    stopped = run_cli.invoke(main.app, ["stop", job_id])
    cancelled = run_cli.invoke(main.app, ["cancel", job_id, "--json"])
    refused = run_cli.invoke(main.app, ["resume", job_id])
    reporting.finish("cancelled")
    retried = run_cli.invoke(main.app, ["retry", job_id])
    paused = run_cli.invoke(main.app, ["pause", job_id])

    assert stopped.stdout == f"{job_id} is stopping\n    stopped early by test\n"
    assert json.loads(cancelled.stdout)["state"] == "cancelling"
    assert refused.exit_code == 2 and "`resume` is for one that is paused" in refused.stderr
    assert retried.stdout == f"{job_id} is queued\n    tried again by test\n"
    assert paused.stdout == f"{job_id} is paused\n    paused by test\n"
