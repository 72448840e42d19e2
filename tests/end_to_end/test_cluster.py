"""A job's way through the real service: REST, database, Ray Job, Tune trial, worker actors, and back.

The service is that of docker-compose.yml, its commands run as host processes.
"""

import errno
import io
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from api.failures import ApiError
from search.schedule import Schedule
from service.job.states import JobState
from service.wire.jobs import JobView
from trainers.spec.workloads import DigitsMlp
from trainers.training import model as models
from trainers.workloads import registry

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

JOB: dict[str, Any] = {
    "name": "end to end",
    "workload": {"kind": "digits-mlp"},
    "workers": {"count": 2, "memory_gb": 0.2},
    "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
    "controller": {"kind": "bo", "max_search_fraction": 0.5},
    "arms": [{"name": "tuned"}, {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}}],
    "budget": {"steps": 600, "bytes": 10**12},  # which counts what a density sends
    "checkpoint": {"export": "last"},  # so that the schedule covers every step on the bill
}
TUNED_ALONE = JOB | {"arms": JOB["arms"][:1]}  # the same first trial, without the wait for the other
ENDLESS: dict[str, Any] = {"name": "endless", "workload": {"kind": "digits-mlp"}, "budget": {"seconds": 3600}}


@pytest.fixture(scope="module")
def finished(cluster: Any) -> JobView:
    with cluster.client() as client:
        job = client.submit(JOB)
        view: JobView = client.wait(job.id, timeout_s=240)
    assert view.state is JobState.SUCCEEDED, view.reason
    return view


def test_a_job_goes_from_rest_to_a_learned_schedule(cluster: Any, finished: JobView) -> None:
    with cluster.client() as client:
        trials = {trial.arm: trial for trial in client.trials(finished.id)}
        stages = [stage for stage in client.stages(finished.id) if stage.arm == "tuned"]
        schedule = Schedule.from_json(client.schedule(finished.id).model_dump_json())

    assert [trial.outcome for trial in trials.values()] == ["completed", "completed"]
    assert len(stages) >= 4 and all(stage.reason and stage.closed for stage in stages)
    assert schedule.num_steps == trials["tuned"].bill.steps
    assert trials["tuned"].bill.steps + trials["tuned"].bill.steps_search == 600
    assert trials["dense"].bill.bytes_sent >= trials["dense"].bill.bytes_dense


def test_the_exported_weights_are_those_whose_loss_was_reported(cluster: Any, finished: JobView) -> None:
    with cluster.client() as client:
        trial = client.trials(finished.id)[0]
    assert trial.weights_url is not None and trial.validation_loss is not None
    workload = registry.build(DigitsMlp())
    model = models.build(workload, 0)

    model.load_state_dict(load_file(trial.weights_url.removeprefix("file://")))
    batch = workload.validation[torch.arange(len(workload.validation))]

    assert workload.loss(model, batch).item() == pytest.approx(trial.validation_loss, rel=1e-5)


def test_results_over_http_are_those_on_storage(cluster: Any, finished: JobView, eventually: Any) -> None:
    kept = cluster.results / finished.id / "attempt-1.log"
    eventually("the log is kept", kept.exists, within_s=60)

    with cluster.client() as client:
        weights, table = io.BytesIO(), io.BytesIO()
        client.save_weights(finished.id, weights, arm="dense")
        client.save_metrics(finished.id, table)
        log, report = client.logs(finished.id).decode(), client.report(finished.id)
        dense = client.trials(finished.id)[1]
        num_points = sum(each.num_points for each in client.metrics(finished.id, "loss"))

    assert weights.getvalue() == Path(_file(dense)).read_bytes()
    assert table.getvalue().decode().count(",loss,") == num_points
    assert f"attempt 1 of {finished.id} succeeded" in log and kept.read_text() == log
    assert report.complete and report.best_arm in ("tuned", "dense")
    assert report.trials[1].bill == dense.bill


def test_a_users_model_that_fails_ends_the_job_at_once_and_its_prints_are_in_the_log(cluster: Any) -> None:
    models_of_tests = str(Path(__file__).parents[1] / "trainers")
    workload = {"factory": "own_models:Stumbling", "params": {"number": errno.ENOENT}, "path": models_of_tests}
    with cluster.client() as client:
        job = client.submit({"workload": workload, "budget": {"steps": 10}})
        view = client.wait(job.id, timeout_s=120)
        log = client.logs(job.id).decode()

    assert (view.state, view.attempt) == (JobState.FAILED, 1)
    assert "stumbled" in view.reason
    assert "about to stumble" in log and "Traceback" in log


def test_two_jobs_run_their_own_versions_of_one_module(cluster: Any, tmp_path: Path) -> None:
    source = (Path(__file__).parents[1] / "trainers" / "own_models.py").read_text()
    with cluster.client() as client:
        jobs = []
        for version in ("one", "two"):
            (tmp_path / "data").mkdir(exist_ok=True)
            (tmp_path / "data" / "version.txt").write_text(version)
            (tmp_path / "mine.py").write_text(
                f"from models import Regression\nprint('mine is {version}, beside', open('data/version.txt').read())\n"
            )
            (tmp_path / "models.py").write_text(source)
            workload = {"factory": "mine:Regression", "code": client.upload_code(tmp_path)}
            jobs.append(client.submit({"workload": workload, "budget": {"steps": 10}, "workers": {"count": 1}}))
        views = [client.wait(job.id, timeout_s=120) for job in jobs]
        logs = [client.logs(job.id).decode() for job in jobs]

    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2, [view.reason for view in views]
    assert "mine is one, beside one" in logs[0] and "mine is two" not in logs[0]
    assert "mine is two, beside two" in logs[1] and "mine is one" not in logs[1]


def test_every_committed_steps_loss_is_stored_once(cluster: Any, finished: JobView) -> None:
    with cluster.client() as client:
        for series in client.metrics(finished.id, "loss", max_points=5000):
            assert series.steps == tuple(range(len(series.steps)))
        bills = [trial.bill.steps for trial in client.trials(finished.id)]
        stored = [series.num_points for series in client.metrics(finished.id, "loss")]

    assert stored == bills


def test_a_cancelled_job_leaves_no_process_and_gives_its_cores_back(cluster: Any, eventually: Any) -> None:
    with cluster.client() as client:
        job = client.submit(ENDLESS)
        eventually("running", lambda: client.job(job.id).state is JobState.RUNNING, within_s=60)

        client.cancel(job.id)

        assert client.wait(job.id, timeout_s=60).state is JobState.CANCELLED
        eventually("no worker is left", lambda: not _ranks(cluster), within_s=20)


@pytest.mark.parametrize("at_step", [60, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 30, 120, 200, 250))])
def test_a_job_whose_driver_is_killed_goes_on_and_gives_the_same_weights(
    cluster: Any, finished: JobView, eventually: Any, at_step: int
) -> None:
    with cluster.client() as client:
        job = client.submit(TUNED_ALONE)
        eventually("committed steps", lambda: client.trials(job.id)[0].step >= at_step, within_s=90)

        for pid in _drivers(cluster):
            os.kill(pid, signal.SIGKILL)
        view = client.wait(job.id, timeout_s=240)

        assert (view.state, view.attempt) == (JobState.SUCCEEDED, 2), view.reason
        first, second = (client.trials(each)[0] for each in (finished.id, job.id))
        assert Path(_file(first)).read_bytes() == Path(_file(second)).read_bytes()
        assert client.schedule(job.id).entries == client.schedule(finished.id).entries


@pytest.mark.long
def test_a_job_whose_worker_is_killed_goes_on_in_the_same_attempt_and_gives_the_same_weights(
    cluster: Any, finished: JobView, eventually: Any
) -> None:
    with cluster.client() as client:
        job = client.submit(TUNED_ALONE)
        eventually("committed steps", lambda: client.trials(job.id)[0].step >= 60, within_s=90)

        os.kill(_ranks(cluster)[0], signal.SIGKILL)
        view = client.wait(job.id, timeout_s=240)

        assert (view.state, view.attempt) == (JobState.SUCCEEDED, 1), view.reason
        first, second = (client.trials(each)[0] for each in (finished.id, job.id))
        assert second.bill.repairs == 1 and first.bill.repairs == 0
        assert second.bill.bytes_sent == first.bill.bytes_sent
        assert Path(_file(first)).read_bytes() == Path(_file(second)).read_bytes()


def test_more_workers_than_the_cluster_can_ever_place_are_refused(cluster: Any) -> None:
    with cluster.client() as client, pytest.raises(ApiError) as refused:
        client.submit(ENDLESS | {"workers": {"count": 40}})

    assert refused.value.status == 409
    assert refused.value.errors[0].pointer == "/workers/count"
    assert refused.value.errors[0].value == 40


def _file(trial: Any) -> str:
    return str(trial.weights_url).removeprefix("file://")


def _drivers(cluster: Any) -> list[int]:
    """Return the pids of this cluster's drivers: other services on this machine have some too."""
    return [pid for pid in _pids("service.cluster.entrypoint") if str(cluster.results).encode() in _environment(pid)]


def _ranks(cluster: Any) -> list[int]:
    """Return the pids of this cluster's ranks."""
    return [pid for pid in _pids("ray::RankActor") if str(cluster.results).encode() in _environment_of_parent(pid)]


def _environment_of_parent(pid: int) -> bytes:
    """Return what Ray gave its daemon, and that one its workers, whose titles have overwritten their own copies."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return b""  # it has just ended
    return _environment(int(parent))


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""  # it has just ended


def _pids(words: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", words], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
