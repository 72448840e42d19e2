"""The scripts of examples/attach, with and without the lines that attach, on two ranks of torchrun."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import crowd

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "attach"
#: By script, the package without which it does not run.
RECIPES = {
    "accelerate_loop": "accelerate",
    "fabric_loop": "lightning",
    "lightning_module": "lightning",
    "hf_trainer": "transformers",
}
POWERSGD = '{"kind": "powersgd", "rank": 4}'


def run(folder: Path, scripts: dict[str, str]) -> dict[str, list[str]]:
    """Return what each rank prints, by the name of the script; all run in the same two processes."""
    for name, code in scripts.items():
        (folder / name).write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    driver = str(Path(__file__).with_name("run_scripts.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, driver, *(str(folder / name) for name in scripts)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150 * crowd(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: [(folder / f"{name}.{rank}").read_text() for rank in range(2)] for name in scripts}


def losses(printed: list[str]) -> list[list[str]]:
    """Return the printed losses of each rank, and of its weights where a script prints them."""
    return [re.findall(r"(?:loss|weights) ([^\s,]+)", text) for text in printed]


def variants(recipe: str) -> dict[str, str]:
    """Return a script without the lines that attach, with a dense exchange, and as it is."""
    code = (EXAMPLES / f"{recipe}.py").read_text()
    plain = "".join(line for line in code.splitlines(keepends=True) if not line.endswith("# wiretune\n"))
    assert len(code.splitlines()) - len(plain.splitlines()) <= 3
    return {f"{recipe} plain": plain, f"{recipe} dense": code.replace(POWERSGD, '{"kind": "none"}'), recipe: code}


def assert_losses_change_with_the_exchange_alone(printed: dict[str, list[str]], recipe: str) -> None:
    plain = losses(printed[f"{recipe} plain"])

    assert len(plain[0]) > 5
    assert losses(printed[f"{recipe} dense"]) == plain
    assert losses(printed[recipe]) != plain


@pytest.fixture(scope="module")
def torch_scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    local = {"torch_local_updates": (EXAMPLES / "torch_local_updates.py").read_text()}
    return run(tmp_path_factory.mktemp("torch"), variants("torch_ddp") | local)


def test_three_lines_attach_to_plain_torch_and_without_an_exchange_no_loss_changes(torch_scripts: dict[str, list[str]]):
    assert_losses_change_with_the_exchange_alone(torch_scripts, "torch_ddp")


@pytest.mark.long  # `make test-long` installs these packages
@pytest.mark.parametrize("recipe", RECIPES)
def test_three_lines_attach_and_without_an_exchange_no_loss_changes(recipe: str, tmp_path: Path):
    if importlib.util.find_spec(RECIPES[recipe]) is None:
        pytest.skip(f"{RECIPES[recipe]} is not installed: pip install '.[recipes]'")

    printed: dict[str, list[str]] = {}
    for name, code in variants(recipe).items():  # trainers keep what they have set up: each script has its processes
        printed |= run(tmp_path, {name: code})

    assert_losses_change_with_the_exchange_alone(printed, recipe)


def test_a_bare_model_trains_by_local_updates(torch_scripts: dict[str, list[str]]):
    (first,), (second,) = losses(torch_scripts["torch_local_updates"])

    assert first == second and float(first) < 0.3


@pytest.mark.long  # hundreds of steps, twice
def test_three_lines_find_a_better_rate_than_a_guess_that_is_too_low(tmp_path: Path):
    tuned = variants("torch_tuned")
    del tuned["torch_tuned dense"]

    printed = run(tmp_path, tuned)

    (first,), (second,) = losses(printed["torch_tuned"])
    (guessed,), _ = losses(printed["torch_tuned plain"])

    assert first == second and float(first) < float(guessed) / 5
