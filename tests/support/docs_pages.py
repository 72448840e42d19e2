"""Runs a page of the documentation from top to bottom, and compares its output with the page."""

import contextlib
import io
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
#: A run of its own has other figures and other ids; everything else is as the page has it.
_VARYING = re.compile(r"job-[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")


class Block(NamedTuple):
    """A fenced block: its language, none for an output, and its text."""

    language: str
    text: str


def blocks(page: str, replaced: Mapping[str, str]) -> Iterator[Block]:
    """Yield the blocks of a page with its addresses `replaced` by those of a test."""
    content = (ROOT / "docs" / page).read_text()
    for before, after in replaced.items():
        assert before in content, before
        content = content.replace(before, after)
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", content, re.M | re.S):
        yield Block(language, text)


def run_console(page: str, folder: Path, replaced: Mapping[str, str]) -> None:
    """Run the page's commands in one shell; each prints what stands below it."""
    expected, script = [], ["set -o pipefail"]
    for block in blocks(page, replaced):
        if block.language == "yaml":
            (folder / "job.yaml").write_text(block.text)
        if block.language == "console":
            for command, output in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block.text, re.M):
                script += [command, "echo ==="]
                expected.append(output)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    printed = done.stdout.split("===\n")
    assert done.stderr == ""
    assert [_plain(each) for each in printed] == [_plain(each) for each in [*expected, ""]]


def run_python(page: str, replaced: Mapping[str, str]) -> None:
    """Run the page's Python; a block with an output below it prints that."""
    names: dict[str, Any] = {}
    printed = ""
    for block in blocks(page, replaced):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, page, "exec"), names)
            printed = output.getvalue()
        elif not block.language:
            assert _plain(printed) == _plain(block.text)
    names["client"].close()


def _plain(text: str) -> str:
    return " ".join(_VARYING.sub("N", text).split())
