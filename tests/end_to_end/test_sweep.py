"""A real search over a job's fields: samples train, some end at a rung, and kills change no ranking."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from faults.live import LiveService

from api.client import Client
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.sweeps import SampleStatus
from tests.end_to_end.killed_jobs import Moment, outcome, run_and_kill, submit

pytestmark = pytest.mark.ray

#: Some samples learn well, others hardly: one rung tells them apart.
JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp", "batch_size": 16},
    "workers": {"count": 2, "cpus": 0.5},
    "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    "exchange": {"kind": "threshold", "density": 0.05},
    "controller": {"kind": "fixed"},
    "budget": {"steps": 60},
    "objective": {"every": 10},
    "params": {
        "optimizer.learning_rate": {"log_uniform": [0.0003, 0.5]},
        "exchange.density": {"log_uniform": [0.003, 0.3]},
    },
}


def test_samples_train_with_their_values_and_those_that_are_behind_end_at_a_rung(cluster: Any) -> None:
    sweep = {"samples": 3, "at_once": 1, "first_rung": 0.3, "cost": "bytes"}
    with cluster.client() as client:
        job_id = client.submit(JOB | {"sweep": sweep}).id
        assert client.wait(job_id, timeout_s=270).state is JobState.SUCCEEDED
        found, trials = client.report(job_id).sweep, {each.arm: each for each in client.trials(job_id)}
        starts = set(re.findall(r"pid=(\d+)\).* trial (\S+) starts", client.logs(job_id).decode()))

    assert found is not None and len(found.ranking) == 4
    assert {each.status for each in found.ranking} == {SampleStatus.COMPLETED, SampleStatus.PRUNED}
    for each in found.ranking:
        steps = 20 if each.status is SampleStatus.PRUNED else 60
        assert trials[each.arm].step == steps
        if each.sample is not None and each.sample.values is not None:
            assert trials[each.arm].learning_rate == each.sample.values["optimizer.learning_rate"]
    assert found.saved_share == pytest.approx(sum(1 - each.share for each in found.ranking) / 4)
    assert len(starts) == 4 and len({pid for pid, _ in starts}) == 1  # one process leads them all


@pytest.fixture
def service(tmp_path: Any) -> Iterator[LiveService]:
    service = LiveService(tmp_path, num_cpus=4, max_attempts=4, lease_s=60, renew_s=5)
    yield service
    service.stop()


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_search_of_sixteen_samples_killed_twice_ends_with_the_ranking_of_an_undisturbed_one(
    service: LiveService,
) -> None:
    sweep = {"samples": 16, "sampler": "bo", "at_once": 1, "cost": "bytes"}
    spec = JobSpec.model_validate(JOB | {"sweep": sweep, "checkpoint": {"every_seconds": 1}})
    moments = [Moment(step=75, after_s=0.1, kind="trial"), Moment(step=190, after_s=0.2, kind="driver")]

    job_id, killed = run_and_kill(service, spec, moments)

    with service.client() as client:
        alone = submit(client, spec)  # beside the rest of the other
        found, expected = (outcome(client, each, within_s=1300) for each in (job_id, alone))
        ranked = _ranked(client, job_id)
        assert ranked == _ranked(client, alone)
    assert (found.attempts, expected.attempts) == (1 + killed.total(), 1)
    # A sample that was killed at its rung has trained up to it again: it has the rung's weights, not those of step 0.
    assert (found.points, found.weights, found.schedules) == (expected.points, expected.weights, expected.schedules)
    assert len(ranked) == 17 and {"qLogNEHVI", "sobol"} <= {drawn_by for *_, drawn_by in ranked}


def _ranked(client: Client, job_id: str) -> list[Any]:
    found = client.report(job_id).sweep
    assert found is not None
    return [
        (each.arm, each.status, each.share, each.value, each.cost, each.on_front,
         each.sample and each.sample.values, each.sample and each.sample.drawn_by)
        for each in found.ranking
    ]  # fmt: skip
