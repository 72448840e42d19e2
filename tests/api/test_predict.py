"""Predictions over REST, and on the command line from a job's file."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from api.cli import figures, prediction_commands
from api.cli.main import app
from api.failures import ApiError
from service.job.spec import JobSpec
from service.prediction.predict import DENSE, PredictionRequest
from service.wire.records import Bill

JOB = {"workload": {"kind": "digits-mlp"}, "optimizer": {"kind": "sgd"}, "budget": {"steps": 100}}
ASKED = {"job": JOB, "compute_ms": 12.5, "mbps": 50, "latency_ms": 10, "workers": 8}


def test_a_prediction_lists_dense_training_with_its_assumptions(http):
    answer = http.post("/v1/predictions", json=ASKED)

    assert answer.status_code == 200, answer.text
    found = answer.json()
    dense = next(each for each in found["methods"] if each["method"] == DENSE)
    assert dense["step_s"]["expected"] == pytest.approx(dense["compute_s"] + dense["exchange_s"] + dense["wire_s"])
    assert found["assumptions"] and found["workers"] == found["hosts"] == 8


def test_a_question_that_does_not_fit_is_refused_at_its_field(http):
    answer = http.post("/v1/predictions", json=ASKED | {"hosts": 3})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/hosts"


def test_a_client_leaves_it_to_the_service_what_a_question_must_be(client):
    with pytest.raises(ApiError, match="hosts"):
        client.predict(ASKED | {"hosts": 3})

    written_out = ASKED | {"job": JobSpec.model_validate(JOB)}
    found, same, similar = map(client.predict, (ASKED, PredictionRequest.model_validate(ASKED), written_out))

    assert found == same
    assert [each.method for each in found.methods] == [each.method for each in similar.methods]


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return str(path)


def _run(*words):
    return CliRunner().invoke(app, [*words])


def test_the_command_predicts_for_a_jobs_file(job_file):
    done = _run("predict", job_file, "--mbps", "50", "--workers", "4", "--compute-ms", "10", "--json")

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["workers"], found["num_parameters"]) == (4, 301_066)


def test_the_command_advises_in_a_few_lines(job_file):
    done = _run("advise", job_file, "--mbps", "50", "--workers", "4", "--compute-ms", "10", "--like", "text")

    assert done.exit_code == 0, done.output
    assert "over 50 Mbit/s and 0 ms, 4 workers: `" in done.stdout
    assert "to the loss that dense training has after 100 steps" in done.stdout


@pytest.mark.parametrize("shapes", ["1x2,2", "512x64,512"])
def test_advice_words_bytes_as_the_table_of_predictions_does(shapes):
    words = ("my.model:workload", "--shapes", shapes, "--compute-ms", "10", "--mbps", "50", "--workers", "4")
    asked, advice = _run("advise", *words, "--json"), _run("advise", *words)

    assert advice.exit_code == 0, advice.output
    sent = {each["method"]: figures.size(each["bytes_per_step"]) for each in json.loads(asked.stdout)["methods"]}
    first = re.search(r"4 workers: start with `(.+?)`", advice.stdout)[1]
    assert re.findall(r"to \d+\), (\S+ \w+)", advice.stdout)[:2] == [sent[first], sent[DENSE]]


def test_a_name_that_is_no_factory_is_a_jobs(live_url, key):
    done = _run("predict", "12:30", "--url", live_url, "--key", key)

    assert done.exit_code == 2 and "no job goes by `12:30`" in done.stderr


def test_a_link_that_nobody_knows_has_to_be_stated(job_file):
    done = _run("advise", job_file, "--compute-ms", "10")

    assert done.exit_code == 2
    assert "give --mbps" in done.output


def test_a_link_of_0_mbps_is_refused_and_not_replaced_by_the_jobs(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | {"link": {"mode": "emulate", "mbps": 50, "latency_ms": 1}}))

    done = _run("predict", str(path), "--mbps", "0", "--compute-ms", "10")

    assert done.exit_code == 2
    assert "mbps: Input should be greater than or equal to 0.01" in done.output


def test_a_step_that_computes_for_0_ms_is_refused_and_not_replaced_by_the_recorded_one(live_url, key, reporting):
    reporting.start("tuned")
    reporting.finish_trial("tuned", rates=[1.0], density=0.01, loss=0.3, timed=(400, 3.0))

    done = _run("predict", reporting.job_id, "--url", live_url, "--key", key, "--mbps", "50", "--compute-ms", "0")

    assert done.exit_code == 2
    assert "compute_ms: Input should be greater than or equal to 0.001" in done.output


def test_more_workers_than_the_data_have_steps_for_are_refused_with_that_reason(http, job_file):
    done = _run("predict", job_file, "--mbps", "50", "--workers", "45", "--compute-ms", "10")
    answer = http.post("/v1/predictions", json=ASKED | {"workers": 45})

    assert done.exit_code == 2
    assert "`count` must be in [1, 44], got 45: a step takes 32 samples" in " ".join(done.output.split())
    assert answer.json()["errors"][0]["pointer"] == "/workers"


def test_an_unknown_task_is_refused_with_those_that_there_are(job_file):
    done = _run("advise", job_file, "--mbps", "50", "--compute-ms", "10", "--like", "cats")

    assert done.exit_code == 2
    assert "one-large-layer" in done.output


def test_the_command_advises_for_a_job_of_the_service_by_the_steps_that_it_has_timed(live_url, key, reporting):
    reporting.start("tuned")
    reporting.finish_trial("tuned", rates=[1.0], density=0.01, loss=0.3, timed=(400, 3.0))
    link = ("--url", live_url, "--key", key)

    done = _run("advise", reporting.job_id, *link, "--mbps", "50", "--workers", "4", "--json")

    assert done.exit_code == 0, done.output
    dense = next(each for each in json.loads(done.stdout)["methods"] if each["method"] == DENSE)
    assert dense["compute_s"] == pytest.approx(0.0075)


def test_a_step_of_a_sweep_is_that_of_its_arms_and_not_of_its_samples(monkeypatch):
    def trial(sample, seconds):
        return SimpleNamespace(sample=sample, bill=Bill(steps_timed=100, seconds_compute=seconds))

    job = SimpleNamespace(spec=JobSpec.model_validate(JOB))
    trials = [trial(None, 1.0), trial({"values": {"accumulate": 8}}, 9.0)]
    client = SimpleNamespace(find=str, job=lambda _: job, trials=lambda _: trials)
    monkeypatch.setattr(prediction_commands, "open_client", lambda *_: nullcontext(client))

    done = _run("predict", "job-1", "--mbps", "50", "--json")

    assert done.exit_code == 0, done.output
    assert {each["compute_s"] for each in json.loads(done.stdout)["methods"]} == {0.01}
