"""The API reference at /docs: types, defaults and bounds of parameters, fields of bodies, links to models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.dashboard.test_page_answers import played
from tests.api.dashboard.test_page_modules import pytestmark as needs_node

pytestmark = needs_node

DOCUMENT = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())


def drawn(script: str) -> Any:
    """Return what `script` finds in the page that the document draws; `rows(id)` are those of a part of it."""
    return played(
        """
        globalThis.fetch = async () => Response.json(DOCUMENT);
        const toggles = new Map();
        Node.prototype.addEventListener = function (name, act) { toggles.set(this, act); };
        const page = document.createElement("main");
        page.setAttribute("id", "page");
        document.body.append(page);
        await import(REFERENCE);
        const within = (node, tag) =>
          node.childNodes.flatMap((each) => [...(each.nodeName === tag ? [each] : []), ...within(each, tag)]);
        const open = (body) => { body.open = true; toggles.get(body)(); };
        const rows = (body) => within(body, "TR").map((row) => row.childNodes.map((each) => each.textContent));
        """
        + script,
        DOCUMENT=DOCUMENT,
        REFERENCE=(Path(__file__).parents[3] / "api" / "dashboard" / "reference.js").as_uri(),
    )


def test_a_parameter_has_its_type_its_default_and_its_bounds() -> None:
    rows = drawn("""return rows(page.querySelector("#listJobs"));""")

    assert ["limit", "query", "integer", "50", "at least 1, at most 500", ""] in rows
    assert ["order_by", "query", "JobOrder", '"-created"'] in [row[:4] for row in rows]
    assert ["job", "path", "string", "required"] in [
        row[:4] for row in drawn("""return rows(page.querySelector("#getJob"));""")
    ]


def test_a_body_has_its_fields() -> None:
    rows = drawn("""return rows(page.querySelector("#createJob"));""")

    assert ["name", "string", '"unnamed"'] in [row[:3] for row in rows]
    assert ["budget", "Budget", "required"] in [row[:3] for row in rows]


def test_the_index_leads_to_each_call_and_each_model_that_is_named_has_its_fields() -> None:
    links, ids, missing = drawn(
        """
        for (const body of within(page, "DETAILS")) open(body);
        const links = [...new Set(within(page, "A").map((each) => each.getAttribute("href")))];
        const parts = ["SECTION", "DETAILS"].flatMap((tag) => within(page, tag));
        const ids = parts.map((each) => `#${each.getAttribute("id")}`);
        return [links, ids, within(page, "DETAILS").filter((each) => each.childNodes.length === 1).length];
        """
    )
    operations = {f"#{each['operationId']}" for methods in DOCUMENT["paths"].values() for each in methods.values()}

    assert operations <= set(links)
    assert set(links) - {"/openapi.json"} <= set(ids)
    assert {f"#model-{name}" for name in DOCUMENT["components"]["schemas"]} <= set(ids)
    assert missing == 0


@pytest.mark.parametrize("field", [["state", "JobState", "required"], ["spec", "JobSpec or UnreadJob", "required"]])
def test_a_model_tells_what_each_field_is(field: list[str]) -> None:
    rows = drawn("""const body = page.querySelector("#model-JobView"); open(body); return rows(body);""")

    assert field in [row[:3] for row in rows]
