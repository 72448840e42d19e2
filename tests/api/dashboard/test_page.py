"""The page as the service delivers it; its looks are not tested here."""

import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from api.http.routes.page import DASHBOARD, plotly_path, plotly_source, static_path
from service.job.priority import Priority
from service.job.states import ACTIVE, TERMINAL, JobState, Verb
from service.wire.access import Role

SCRIPTS = sorted(DASHBOARD.rglob("*.js"))


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_lets_no_foreign_and_no_inline_script_in(anonymous: TestClient, path: str) -> None:
    response = anonymous.get(path)
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert response.headers["x-content-type-options"] == "nosniff"
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", response.text, re.DOTALL)
    assert scripts and all("src=" in attributes and not body.strip() for attributes, body in scripts)
    assert not re.search(r"\son\w+=", response.text)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_everything_the_page_names_is_there(anonymous: TestClient, path: str) -> None:
    named = re.findall(r'(?:src|href|content)="(/[^"]*)"', anonymous.get(path).text)

    assert named
    assert {anonymous.get(each).status_code for each in named} == {200}


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_names_every_module_that_it_needs_and_a_browser_keeps_them(anonymous: TestClient, path: str) -> None:
    page = anonymous.get(path).text
    entry = re.findall(r'<script type="module" src="([^"]*)"', page)
    named = re.findall(r'<link rel="modulepreload" href="([^"]*)"', page)
    needed = list(entry)
    for each in needed:
        response = anonymous.get(each)
        assert "immutable" in response.headers["cache-control"]
        imported = re.findall(r'^import (?:[^"]* from )?"([^"]*)"', response.text, re.MULTILINE)
        needed += [one for one in dict.fromkeys(urljoin(each, name) for name in imported) if one not in needed]

    assert len(entry) == 1 and sorted(entry + named) == sorted(needed)


def test_other_content_of_the_pages_files_is_not_found(anonymous: TestClient) -> None:
    assert anonymous.get(f"{static_path()}/main.js").status_code == 200
    assert anonymous.get("/static/0123456789abcdef/main.js").status_code == 404
    # An address without the hash would be that of whatever release answers.
    assert not [script.name for script in SCRIPTS if "/static/" in script.read_text()]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_whose_modules_do_not_arrive_says_what_to_do(anonymous: TestClient, path: str) -> None:
    page = anonymous.get(path).text

    [said] = re.findall(r'<main id="page">(.*?)</main>', page)
    assert "load it again" in said and "connecting" not in page


def test_scripts_call_what_the_module_of_requests_exports() -> None:
    exported = set(
        re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", (DASHBOARD / "api.js").read_text(), re.M)
    )
    called = {name for script in SCRIPTS for name in re.findall(r"\bapi\.([\w.]+)\(", script.read_text())}

    assert called and called <= exported


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(DASHBOARD)))
def test_scripts_build_no_markup_out_of_text(script: Path) -> None:
    source = script.read_text()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", source)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(DASHBOARD)))
def test_scripts_import_what_exists(script: Path) -> None:
    for names, source in re.findall(r'import (?:\{([^}]*)\}|\* as \w+) from "(\.[\w./]+)"', script.read_text()):
        exported = (script.parent / source).read_text()
        for name in filter(None, (each.strip() for each in names.split(","))):
            assert re.search(rf"export (?:async )?(?:function|const|class) {name}\b", exported), (source, name)


def test_every_verb_is_explained_on_its_button() -> None:
    meanings = re.search(r"const MEANING = \{(.*?)\};", (DASHBOARD / "pages/job/controls.js").read_text(), re.DOTALL)

    assert meanings is not None
    assert re.findall(r"^  (\w+): ", meanings[1], re.MULTILINE) == [
        *Verb,
        *("clone", "edit", "archive", "unarchive", "delete"),
    ]


@pytest.mark.parametrize(
    ("script", "name", "known"),
    [
        ("pages/jobs/filters.js", "STATES", list(JobState)),
        ("states.js", "OVER", [state for state in JobState if state in TERMINAL]),
        ("states.js", "TRAINING", [state for state in JobState if state in ACTIVE - {JobState.STARTING}]),
        ("states.js", "PRIORITIES", list(Priority)),
        ("pages/keys.js", "ROLES", list(Role)),
    ],
)
def test_a_list_of_words_in_a_script_is_the_services(script: str, name: str, known: list[str]) -> None:
    found = re.search(rf"const {name} = ([\[{{])(.*?)[\]}}];", (DASHBOARD / script).read_text(), re.DOTALL)

    assert found is not None
    words = re.findall(r'"(\w+)"', found[2]) if found[1] == "[" else re.findall(r"^  (\w+): ", found[2], re.MULTILINE)
    assert words == known


def test_the_chart_library_is_the_one_of_the_installed_package() -> None:
    assert plotly_source()[:100].lstrip(b"/*\n ").startswith(b"plotly.js v4")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_chart_library_is_served_whole_and_for_ever(anonymous: TestClient, encoding: str) -> None:
    response = anonymous.get(plotly_path(), headers={"Accept-Encoding": encoding})

    assert response.content == plotly_source()
    assert response.headers.get("content-encoding", "identity") == encoding
    assert "immutable" in response.headers["cache-control"]
    if encoding == "gzip":
        assert int(response.headers["content-length"]) < 2_000_000


def test_another_content_of_the_chart_library_is_not_found(anonymous: TestClient) -> None:
    assert anonymous.get("/vendor/plotly-0123456789abcdef.js").status_code == 404


def test_static_files_are_asked_for_anew_and_sent_only_when_changed(anonymous: TestClient) -> None:
    first = anonymous.get("/static/main.js")
    again = anonymous.get("/static/main.js", headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == "no-cache"
    assert again.status_code == 304
