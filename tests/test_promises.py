"""docs/promises.md names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| (P\d+) \|.*$", (ROOT / "docs/promises.md").read_text(), flags=re.MULTILINE)
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs/promises.md").read_text())


def test_every_promise_has_a_row() -> None:
    assert [f"P{number}" for number in range(1, 24)] == ROWS
    assert len(NAMED) >= len(ROWS)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_a_promise_names_is_there(path: str, name: str) -> None:
    assert f"\ndef {name}(" in (ROOT / path).read_text()
