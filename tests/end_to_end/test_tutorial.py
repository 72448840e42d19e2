"""The tutorial does what it says, typed from an empty folder against a service and a Ray of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
WIRETUNE = f"{sys.executable} -m api.cli.main"
#: A service in the background answers before the next command asks it.
UNTIL_IT_ANSWERS = "for try in $(seq 120); do wiretune me > /dev/null 2>&1 && break; sleep 1; done"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WIRETUNE_", "RAY_"))}
    environment = ours | {"WIRETUNE_STATE_DIR": str(tmp_path / "state"), "WIRETUNE_PORT": "0"}
    yield environment
    subprocess.run([*WIRETUNE.split(), "stop"], env=environment, check=False, timeout=60)


@pytest.mark.parametrize("page", ["laptop", "own_model", "link"])
def test_a_page_does_what_it_says(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial" / f"{page}.md").read_text()
    code = re.search(r"```(?:yaml|python)\n(.*?)```", text, re.S)
    name = re.search(r"[Ss]ave (?:this|the job) as `([\w.]+)`", text)
    assert code and name
    (tmp_path / name[1]).write_text(code[1])

    script = [f'wiretune() {{ {WIRETUNE} "$@"; }}', "set -e"]
    for command in re.findall(r"^\$ (.*)$", text, re.M):
        script += [command, UNTIL_IT_ANSWERS] if command.endswith("&") else [command]
    output = tmp_path / "output.txt"  # a pipe would stay open as long as the service in the background
    with output.open("w") as file:
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=800, check=False,
        )  # fmt: skip

    said = output.read_text()
    assert done.returncode == 0, said
    for line in re.findall(r"^  each of .*$", text, re.M):
        assert line in said
