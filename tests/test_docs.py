"""The pages of docs/ hold together: links lead somewhere, and the index leads to every page."""

import json
import re
from pathlib import Path

import pytest
from make_site import nav, write_pages
from reference import KEPT, pages, text
from typer.testing import CliRunner

from api.cli.main import app
from api.cli.method_commands import reference
from service.catalog.methods import methods

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
EXAMPLES = ROOT / "examples" / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "benchmarks").glob("*.md")), EXAMPLES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    dead = [f"{target}#{anchor}" for target, anchor in _links(page) if not _leads_somewhere(target, anchor)]

    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_above_and_below_are_on_the_same_page(page: Path) -> None:
    assert not re.findall(r"\[[^\]]*\b(?:above|below)\]\([^#)][^)]*\)", page.read_text())


def test_the_index_leads_to_every_page() -> None:
    seen, left = set(), [ROOT / "docs" / "index.md"]
    while left:
        page = left.pop()
        if page in seen:
            continue
        seen.add(page)
        left += [target for target, _ in _links(page) if target in DOCS]

    assert not [str(page.relative_to(ROOT)) for page in DOCS if page not in seen]


def test_the_page_of_methods_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "methods.md").read_text() == "\n".join(reference(methods())) + "\n", "run `make docs`"


@pytest.mark.parametrize("kind", ["none", "powersgd"])
def test_the_tutorial_has_the_bytes_that_the_command_prints(kind: str) -> None:
    page = (ROOT / "docs" / "tutorial" / "link.md").read_text()
    shown = re.search(rf"^\$ wiretune methods {kind} .*\n(.*)$", page, re.M)
    said = CliRunner().invoke(app, ["methods", kind])

    assert shown and shown[1] in said.output.splitlines()


def test_the_page_of_examples_has_each_job_with_the_first_comment_of_its_file() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(jobs/\1\.yaml\) \| (.*) \|$", EXAMPLES.read_text(), re.M)

    assert sorted(rows) == [(path.stem, _about(path)) for path in sorted((ROOT / "examples" / "jobs").glob("*.yaml"))]


@pytest.mark.parametrize("name", KEPT)
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    made = pages(json.loads((ROOT / "docs" / "openapi.json").read_text()))[name]

    assert (ROOT / "docs" / "reference" / name).read_text() == text(made), "run `make docs`"


def test_the_page_of_rest_has_the_fields_of_every_body_and_the_words_of_every_enumeration() -> None:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    page = (ROOT / "docs" / "reference" / "rest.md").read_text()
    bodies = set(re.findall(r"^Body: \[(\w+)\]", page, re.M))

    assert {"JobSpec", "JobEdit", "SteerRequest", "NewKey", "QuotaLimits"} <= bodies
    assert "| `search_now` | boolean | `false` |" in page
    for name, model in document["components"]["schemas"].items():
        assert f"| {name} |" not in page  # a bare name says nothing
        words = page + (ROOT / "docs" / "reference" / "job.md").read_text()  # which has those of a job's own fields
        assert all(f"`{word}`" in words or f'`"{word}"`' in words for word in model.get("enum", ()))


def test_every_page_stands_once_on_the_map_of_the_site(tmp_path: Path) -> None:
    titles = write_pages(tmp_path / "pages")

    placed = re.findall(r"'([\w./-]+\.md)'", str(nav((ROOT / "docs" / "index.md").read_text(), titles)))

    assert sorted(placed) == sorted(titles)
    assert "Untitled" not in titles.values()


def test_a_new_page_needs_no_place_of_its_own() -> None:
    titles = {"README.md": "Wiretune", "docs/index.md": "Docs", "docs/new.md": "New", "docs/how.md": "How"}

    parts = nav("# Docs\n\n## How-to\n\n- [do it](how.md#first)\n", titles)

    assert parts[2:] == [{"How-to": [{"Do it": "docs/how.md"}]}, {"More": [{"New": "docs/new.md"}]}]


def _about(job: Path) -> str:
    """Return the first comment of a job's file, without the command that runs it."""
    comment = job.read_text().splitlines()[0].lstrip("# ")
    about = re.sub(r"wiretune run \S+", "", comment).strip().removeprefix("(").removesuffix(")")
    return about[:1].upper() + about[1:]


def _links(page: Path) -> list[tuple[Path, str]]:
    """Return the targets of the page's relative links, each with its anchor."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", prose)
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]


def _leads_somewhere(target: Path, anchor: str) -> bool:
    return target.exists() and (not anchor or anchor in _anchors(target.read_text()))


def _anchors(markdown: str) -> set[str]:
    """Return the anchors that GitHub makes of headings, and those that the page names itself."""
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', prose)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(named)
