"""A job on several machines, which fail one after the other: network namespaces at 100 Mbit, as root."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodes
import pytest
from races import network

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def needs_namespaces() -> None:
    try:
        network.check()
    except network.NoNetwork as error:
        pytest.skip(str(error))
    if shutil.which("redis-server") is None:
        pytest.skip("the head's knowledge needs redis-server")


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_a_job_goes_on_without_a_machine_takes_it_back_and_loses_no_step(num_nodes: int, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, nodes.__file__, "--nodes", str(num_nodes), "--rounds", "4", "--json", str(file)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False)

    rows = {row["kind"]: row for row in map(json.loads, file.read_text().splitlines())}
    assert (done.returncode, rows.get("failed")) == (0, None), done.stdout + done.stderr
    assert len(rows["start"]["workers"]) == num_nodes  # a rank on each
    assert rows["node"]["went_on_with"] == num_nodes - 1
    assert rows["api"]["same_attempt"]
    audit = rows["audit"]
    assert (audit["state"], audit["points_lost"], audit["points_doubled"]) == ("succeeded", 0, 0)
    assert set(audit["steps_by_workers"]) >= {str(num_nodes), str(num_nodes - 1)}


def test_a_shell_on_a_cluster_trains_a_job(tmp_path: Path) -> None:
    job = tmp_path / "two_nodes.yaml"
    job.write_text("{workload: {kind: digits-mlp}, workers: {count: 2}, exchange: {kind: auto}, budget: {steps: 60}}")
    command = [sys.executable, nodes.__file__, "--nodes", "2", "--shell"]
    typed = f"wiretune submit {job} && wiretune watch latest; exit $?"

    done = subprocess.run(
        command, input=typed, env=os.environ | {"SHELL": "/bin/sh"}, capture_output=True, text=True, timeout=1800
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "tuned: completed after 60 steps" in done.stdout
