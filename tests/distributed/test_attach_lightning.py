"""The Lightning callback with the real package, on two ranks: a resumed run, and one model in validation."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import crowd

ROOT = Path(__file__).parents[2]
KINDS = ("topk", "local_sgd", "cser")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    """Return what each rank has found of each of `KINDS`."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed: pip install '.[recipes]'")
    folder = tmp_path_factory.mktemp("lightning")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("lightning_scenario.py")), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150 * crowd(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


pytestmark = pytest.mark.long  # `make test-long` installs this package


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_from_a_checkpoint_goes_on_as_if_it_had_not_stopped(ranks: list[dict[str, dict[str, object]]], kind: str):
    for rank in ranks:
        assert rank[kind]["resumed"] == rank[kind]["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_validate_and_end_with_one_model(ranks: list[dict[str, dict[str, object]]], kind: str):
    first, second = (rank[kind] for rank in ranks)

    assert first["validated"] == second["validated"]
    assert first["whole"] == second["whole"]


def test_no_part_outlives_its_checkpoint(ranks: list[dict[str, dict[str, object]]]):
    for kind in KINDS:
        assert ranks[0][kind]["files"] == ["epoch=3.ckpt", "epoch=3.wiretune-0.pt", "epoch=3.wiretune-1.pt"]
