"""Results as files, over HTTP and through `wiretune export`, equal what the trials reported."""

import csv
import io
import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, strategies as st
from pyarrow import parquet
from sqlalchemy import update
from typer import Exit
from typer.testing import CliRunner

from api.cli import export_command, main
from api.client import Client
from api.failures import ApiError
from api.retries import AWAY_S
from api.tables import COLUMNS, csv_chunks, write_parquet
from service.control.models import TrialRow
from service.control.queries import NamedPoint
from service.control.storage import StoredFile
from service.control.store import Store
from service.job.parts import Checkpointing
from service.job.spec import JobSpec
from service.wire.artifacts import Which
from service.wire.records import MetricPoints
from service.wire.trials import TrialView
from tests.api.conftest import Reporting
from tests.api.test_routes import refused
from tests.support.reported import finished

run_cli = CliRunner()
Rows = set[tuple[object, ...]]


def read_csv(text: str) -> Rows:
    head, *rows = csv.reader(io.StringIO(text))
    assert tuple(head) == COLUMNS
    return {
        (job, arm, int(seed), int(step), float(seconds), name, float(value) if value else None)
        for job, arm, seed, step, seconds, name, value in rows
    }


def stored(store: Store, job_id: str, *names: str) -> Rows:
    """Every stored point of the job."""
    return {
        (job_id, series.arm, series.seed, step, seconds, name, value)
        for name in names
        for series in store.series(job_id, name, max_points=10**9)
        for step, seconds, value in zip(series.steps, series.seconds, series.values, strict=True)
    }


# -- metrics ------------------------------------------------------------------------------------------------


def test_the_csv_holds_every_point_as_it_was_reported(http: TestClient, store: Store, reporting: Reporting) -> None:
    reporting.start("tuned")
    odd = (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, None)
    steps, seconds = tuple(range(len(odd))), tuple(math.pi * step for step in range(len(odd)))
    trial = reporting.trial("tuned")
    reporting.post(MetricPoints(trial_id=trial, name="loss", steps=steps, seconds=seconds, values=odd))
    many = tuple(range(12_000))
    reporting.post(
        MetricPoints(trial_id=trial, name="density", steps=many, seconds=tuple(map(float, many)), values=many)
    )

    answer = http.get(f"/v1/jobs/{reporting.job_id}/metrics.csv")

    assert answer.headers["content-type"].startswith("text/csv")
    assert read_csv(answer.text) == stored(store, reporting.job_id, "loss", "density")


def test_the_csv_can_be_of_one_trial(http: TestClient, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    text = http.get(f"/v1/jobs/{reporting.job_id}/metrics.csv", params={"arm": "dense"}).text

    assert {row[1] for row in read_csv(text)} == {"dense"}


def test_the_csv_can_be_of_one_metric_from_a_step_on(http: TestClient, store: Store, reporting: Reporting) -> None:
    reporting.start("tuned")
    many = tuple(range(3000))
    for name in ("loss", "density"):
        reporting.post(
            MetricPoints(
                trial_id=reporting.trial("tuned"), name=name, steps=many, seconds=tuple(map(float, many)), values=many
            )
        )
    path, held = f"/v1/jobs/{reporting.job_id}/metrics.csv", stored(store, reporting.job_id, "loss")

    of_one = http.get(path, params={"name": "loss"}).text
    later = http.get(path, params={"name": "loss", "first_step": 1500}).text
    none_yet = http.get(path, params={"name": "bytes_sent"}).text
    refused = http.get(path, params={"name": "lost"})

    assert read_csv(of_one) == held
    assert read_csv(later) == {row for row in held if row[3] >= 1500}
    assert read_csv(none_yet) == set()
    assert refused.status_code == 404 and "there is no metric `lost`" in refused.json()["detail"]


@given(
    st.lists(
        st.builds(
            NamedPoint,
            name=st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)
            | st.text("=+-@'x", min_size=1),
            step=st.integers(0, 2**40),
            seconds=st.floats(0, 1e9),
            value=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        )
    )
)
def test_parquet_and_csv_hold_the_same_to_the_last_bit(points: list[NamedPoint]) -> None:
    trial = TrialView.model_construct(arm="tuned", seed=3)
    text = "".join(csv_chunks("job-1", [(trial, points)]))
    out = io.BytesIO()

    write_parquet(io.BytesIO(text.encode()), out)

    table = parquet.read_table(io.BytesIO(out.getvalue()))
    found = [tuple(row[name] for name in COLUMNS) for row in table.to_pylist()]
    assert found == [("job-1", "tuned", 3, p.step, p.seconds, p.name, p.value) for p in points]


@pytest.mark.parametrize("name", ["accuracy", "validation_recall", "Loss"])
def test_a_metric_that_nobody_reports_is_not_found_and_the_known_ones_are_named(
    http: TestClient, reporting: Reporting, name: str
) -> None:
    reporting.start("tuned")
    reporting.start("dense")

    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/metrics/{name}"), 404, "not-found")

    assert name in document["detail"] and "validation_accuracy" in document["detail"]


@pytest.mark.parametrize("name", ["loss", "density", "validation_loss", "validation_accuracy"])
def test_a_metric_without_points_yet_is_empty(http: TestClient, reporting: Reporting, name: str) -> None:
    before = http.get(f"/v1/jobs/{reporting.job_id}/metrics/{name}")
    reporting.start("tuned")
    reporting.start("dense")
    after = http.get(f"/v1/jobs/{reporting.job_id}/metrics/{name}")

    assert (before.status_code, after.status_code) == (200, 200)
    assert all(series["values"] == [] for series in [*before.json(), *after.json()])


# -- weights ------------------------------------------------------------------------------------------------


def test_weights_are_the_bytes_on_storage(http: TestClient, store: Store, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    trial = store.trials(reporting.job_id)[1]

    answer = http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"arm": "dense", "seed": 0})

    assert trial.weights_url is not None
    assert answer.content == Path(trial.weights_url.removeprefix("file://")).read_bytes() == b"weights of dense"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert f"{trial.trial_id}.weights.safetensors" in answer.headers["content-disposition"]
    assert answer.headers["etag"]


def test_weights_that_the_caller_holds_are_not_sent_again(http: TestClient, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    etag = http.get(f"/v1/jobs/{reporting.job_id}/weights").headers["etag"]

    again = http.get(f"/v1/jobs/{reporting.job_id}/weights", headers={"If-None-Match": etag})
    others = http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"arm": "dense"}, headers={"If-None-Match": etag})

    assert (again.status_code, again.content) == (304, b"")
    assert others.content == b"weights of dense"


@pytest.mark.parametrize(
    ("asked", "part"),
    [("bytes=8-", "of tuned"), ("bytes=8-9", "of"), ("bytes=0-6", "weights"), ("bytes=8-99", "of tuned")],
)
def test_a_range_of_the_weights_is_sent_alone_and_says_where_it_lies(
    http: TestClient, reporting: Reporting, asked: str, part: str
) -> None:
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}/weights"
    whole = http.get(url)

    answer = http.get(url, headers={"Range": asked, "If-Range": whole.headers["etag"]})

    first = whole.text.index(part)
    assert (answer.status_code, answer.text) == (206, part)
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(whole.content)}"
    assert int(answer.headers["content-length"]) == len(part)
    same = ("etag", "repr-digest", "accept-ranges")
    assert [answer.headers[name] for name in same] == [whole.headers[name] for name in same]


@pytest.mark.parametrize("headers", [
    {"Range": "bytes=8-", "If-Range": '"of another file"'},
    {"Range": "bytes=99-", "If-Range": "{etag}"},
    {"Range": "bytes=9-8"},
    {"Range": "bytes=-8"},
    {"Range": "bytes=0-1,3-4"},
    {"Range": "lines=1-2"},
], ids=str)  # fmt: skip
def test_of_another_file_and_for_any_other_range_the_whole_is_sent(
    http: TestClient, reporting: Reporting, headers: dict[str, str]
) -> None:
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}/weights"
    etag = http.get(url).headers["etag"]

    answer = http.get(url, headers={name: value.replace("{etag}", etag) for name, value in headers.items()})

    assert (answer.status_code, answer.text) == (200, "weights of tuned")
    assert "content-range" not in answer.headers


@pytest.mark.parametrize("asked", ["bytes=16-", "bytes=99-", "bytes=99-120"])
def test_a_range_behind_the_end_is_refused_with_the_length_of_the_file(
    http: TestClient, reporting: Reporting, asked: str
) -> None:
    reporting.run_to_the_end()

    answer = http.get(f"/v1/jobs/{reporting.job_id}/weights", headers={"Range": asked})

    refused(answer, 416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len('weights of tuned')}"


def test_the_headers_of_a_file_can_be_asked_for_alone_and_nothing_of_it_is_read(
    http: TestClient, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}/weights"
    whole = http.get(url)
    monkeypatch.delattr(StoredFile, "chunks")

    asked = http.head(url, headers={"Range": "bytes=8-"})

    assert (asked.status_code, asked.content) == (200, b"")
    same = ("content-length", "content-type", "content-disposition", "etag", "repr-digest", "accept-ranges")
    assert [asked.headers[name] for name in same] == [whole.headers[name] for name in same]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs `curl` on the PATH")
@pytest.mark.parametrize("there", ["", "weights of", "weights of tuned"])
def test_curl_completes_a_download_that_broke_and_leaves_a_complete_one(
    live_url: str, key: str, reporting: Reporting, tmp_path: Path, there: str
) -> None:
    reporting.run_to_the_end()
    out = tmp_path / "weights"
    out.write_text(there)
    url = f"{live_url}/v1/jobs/{reporting.job_id}/weights"

    done = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", "-C", "-", "-o", out, "-H", f"Authorization: Bearer {key}", url],
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert out.read_text() == "weights of tuned"


def test_weights_are_by_default_the_first_trials(http: TestClient, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    assert http.get(f"/v1/jobs/{reporting.job_id}/weights").content == b"weights of tuned"


def test_the_weights_of_the_best_state_and_of_the_end_are_both_there(http: TestClient, reporting: Reporting) -> None:
    for arm, step in (("tuned", 100), ("dense", None)):
        reporting.start(arm)
        reporting.stage(arm, 0, rate=1.0, density=None)
        reporting.finish_trial(arm, rates=[1.0], density=None, loss=0.3, exported_step=step)
    reporting.finish()

    def get(arm: str, **which: str) -> bytes:
        return http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"arm": arm} | which).content

    assert get("tuned") == get("tuned", which="best") == b"weights of tuned"
    assert get("tuned", which="last") == b"last/weights of tuned"
    assert get("dense", which="best") == get("dense", which="last") == b"weights of dense"


def test_a_job_that_keeps_its_end_has_no_best_weights_and_says_so(http: TestClient, store: Store, job: JobSpec) -> None:
    reporting = Reporting(store, job.model_copy(update={"checkpoint": Checkpointing(export="last")}))
    reporting.run_to_the_end()

    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"which": "best"}), 404, "not-found")

    assert "`checkpoint.export: last`" in document["detail"]
    assert http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"which": "last"}).content == b"weights of tuned"


def test_the_last_weights_of_an_earlier_release_are_not_there(
    http: TestClient, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=None)
    save = reporting.save
    monkeypatch.setattr(reporting, "save", lambda arm, beside="": None if beside else save(arm))
    reporting.finish_trial("tuned", rates=[1.0], density=None, loss=0.3, exported_step=100)

    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/weights", params={"which": "last"}), 404, "not-found")

    assert "an earlier release" in document["detail"]


def test_weights_that_are_not_there_yet_are_said_to_be(http: TestClient, reporting: Reporting) -> None:
    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/weights"), 404, "not-found")

    assert "has not finished" in document["detail"]


@pytest.mark.parametrize("outcome, why", [(None, "has not finished again"), ("failed", "failed after it was extended")])
def test_earlier_weights_of_an_extended_trial_are_neither_its_best_nor_its_last(
    http: TestClient, store: Store, reporting: Reporting, outcome: str | None, why: str
) -> None:
    reporting.run_to_the_end()
    store._db.write(lambda session: session.execute(update(TrialRow).values(outcome=outcome)))
    url, of = f"/v1/jobs/{reporting.job_id}/weights", {"arm": "tuned", "seed": "0"}

    refusals = [refused(http.get(url, params=of | {"which": which}), 404, "not-found") for which in ("best", "last")]
    files = http.get(f"/v1/jobs/{reporting.job_id}/artifacts").json()

    assert all(why in document["detail"] for document in refusals)
    assert http.get(url, params=of).content == b"weights of tuned"
    assert [each["name"] for each in files if each["kind"] == "weights"] == [
        f"{reporting.trial(arm)}.weights.safetensors" for arm in ("tuned", "dense")
    ]


def test_weights_that_are_gone_are_named(http: TestClient, store: Store, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    url = store.trials(reporting.job_id)[0].weights_url
    assert url is not None
    Path(url.removeprefix("file://")).unlink()

    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/weights"), 404, "not-found")

    assert url in document["detail"]


def test_an_attempt_cannot_hand_out_another_file_as_its_weights(
    http: TestClient, reporting: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(reporting, "save", lambda arm: f"file://{tmp_path}/secret")
    reporting.run_to_the_end()

    answer = http.get(f"/v1/jobs/{reporting.job_id}/weights")

    refused(answer, 404, "not-found")


@pytest.mark.parametrize("query", ["arm=none", "seed=7", "arm=tuned&seed=7"])
@pytest.mark.parametrize("what", ["weights", "schedule", "metrics.csv"])
def test_a_trial_that_the_job_does_not_have_is_not_found(
    http: TestClient, reporting: Reporting, what: str, query: str
) -> None:
    document = refused(http.get(f"/v1/jobs/{reporting.job_id}/{what}?{query}"), 404, "not-found")

    assert "arms: tuned, dense; seeds: [0]" in document["detail"]


# -- logs and report ----------------------------------------------------------------------------------------


def test_a_kept_log_is_served_as_text_from_any_offset(http: TestClient, store: Store, reporting: Reporting) -> None:
    storage = store.storage
    storage.write(storage.log_url(reporting.job_id, 1), "first\nsecönd\n".encode())

    whole = http.get(f"/v1/jobs/{reporting.job_id}/logs")
    rest = http.get(f"/v1/jobs/{reporting.job_id}/logs", params={"attempt": 1, "offset": 6})

    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert (whole.text, rest.text) == ("first\nsecönd\n", "secönd\n")


def test_a_log_is_empty_until_something_is_printed_and_one_that_is_gone_is_said_why(
    http: TestClient, reporting: Reporting
) -> None:
    url = f"/v1/jobs/{reporting.job_id}/logs"
    begun = http.get(url)
    reporting.run_to_the_end()

    assert (begun.status_code, begun.content) == (200, b"")
    assert "Ray ended before it could be kept" in refused(http.get(url), 404, "not-found")["detail"]


def test_the_report_has_every_trial_and_arm(http: TestClient, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    report = http.get(f"/v1/jobs/{reporting.job_id}/report").json()

    assert (report["best_arm"], report["complete"]) == ("tuned", True)
    assert [trial["validation_loss"] for trial in report["trials"]] == [0.31, 0.42]
    assert report["arms"][1]["validation_loss"] == {"num_seeds": 1, "mean": 0.42, "low": None, "high": None}
    assert report["arms"][0]["validation_metrics"]["accuracy"]["mean"] == 0.97
    crossing = report["trials"][1]["crossing"]
    assert 0 < crossing["seconds"] < crossing["other_seconds"] and report["trials"][0]["crossing"] is None


def test_a_job_that_has_not_begun_has_a_report_without_figures(client: Client, job: JobSpec) -> None:
    report = client.report(client.submit(job).id)

    assert report.best_arm is None and not report.complete
    assert [arm.validation_loss for arm in report.arms] == [None, None]


# -- wiretune export ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "name"),
    [("schedule", "s.json"), ("metrics", "m.csv"), ("weights", "w.safetensors"), ("report", "r.json")],
)
def test_an_export_is_what_the_api_answers(
    at: str, http: TestClient, reporting: Reporting, tmp_path: Path, what: str, name: str
) -> None:
    reporting.run_to_the_end()
    out = tmp_path / name

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", what, "--out", str(out), "--json"])

    answer = http.get(f"/v1/jobs/{reporting.job_id}/{'metrics.csv' if what == 'metrics' else what}")
    assert done.exit_code == 0, done.stderr
    if name.endswith(".json"):
        assert json.loads(out.read_text()) == answer.json()
    else:
        assert out.read_bytes() == answer.content
    said = json.loads(done.stdout)
    assert (said["job"], said["path"], said["bytes"]) == (reporting.job_id, str(out), out.stat().st_size)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_metrics_are_parquet_where_the_name_says_so(
    at: str, store: Store, reporting: Reporting, tmp_path: Path
) -> None:
    reporting.run_to_the_end()
    out = tmp_path / "metrics.parquet"

    run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "metrics", "--out", str(out)])

    rows = parquet.read_table(out).to_pylist()
    assert {tuple(row.values()) for row in rows} == stored(store, reporting.job_id, "loss", "validation_loss")


def test_all_of_a_job_goes_to_one_folder(at: str, reporting: Reporting, tmp_path: Path) -> None:
    reporting.run_to_the_end()
    out = tmp_path / "all"

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "all", "--out", str(out)])

    assert done.exit_code == 0, done.stderr
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "report.json", "metrics.csv", "tuned-seed-0/schedule.json", "tuned-seed-0/weights.safetensors",
        "dense-seed-0/schedule.json", "dense-seed-0/weights.safetensors",
    }  # fmt: skip
    assert (out / "dense-seed-0" / "weights.safetensors").read_bytes() == b"weights of dense"


def test_weights_that_an_earlier_export_left_whole_are_not_downloaded_again(
    at: str, reporting: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.run_to_the_end()
    command = ["export", reporting.job_id, "--what", "all", "--out", str(tmp_path / "all")]
    run_cli.invoke(main.app, command)
    spoilt = tmp_path / "all" / "dense-seed-0" / "weights.safetensors"
    spoilt.write_bytes(b"of another run")
    downloaded: list[str | None] = []
    save = Client.save_weights

    def noted(client: Client, job_id: str, out: BinaryIO, *, arm: str, seed: int, which: Which | None) -> None:
        downloaded.append(arm)
        save(client, job_id, out, arm=arm, seed=seed, which=which)

    monkeypatch.setattr(Client, "save_weights", noted)
    done = run_cli.invoke(main.app, command)

    assert done.exit_code == 0, done.stderr
    assert downloaded == ["dense"] and spoilt.read_bytes() == b"weights of dense"
    assert "weights of arm tuned, seed 0, as they were here" in done.stdout


def test_an_export_of_files_is_as_patient_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []

    def open_client(url: str | None, key: str | None, *, patience_s: float) -> None:
        patience.append(patience_s)
        raise Exit(0)

    monkeypatch.setattr(export_command, "open_client", open_client)
    for options in ([], ["--patience", "7"]):
        run_cli.invoke(main.app, ["export", "latest", "--what", "weights", "--out", "-", *options])

    assert patience == [AWAY_S, 7.0]


def test_of_a_running_job_all_is_what_there_is(at: str, reporting: Reporting, tmp_path: Path) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "all", "--out", str(tmp_path / "all")])

    assert done.exit_code == 0, done.stderr
    assert {path.name for path in (tmp_path / "all").rglob("*.*")} == {"report.json", "metrics.csv", "schedule.json"}


def test_an_export_that_fails_leaves_what_was_there(at: str, reporting: Reporting, tmp_path: Path) -> None:
    out = tmp_path / "weights.safetensors"
    out.write_bytes(b"precious")

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--what", "weights", "--out", str(out)])

    assert done.exit_code == 2
    assert out.read_bytes() == b"precious" and list(tmp_path.glob("*.partial")) == []


def test_the_weights_of_the_end_are_exported_where_they_are_asked_for(
    at: str, reporting: Reporting, tmp_path: Path
) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=None)
    reporting.finish_trial("tuned", rates=[1.0], density=None, loss=0.3, exported_step=100)
    out = tmp_path / "w.safetensors"

    done = run_cli.invoke(
        main.app, ["export", reporting.job_id, "--what", "weights", "--which", "last", "--out", str(out)]
    )

    assert done.exit_code == 0, done.stderr
    assert out.read_bytes() == b"last/weights of tuned" and "last weights of arm tuned, seed 0" in done.stdout


def test_a_schedule_can_go_to_standard_output(at: str, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    done = run_cli.invoke(main.app, ["export", reporting.job_id, "--out", "-"])

    assert json.loads(done.stdout)["num_steps"] == 200
    assert "arm tuned, seed 0" in done.stderr


@pytest.fixture
def swept(store: Store, job: JobSpec) -> Reporting:
    """A sweep whose second sample is its best trial; neither arm is."""
    sweep = {"params": {"workload.batch_size": {"integer": [16, 64]}}, "sweep": {"samples": 2, "scheduler": "none"}}
    reporting = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep))
    for arm, loss in (("tuned", 0.3), ("dense", 0.4), ("sample-0", 0.2), ("sample-1", 0.1)):
        reporting.start(arm)
        reporting.stage(arm, 0, rate=1.0, density=None)
        reporting.finish_trial(arm, rates=[1.0], density=None, loss=loss)
    return reporting


def test_after_a_sweep_its_best_trial_is_given_by_default(http: TestClient, swept: Reporting) -> None:
    of_job = f"/v1/jobs/{swept.job_id}"

    assert http.get(f"{of_job}/weights").content == b"weights of sample-1"
    assert http.get(f"{of_job}/schedule").json()["arm"] == "sample-1"
    assert http.get(f"{of_job}/weights?arm=tuned").content == b"weights of tuned"
    assert {row[1] for row in read_csv(http.get(f"{of_job}/metrics.csv?arm=best").text)} == {"sample-1"}


def test_an_export_after_a_sweep_says_which_trial_it_wrote(at: str, swept: Reporting, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"

    done = run_cli.invoke(main.app, ["export", swept.job_id, "--what", "weights", "--out", str(out)])

    assert out.read_bytes() == b"weights of sample-1" and "weights of arm sample-1, seed 0" in done.stdout


def test_the_best_trial_is_of_the_best_arm_once_all_have_finished(http: TestClient, reporting: Reporting) -> None:
    weights = f"/v1/jobs/{reporting.job_id}/weights?arm=best"

    early = http.get(weights)
    reporting.run_to_the_end()

    assert early.status_code == 404 and "`best` is known once all trials have finished" in early.json()["detail"]
    assert http.get(weights).content == b"weights of tuned"


def test_a_run_without_a_schedule_says_whether_it_can_still_get_one(client: Client, reporting: Reporting) -> None:
    reporting.start("tuned")
    with pytest.raises(ApiError, match="yet: it has no step"):
        client.schedule(reporting.job_id)

    reporting.post(finished(reporting.trial("tuned"), schedule=()))

    with pytest.raises(ApiError, match="the weights are those of its start"):
        client.schedule(reporting.job_id)


def test_a_training_series_does_not_pass_for_the_metric_of_its_name(
    client: Client, store: Store, reporting: Reporting
) -> None:
    reporting.start("tuned")
    for name, value in (("validation_accuracy", 0.9), ("accuracy", 0.1)):
        points = MetricPoints(trial_id=reporting.trial("tuned"), name=name, steps=(0,), seconds=(0.0,), values=(value,))
        reporting.post(points)

    assert client.trials(reporting.job_id)[0].validation_metrics == {"accuracy": 0.9}


def test_a_metric_that_may_still_be_declared_is_unknown_once_the_job_is_over(client: Client, job: JobSpec) -> None:
    made = client.submit(job)
    assert client.metrics(made.id, "validation_f1")[0].num_points == 0

    client.cancel(made.id)

    with pytest.raises(ApiError, match="no metric `validation_f1`"):
        client.metrics(made.id, "validation_f1")


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--what", "report", "--arm", "tuned"], "--arm"), (["--what", "all", "--arm", "typo"], "typo")],
)
def test_a_choice_that_cannot_be_is_refused_and_leaves_nothing(
    at: str, reporting: Reporting, tmp_path: Path, options: list[str], said: str
) -> None:
    out = tmp_path / "out"

    done = run_cli.invoke(main.app, ["export", reporting.job_id, *options, "--out", str(out)])

    assert done.exit_code == 2 and said in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "'"])
def test_text_that_a_spreadsheet_would_run_has_an_apostrophe_and_numbers_stay_numbers(begin: str) -> None:
    name = f'{begin}HYPERLINK("http://elsewhere")'
    points = [
        NamedPoint(name=name, step=1, seconds=0.5, value=-2.5),
        NamedPoint(name="loss", step=2, seconds=1.0, value=-1e-9),
    ]

    text = "".join(csv_chunks("job-1", [(TrialView.model_construct(arm="tuned", seed=3), points)]))

    _, first, second = csv.reader(io.StringIO(text, newline=""))
    assert first == ["job-1", "tuned", "3", "1", "0.5", f"'{name}", "-2.5"]
    assert second[5:] == ["loss", "-1e-09"]
