"""Telemetry: correct counts, and a dashboard and alerts that name existing metrics."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.control.store import Store
from service.errors import Unavailable
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import AttemptFinished, Batch, Bill, Billed, Checkpointed, MetricPoints

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(Settings(state_dir=tmp_path))
    yield store
    store.close()


def values(store: Store) -> dict[str, float]:
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(store.telemetry.text().decode())
    return {f"{each.name}{[*each.labels.values()] or ''}": each.value for family in families for each in family.samples}


def test_a_batch_that_is_sent_twice_counts_once(store: Store) -> None:
    job_id = store.add_job(SPEC)[0].id
    number = store.attempts.begin(job_id).attempt
    trial_id = store.trials(job_id)[0].trial_id
    points = MetricPoints(trial_id=trial_id, name="loss", steps=(0, 1), seconds=(0.1, 0.2), values=(0.5, 0.4))
    bills = (Bill(), Bill(bytes_sent=30, bytes_search=10, bytes_dense=300, steps=7))
    records = (points, *(Billed(trial_id=trial_id, bill=bill) for bill in bills))

    for _ in range(2):
        store.attempts.ingest(job_id, number, Batch(stream="driver", sequence=1, records=records))

    counted = values(store)
    assert counted["wiretune_metric_points_total"] == 2
    assert counted["wiretune_records_total['billed']"] == 2
    assert counted["wiretune_link_bytes_total['search']"] == 10
    assert counted["wiretune_link_bytes_total['training']"] == 20
    assert (counted["wiretune_link_dense_bytes_total"], counted["wiretune_trained_steps_total"]) == (300, 7)


def test_a_bill_that_falls_back_to_a_checkpoints_takes_no_count_back(store: Store) -> None:
    job_id = store.add_job(SPEC)[0].id
    number = store.attempts.begin(job_id).attempt
    trial_id = store.trials(job_id)[0].trial_id
    records = tuple(Billed(trial_id=trial_id, bill=Bill(steps=steps)) for steps in (0, 50, 20, 60))

    store.attempts.ingest(job_id, number, Batch(stream="driver", sequence=1, records=records))

    assert values(store)["wiretune_trained_steps_total"] == 50 + 40


def test_a_checkpoint_that_was_written_beside_training_has_no_step_counted_twice(store: Store) -> None:
    copied = Checkpointed(trial_id="t", stage=0, step=20, bill=Bill(steps=20, bytes_sent=200), resume={})
    first, second, last = (Billed(trial_id="t", bill=Bill(steps=steps, bytes_sent=10 * steps)) for steps in (0, 50, 60))

    store.telemetry.note_batch(Batch(stream="t", sequence=1, records=(first, second, copied, last)))

    counted = values(store)
    assert (counted["wiretune_trained_steps_total"], counted["wiretune_link_bytes_total['training']"]) == (60, 600)


def test_jobs_attempts_and_leases_are_those_of_the_database(store: Store) -> None:
    ids = [store.add_job(SPEC)[0].id for _ in range(3)]
    for job_id in ids[:2]:
        store.attempts.begin(job_id)
    ended = AttemptFinished(outcome="failed", reason="for a test", retry=False)
    store.attempts.ingest(ids[0], 1, Batch(stream="driver", sequence=1, records=(ended,)))

    stands = values(store)

    assert [stands[f"wiretune_jobs['{state}']"] for state in ("queued", "starting", "failed")] == [1, 1, 1]
    assert (stands["wiretune_attempts['open']"], stands["wiretune_attempts['failed']"]) == (1, 1)
    assert 0 < stands["wiretune_lease_left_seconds"] <= store.settings.lease_s
    assert stands["wiretune_database_up"] == 1


def test_a_job_that_queues_again_is_as_old_as_it_has_waited(tmp_path: Path) -> None:
    clock = [1000.0]
    with closing(Store.open(Settings(state_dir=tmp_path), clock=lambda: clock[0])) as store:
        job_id = store.add_job(SPEC)[0].id
        clock[0] += 7.0
        store.attempts.begin(job_id)
        clock[0] += 5000.0
        store.attempts.lose(job_id, 1, reason="its machine is gone")
        clock[0] += 3.0

        assert values(store)["wiretune_oldest_queued_seconds"] == 7.0 + 3.0


def test_a_round_that_fails_is_counted_and_raises(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.telemetry.round("expiry"):
        raise ZeroDivisionError

    counted = values(store)
    assert (counted["wiretune_failed_rounds_total['expiry']"], counted["wiretune_round_seconds_count['expiry']"]) == (
        1,
        1,
    )


def test_a_round_in_which_something_else_does_not_answer_has_not_failed(store: Store) -> None:
    with pytest.raises(Unavailable), store.telemetry.round("reconciler"):
        raise Unavailable("Ray does not answer")

    counted = values(store)
    assert counted["wiretune_round_seconds_count['reconciler']"] == 1
    assert "wiretune_failed_rounds_total['reconciler']" not in counted


def expressions() -> list[str]:
    """Return what the dashboard and the alerts ask Prometheus."""
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def test_the_dashboard_and_the_alerts_name_metrics_that_there_are(store: Store) -> None:
    store.attempts.begin(store.add_job(SPEC)[0].id)  # or there is no lease

    told = set(re.findall(r"^# HELP (\w+)", store.telemetry.text().decode(), re.MULTILINE))

    named = {name for expression in expressions() for name in re.findall(r"\b(?:wiretune|process)_\w+", expression)}
    suffixes = ("", "_bucket", "_sum", "_count")
    assert {name for name in named if not any(name.removesuffix(end) in told for end in suffixes)} == set()
    assert len([name for name in told if name.startswith("wiretune_")]) >= 20


def test_no_gauge_that_may_fall_is_asked_for_its_increase(store: Store) -> None:
    gauges = set(re.findall(r"^# TYPE (\w+) gauge", store.telemetry.text().decode(), re.MULTILINE))

    counted = {name for each in expressions() for name in re.findall(r"(?:increase|rate)\((\w+)", each)}

    assert counted and not counted & gauges  # Prometheus takes a fall for a counter that began anew


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs `promtool` on the PATH (apt-get install prometheus)"
)
@pytest.mark.parametrize(
    "command", [["rules", "alerts.yml"], ["config", "--syntax-only", "prometheus.yml"]], ids=["alerts", "configuration"]
)
def test_prometheus_takes_the_files(command: list[str]) -> None:
    checked = subprocess.run(
        ["promtool", "check", *command], cwd=MONITORING, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
