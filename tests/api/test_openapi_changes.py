"""docs/openapi.json matches the routes, and changes that break clients are found."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openapi_changes import breaking, main, written

from api.http.app import create_app
from service.control.store import Store

SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture
def present(store: Store) -> dict[str, Any]:
    return create_app(store).openapi()


def test_the_snapshot_is_the_document_of_the_routes_and_none_of_its_clients_is_broken(present: dict[str, Any]) -> None:
    kept = json.loads(SNAPSHOT.read_text())

    assert breaking(kept, present) == []
    assert SNAPSHOT.read_text() == written(present), "run `make docs`"


def test_the_document_is_built_once_however_many_applications_there_are(present: dict[str, Any], store: Store) -> None:
    assert create_app(store).openapi() is present


def document() -> dict[str, Any]:
    """A small service: one operation with everything that can change."""
    job = {
        "type": "object",
        "required": ["kind"],
        "additionalProperties": False,
        "properties": {
            "kind": {"const": "sgd", "type": "string"},
            "rate": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]},
            "words": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b"], "type": "string"}},
            "inner": {"$ref": "#/components/schemas/Job"},
        },
    }
    view = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "left": {"type": "integer"}}}
    operation = {
        "operationId": "make",
        "parameters": [{"name": "dry", "in": "query", "schema": {"type": "boolean"}}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [{"$ref": "#/components/schemas/Job"}, {"type": "string"}]}},
                "application/yaml": {"schema": {"$ref": "#/components/schemas/Job"}},
            },
        },
        "responses": {
            "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/View"}}}},
            "404": {"content": {"application/problem+json": {"schema": {"type": "object"}}}},
        },
    }
    other = {"operationId": "look", "responses": {"200": {"description": "well"}}}
    paths = {"/jobs": {"post": operation, "get": other}}
    return {"paths": paths, "components": {"schemas": {"Job": job, "View": view}}}


def _job(d: Any) -> Any:
    return d["components"]["schemas"]["Job"]


def _view(d: Any) -> Any:
    return d["components"]["schemas"]["View"]


def _post(d: Any) -> Any:
    return d["paths"]["/jobs"]["post"]


Change = Callable[[Any], Any]
BREAKING: list[tuple[str, Change]] = [
    ("GET /jobs is gone", lambda d: d["paths"]["/jobs"].pop("get")),
    ("POST /jobs: operation `make` is called `add`", lambda d: _post(d).update(operationId="add")),
    ("POST /jobs: status 404 is gone", lambda d: _post(d)["responses"].pop("404")),
    ("POST /jobs: query dry is gone", lambda d: _post(d)["parameters"].clear()),
    ("POST /jobs: query dry is required", lambda d: _post(d)["parameters"][0].update(required=True)),
    ("POST /jobs, query dry is boolean no more", lambda d: _post(d)["parameters"][0].update(schema={"type": "null"})),
    ("POST /jobs, body: application/yaml is not", lambda d: _post(d)["requestBody"]["content"].pop("application/yaml")),
    ("POST /jobs, body/rate is required", lambda d: _job(d)["required"].append("rate")),
    ("POST /jobs, body/rate is gone", lambda d: _job(d)["properties"].pop("rate")),
    ("POST /jobs, body/rate is null no more", lambda d: _job(d)["properties"]["rate"]["anyOf"].pop()),
    ("/rate has `minimum` 1", lambda d: _job(d)["properties"]["rate"]["anyOf"][0].update(minimum=1)),
    ("/words has `maxItems` 2", lambda d: _job(d)["properties"]["words"].update(maxItems=2)),
    ("/words/[] takes a alone", lambda d: _job(d)["properties"]["words"]["items"].update(enum=["a"])),
    ("/kind takes adam alone", lambda d: _job(d)["properties"]["kind"].update(const="adam")),
    ("/kind has `pattern` ^s", lambda d: _job(d)["properties"]["kind"].update(pattern="^s")),
    ("POST /jobs, 200/id is gone", lambda d: _view(d)["properties"].pop("id")),
    ("POST /jobs, 200/id may be left out", lambda d: _view(d)["required"].clear()),
    ("POST /jobs, 200/id is string no more", lambda d: _view(d)["properties"]["id"].update(type="integer")),
    (
        "POST /jobs, 200/left may be null",
        lambda d: _view(d)["properties"].update(left={"type": "null"}),
    ),
]
HARMLESS: list[Change] = [
    lambda d: d["paths"].update({"/new": d["paths"]["/jobs"]}),
    lambda d: _post(d)["parameters"].append({"name": "more", "in": "query", "schema": {"type": "string"}}),
    lambda d: _post(d)["responses"].update({"409": {"description": "no"}}),
    lambda d: _job(d)["properties"].update(more={"type": "string"}),
    lambda d: _job(d)["properties"]["words"].update(maxItems=4),
    lambda d: _job(d)["properties"]["words"]["items"]["enum"].append("c"),
    lambda d: _job(d)["properties"]["rate"]["anyOf"].append({"type": "string"}),
    lambda d: _job(d)["required"].clear(),
    lambda d: _view(d)["properties"].update(more={"type": "string"}),
    lambda d: _view(d)["required"].append("left"),
    lambda d: d["components"]["schemas"].update(Unused={"type": "object"}),
]  # fmt: skip


@pytest.mark.parametrize(("found", "change"), BREAKING, ids=[found for found, _ in BREAKING])
def test_a_change_that_breaks_clients_is_found_and_named(found: str, change: Change) -> None:
    changed = document()
    change(changed)

    assert any(found in each for each in breaking(document(), changed)), breaking(document(), changed)


@pytest.mark.parametrize("change", HARMLESS)
def test_a_change_that_only_adds_breaks_nobody(change: Change) -> None:
    changed = document()
    change(changed)

    assert breaking(document(), changed) == []


def test_a_snapshot_is_not_written_over_one_whose_clients_it_would_break(
    present: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = copy.deepcopy(present)
    kept["paths"]["/v1/gone"] = {"get": {"operationId": "gone", "responses": {}}}
    path = tmp_path / "openapi.json"
    path.write_text(written(kept))

    assert main(path, may_break=False) == 1
    assert "GET /v1/gone is gone" in capsys.readouterr().err
    assert json.loads(path.read_text()) == kept
    assert main(path, may_break=True) == 0
    assert json.loads(path.read_text()) == present
