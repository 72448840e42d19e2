"""Jobs as text: YAML 1.2, no repeated fields, and every job in the documentation is valid."""

import re
from pathlib import Path

import pytest

from api.documents import checked, parse_json, parse_yaml
from service.errors import InvalidJob
from service.job.spec import JobSpec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: All YAML but what is meant for Kubernetes.
BLOCKS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)
    if not block.startswith("apiVersion:")
]
FILES = [(path.name, path.read_text()) for path in sorted((ROOT / "examples" / "jobs").glob("*.yaml"))]


@pytest.mark.parametrize(("name", "text"), BLOCKS + FILES)
def test_every_job_of_the_documentation_is_valid(name: str, text: str) -> None:
    assert checked(JobSpec, parse_yaml(text.encode()))


def test_the_documentation_shows_jobs() -> None:
    assert len(BLOCKS) >= 2 and len(FILES) >= 1


def test_words_and_numbers_are_those_of_yaml_1_2() -> None:
    assert parse_yaml(b"{on: yes, bytes: 1e9, rate: 1e-3, really: true}") == {
        "on": "yes",
        "bytes": 1e9,
        "rate": 1e-3,
        "really": True,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: 1\na: 2", "duplicate key"),
        (b"a: [\n", "line 2, column 1"),
        (b"", "got nothing"),
        (b"a:\n  b: 1\n  2: 3", r"a name must be text, got `2`: put it in quotes \(line 2, column 3\)"),
        (b"{on: 1, true: 2}", "a name must be text, got `True`"),
        (b"~: 1", "a name must be text, got `None`"),
        (b"workload: {params: {" + b"x" * 300 + b": 1}}", "a name has 300 characters; at most 200 are allowed"),
    ],
)
def test_unreadable_text_is_refused_with_its_place(text: bytes, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        checked(JobSpec, parse_yaml(text))


def test_a_field_that_json_gives_twice_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidJob, match="duplicate key `steps`"):
        parse_json(b'{"budget": {"steps": 10, "seconds": 1, "steps": 11}}')

    assert parse_json(b'{"a": {"b": 1}, "c": {"b": 2}}') == {"a": {"b": 1}, "c": {"b": 2}}
