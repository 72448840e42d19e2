"""The jobs of examples/jobs with budgets of a few seconds in steps, so that results are exact."""

from pathlib import Path
from typing import Any

import pytest

from api.documents import checked, parse_yaml
from search.config import WideConfig
from service.job.spec import JobSpec
from trainers.methods.exchange.auto.spec import AutoConfig
from trainers.workload import WorkloadError
from trainers.workloads import registry

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "jobs").glob("*.yaml"))
#: Enough that a method does what it does now and then.
STEPS = {
    "digits-mlp": 400,
    "mnist5k-cnn": 200,
    "fashion-conv": 80,
    "stdlib-lm": 80,
    "flights-embedding": 80,
    "minilm-lora": 40,
}
#: Counted in steps all exchanges cost the same, and none would compete; in bytes the result is exact too. Other arms
#: would take one step for them, or thousands.
COMPETING: dict[str, Any] = {"budget": {"bytes": 2_000_000}, "arms": [{"name": "auto"}]}


#: Of the steps, what probes may take, and a probe at least: six of them fit, and a search needs five.
SEARCHED, PROBED = 0.3, 0.05
#: A cap that no run reaches; a level is searched only where a budget counts what a step sends.
MANY_BYTES = 10**12


def shortened(path: Path, **changes: Any) -> JobSpec:
    """Return the example at `path` with these fields changed too; skips the test if this machine lacks its data.

    Of an arm that searches more than the learning rate there are probes, for which the default leaves too few steps.
    """
    spec = checked(JobSpec, parse_yaml(path.read_bytes()))
    try:
        registry.build(spec.workload)
    except WorkloadError as error:
        pytest.skip(str(error))
    is_auto = isinstance(spec.exchange, AutoConfig)
    shorter = COMPETING if is_auto else {"budget": {"steps": STEPS[spec.workload.kind], "bytes": MANY_BYTES}}
    job = JobSpec.model_validate(spec.model_dump(mode="json") | shorter | changes)
    return _with_probes(job) if any(trial.searched for trial in job.trials()) else job


def _with_probes(job: JobSpec) -> JobSpec:
    assert job.budget.steps is not None
    room = {"max_search_fraction": SEARCHED, "min_probe_steps": max(4, round(PROBED * job.budget.steps))}
    room |= {"coarse_probe_steps": 2} if isinstance(job.controller, WideConfig) else {}
    return job.model_copy(update={"controller": job.controller.model_copy(update=room)})
