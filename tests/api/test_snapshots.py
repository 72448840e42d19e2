"""A snapshot has all data of a page, and the next one the changes; merged, they equal a full one."""

import gzip
import json

from service.wire.records import Bill, Billed, MetricPoints


def merged(before, change):
    """Return what a page holds after `change`, as the API's description has it merge."""
    if change["whole"]:
        return change

    def by(key, old, new):
        found = {tuple(each[name] for name in key): each for each in old}
        return list((found | {tuple(each[name] for name in key): each for each in new}).values())

    return change | {
        "whole": True,
        "job": change["job"] or before["job"],
        "report": change["report"] or before["report"],
        "trials": by(["trial_id"], before["trials"], change["trials"]),
        "schedules": by(["trial_id"], before["schedules"], change["schedules"]),
        "stages": by(["trial_id", "stage"], before["stages"], change["stages"]),
        "series": [_longer(old, change["series"]) for old in before["series"]],
    }


def _longer(old, changed):
    points = {step: (second, value) for step, second, value in _points(old)}
    for new in changed:
        if (new["trial_id"], new["name"]) == (old["trial_id"], old["name"]):
            points |= {step: (second, value) for step, second, value in _points(new)}
    steps = sorted(points)
    seconds, values = ([points[step][index] for step in steps] for index in (0, 1))
    return old | {"steps": steps, "seconds": seconds, "values": values, "num_points": len(steps)}


def _points(series):
    return zip(series["steps"], series["seconds"], series["values"], strict=True)


def get(http, job_id, **params):
    answer = http.get(f"/v1/jobs/{job_id}/snapshot", params=params | {"max_points": 5000})
    assert answer.status_code == 200
    return answer.json()


def test_a_snapshot_is_what_the_single_calls_say(http, reporting):
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}"

    found = get(http, reporting.job_id)

    assert found["whole"]
    for name in ("trials", "stages", "report"):
        assert found[name] == http.get(f"{url}/{name}").json()
    assert found["job"] == http.get(url).json()
    assert found["series"] == [
        *http.get(f"{url}/metrics/loss", params={"max_points": 5000}).json(),
        *http.get(f"{url}/metrics/validation_loss", params={"max_points": 5000}).json(),
    ]
    single = [http.get(f"{url}/schedule", params={"arm": arm}).json() for arm in ("tuned", "dense")]
    assert found["schedules"] == [each | {"provenance": None} for each in single]


def test_changes_merged_one_by_one_are_the_whole(http, reporting):
    held = get(http, reporting.job_id)
    sizes = []

    def look():
        nonlocal held
        change = get(http, reporting.job_id, since=held["cursor"])
        sizes.append((change["whole"], len(change["trials"]), sum(len(each["steps"]) for each in change["series"])))
        held = merged(held, change)

    for arm, density in (("tuned", 0.01), ("dense", None)):
        reporting.start(arm)
        look()
        for stage in range(2):
            reporting.stage(arm, stage, rate=1.0, density=density)
            look()
        reporting.finish_trial(arm, rates=[1.0, 1.0], density=density, loss=0.3)
        look()
    reporting.finish()
    look()

    assert held == get(http, reporting.job_id)
    assert sizes == [(False, 1, 0), *[(False, 1, 105)] * 2, (False, 1, 0)] * 2 + [(False, 0, 0)]


#: What a report says of a running trial as of its last stage; the first five are in `trials`, and new there.
BY_STAGE = (
    "steps", "seconds", "bill", "validation_loss", "validation_metrics",
    "cost", "target", "target_loss", "seconds_to_target", "searching_budget", "notes",
)  # fmt: skip


def lasting(snapshot):
    """Return the snapshot without what a report says as of the last stage."""
    trials = [{name: each[name] for name in each if name not in BY_STAGE} for each in snapshot["report"]["trials"]]
    return snapshot | {"report": snapshot["report"] | {"trials": trials}}


def test_progress_between_two_stages_is_in_the_trials_and_in_the_report_with_the_next_stage(http, reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    held, trial = get(http, reporting.job_id), reporting.trial("tuned")
    points = {"steps": (100, 101), "seconds": (5.0, 5.05), "values": (0.2, 0.1)}
    bill = Bill(bytes_sent=500_000, seconds_training=5.05, steps=102)
    lone = (
        MetricPoints(trial_id=trial, name="loss", **points),
        MetricPoints(trial_id=trial, name="validation_loss", **points),
        Billed(trial_id=trial, bill=bill),
    )

    for record in lone:
        reporting.post(record)
        change = get(http, reporting.job_id, since=held["cursor"])
        held, whole = merged(held, change), get(http, reporting.job_id)
        assert (change["whole"], change["report"]) == (False, None)
        assert lasting(held) == lasting(whole)
    assert (held["trials"][0]["step"], held["trials"][0]["bill"]["bytes_sent"]) == (101, 500_000)

    reporting.stage("tuned", 1, rate=1.0, density=0.01)
    assert merged(held, get(http, reporting.job_id, since=held["cursor"])) == get(http, reporting.job_id)


def test_a_change_is_small(http, reporting):
    reporting.run_to_the_end()
    whole = http.get(f"/v1/jobs/{reporting.job_id}/snapshot").content
    cursor = json.loads(whole)["cursor"]

    assert len(http.get(f"/v1/jobs/{reporting.job_id}/snapshot", params={"since": cursor}).content) < 200 < len(whole)


def test_after_steps_were_taken_back_the_snapshot_is_whole(http, reporting, store):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    steps, seconds, values = (100, 101), (5.0, 5.05), (0.2, 0.1)
    trial = reporting.trial("tuned")
    reporting.post(MetricPoints(trial_id=trial, name="loss", steps=steps, seconds=seconds, values=values))
    held = get(http, reporting.job_id)

    store.attempts.lose(reporting.job_id, 1, reason="lost")
    store.attempts.begin(reporting.job_id)
    change = get(http, reporting.job_id, since=held["cursor"])

    assert change["whole"]
    assert change["series"][0]["steps"][-1] == 99
    assert not get(http, reporting.job_id, since=change["cursor"])["whole"]


def test_without_the_events_since_then_the_snapshot_is_whole(http, reporting, store):
    reporting.run_to_the_end()
    store.expiry.prune_events(kept=2)

    assert get(http, reporting.job_id, since=1)["whole"]
    assert get(http, reporting.job_id, since=10**9)["whole"]


def test_after_very_many_events_the_snapshot_is_whole(http, reporting, monkeypatch):
    reporting.run_to_the_end()
    monkeypatch.setattr("service.control.results.snapshots._MAX_CHANGES", 3)

    newest = get(http, reporting.job_id)["cursor"]

    assert get(http, reporting.job_id, since=newest - 4)["whole"]
    assert not get(http, reporting.job_id, since=newest - 3)["whole"]


def test_of_many_trials_each_series_has_fewer_points(http, reporting, monkeypatch):
    reporting.run_to_the_end()
    monkeypatch.setattr("service.control.results.snapshots._MOST_POINTS", 80)

    series = get(http, reporting.job_id)["series"]

    assert [len(each["steps"]) for each in series if each["name"] == "loss"] == [20, 20]
    assert sum(len(each["steps"]) for each in series) <= 80
    assert all(each["num_points"] > 20 for each in series if each["name"] == "loss")


def test_an_unchanged_job_is_a_304_whatever_others_do(http, reporting, store, job):
    url = f"/v1/jobs/{reporting.job_id}/snapshot"
    known = {"If-None-Match": http.get(url).headers["ETag"]}
    store.add_job(job)

    assert http.get(url, headers=known).status_code == 304
    assert http.get("/v1/jobs/job-0/snapshot", headers=known).status_code == 404
    reporting.start("tuned")
    assert http.get(url, headers=known).status_code == 200


def test_a_snapshot_of_another_release_or_at_other_prices_is_another(http, reporting, store, monkeypatch):
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}/snapshot"
    known = {"If-None-Match": http.get(url).headers["ETag"]}

    monkeypatch.setattr(store, "settings", store.settings.model_copy(update={"price_gb": 0.1}))
    priced = http.get(url, headers=known)
    again = http.get(url, headers={"If-None-Match": priced.headers["ETag"]})
    monkeypatch.setattr(http.app, "version", "99.0")
    upgraded = http.get(url, headers={"If-None-Match": priced.headers["ETag"]})

    assert (priced.status_code, again.status_code, upgraded.status_code) == (200, 304, 200)
    assert priced.json()["report"]["prices"]["gb"] == 0.1


def test_json_is_compressed_for_who_takes_it_and_streamed_tables_are_not(http, reporting):
    reporting.run_to_the_end()
    url = f"/v1/jobs/{reporting.job_id}"

    def sent(path, encoding):
        with http.stream("GET", path, headers={"Accept-Encoding": encoding}) as answer:
            return answer.headers.get("content-encoding"), b"".join(answer.iter_raw())

    plain, packed = sent(f"{url}/snapshot", "identity"), sent(f"{url}/snapshot", "gzip")
    assert (plain[0], packed[0]) == (None, "gzip")
    assert gzip.decompress(packed[1]) == plain[1]
    assert len(packed[1]) < len(plain[1]) / 4
    assert sent(f"{url}/metrics.csv", "gzip")[0] is None
    assert sent(f"{url}/weights", "gzip")[0] is None


def test_the_client_reads_snapshots(client, store, job):
    job_id = store.add_job(job)[0].id

    first = client.snapshot(job_id)

    assert first.whole and first.job is not None and first.job.id == job_id
    assert not client.snapshot(job_id, since=first.cursor).whole
