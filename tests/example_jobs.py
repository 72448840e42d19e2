"""The jobs of examples/jobs, each with a budget in steps that takes seconds: an exact result, by the same method."""

from pathlib import Path
from typing import Any

import pytest

from api.documents import checked, parse_yaml
from service.spec import JobSpec
from trainers.config import AutoConfig
from trainers.workload import WorkloadError
from trainers.workloads import table

EXAMPLES = sorted((Path(__file__).parents[1] / "examples" / "jobs").glob("*.yaml"))
#: Enough that a method does what it does now and then.
STEPS = {"digits-mlp": 400, "mnist5k-cnn": 200, "fashion-conv": 80, "stdlib-lm": 80}
#: Counted in steps all exchanges cost the same, and none would compete; in bytes the result is exact too. Other arms
#: would take one step for them, or thousands.
COMPETING: dict[str, Any] = {"budget": {"bytes": 2_000_000}, "arms": [{"name": "auto"}]}


def shortened(path: Path, **changes: Any) -> JobSpec:
    """Return the example at `path` with these fields changed too; skips the test if this machine lacks its data."""
    spec = checked(JobSpec, parse_yaml(path.read_bytes()))
    try:
        table.build(spec.workload)
    except WorkloadError as error:
        pytest.skip(str(error))
    is_auto = isinstance(spec.exchange, AutoConfig)
    shorter = COMPETING if is_auto else {"budget": {"steps": STEPS[spec.workload.kind]}}
    return JobSpec.model_validate(spec.model_dump(mode="json") | shorter | changes)
