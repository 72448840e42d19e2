"""The model in the README trains as it stands there."""

import re
from pathlib import Path

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.segment import Segment
from trainers.spec.replica import ReplicaConfig
from trainers.spec.workloads import OwnWorkload
from trainers.training.replica import Replica

ROOT = Path(__file__).parents[2]


def code_of(page: str) -> str:
    (block,) = [
        code for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S) if "class " in code
    ]
    return block


def test_the_own_model_of_the_readme_learns(tmp_path: Path):
    code = code_of("README.md")
    (tmp_path / "from_the_readme.py").write_text(code)
    workload = OwnWorkload(factory="from_the_readme:Tumours", params={"hidden": 64}, path=str(tmp_path))
    replica = Replica(
        ReplicaConfig(workload=workload, optimizer=ScheduleFreeSgdConfig(), exchange=NoneConfig()), 0, 1, device="cpu"
    )
    before = replica.evaluate().loss

    replica.run(Segment(num_steps=100, learning_rate=0.5))

    assert replica.evaluate().loss < before / 3
    assert len(code.strip().splitlines()) <= 20


def test_the_pages_and_the_example_show_one_model():
    def body(code: str) -> list[str]:
        lines = [line.split("  #")[0].rstrip() for line in code.splitlines() if not line.startswith("#")]
        return [line for line in lines if line]

    example = body((ROOT / "examples/own_model/tumours.py").read_text())
    assert body(code_of("README.md")) == body(code_of("docs/own_model.md")) == example
