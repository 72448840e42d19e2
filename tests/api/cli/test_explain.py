"""The API, `wiretune explain` and the page show a stored decision alike."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from api.cli.explanation import explanation, gains, parts
from api.client import Client
from search.types import (
    Allowance,
    Candidate,
    Decision,
    Forecast,
    GridAxis,
    Posterior,
    ProbeReport,
    Refusal,
    Tax,
    Values,
)
from service.cluster import reports
from service.cluster.measured import Measured, Probe
from service.job.spec import JobSpec
from service.wire.records import Bill, StageClosed
from tests.api.conftest import Reporting

RATES, DENSITIES = (0.01, 0.1, 1.0), (0.01, 0.1)
run_cli = CliRunner()


def posterior(*names: str) -> Posterior:
    axes = tuple(GridAxis(name=name, coordinates=RATES if name == "learning_rate" else DENSITIES) for name in names)
    size = len(RATES) * len(DENSITIES) ** (len(names) - 1)
    return Posterior(axes=axes, mean=tuple(0.1 * index for index in range(size)), std=(0.05,) * size)


def decision(stage: int, *axes: str) -> Decision:
    """Three probes, the last of which diverged; the second is chosen."""
    probes = []
    for index, (rate, reward) in enumerate(zip(RATES, (0.5, 0.7, None), strict=True)):
        candidate = Candidate(
            id=f"{stage}-{index}", stage=stage, values=Values(learning_rate=rate, level=0.02), allowance=Allowance(),
            origin="wide",
        )  # fmt: skip
        forecast = Forecast(mean=0.4, std=0.1, status="ok" if reward else "diverged")
        probes.append(ProbeReport(candidate=candidate, forecast=forecast, reward=reward, posterior_mean=reward,
                                  posterior_std=reward and 0.03))  # fmt: skip
    return Decision(
        stage=stage, values=Values(learning_rate=0.1, level=0.02), reason="0.1 at density 0.02: the best",
        switched=True, forecast=probes[1].forecast, commit_until=Allowance(steps=100), probes=tuple(probes),
        refused=tuple(
            Refusal(values=Values(learning_rate=rate, level=0.1), origin="wide", kind="too_slow", reason=reason)
            for rate, reason in ((9.0, "slow"), (8.0, "no room"), (7.0, "slow"))
        ),
        tax=Tax(budget_share=0.04, cap_share=0.5), num_earlier=2, posterior=posterior(*axes) if axes else None,
    )  # fmt: skip


@pytest.fixture
def job() -> JobSpec:
    return JobSpec.model_validate(
        {
            "workload": {"kind": "digits-mlp"}, "budget": {"steps": 4000},
            "exchange": {"kind": "threshold", "density": 0.02},
            "arms": [
                {"name": "tuned"}, {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}}
            ],
        }
    )  # fmt: skip


@pytest.fixture
def job_id(reporting: Reporting) -> str:
    """Of a job whose first arm has closed a stage with a line and opened one with a map; the other has not searched.

    The search of the line had a fourth probe, which was ended before it could be judged.
    """
    for arm in ("tuned", "dense"):
        reporting.start(arm)
    trial_id = reporting.trial("tuned")
    for found in (decision(0, "learning_rate"), decision(1, "learning_rate", "level")):
        probes = [
            Probe(report.candidate, Measured(num_steps=2, losses=[1.0, 0.9]), 0.1, pushed=(), is_cut=False)
            for report in found.probes
        ]
        if found.stage == 0:
            ended = found.probes[0].candidate.model_copy(update={"id": "0-3"})
            probes.append(probes[0]._replace(candidate=ended, is_cut=True))
        done = [reports.probe_done(trial_id, probe) for probe in probes]
        reporting.post(*reports.decided(trial_id, found, done, first_step=100 * found.stage))
        if found.stage == 0:
            reporting.post(
                StageClosed(trial_id=trial_id, stage=0, step=100, num_steps=100, density=0.02, threshold=None,
                            loss=0.25, bill=Bill(steps=100), resume={})
            )  # fmt: skip
    held = Decision(stage=0, values=Values(learning_rate=0.1), reason="the guess, held constant", switched=False,
                    commit_until=Allowance())  # fmt: skip
    reporting.post(*reports.decided(reporting.trial("dense"), held, [], first_step=0))
    return reporting.job_id


def explained(job_id: str, *options: str) -> str:
    result = run_cli.invoke(main.app, ["explain", job_id, *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_stage_tells_what_its_decision_knew_and_what_came_of_it(http: TestClient, job_id: str) -> None:
    path = f"/v1/jobs/{job_id}/stages"

    first, second, held = http.get(path).json()
    whole = http.get(path, params={"posterior": True}).json()

    assert (first["tax"], first["num_earlier"]) == ({"budget_share": 0.04, "cap_share": 0.5}, 2)
    assert (first["loss"], first["z_score"]) == (0.25, pytest.approx(-1.5))
    assert (second["loss"], second["z_score"]) == (None, None)
    assert [probe["reward"] for probe in first["probes"]] == [0.5, 0.7, None, None]
    assert [probe["status"] for probe in first["probes"]] == ["ok", "ok", "diverged", "too_short"]
    assert first["probes"][1]["posterior_std"] == 0.03
    assert [refusal["reason"] for refusal in first["refused"]] == ["slow", "no room", "slow"]
    assert (held["probes"], held["tax"]["budget_share"]) == ([], 0.0)
    assert [stage["posterior"] for stage in (first, second, held)] == [None] * 3  # large: only on request
    assert whole[1]["posterior"] == posterior("learning_rate", "level").model_dump(mode="json")


def test_the_report_says_how_far_forecasts_can_be_trusted(http: TestClient, job_id: str) -> None:
    tuned, dense = http.get(f"/v1/jobs/{job_id}/report").json()["trials"]

    assert tuned["calibration"] == {
        "num_outcomes": 1, "within_1_std": 0.0, "within_2_std": 1.0, "mean_z": pytest.approx(-1.5)
    }  # fmt: skip
    assert dense["calibration"]["num_outcomes"] == 0


@pytest.fixture
def cli_at(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)


def test_explain_names_every_probe_reason_and_outcome_in_words_of_the_job(cli_at: None, job_id: str) -> None:
    text = explained(job_id)

    assert text.count("0.1 at density 0.02: the best") == 2
    for word in (
        "0.01",
        "0.4000 ± 0.1",
        "diverged",
        "+0.2",
        "0.2500, -1.5 standard",
        "4% of the budget, 50% of what",
        "not tried: lr 9, density 10%; lr 7, density 10%: slow",
    ):
        assert word in text
    assert "nothing was searched" in text and "the guess, held constant" in text
    assert "level" not in text
    assert "0% within 1 std (of good ones 68%) and 100% within 2 std" in text


def test_explain_draws_the_posterior_with_its_probes_and_the_choice(cli_at: None, job_id: str) -> None:
    plot = explained(job_id, "--arm", "tuned", "--stage", "0").partition("gain expected")[2].splitlines()[1:4]
    rows = explained(job_id, "--stage", "1").partition("gain expected")[2].splitlines()[1:3]

    assert [row.split()[:2] for row in plot] == [["0.01", "o"], ["0.1", "oX"], ["1", "o"]]
    assert [row.count("█") for row in plot] == sorted({row.count("█") for row in plot})
    assert [len(row.split("|")[1]) for row in rows] == [len(RATES)] * len(DENSITIES)
    assert "X" in rows[1]  # densities rise upwards, and 0.02 is nearer to the lower one


@pytest.mark.parametrize(
    ("options", "words"), [(["--stage", "7"], "stages that are: 0, 1"), (["--arm", "cosine"], ".tuned.0, ")]
)
def test_what_is_not_there_is_refused_and_what_is_there_is_named(
    cli_at: None, job_id: str, options: list[str], words: str
) -> None:
    result = run_cli.invoke(main.app, ["explain", job_id, *options])

    assert result.exit_code == 2
    assert words in result.stderr


def test_of_one_stage_no_other_ones_posterior_is_fetched(
    client: Client, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fetch = list[tuple[Any, bool]](), client.stages

    def noted(*args: Any, stage: Any = (), with_posterior: bool = False, **chosen: Any) -> Any:
        asked.append((tuple(stage), with_posterior))
        return fetch(*args, stage=stage, with_posterior=with_posterior, **chosen)

    monkeypatch.setattr(client, "stages", noted)
    found = explanation(client, job_id, stage=1)

    assert [[each.stage for each in trial.stages] for trial in found.trials] == [[1], []]
    assert asked == [((1,), True)] * 2
    with pytest.raises(LookupError, match="stages that are: 0, 1"):
        explanation(client, job_id, arm="tuned", stage=7)
    assert asked[2:] == [((7,), True), ((), False)]


def test_a_level_is_called_what_the_report_calls_it(client: Client, job_id: str) -> None:
    found = explanation(client, job_id, arm="tuned")
    [each] = found.trials
    ranked = each.model_copy(update={"trial": each.trial.model_copy(update={"level_name": "rank"})})

    lines = [part for part in parts(found.model_copy(update={"trials": (ranked,)})) if isinstance(part, str)]

    assert any("lr 9, rank 0.1" in line for line in lines)


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        (
            [("wide", 0.5), ("wide", 0.75), ("finalist", None), ("finalist", 2.0), ("vertex", 2.5)],
            [0, 0.25, None, 0, 0.5],
        ),
        ([("wide", 0.5), ("wide", 0.75), ("finalist", None)], [0, 0.25, None]),
        ([("incumbent", None), ("acquisition", 0.5), ("acquisition", 0.25)], [None, 0, -0.25]),
    ],
)
def test_probes_gain_over_the_first_finite_one_of_their_length(
    client: Client, job_id: str, probes: list[tuple[str, float | None]], expected: list[float | None]
) -> None:
    probe = client.stages(job_id)[0].probes[0]

    found = gains([probe.model_copy(update={"origin": origin, "reward": reward}) for origin, reward in probes])

    assert found == expected


def test_a_script_gets_what_the_api_tells(cli_at: None, http: TestClient, job_id: str) -> None:
    document = json.loads(explained(job_id, "--json"))

    stages = [stage for trial in document["trials"] for stage in trial["stages"]]
    assert stages == http.get(f"/v1/jobs/{job_id}/stages", params={"posterior": True}).json()
    assert [trial["trial"]["calibration"]["num_outcomes"] for trial in document["trials"]] == [1, 0]


def test_advice_comes_with_the_answer_to_a_submission(http: TestClient, job: JobSpec) -> None:
    optimizer = {"kind": "adamw", "learning_rate": 0.003}
    body = job.model_dump(mode="json") | {"budget": {"steps": 100}, "optimizer": optimizer}

    (sentence,) = http.post("/v1/jobs", json=body).json()["advice"]

    assert sentence.startswith("arm `tuned`: a search takes")
    assert http.post("/v1/jobs:validate", json=body).json()["advice"] == [sentence]
