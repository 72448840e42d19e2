"""The model in the README trains as printed, and so do the snippets of docs/own_model.md."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import OwnWorkload
from trainers.training.replica import Replica

ROOT = Path(__file__).parents[2]


def code_of(page: str, word: str = "class Tumours") -> str:
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S) if word in code]
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
    shown, measured = (body(code_of("docs/own_model.md", f"class {name}")) for name in ("Tumours", "Measured"))
    assert body(code_of("README.md")) == shown
    assert example == shown + measured


def test_the_page_measures_an_accuracy_and_a_number_of_every_step(tmp_path: Path):
    code = code_of("docs/own_model.md") + code_of("docs/own_model.md", "class Measured")
    (tmp_path / "measured.py").write_text(code)
    workload = OwnWorkload(factory="measured:Measured", path=str(tmp_path))
    replica = Replica(
        ReplicaConfig(workload=workload, optimizer=ScheduleFreeSgdConfig(), exchange=NoneConfig()), 0, 1, device="cpu"
    )

    certainty = replica.run(Segment(num_steps=100, learning_rate=0.5)).own["certainty"]

    assert replica.evaluate().metrics["accuracy"] > 0.9
    assert len(certainty) == 100 and 0.5 <= certainty[0] < certainty[-1] <= 1


def test_the_page_ranks_tumours_by_an_auc_of_the_whole_set(tmp_path: Path):
    (tmp_path / "ranked.py").write_text(code_of("docs/own_model.md") + code_of("docs/own_model.md", "class Ranked"))
    workload = OwnWorkload(factory="ranked:Ranked", path=str(tmp_path))
    replica = Replica(
        ReplicaConfig(workload=workload, optimizer=ScheduleFreeSgdConfig(), exchange=NoneConfig()), 0, 1, device="cpu"
    )

    replica.run(Segment(num_steps=50, learning_rate=0.5))

    assert 0.95 < replica.evaluate().metrics["auc"] <= 1


def test_the_stream_of_the_page_deals_its_rows_to_the_ranks_and_goes_on_from_any_step(tmp_path: Path):
    names = dict[str, Any]()
    exec(code_of("docs/own_model.md", "class Rows"), names)
    np.save(tmp_path / "rows.npy", np.arange(24.0).reshape(8, 3))
    stream = names["Rows"](tmp_path / "rows.npy", batch_size=2)

    def batches(start_step: int, rank: int) -> list[torch.Tensor]:
        opened = stream.batches(seed=3, start_step=start_step, rank=rank, num_workers=2)
        return [torch.cat(batch, dim=1) for batch in islice(opened, 4)]

    epoch = torch.cat([*batches(0, 0)[:2], *batches(0, 1)[:2]])
    assert sorted(epoch[:, 0].tolist()) == [*range(0, 24, 3)]
    assert all(torch.equal(*pair) for pair in zip(batches(0, 1)[2:], batches(2, 1)[:2], strict=True))


def test_the_weights_of_a_job_load_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "from_the_page.py").write_text(code_of("docs/own_model.md"))
    workload = OwnWorkload(factory="from_the_page:Tumours", params={"hidden": 512}, path=str(tmp_path))
    replica = Replica(
        ReplicaConfig(workload=workload, optimizer=ScheduleFreeSgdConfig(), exchange=NoneConfig()), 0, 1, device="cpu"
    )
    replica.export(f"{tmp_path}/weights.safetensors")
    names = dict[str, Any]()
    exec(code_of("docs/own_model.md"), names)
    monkeypatch.chdir(tmp_path)

    exec(code_of("docs/own_model.md", "load_file"), names)

    trained = replica.model.state_dict()
    assert all(torch.equal(each, trained[name]) for name, each in names["model"].state_dict().items())
