"""The command line against the application over a real socket."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console
from typer import Abort, Exit
from typer.testing import CliRunner

from api.cli import job_commands, local, main, runs
from api.cli.local import StartedElsewhere
from api.cli.runs import Interrupted, Run
from api.cli.terminal import STANDARD, require_agreement, require_writable, say
from api.client import Client
from api.failures import ApiError, Unreachable
from api.http.examples import EXAMPLE_JOB
from api.local_service import LocalServerError, Server
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.log_lines import LogLevel
from service.settings import Settings
from service.wire.jobs import JobView
from service.wire.records import AttemptFinished, Batch
from tests.api.conftest import Reporting

run_cli = CliRunner()


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(EXAMPLE_JOB))
    return path


@pytest.mark.parametrize("command", ["run", "submit", "validate"])
def test_a_bad_file_is_refused_with_every_problem(tmp_path: Path, settings: Settings, command: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(EXAMPLE_JOB | {"workers": {"count": 0}, "budget": {}}))

    result = run_cli.invoke(main.app, [command, str(path)])

    assert result.exit_code == 2
    assert "/workers/count" in result.stderr and "/budget" in result.stderr


def test_a_bad_file_is_one_json_document_with_its_errors_where_json_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(EXAMPLE_JOB | {"workers": {"count": 0}}))

    result = run_cli.invoke(main.app, ["validate", "--json", str(path)])
    document = json.loads(result.stdout)

    assert (result.exit_code, document["valid"]) == (2, False)
    assert [(error["pointer"], error["value"]) for error in document["errors"]] == [("/workers/count", 0)]


@pytest.mark.parametrize(("text", "word"), [("a: [", "line"), ("- 1", "list"), (None, "No such file")])
def test_what_is_no_job_at_all_is_refused(tmp_path: Path, text: str | None, word: str) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)

    result = run_cli.invoke(main.app, ["validate", str(path)])

    assert result.exit_code == 2
    assert word in result.stderr


def test_a_valid_file_is_printed_with_its_defaults(job_file: Path) -> None:
    result = run_cli.invoke(main.app, ["validate", str(job_file)])

    assert JobSpec.model_validate_json(result.stdout) == JobSpec.model_validate(EXAMPLE_JOB)


@pytest.mark.parametrize("arguments", [["list"], ["show", "job-1"], ["cancel", "job-1"], ["stop"]])
def test_without_a_service_it_says_so(settings: Settings, arguments: list[str]) -> None:
    result = run_cli.invoke(main.app, arguments)

    assert result.exit_code == 3
    assert "no s" in result.stderr  # no service, no server


def test_an_unreachable_service_is_named_with_the_way_to_start_one(settings: Settings) -> None:
    result = run_cli.invoke(main.app, ["list", "--url", "http://127.0.0.1:9", "--key", "wt_any"])

    assert result.exit_code == 3
    assert "127.0.0.1:9" in result.stderr and "wiretune serve" in result.stderr


def test_a_job_is_submitted_listed_and_cancelled(at: str, job_file: Path) -> None:
    job_id = run_cli.invoke(main.app, ["submit", str(job_file)]).stdout.strip()
    listed = run_cli.invoke(main.app, ["list"])
    cancelled = run_cli.invoke(main.app, ["cancel", job_id])
    again = run_cli.invoke(main.app, ["cancel", job_id])

    assert job_id in listed.stdout and "queued" in listed.stdout
    assert "cancelled" in cancelled.stdout
    assert again.exit_code == 2 and "cancelled" in again.stderr


def test_a_clone_tells_what_differs_without_the_fields_that_the_job_leaves_out(
    at: str, job_file: Path, tmp_path: Path
) -> None:
    job_id = run_cli.invoke(main.app, ["submit", str(job_file)]).stdout.strip()
    changes = tmp_path / "changes.yaml"
    changes.write_text("params: {optimizer.weight_decay: {uniform: [0, 0.5]}}\nsweep: {samples: 2}\n", "utf-8")

    told = run_cli.invoke(main.app, ["clone", job_id, "--changes", str(changes), "--dry-run"]).stderr

    assert "/params/optimizer.weight_decay: None -> {'uniform': [0.0, 0.5]}" in told


def test_a_job_that_is_submitted_or_cloned_again_with_its_key_is_queued_once(at: str, job_file: Path) -> None:
    def queued(*words: str) -> str:
        return run_cli.invoke(main.app, [*words, "--idempotency-key", words[0]]).stdout.strip()

    first = queued("submit", str(job_file))
    assert first and queued("submit", str(job_file)) == first
    copy = queued("clone", first)
    assert queued("clone", first) == copy != first


@pytest.mark.parametrize("command", ["show", "watch"])
def test_a_finished_job_shows_its_bill(at: str, reporting: Reporting, command: str) -> None:
    reporting.run_to_the_end()

    result = run_cli.invoke(main.app, [command, reporting.job_id])

    assert result.exit_code == 0, result.stderr
    assert "Bill (emulated 100 Mbit link)" in result.stdout and "test loss" in result.stdout
    assert "tuned reached the loss at which dense ended" in result.stdout


def test_a_dry_run_queues_nothing_and_says_what_the_service_says(at: str, client: Client, job_file: Path) -> None:
    done = run_cli.invoke(main.app, ["submit", str(job_file), "--dry-run"])
    as_json = json.loads(run_cli.invoke(main.app, ["submit", str(job_file), "--dry-run", "--json"]).stdout)

    assert JobSpec.model_validate_json(done.stdout) == JobSpec.model_validate(EXAMPLE_JOB)
    assert "2 trials (2 arms x 1 seeds), each with the whole budget" in done.stderr
    assert as_json["notes"] and as_json["valid"]
    assert client.jobs().jobs == ()


def test_a_verb_is_asked_of_every_job_named(at: str, client: Client, job: JobSpec) -> None:
    ids = [client.submit(job).id for _ in range(3)]
    listed = run_cli.invoke(main.app, ["list", "-q", "--state", "queued"]).stdout.split()

    cancelled = run_cli.invoke(main.app, ["cancel", *listed])
    archived = run_cli.invoke(main.app, ["archive", *ids, ids[0], "--json"])
    deleted = run_cli.invoke(main.app, ["delete", *ids, "--yes"])

    assert listed == ids[::-1]
    assert [line.split()[0] for line in cancelled.stdout.splitlines() if "is cancelled" in line] == listed
    assert [json.loads(line)["id"] for line in archived.stdout.splitlines()] == ids
    assert deleted.stdout.splitlines() == [f"deleted {each}" for each in ids]
    assert client.jobs(archived=None).jobs == ()


def test_of_ids_that_are_not_all_it_is_said_beside_them(at: str, client: Client, job: JobSpec) -> None:
    ids = [client.submit(job).id for _ in range(2)]

    part = run_cli.invoke(main.app, ["list", "-q", "--limit", "1"])
    whole = run_cli.invoke(main.app, ["list", "-q", "--limit", "2"])

    assert (part.stdout, whole.stdout) == (f"{ids[1]}\n", f"{ids[1]}\n{ids[0]}\n")
    assert part.stderr.startswith("there are more: --cursor ") and whole.stderr == ""


def test_one_of_several_jobs_that_is_refused_leaves_the_others_done(at: str, client: Client, job: JobSpec) -> None:
    over, queued = client.submit(job), client.submit(job)
    over.cancel()

    done = run_cli.invoke(main.app, ["cancel", over.id, queued.id])
    as_json = run_cli.invoke(main.app, ["cancel", over.id, queued.id, "--json"])

    assert (done.exit_code, queued.refresh().state) == (2, JobState.CANCELLED)
    assert done.stderr.startswith(f"{over.id}: The job's state does not allow this")
    assert done.stderr.endswith("the service refused 1 of 2 jobs\n")
    refusals = [json.loads(line) for line in as_json.stderr.splitlines()]
    assert [(each["job"], each["status"]) for each in refusals] == [(over.id, 409), (queued.id, 409)]


@pytest.mark.parametrize("words", [["archive"], ["delete", "--yes"]])
def test_a_job_that_is_named_twice_is_one_document(at: str, client: Client, job: JobSpec, words: list[str]) -> None:
    made = client.submit(job)
    refused = run_cli.invoke(main.app, [*words, made.id, made.id, "--json"])
    made.cancel()
    done = run_cli.invoke(main.app, [*words, made.id, made.id, "--json"])

    assert json.loads(refused.stderr)["status"] == 409 and refused.stderr.startswith("{\n")
    assert made.id in json.loads(done.stdout).values() and done.stdout.startswith("{\n")


def test_where_the_service_fails_at_one_of_several_jobs_that_one_is_named_and_none_behind_it_is_asked(
    at: str, client: Client, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(_: Client, job_id: str, **__: object) -> JobView:
        asked.append(job_id)
        raise ApiError(500, "An error of the service", detail="", slug="internal")

    monkeypatch.setattr(Client, "cancel", fail)
    ids = [client.submit(job).id for _ in range(2)]

    done = run_cli.invoke(main.app, ["cancel", *ids])
    as_json = run_cli.invoke(main.app, ["cancel", *ids, "--json"])

    assert done.exit_code == as_json.exit_code == 3
    assert done.stderr.startswith(f"{ids[0]}: ") and json.loads(as_json.stderr)["job"] == ids[0]
    assert asked == [ids[0]] * 2


@pytest.mark.parametrize(
    ("others", "said"),
    [(["job-" + 24 * "0"], "nothing was asked of the others"), (["other", "--if-version", "1"], "got 2 jobs")],
)
def test_nothing_is_done_where_one_of_several_jobs_is_not_there_or_a_version_is_given(
    at: str, client: Client, job: JobSpec, others: list[str], said: str
) -> None:
    made = client.submit(job)

    refused = run_cli.invoke(main.app, ["cancel", made.id, *others])

    assert refused.exit_code == 2 and said in refused.stderr
    assert made.refresh().state is JobState.QUEUED


def test_every_command_prints_json_on_request(at: str, job_file: Path, reporting: Reporting) -> None:
    def said(*arguments: str) -> list[dict[str, Any]]:
        done = run_cli.invoke(main.app, [*arguments, "--json"])
        assert done.exit_code == 0, done.stderr
        try:
            return [json.loads(done.stdout)]
        except json.JSONDecodeError:
            return [json.loads(line) for line in done.stdout.splitlines()]

    (validated,) = said("validate", str(job_file))
    (made,) = said("submit", str(job_file))
    (cancelled,) = said("cancel", made["id"])
    reporting.run_to_the_end()
    (listed,) = said("list")
    (shown,) = said("show", reporting.job_id)
    watched = said("watch", reporting.job_id)

    assert validated["valid"] and validated["num_trials"] == 2 and validated["spec"] == made["spec"]
    assert (made["state"], cancelled["state"], cancelled["id"]) == ("queued", "cancelled", made["id"])
    assert [job["id"] for job in listed["jobs"]] == [made["id"], reporting.job_id]
    assert set(shown) == {"job", "trials", "schedules", "report"}
    assert [trial["arm"] for trial in shown["report"]["trials"]] == ["tuned", "dense"]
    assert set(watched[-1]) == {"job", "trials"} and watched[-1]["job"]["state"] == "succeeded"


@pytest.mark.parametrize("command", ["run", "demo"])
def test_a_run_for_a_script_prints_its_result_alone(
    live_url: str, key: str, store: Store, job_file: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def succeed(client: Client, job_id: str, console: Console) -> JobView:
        store.attempts.begin(job_id)
        finished = AttemptFinished(outcome="succeeded")
        store.attempts.ingest(job_id, 1, Batch(stream="driver", sequence=1, records=(finished,)))
        return client.job(job_id).view

    monkeypatch.setattr(runs, "running_server", lambda settings: Server(live_url, key))
    monkeypatch.setattr(runs, "follow", succeed)

    done = run_cli.invoke(main.app, ["run", str(job_file), "--json"] if command == "run" else ["demo", "--json", "-"])

    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["report"]["complete"] if command == "run" else set(found["arms"]) == {"tuned", "dense"}) is True
    assert "page: http" in done.stderr


def test_a_refusal_is_a_problem_document_on_standard_error_where_json_is_asked_for(at: str) -> None:
    done = run_cli.invoke(main.app, ["show", "job-" + 24 * "0", "--json"])
    document = json.loads(done.stderr)

    assert (done.exit_code, done.stdout) == (2, "")
    assert (document["type"], document["status"]) == ("/problems/not-found", 404) and document["request_id"]
    assert "There is no such thing (HTTP 404)" in run_cli.invoke(main.app, ["show", "job-" + 24 * "0"]).stderr


@pytest.mark.parametrize(
    ("arguments", "status", "kind", "pointers"),
    [
        (["submit", "bad.yaml"], 2, "/problems/invalid-job", ["/budget"]),
        (["clone", "latest", "--changes", "none.yaml"], 2, "about:blank", []),
        (["show", "nobody's job"], 2, "/problems/not-found", []),
        (["cancel", "latest", "--key", "@none"], 2, "about:blank", []),
        (["list", "--url", "http://127.0.0.1:9"], 3, "about:blank", []),
    ],
)
def test_an_error_of_the_command_itself_is_one_document_too_where_json_is_asked_for(
    at: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    kind: str,
    pointers: list[str],
) -> None:
    (tmp_path / "bad.yaml").write_text("workload: {kind: digits-mlp}")
    monkeypatch.chdir(tmp_path)

    done = run_cli.invoke(main.app, [*arguments, "--json"])
    document = json.loads(done.stderr)

    assert (done.exit_code, done.stdout, document["type"]) == (status, "", kind)
    assert document["detail"] and [each["pointer"] for each in document["errors"]] == pointers


def test_a_watched_job_is_a_line_of_json_per_change(at: str, reporting: Reporting) -> None:
    driver = threading.Thread(target=reporting.run_to_the_end)
    driver.start()

    done = run_cli.invoke(main.app, ["watch", reporting.job_id, "--json"])
    driver.join()

    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(before != after for before, after in pairwise(states))
    assert states[-1]["job"]["state"] == "succeeded"
    assert [trial["outcome"] for trial in states[-1]["trials"]] == ["completed", "completed"]


def test_of_a_watched_job_that_waits_the_trials_are_asked_for_once(
    at: str, client: Client, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, asked = client.submit(job).view, list[str]()
    over = view.model_copy(update={"state": JobState.CANCELLED, "version": view.version + 1})
    monkeypatch.setattr(Client, "watch", lambda *_: iter([view, view, view, over]))
    monkeypatch.setattr(Client, "trials", lambda _, job_id: asked.append(job_id) or ())

    run_cli.invoke(main.app, ["watch", view.id, "--json"])

    assert asked == [view.id] * 2


def test_a_job_of_several_seeds_shows_its_arms_over_them(at: str, store: Store, job: JobSpec) -> None:
    reporting = Reporting(store, job.model_copy(update={"seeds": (0, 1)}))
    reporting.run_to_the_end()

    shown = run_cli.invoke(main.app, ["show", reporting.job_id]).stdout

    assert "2 workers, 40 s a trial; arms: tuned, dense; seeds: 0, 1" in shown
    assert "Arms over seeds (mean and 95% interval" in shown
    assert "1 of 2" in shown and "tuned *" in shown  # the job is over, so seeds that were left out do not count


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_a_log_is_printed_as_it_is(at: str, store: Store, reporting: Reporting, follow: list[str]) -> None:
    reporting.run_to_the_end()
    storage = store.storage
    storage.write(storage.log_url(reporting.job_id, 1), b"first [bold]\nsecond\n")

    done = run_cli.invoke(main.app, ["logs", reporting.job_id, *follow])
    as_json = run_cli.invoke(main.app, ["logs", reporting.job_id, *follow, "--json"])

    assert done.stdout == "first [bold]\nsecond\n"
    assert json.loads(as_json.stdout) == {"job": reporting.job_id, "text": done.stdout}


def test_a_character_that_two_pieces_of_a_log_share_is_printed_whole(
    at: str, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"Stra\xc3", b"\x9fe\n", b"cut \xc3"]
    monkeypatch.setattr(job_commands, "follow_log", lambda *_, **__: iter(pieces))

    done = run_cli.invoke(main.app, ["logs", reporting.job_id, "--follow"])

    assert done.stdout == "Straße\ncut \ufffd"


def test_a_job_without_a_log_says_so(at: str, job_file: Path) -> None:
    job_id = run_cli.invoke(main.app, ["submit", str(job_file)]).stdout.strip()
    run_cli.invoke(main.app, ["cancel", job_id])

    done = run_cli.invoke(main.app, ["logs", job_id, "--follow"])

    assert done.exit_code == 2 and "has not had any yet" in done.stderr


def test_a_wait_ends_with_the_jobs_and_fails_unless_all_succeeded(
    at: str, client: Client, job: JobSpec, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    cancelled = client.submit(job).cancel()

    good = run_cli.invoke(main.app, ["wait", reporting.job_id])
    both = run_cli.invoke(main.app, ["wait", reporting.job_id, cancelled.id, "--json"])

    assert good.exit_code == 0 and good.stdout.startswith(f"{reporting.job_id} succeeded"), good.stderr
    assert both.exit_code == 1
    assert [json.loads(line)["state"] for line in both.stdout.splitlines()] == ["succeeded", "cancelled"]
    assert json.loads(both.stderr)["detail"] == f"not succeeded: {cancelled.id}"


def test_a_wait_that_takes_too_long_has_an_exit_status_of_its_own(at: str, reporting: Reporting) -> None:
    done = run_cli.invoke(main.app, ["wait", reporting.job_id, "--timeout", "0.05"])

    assert done.exit_code == 124 and f"{reporting.job_id} among them, were not over" in done.stderr


def test_a_submission_that_is_watched_ends_as_its_job(
    at: str, client: Client, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(client: Client, job_id: str, console: Console, *, with_history: bool) -> JobView:
        return client.cancel(job_id)

    monkeypatch.setattr(job_commands, "follow", cancel)

    done = run_cli.invoke(main.app, ["submit", str(job_file), "--watch"])
    dry = run_cli.invoke(main.app, ["submit", str(job_file), "--watch", "--dry-run"])

    (made,) = client.jobs().jobs
    assert (done.exit_code, done.stdout) == (1, f"{made.id}\n") and "cancelled" in done.stderr
    assert dry.exit_code == 2 and "nothing to watch" in dry.stderr


def test_watching_a_failed_job_fails(at: str, reporting: Reporting) -> None:
    for _ in range(reporting.store.settings.max_attempts):
        number = reporting.store.job(reporting.job_id).attempt
        view = reporting.store.attempts.lose(reporting.job_id, number, reason="out of memory")
        if view.state is JobState.QUEUED:
            reporting.store.attempts.begin(reporting.job_id)

    result = run_cli.invoke(main.app, ["watch", reporting.job_id])
    as_json = run_cli.invoke(main.app, ["watch", reporting.job_id, "--json"])

    assert result.exit_code == as_json.exit_code == 1
    assert "out of memory" in result.stderr and "out of memory" in json.loads(as_json.stderr)["detail"]


def test_the_exported_schedule_is_what_was_learned(at: str, reporting: Reporting, tmp_path: Path) -> None:
    reporting.run_to_the_end()
    out = tmp_path / "schedule.json"

    result = run_cli.invoke(main.app, ["export", reporting.job_id, "--arm", "tuned", "--out", str(out)])

    assert result.exit_code == 0, result.stderr
    written = json.loads(out.read_text())
    assert written["complete"] and written["num_steps"] == 200
    assert [entry["learning_rate"] for entry in written["entries"]] == [2.0, 1.0]


def test_an_exported_schedule_that_is_not_complete_is_told_by_the_jobs_state(
    at: str, reporting: Reporting, tmp_path: Path
) -> None:
    export = ["export", reporting.job_id, "--out", str(tmp_path / "schedule.json")]
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    running = run_cli.invoke(main.app, export)
    run_cli.invoke(main.app, ["cancel", reporting.job_id])
    reporting.finish("cancelled")
    cancelled = run_cli.invoke(main.app, export)

    assert "(the job is not over: this is the schedule so far)" in " ".join(running.stdout.split())
    assert "(the job is cancelled, and the trial did not finish: " in " ".join(cancelled.stdout.split())


@pytest.mark.parametrize("complete", [True, False])
def test_a_replay_of_a_schedule_that_is_not_complete_warns(
    at: str, reporting: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    reporting.run_to_the_end()
    out = tmp_path / "schedule.json"
    run_cli.invoke(main.app, ["export", reporting.job_id, "--out", str(out)])
    out.write_text(json.dumps(json.loads(out.read_text()) | {"complete": complete}))
    monkeypatch.setattr(runs, "Run", Mock())

    done = run_cli.invoke(main.app, ["replay", str(out)])

    assert done.exit_code == 0, done.stderr
    assert ("the run had not ended" in done.stderr) != complete


def test_a_schedule_that_is_not_there_is_not_written(at: str, reporting: Reporting, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"

    result = run_cli.invoke(main.app, ["export", reporting.job_id, "--out", str(out)])

    assert result.exit_code == 2 and not out.exists()


@pytest.mark.parametrize("arguments", [["serve"], ["demo"], ["list"], ["stop"]])
def test_a_setting_that_cannot_be_is_refused_by_its_variable(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("WIRETUNE_PORT", "abc")

    result = run_cli.invoke(main.app, arguments)

    assert result.exit_code == 2
    assert result.stderr == "WIRETUNE_PORT is 'abc'; allowed: an integer from 0 to 65535\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("DATABASE_URL", "nonsense"), ("STATE_DIR", "/dev/null/state"), ("RAY_TOKEN_PATH", "/dev/null/token")],
)
def test_a_service_that_cannot_start_says_which_variable_to_check(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("WIRETUNE_RAY_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("WIRETUNE_PORT", "0")
    monkeypatch.setenv(f"WIRETUNE_{name}", value)

    result = run_cli.invoke(main.app, ["serve"])

    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert f"WIRETUNE_{name}" in result.stderr


@pytest.mark.parametrize("command", ["run", "demo"])
def test_a_state_dir_that_cannot_be_made_starts_nothing(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("WIRETUNE_STATE_DIR", "/dev/null/state")

    result = run_cli.invoke(main.app, [command, *([str(job_file)] if command == "run" else [])])

    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "WIRETUNE_STATE_DIR" in result.stderr


def test_a_run_says_that_it_is_not_where_the_url_points(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRETUNE_URL", "http://elsewhere:8470")
    monkeypatch.setenv("WIRETUNE_STATE_DIR", "/dev/null/state")  # so that nothing starts

    result = run_cli.invoke(main.app, ["run", str(job_file)])

    assert "`wiretune submit` has the job trained at http://elsewhere:8470" in result.stderr


@pytest.mark.parametrize("typed", [["--url", "http://elsewhere:8470"], ["--key", "wt_any"]])
def test_another_service_cannot_be_stopped_and_this_one_is_left_alone(
    typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "stop_server", lambda settings: pytest.fail("it was stopped"))

    result = run_cli.invoke(main.app, ["stop", *typed])

    assert result.exit_code == 2 and "leave them out, or name the job" in result.stderr


def test_a_stop_says_that_it_is_not_where_the_url_points(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRETUNE_URL", "http://elsewhere:8470")
    monkeypatch.setattr(local, "stop_server", lambda settings: "stopped it")

    result = run_cli.invoke(main.app, ["stop"])

    assert (result.exit_code, result.stdout) == (0, "stopped it\n")
    assert "ends the service of this machine, whatever WIRETUNE_URL says" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["extend", f"job-{0:024x}", "--seconds", "inf"], "/seconds: must be a finite number, got inf"),
        (
            ["clone", f"job-{0:024x}", "--set", "budget.seconds=.inf"],
            "/budget/seconds: must be a finite number, got inf",
        ),
        (["quota", "set", "owner", "anna", "--gpus", "inf"], "/gpus: must be a finite number, got inf"),
        (["quota", "set", "owner", "anna", "--weight", "nan"], "'--weight'"),
        (["keys", "create", "x", "--days", "nan"], "'--days'"),
        (["clean", "--older-than", "nan"], "'--older-than'"),
        (["demo", "--seconds", "inf"], "'--seconds'"),
    ],
)
@pytest.mark.usefixtures("settings")
def test_a_number_that_is_not_finite_is_refused_by_its_field(arguments: list[str], said: str) -> None:
    nowhere = {"WIRETUNE_URL": "http://127.0.0.1:9", "WIRETUNE_API_KEY": "wt_any"}

    result = run_cli.invoke(main.app, arguments, env=nowhere)

    assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize(("place", "said"), [("file", "is no folder"), ("file/below", "file is no folder")])
def test_all_of_a_job_is_not_written_where_no_folder_can_be(
    at: str, reporting: Reporting, tmp_path: Path, place: str, said: str
) -> None:
    (tmp_path / "file").touch()

    result = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "all", "--out", str(tmp_path / place)])

    assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize("command", [["demo", "--json"], ["export", "job-1", "--out"]])
@pytest.mark.parametrize(
    ("place", "said"), [("missing/out.json", "no folder"), (".", "is a folder"), ("file/out.json", "no folder")]
)
def test_a_result_that_could_not_be_written_is_refused_before_anything_runs(
    settings: Settings, tmp_path: Path, command: list[str], place: str, said: str
) -> None:
    (tmp_path / "file").touch()

    result = run_cli.invoke(main.app, [*command, str(tmp_path / place)])

    assert result.exit_code == 2
    assert said in result.stderr
    assert not settings.state_dir.exists()


def test_a_pipe_or_a_device_needs_no_right_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)

    assert require_writable(tmp_path / "pipe") == tmp_path / "pipe"
    assert require_writable(Path("/dev/stdout")) == STANDARD
    with pytest.raises(Exit):
        require_writable(tmp_path / "new")


def test_an_export_to_a_full_disk_says_so(at: str, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--out", "/dev/full"])

    assert (done.exit_code, done.stderr) == (1, "cannot write to /dev/full: No space left on device\n")


def test_an_export_into_a_folder_that_cannot_be_made_says_so(at: str, reporting: Reporting, tmp_path: Path) -> None:
    reporting.run_to_the_end()
    (tmp_path / "tuned-seed-0").touch()

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "all", "--out", str(tmp_path)])

    assert (done.exit_code, done.stderr) == (1, f"cannot write to {tmp_path}: File exists\n")


def test_a_question_that_is_interrupted_removes_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.get_text_stream", lambda name: SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", Mock(side_effect=Abort))

    with pytest.raises(Exit) as ended:
        require_agreement("remove?", is_agreed=False, may_ask=True, shown_by="`show`")

    assert (ended.value.exit_code, capsys.readouterr().err.strip()) == (130, "nothing was removed")


@pytest.mark.parametrize(("level", "least"), [(LogLevel.DEBUG, logging.DEBUG), (LogLevel.INFO, logging.INFO)])
def test_of_its_own_requests_the_service_logs_only_what_goes_wrong(
    caplog: pytest.LogCaptureFixture, level: LogLevel, least: int
) -> None:
    caplog.set_level(logging.INFO)

    main.configure_logging(None, level=level)

    assert not logging.getLogger("httpx2").isEnabledFor(logging.INFO)
    assert not logging.getLogger("httpcore2").isEnabledFor(logging.INFO)
    for name in ("service.control.reconciling.admission", "wiretune.requests", "api.http.connections"):
        assert logging.getLogger(name).getEffectiveLevel() == least


@pytest.mark.parametrize(
    ("said", "linger_s", "allowed"),
    [
        ({}, None, True),
        ({"WIRETUNE_USER_CODE": "false"}, None, False),
        ({"WIRETUNE_USER_CODE": "true"}, 600.0, True),
        ({"WIRETUNE_HOST": "0.0.0.0", "WIRETUNE_ALLOW_PLAIN_HTTP": "true"}, None, False),
        ({}, 600.0, False),
    ],
    ids=["own", "refused", "allowed", "open", "demo"],
)
def test_a_service_that_a_run_starts_allows_user_code_unless_others_reach_it_or_its_user_said_no(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], linger_s: float | None, allowed: bool
) -> None:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    started: list[Settings] = []

    def start(settings: Settings, **_: Any) -> Server:
        started.append(settings)
        raise LocalServerError("as far as this test goes")

    monkeypatch.setattr(runs, "start_server", start)
    monkeypatch.setattr(runs, "stop_server", lambda settings: "")
    with pytest.raises(LocalServerError):
        Run(Settings(), Console(quiet=True), linger_s=linger_s).run(
            JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None
        )

    assert [each.user_code for each in started] == [allowed]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cancels_its_job_and_leaves_a_server_it_found(
    live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(runs, "running_server", lambda settings: Server(live_url, key))
    monkeypatch.setattr(runs, "stop_server", lambda settings: pytest.fail("it was not ours to stop"))
    monkeypatch.setattr(
        runs, "follow", lambda client, job_id, console: os.kill(os.getpid(), number) or client.wait(job_id)
    )
    before = signal.getsignal(number)

    with pytest.raises(Interrupted, match="is cancelled"):
        Run(Settings(), Console(quiet=True)).run(JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None)

    assert [job.state for job in store.jobs().jobs] == [JobState.CANCELLED]
    assert signal.getsignal(number) is before


def test_an_interrupted_job_is_cancelled_before_anything_is_said_of_it(
    live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, list[JobState]]] = []
    monkeypatch.setattr(runs, "running_server", lambda settings: Server(live_url, key))
    monkeypatch.setattr(runs, "follow", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(runs, "say", lambda _, line: said.append((line, [job.state for job in store.jobs().jobs])))

    with pytest.raises(Interrupted):
        Run(Settings(), Console(quiet=True)).run(JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None)

    assert [states for line, states in said if "cancelling" in line] == [[JobState.CANCELLED]]


@pytest.mark.parametrize(
    "error", [SystemExit(1), Unreachable("http://x", ConnectionError("lost"))], ids=["exit", "silence"]
)
def test_a_run_that_ends_early_cancels_its_job_before_it_stops_the_service_that_it_started(
    live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    at_stop: list[JobState] = []
    monkeypatch.setattr(runs, "running_server", lambda settings: None)
    monkeypatch.setattr(runs, "start_server", lambda settings, linger_s: Server(live_url, key))
    monkeypatch.setattr(
        runs, "stop_server", lambda settings: at_stop.extend(job.state for job in store.jobs().jobs) or "stopped"
    )
    monkeypatch.setattr(runs, "follow", Mock(side_effect=error))

    with pytest.raises(type(error)):
        Run(Settings(), Console(quiet=True)).run(JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None)

    assert at_stop == [JobState.CANCELLED]


@pytest.fixture
def started(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A run starts the live service: for how long it lingers, how often it was stopped, and what the run said."""
    seen = SimpleNamespace(lingers=[], num_stops=0, said=[])

    def start(settings: Settings, *, linger_s: float) -> Server:
        seen.lingers.append(linger_s)
        return Server(live_url, key)

    def stop(settings: Settings) -> str:
        seen.num_stops += 1
        return "stopped"

    monkeypatch.setattr(runs, "running_server", lambda settings: None)
    monkeypatch.setattr(runs, "start_server", start)
    monkeypatch.setattr(runs, "stop_server", stop)
    monkeypatch.setattr(runs, "say", lambda _, line: seen.said.append(line))
    return seen


def run_until(end: Callable[[Client, str], JobView], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job to its `end`, or to what that raises."""
    monkeypatch.setattr(runs, "follow", lambda client, job_id, console: end(client, job_id))
    with suppress(Interrupted, SystemExit):
        Run(Settings(), Console(quiet=True)).run(JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), SystemExit(1)], ids=["end", "interrupt", "exit"])
def test_a_run_leaves_the_service_that_it_started_to_the_unfinished_jobs_of_others(
    started: SimpleNamespace, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    others: list[str] = []

    def end(client: Client, job_id: str) -> JobView:
        others.extend(store.add_job(job)[0].id for _ in range(2))  # from another terminal
        store.attempts.begin(others[0])
        if error is not None:
            raise error
        return client.cancel(job_id)

    run_until(end, monkeypatch)

    states = {each.id: each.state for each in store.jobs().jobs}
    assert [states.pop(job_id) for job_id in others] == [JobState.STARTING, JobState.QUEUED]
    assert [*states.values()] == [JobState.CANCELLED]
    assert (started.num_stops, started.lingers) == (0, [runs.ORPHAN_LINGER_S])
    assert "2 other jobs wait or run there: `wiretune stop` ends it now; by itself it ends 120 s" in started.said[-1]


def test_a_run_stops_the_service_that_it_started_if_no_other_job_waits_or_runs(
    started: SimpleNamespace, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CANCEL_S", 0.01)

    def end(client: Client, job_id: str) -> JobView:
        store.pause(store.add_job(job)[0].id)
        store.cancel(store.add_job(job)[0].id)
        store.attempts.begin(job_id)  # its driver has not stopped when the run ends
        raise SystemExit(1)

    run_until(end, monkeypatch)

    assert {each.state for each in store.jobs().jobs} == {JobState.PAUSED, JobState.CANCELLED, JobState.CANCELLING}
    assert (started.num_stops, started.said[-1]) == (1, "stopped")


def test_a_run_leaves_the_service_that_it_started_if_that_does_not_say_whether_it_has_other_jobs(
    started: SimpleNamespace, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = Unreachable("http://x", ConnectionError("lost"))
    monkeypatch.setattr(Client, "iter_jobs", Mock(side_effect=silence))
    store.add_job(job)  # from another terminal

    run_until(lambda client, job_id: client.cancel(job_id), monkeypatch)

    assert (started.num_stops, started.lingers) == (0, [runs.ORPHAN_LINGER_S])
    assert "up, since it does not say whether other jobs wait or run there: `wiretune stop` ends" in started.said[-1]


def test_a_run_uses_and_leaves_the_service_that_another_terminal_was_faster_to_start(
    started: SimpleNamespace, live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "start_server", Mock(side_effect=StartedElsewhere(Server(live_url, key))))

    run_until(lambda client, job_id: client.cancel(job_id), monkeypatch)

    assert [job.state for job in store.jobs().jobs] == [JobState.CANCELLED]
    assert started.num_stops == 0


def test_a_run_outlives_whoever_reads_its_progress(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Talking(Run):
        def run(self, spec: JobSpec, **_: Any) -> None:
            for line in ("one", "two"):
                say(self._console, line)
                said.append(line)

    monkeypatch.setattr(runs, "Run", Talking)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", unread)
        main._run_here(JobSpec.model_validate(EXAMPLE_JOB))

    assert said == ["one", "two"]


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_run_that_is_interrupted_while_it_submits_leaves_no_job_to_train(
    live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    monkeypatch.setattr(runs, "running_server", lambda settings: Server(live_url, key))
    submit, interruptions = Client.submit, [KeyboardInterrupt]

    def interrupted(client: Client, *args: Any, **options: Any) -> Any:
        made = submit(client, *args, **options) if is_sent or not interruptions else None
        if interruptions:
            raise interruptions.pop()
        return made

    monkeypatch.setattr(Client, "submit", interrupted)

    with pytest.raises(Interrupted, match="is cancelled"):
        Run(Settings(), Console(quiet=True)).run(JobSpec.model_validate(EXAMPLE_JOB), at_end=lambda client, view: None)

    assert [job.state for job in store.jobs().jobs] == [JobState.CANCELLED]


def test_a_followed_job_is_printed_line_by_line_without_a_terminal(
    live_url: str, key: str, reporting: Reporting, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = threading.Thread(target=reporting.run_to_the_end)
    driver.start()

    with Client(live_url, key) as client:
        view = runs.follow(client, reporting.job_id, Console(width=40))
    driver.join()

    printed = capsys.readouterr().out
    assert view.state is JobState.SUCCEEDED
    assert "\x1b" not in printed
    assert "tuned: stage 1 takes lr 1, density 1%\n    the search's minimum, 98% sure to be better\n" in printed
