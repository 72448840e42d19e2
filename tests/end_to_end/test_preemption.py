"""A job paused for a more urgent one resumes by itself, and ends with the weights of an undisturbed one."""

from pathlib import Path
from typing import Any

import pytest

from service.job.states import JobState

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

#: Two workers: all that the cluster holds.
JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    "controller": {"kind": "off"},
    "exchange": {"kind": "threshold", "density": 0.01},
    "link": {"mode": "emulate", "mbps": 20, "latency_ms": 5},
    "budget": {"steps": 1200},
    "objective": {"every": 100},
    "priority": "low",
}


def test_a_preempted_job_ends_with_the_weights_of_one_that_was_left_alone(cluster: Any, eventually: Any) -> None:
    with cluster.client() as client:
        low = client.submit(JOB).id
        eventually("committed steps", lambda: client.trials(low)[0].step >= 100, within_s=120)

        urgent = client.submit(JOB | {"budget": {"steps": 20}, "priority": "urgent"}).id
        eventually("the pause", lambda: client.job(low).state in (JobState.PAUSING, JobState.QUEUED), within_s=60)
        assert f"paused for job `{urgent}` of priority urgent" in client.job(low).reason
        assert client.wait(urgent, timeout_s=240).state is JobState.SUCCEEDED
        assert client.trials(low)[0].outcome is None

        ended = client.wait(low, timeout_s=240)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2)
        alone = client.clone(low, {}).job
        assert alone is not None and client.wait(alone.id, timeout_s=240).state is JobState.SUCCEEDED

        urls = [str(client.trials(each)[0].weights_url) for each in (low, alone.id)]
        first, second = (Path(url.removeprefix("file://")).read_bytes() for url in urls)
        assert first == second
