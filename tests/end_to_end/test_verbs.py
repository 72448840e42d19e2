"""Verbs leave no trace in a job's result, on a real cluster."""

from pathlib import Path
from typing import Any

import pytest

from service.job.states import JobState

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    "controller": {"kind": "off"},  # held, then brought down over the last 15 %
    "exchange": {"kind": "threshold", "density": 0.01},
    "link": {"mode": "emulate", "mbps": 20, "latency_ms": 5},
    "budget": {"steps": 1500},
    "objective": {"every": 100},
}


def test_a_job_paused_stopped_and_extended_twice_ends_with_the_weights_of_one_that_was_left_alone(
    cluster: Any, eventually: Any
) -> None:
    with cluster.client() as client:
        job_id = client.submit(JOB).id
        eventually("committed steps", lambda: client.trials(job_id)[0].step >= 100, within_s=120)

        client.pause(job_id)
        eventually("the pause", lambda: client.job(job_id).state is JobState.PAUSED, within_s=60)
        [paused] = client.trials(job_id)
        client.resume(job_id)
        eventually("further steps", lambda: client.trials(job_id)[0].step > paused.step, within_s=120)
        client.stop(job_id)
        stopped = client.wait(job_id, timeout_s=120)
        assert (stopped.state, stopped.reason) == (JobState.SUCCEEDED, f"stopped early by {client.me().name}")
        assert paused.step < client.trials(job_id)[0].step < 1500

        client.extend(job_id, steps=1500)
        assert client.wait(job_id, timeout_s=240).state is JobState.SUCCEEDED
        assert "`tuned.0` goes on from step 1270, before its rate" in client.extend(job_id, steps=2000).reason
        alone = client.clone(job_id, {}).job
        assert alone is not None
        for each in (job_id, alone.id):
            assert client.wait(each, timeout_s=240).state is JobState.SUCCEEDED

        curves = [client.metrics(each, "loss", max_points=10_000)[0].values for each in (job_id, alone.id)]
        weights = [client.trials(each)[0].weights_url for each in (job_id, alone.id)]
        assert curves[0] == curves[1] and len(curves[0]) == 2000
        assert _content(weights[0]) == _content(weights[1])


def _content(url: str | None) -> bytes:
    return Path(str(url).removeprefix("file://")).read_bytes()
