"""The scripts of examples/attach, with and without the lines that attach, on two ranks of torchrun."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "attach"
#: By script, what it imports, and the package without which it does not run.
RECIPES = {
    "torch_ddp": ("torch.distributed", "torch"),
    "accelerate_loop": ("accelerate", "accelerate"),
    "fabric_loop": ("lightning.fabric", "lightning"),
    "lightning_module": ("lightning", "lightning"),
    "hf_trainer": ("wiretune.transformers", "transformers"),
}
TOPK = '{"kind": "topk", "density": 0.01}'
COMMON = "sklearn.datasets,trainers.attach"


def run(folder: Path, scripts: dict[str, str], *, imported: str) -> dict[str, list[str]]:
    """Return what each rank prints, by the name of the script."""
    for name, code in scripts.items():
        (folder / name).write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    driver = [str(Path(__file__).with_name("run_variants.py")), f"{imported},{COMMON}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *driver, *(str(folder / name) for name in scripts)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: [(folder / f"{name}.{rank}").read_text() for rank in range(2)] for name in scripts}


def losses(printed: list[str]) -> list[list[str]]:
    """Return the printed losses of each rank, and of its weights where a script prints them."""
    return [re.findall(r"(?:loss|weights) (\S+)", text) for text in printed]


@pytest.mark.parametrize("recipe", RECIPES)
def test_three_lines_attach_and_without_an_exchange_no_loss_changes(recipe: str, tmp_path: Path):
    imported, package = RECIPES[recipe]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[recipes]'")
    code = (EXAMPLES / f"{recipe}.py").read_text()
    added = [line for line in code.splitlines() if line.endswith("# wiretune")]
    plain = "".join(line for line in code.splitlines(keepends=True) if not line.endswith("# wiretune\n"))
    scripts = {"plain": plain, "dense": code.replace(TOPK, '{"kind": "none"}'), "sparse": code}

    printed = run(tmp_path, scripts, imported=imported)

    assert len(added) <= 3 and "wiretune." not in plain.split('"""')[2]
    assert len(losses(printed["plain"])[0]) > 5
    assert losses(printed["dense"]) == losses(printed["plain"])
    assert losses(printed["sparse"]) != losses(printed["plain"])


def test_a_bare_model_trains_by_local_updates(tmp_path: Path):
    code = (EXAMPLES / "torch_local_updates.py").read_text()

    printed = run(tmp_path, {"local": code}, imported="torch.distributed")["local"]

    (first,), (second,) = losses(printed)
    assert first == second and float(first.rstrip(",")) < 0.3
