"""The wheel and its constraints suffice for an installation, without a checkout or this environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]


def test_the_wheel_runs_a_job_without_a_checkout(tmp_path: Path) -> None:
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    _run([sys.executable, "-m", "venv", tmp_path / "fresh"], tmp_path)
    pip = [tmp_path / "fresh/bin/python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]

    _run([*pip, "torch==2.13.0"], tmp_path)
    _run([*pip, wheel], tmp_path)

    wiretune = tmp_path / "fresh/bin/wiretune"
    assert "Start" in _run([wiretune, "--help"], tmp_path)
    assert "powersgd" in _run([wiretune, "methods"], tmp_path)
    try:
        assert "tuned: completed" in _run([wiretune, "demo", "--seconds", "8"], tmp_path)
    finally:
        _run([wiretune, "stop"], tmp_path)


def _run(command: list[object], folder: Path) -> str:
    """Run the command away from the checkout, and return what it prints."""
    kept = ("PATH", "HOME", "LANG", "PIP_", "HTTP", "http", "SSL_", "no_proxy", "NO_PROXY")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environment |= {"WIRETUNE_STATE_DIR": str(folder / "state"), "WIRETUNE_PORT": "0"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
