"""The demonstration and an interrupted run, as a user types them: embedded service, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
WIRETUNE = [sys.executable, "-m", "api.cli.main"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WIRETUNE_", "RAY_"))}
    environment = ours | {"WIRETUNE_STATE_DIR": str(tmp_path / "state"), "WIRETUNE_PORT": "0"}
    yield environment
    subprocess.run([*WIRETUNE, "stop"], env=environment, check=False, timeout=60)  # a demo lingers
    assert not _processes_of(tmp_path)


def _processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that were started for `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            started_for = str(folder).encode() in (entry / "environ").read_bytes()
        except OSError:
            continue  # it has just ended
        if started_for:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def demo(environment: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "demo.json"
    done = subprocess.run(
        [*WIRETUNE, "demo", "--seconds", "16", "--json", str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text()) | {"output": done.stdout}


def test_the_demo_learns_a_schedule_that_beats_dense_training_on_a_slow_link(demo: dict[str, Any]) -> None:
    tuned, dense = demo["arms"]["tuned"], demo["arms"]["dense"]

    assert demo["validation"]["accuracy"] >= 0.93
    starts, lengths = zip(*((entry["step"], entry["num_steps"]) for entry in demo["schedule"]), strict=True)
    assert starts[0] == 0 and starts[1:] == tuple(accumulate(lengths))[:-1]
    assert len(starts) >= 2 and all(entry["reason"] for entry in demo["schedule"])
    assert demo["bytes_sent"] < demo["bytes_dense"]
    assert 0 < demo["seconds_search"] < demo["seconds_training"]
    assert tuned["validation"]["loss"] < dense["validation"]["loss"]
    assert dense["crossing"]["seconds"] < dense["crossing"]["other_seconds"]
    assert "http://127.0.0.1:" in demo["output"]


@pytest.mark.long
def test_an_interrupted_run_is_cancelled_and_leaves_no_process(
    environment: dict[str, str], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("workload: {kind: digits-mlp}\nbudget: {seconds: 3600}\n")
    log = tmp_path / "run.log"
    with log.open("wb") as out:
        run = subprocess.Popen([*WIRETUNE, "run", str(job)], env=environment, stdout=out, stderr=out)
    eventually("training", lambda: "is running" in log.read_text(), within_s=90)

    run.send_signal(signal.SIGINT)

    assert run.wait(90) == 130
    assert "cancelled" in log.read_text() and "stopped" in log.read_text()
    (kept,) = (tmp_path / "state" / "results").glob("*/attempt-1.log")  # Ray, which had it, is gone
    assert "cancelled" in kept.read_text()
    assert not _processes_of(tmp_path)
