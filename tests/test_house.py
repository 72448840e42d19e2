"""The house rules that a script can hold: no import circles, short sentences, docstrings that say what is done."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from search.types import FURTHER, Values
from trainers.segment import Segment
from trainers.spec.ranges import SEARCHABLE

ROOT = Path(__file__).parents[1]
PACKAGES = ("search", "trainers", "service", "api", "wiretune")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
#: The reference is written by the code, and has the words of its docstrings.
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
MADE = sorted((ROOT / "docs" / "reference").glob("*.md"))
#: Pages but the decisions, which are as they were written; and those that the code's own words make.
GUIDES = [page for page in PAGES if page.parent.name != "decisions"] + MADE
#: Words that have another one here, and that one; the glossary has the others.
PRONOUNS = {"he": "they", "his": "their", "him": "them", "himself": "themselves"}
OTHER_WORDS = {"meeting": "average", "meetings": "averages"} | PRONOUNS
#: A longer sentence is read twice; a page may have a few.
LONG_WORDS, LONG_SHARE = 30, 0.05
#: First words of a docstring that says what a thing is about, and not what it does.
NOT_A_SENTENCE = ("What", "Which", "Whether", "How", "Where")

#: Names that several public classes have. A new class takes another one.
SHARED_NAMES = {
    "Action", "AttachCallback", "Checkpointed", "Config", "Exported", "Layer", "Limits", "Measured",
    "Message", "OpenCommit", "Part", "Piece", "Place", "Point", "Probe", "Progress", "Run", "Selection",
    "Series", "Server", "Shares", "Stage", "Steps", "Value", "Workers", "Writer", "Written",
}  # fmt: skip


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports for type checkers alone count too: a reader follows them."""
    graph = {name: set(_imported(path)) & MODULES.keys() - {name} for name, path in MODULES.items()}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other: {' -> '.join(error.args[1])}")


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A reader who searches for a word lands in one place."""
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert {name for name, number in names.items() if number > 1} == SHARED_NAMES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_few_long_sentences(page: Path) -> None:
    for sentences in (list(_sentences(page.read_text())), list(_sentences_of_cells(page.read_text()))):
        long = [each for each in sentences if len(each.split()) > LONG_WORDS]

        assert len(long) <= max(1, LONG_SHARE * len(sentences)), "\n".join(long)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_one_word_for_each_idea(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)

    assert not {*re.findall(r"\b[a-z]+\b", prose)} & OTHER_WORDS.keys(), f"instead: {OTHER_WORDS}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_is_a_he_in_code(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}, instead: {PRONOUNS[word]}"
        for path in sorted(each for kind in ("*.py", "*.js") for each in (ROOT / package).rglob(kind))
        for word in re.findall(r"\b[a-z]+\b", path.read_text())
        if word in PRONOUNS
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_begins_with_a_sentence_or_a_noun(package: str) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {first}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, first in _first_lines(path)
        if first.split()[0] in NOT_A_SENTENCE
    ]

    assert not vague, "\n".join(vague)


def test_make_test_long_installs_every_package_without_which_a_test_is_skipped() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    recipe = subprocess.run(["make", "-n", "test-long"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    chosen = {extra for each in re.findall(r"'\.\[(.*?)\]'", recipe) for extra in each.split(",")}
    installed = {re.split(r"[<>=\[]", each)[0] for extra in chosen for each in extras[extra]}

    assert {*re.findall(r'importorskip\("(\w+)"', tests)} <= installed


def test_every_program_that_measures_is_in_the_list_of_benchmarks() -> None:
    listed = (ROOT / "benchmarks/README.md").read_text()
    programs = [path for path in (ROOT / "benchmarks").rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    names = [str(path.relative_to(ROOT / "benchmarks")) for path in programs]

    assert [name for name in sorted(names) if f"`{name}`" not in listed] == []


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield name if (name := f"{node.module}.{alias.name}") in MODULES else node.module


def _first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line of each docstring, with the line where what it describes begins."""
    for node in ast.walk(ast.parse(path.read_text())):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text.splitlines()[0]


def _prose(markdown: str) -> list[str]:
    """Return the lines of a page without code, and with the texts of links alone."""
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    prose = re.sub(r"`[^`]*`", "code", prose)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose).splitlines()


def _sentences_of_cells(markdown: str) -> Iterator[str]:
    """Yield the sentences of a page's tables; what a semicolon or a colon parts is read by itself there."""
    for line in _prose(markdown):
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip()):
                yield from (each for each in re.split(r"(?<=[.!?:;])\s+", cell.strip()) if each)


def _sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a page's prose outside of tables."""
    lines = [line for line in _prose(markdown) if not line.lstrip().startswith(("|", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", "\n".join(lines)):
        yield from (each for each in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())) if each)


def test_a_controller_sets_what_a_segment_takes() -> None:
    """`search` and `trainers` know nothing of each other, so each declares the searched values, once."""
    assert set(FURTHER) == {*SEARCHABLE, "option", "optimizer"}
    assert {*Values.model_fields} <= {*Segment.model_fields, "optimizer"}  # which workers are built with
