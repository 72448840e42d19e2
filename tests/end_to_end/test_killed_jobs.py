"""Jobs of every method, model and exchange whose driver or trial is killed: each ends like the undisturbed one.

All run on one service. Where a job is written with a budget in seconds it gets one in steps, so that its result
is exact; the method stays as the file has it.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from faults.live import LiveService

from service.job.spec import JobSpec
from tests.end_to_end.killed_jobs import Moment, draw, outcome, run_and_kill, submit
from tests.support.example_jobs import EXAMPLES, STEPS, shortened

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1800)]

#: Given to every job: the link sets the pace.
PACED: dict[str, Any] = {
    "link": {"mode": "emulate", "mbps": 1000, "latency_ms": 10},
    "checkpoint": {"every_seconds": 1},
}

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "digits-mlp", "batch_size": 16},
    "conv net": {"kind": "mnist5k-cnn", "batch_size": 8},
    "transformer": {"kind": "stdlib-lm", "context": 32, "batch_size": 4},
}
EXCHANGES: dict[str, dict[str, Any]] = {
    "none": {"exchange": {"kind": "none"}, "controller": {"kind": "fixed"}},
    "threshold": {
        "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
        "controller": {"kind": "bo", "max_search_fraction": 0.3},
    },
    "powersgd": {"exchange": {"kind": "powersgd", "rank": 2}, "controller": {"kind": "cosine"}},
}
NUM_KILLS = 4
NUM_STEPS = 400
#: Kills are at steps below this: the rest may be trained before its steps are seen.
LAST_STEP = 240


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    # A slow machine is no silent driver; the death of one is seen otherwise.
    folder = tmp_path_factory.mktemp("service")
    service = LiveService(folder, num_cpus=8, max_attempts=2 + NUM_KILLS, lease_s=60, renew_s=5)
    yield service
    service.stop()


@pytest.fixture(scope="module")
def killed() -> Counter[str]:
    """Who was killed so far."""
    return Counter()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_that_is_killed_ends_like_the_undisturbed_one(service: LiveService, path: Path) -> None:
    spec = shortened(path, **PACED)

    _end_the_same(service, spec, draw(path.stem, 1, before=len(spec.arms) * STEPS[spec.workload.kind] // 2))


@pytest.mark.parametrize(("model", "exchange"), [*itertools.product(MODELS, EXCHANGES)])
def test_every_model_and_exchange_killed_at_four_random_moments_ends_like_the_undisturbed_one(
    service: LiveService, killed: Counter[str], capsys: pytest.CaptureFixture[str], model: str, exchange: str
) -> None:
    job = {"workload": MODELS[model], "budget": {"steps": NUM_STEPS, "bytes": 10**12}} | EXCHANGES[exchange] | PACED
    spec = JobSpec.model_validate(job)

    killed.update(_end_the_same(service, spec, draw(f"{model} {exchange}", NUM_KILLS, before=LAST_STEP)))

    with capsys.disabled():
        counts = ", ".join(f"{number} of the {kind}" for kind, number in sorted(killed.items()))
        print(f"\n{killed.total()} kills through the service ({counts}): none changed a point or a weight")


def _end_the_same(service: LiveService, job: JobSpec, moments: Sequence[Moment]) -> Counter[str]:
    """Run a job that is killed at `moments`, and another that is not; returns who was killed."""
    job_id, killed = run_and_kill(service, job, moments)
    with service.client() as client:
        alone = submit(client, job)  # beside the rest of the other
        found, expected = outcome(client, job_id), outcome(client, alone)
        probed = {stage.arm for stage in client.stages(job_id) if stage.search_steps}

    assert probed >= {trial.arm for trial in job.trials() if trial.searched}
    assert (found.attempts, expected.attempts) == (1 + len(moments), 1)
    assert found.points == expected.points
    assert found.weights == expected.weights
    assert found.schedules == expected.schedules
    return killed
