"""Every command and snippet of the pages is run by a test, or stands below with the reason why it is not."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import typer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiretune
from api.cli.main import app
from search.types import Candidate, Observation, Spent

ROOT = Path(__file__).parents[1]
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]
PAGES = [ROOT / "README.md", *WRITTEN]
#: Pages whose commands or snippets a test runs, and the test.
RUN = {
    ("docs/rest.md", "console"): "tests/api/test_newcomers_docs.py::test_the_page_for_curl_does_what_it_says",
    ("docs/python.md", "python"): "tests/api/test_newcomers_docs.py::test_the_page_for_python_does_what_it_says",
    ("docs/faq.md", "console"): "tests/api/test_newcomers_docs.py::test_the_commands_of_the_failures_find_out",
    ("docs/own_model.md", "python"): "tests/trainers/test_readme.py::test_the_pages_and_the_example_show_one_model",
    ("docs/own_method.md", "python"): "tests/test_snippets.py::test_the_compressor_of_the_page_is_that_of_the_tests",
    ("docs/tutorial/laptop.md", "console"): "tests/end_to_end/test_tutorial.py::test_a_page_does_what_it_says",
    ("docs/tutorial/own_model.md", "console"): "tests/end_to_end/test_tutorial.py::test_a_page_does_what_it_says",
    ("docs/tutorial/own_model.md", "python"): "tests/end_to_end/test_tutorial.py::test_a_page_does_what_it_says",
    ("docs/tutorial/link.md", "console"): "tests/end_to_end/test_tutorial.py::test_a_page_does_what_it_says",
    ("docs/install.md", "console"): "tests/end_to_end/test_wheel.py::test_the_wheel_runs_a_job_without_a_checkout",
    ("README.md", "python"): "tests/test_snippets.py::test_the_loop_of_the_readme_is_a_script_that_runs",
}
#: Snippets of a loop of one's own, which run here as they stand.
LOOPS = tuple(
    f"docs/{page}.md" for page in ("own_loop", "tuner", "schedule", "controller_library", "fsdp", "exchange", "library")
)
#: What `torchrun` tells a single rank.
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
#: How commands and snippets begin that no test runs, and why.
NOT_RUN = {
    r"wiretune (run|serve|export|methods)": "README: the tutorial's test runs each",
    r"wiretune (submit|watch|show)": "need a service; tests/api/cli/test_cli.py runs each",
    r"wiretune advise": "tests/api/test_predict.py runs it with a job of its own",
    r"wiretune replay": "needs a service; tests/cluster/test_replay.py trains the job that it makes",
    r"schedule = wiretune.Schedule": "tests/search/test_replay_example.py runs it with a file",
    r"python examples/": "tests/search/test_replay_example.py runs the script",
    r"key=\$\(cat|curl": "docs/rest.md runs each kind of call; here ids are placeholders, or the answer never ends",
    r"wiretune submit job.*--url": "needs a service elsewhere; tests/api/test_code.py uploads code",
    r"zip -qr": "needs a service at the key's project; tests/api/test_code.py uploads a zip",
    r"wiretune (init|check|run)\b.*(tumours|job\.yaml)": "the tutorial's test runs them with another model",
    r"wiretune explain JOB --arm": "tests/api/cli/test_explain.py; what it prints there is of a recorded job",
    r"ray start|export WIRETUNE|wiretune (doctor --ray|queue|serve|watch latest)": "needs two machines; "
    "tests/end_to_end/test_cluster.py runs the service against a Ray cluster of its own",
    r"mkdir -p ~/.wiretune|export RAY_AUTH": "needs several machines; benchmarks/nodes.py makes a token and uses it so",
    r"from wiretune.(transformers|lightning)": "tests/distributed/test_attach_examples.py runs it, if installed",
    r"from wiretune.accelerate": "tests/distributed/test_attach_accelerate.py runs it, if installed",
    r"with Client|for event in|from wiretune import Client": "tests/api/test_client.py makes each call",
    r"key = base64": "tests/service/test_webhooks.py checks signatures",
    r"mesh = init": "needs eight GPUs; tests/distributed/test_fsdp.py runs it with gloo",
    r"tuner = wiretune.attach\(\n": "an hour; tests/wiretune/test_tuner.py searches the same values",
    r"sudo .*nodes.py --nodes 2": "as root; tests/cluster/test_nodes.py::test_a_shell_on_a_cluster_trains_a_job",
    r"make wheel": "tests/end_to_end/test_wheel.py builds it as the Makefile does",
    r"wiretune methods (dgc|accordion)": "tests/api/test_methods.py; the output here is cut",
}


class Snippet(NamedTuple):
    """A command of a page's console, or a block of its Python."""

    page: str
    language: str
    text: str


def _snippets() -> Iterator[Snippet]:
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        for language, text in re.findall(r"^```(console|python)\n(.*?)^```", path.read_text(), re.M | re.S):
            if language == "python":
                yield Snippet(page, language, text)
            else:
                commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.M)
                yield from (Snippet(page, language, command) for command in commands)


SNIPPETS = list(_snippets())


def test_every_command_and_snippet_is_run_or_has_a_reason() -> None:
    left = [
        snippet
        for snippet in SNIPPETS
        if (snippet.page, snippet.language) not in RUN
        and not (snippet.language == "python" and snippet.page in LOOPS)
        and not any(re.match(beginning, snippet.text) for beginning in NOT_RUN)
    ]

    assert not left, "\n".join(f"{page}: {text}" for page, _, text in left)


@pytest.mark.parametrize("beginning", NOT_RUN)
def test_a_reason_is_still_needed(beginning: str) -> None:
    assert any(re.match(beginning, snippet.text) for snippet in SNIPPETS)


@pytest.mark.parametrize("test", sorted(set(RUN.values())))
def test_the_tests_that_run_pages_are_there(test: str) -> None:
    path, _, name = test.partition("::")

    assert f"def {name}(" in (ROOT / path).read_text()


COMMANDS = sorted({line for each in SNIPPETS if (line := each.text).startswith("wiretune ")})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_the_options_that_a_page_gives_it(line: str) -> None:
    words = shlex.split(re.split(r" [|&>]", line)[0], comments=True)[1:]

    _parse(typer.main.get_command(app), words)


def _parse(command: Any, words: list[str]) -> None:
    """Parse the words as the program does, without doing anything."""
    try:
        context = command.make_context("wiretune", list(words))
    except typer.Exit:  # --version ends the program
        return
    if hasattr(command, "resolve_command"):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        _parse(inner, rest)


@pytest.mark.parametrize("snippet", [each for each in SNIPPETS if each.language == "python" and each.page in LOOPS])
def test_a_snippet_runs_as_it_stands(
    snippet: Snippet, surroundings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if any(re.match(beginning, snippet.text) for beginning in NOT_RUN):
        pytest.skip("has a reason above")
    monkeypatch.chdir(tmp_path)  # where it may write
    if "init_process_group" in snippet.text:  # it makes its own group, as under `torchrun`
        dist.destroy_process_group()
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)

    exec(compile(snippet.text, snippet.page, "exec"), surroundings)


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Names that pages leave to their readers: a model, its data, an optimizer, a group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    net = nn.Linear(8, 3)
    model = DistributedDataParallel(net)
    yield {
        "__name__": "snippet",
        "DistributedDataParallel": DistributedDataParallel,
        "loader": [(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])) for _ in range(20)],
        "loss": 1.0,
        "model": model,
        "net": net,
        "nn": nn,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "torch": torch,
        "train_from_snapshot": _observation,
        "keep_a_copy": lambda: None,
        "go_back_to_the_copy": lambda: None,
        "train_step": lambda rate: 1.0 / (1.0 + rate),
        "wiretune": wiretune,
    }
    dist.destroy_process_group()


def _observation(candidate: Candidate) -> Observation:
    losses = tuple(1.0 - 0.01 * candidate.values.learning_rate * step for step in range(7))
    spent = Spent(steps=7, seconds=0.7, bytes=0)
    return Observation(
        candidate_id=candidate.id, losses=losses, step_seconds=(0.1,) * 7, bytes_sent=0, density=None, spent=spent
    )


def test_the_loop_of_the_readme_is_a_script_that_runs() -> None:
    """`tests/distributed/test_attach_examples.py` runs it; the other snippet is a model (`test_readme.py`)."""
    _, _, code = (ROOT / "examples/attach/torch_ddp.py").read_text().split('"""', 2)

    assert f"```python\n{code.strip()}\n```" in (ROOT / "README.md").read_text()


def test_the_compressor_of_the_page_is_that_of_the_tests() -> None:
    page = (ROOT / "docs/own_method.md").read_text()
    found = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page, re.S)

    assert {path for path, _ in found} == {"every_kth/spec.py", "every_kth/exchange.py"}
    for path, code in found:
        assert code.strip() in (ROOT / "tests/distributed/every_kth" / path).read_text()


def test_the_package_of_the_page_has_the_entry_point_of_the_tests(tmp_path: Path) -> None:
    """Its build says what an installation would have."""
    found = re.search(r"```toml\n# pyproject.toml\n(.*?)```", (ROOT / "docs/own_method.md").read_text(), re.S)
    package = ROOT / "tests/distributed/every_kth"
    assert found
    (tmp_path / "pyproject.toml").write_text(found[1])
    shutil.copytree(package / "every_kth", tmp_path / "every_kth")

    program = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)

    made = tmp_path / done.stdout.splitlines()[-1]
    assert (made / "entry_points.txt").read_text() == (package / f"{made.name}/entry_points.txt").read_text()
    assert (made / "top_level.txt").read_text() == "every_kth\n"
