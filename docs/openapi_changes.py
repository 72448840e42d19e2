"""The stored OpenAPI document, and a check for changes that break clients.

`python docs/openapi_changes.py docs/openapi.json` writes the document of the current routes. If that would break
clients, it lists the changes and writes nothing, unless `--breaking` follows.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.http.app import create_app
from service.control.store import Store
from service.settings import Settings

Json = Mapping[str, Any]
#: Keywords of a schema that accept less when they grow, and those that accept less when they shrink.
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_PYTHON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def current() -> dict[str, Any]:
    """Return the document of the current routes."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Settings(state_dir=Path(folder), database_url=""))
        try:
            return create_app(store).openapi()
        finally:
            store.close()


def written(document: Json) -> str:
    """Return the text of `document` as the repository stores it."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def breaking(before: Json, after: Json) -> list[str]:
    """Return the changes from `before` to `after` that break clients.

    A new operation, an optional parameter or request field, or a new field or word in an answer breaks nobody.
    """
    return list(_Comparison(before, after).operations())


class _Comparison:
    """Compares two documents. A `place` is where in an operation a change was found."""

    def __init__(self, before: Json, after: Json) -> None:
        self._before, self._after = before, after
        self._known: dict[tuple[str, str, bool], list[str]] = {}  # by pair of named schemas

    def operations(self) -> Iterator[str]:
        for path, methods in self._before["paths"].items():
            for method, old in methods.items():
                place, new = f"{method.upper()} {path}", self._after["paths"].get(path, {}).get(method)
                if new is None:
                    yield f"{place} is gone"
                    continue
                if old["operationId"] != new["operationId"]:
                    yield f"{place}: operation `{old['operationId']}` is called `{new['operationId']}`"
                yield from self._parameters(place, old, new)
                yield from self._body(f"{place}, body", old.get("requestBody"), new.get("requestBody"))
                yield from self._answers(place, old["responses"], new["responses"])

    def _parameters(self, place: str, old: Json, new: Json) -> Iterator[str]:
        olds, news = ({each["in"] + " " + each["name"]: each for each in op.get("parameters", ())} for op in (old, new))
        for name, parameter in news.items():
            if parameter.get("required") and not olds.get(name, {}).get("required"):
                yield f"{place}: {name} is required"
        for name, parameter in olds.items():
            if name not in news:
                yield f"{place}: {name} is gone"
            else:
                yield from self._schemas(f"{place}, {name}", parameter["schema"], news[name]["schema"], asked=True)

    def _body(self, place: str, old: Json | None, new: Json | None) -> Iterator[str]:
        if new is not None and new.get("required") and not (old or {}).get("required"):
            yield f"{place} is required"
        for kind, content in (old or {}).get("content", {}).items():
            if new is None or kind not in new["content"]:
                yield f"{place}: {kind} is not taken any more"
            else:
                yield from self._schemas(place, content["schema"], new["content"][kind]["schema"], asked=True)

    def _answers(self, place: str, old: Json, new: Json) -> Iterator[str]:
        for status, answer in old.items():
            if status not in new:
                yield f"{place}: status {status} is gone"
                continue
            for kind, content in answer.get("content", {}).items():
                if kind not in new[status].get("content", {}):
                    yield f"{place}, {status}: {kind} is not answered any more"
                elif "schema" in content:
                    there = new[status]["content"][kind].get("schema", {})
                    yield from self._schemas(f"{place}, {status}", content["schema"], there, asked=False)

    def _schemas(self, place: str, old: Json, new: Json, *, asked: bool) -> Iterator[str]:
        yield from (f"{place}{found}" for found in self._lost(old, new, asked=asked))

    def _lost(self, old: Json, new: Json, *, asked: bool) -> list[str]:
        """Return what `new` lacks of `old`: for a request (`asked`) accepted values, for an answer returned ones."""
        pair = (old.get("$ref", ""), new.get("$ref", ""), asked)
        if not all(pair[:2]):
            return list(self._lost_unions(old, new, asked=asked))
        if pair not in self._known:
            self._known[pair] = []  # stops the recursion of a schema that contains itself
            self._known[pair] = list(self._lost_unions(old, new, asked=asked))
        return self._known[pair]

    def _lost_unions(self, old: Json, new: Json, *, asked: bool) -> Iterator[str]:
        olds, news = _members(old, self._before), _members(new, self._after)
        types = [{kind for each in members for kind in _types(each)} for members in (olds, news)]
        if not asked and (more := types[1] - types[0]):
            yield f" may be {' or '.join(sorted(more))}"
        for member in olds:
            least: list[str] | None = None
            for each in news:  # compare with the member that loses least
                found = list(self._lost_members(member, each, asked=asked))
                least = found if least is None or len(found) < len(least) else least
                if not least:
                    break
            yield from least or ()

    def _lost_members(self, old: Json, new: Json, *, asked: bool) -> Iterator[str]:
        if gone := _types(old) - _types(new):
            yield f" is {' or '.join(sorted(gone))} no more"
            return
        if asked:
            yield from _narrowed(old, new)
        yield from self._lost_fields(old, new, asked=asked)
        for keyword, shown in (("items", "[]"), ("additionalProperties", "{}")):
            if isinstance(old.get(keyword), dict) and isinstance(new.get(keyword), dict):
                found = self._lost(old[keyword], new[keyword], asked=asked)
                yield from (f"/{shown}{each}" for each in found)

    def _lost_fields(self, old: Json, new: Json, *, asked: bool) -> Iterator[str]:
        olds, news = old.get("properties", {}), new.get("properties", {})
        first, second = (set(each.get("required", ())) for each in (old, new))
        if asked:
            yield from (f"/{name} is required" for name in sorted(second - first))
        else:
            yield from (f"/{name} may be left out" for name in sorted((first - second) & news.keys()))
        for name, schema in olds.items():
            if name in news:
                yield from (f"/{name}{found}" for found in self._lost(schema, news[name], asked=asked))
            elif not asked or new.get("additionalProperties") is False:
                yield f"/{name} is gone"


def _members(schema: Json, document: Json) -> list[Json]:
    """Return the members of a union without references; most schemas are their own only member."""
    if "$ref" in schema:
        return _members(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    union = schema.get("anyOf") or schema.get("oneOf")
    return [member for each in union for member in _members(each, document)] if union else [schema]


def _types(schema: Json) -> set[str]:
    """Return the JSON types that the schema allows; a number may be an integer."""
    words = [schema["const"]] if "const" in schema else schema.get("enum", ())
    kinds = {schema["type"]} if "type" in schema else {_PYTHON_TYPES[type(word)] for word in words}
    every = {"string", "boolean", "integer", "number", "null", "array", "object"}
    return (kinds | ({"integer"} if "number" in kinds else set())) or every


def _narrowed(old: Json, new: Json) -> Iterator[str]:
    """Yield the keywords by which `new` accepts less than `old`."""
    words = [[each["const"]] if "const" in each else each.get("enum") for each in (old, new)]
    if words[1] is not None and (words[0] is None or not {*words[0]} <= {*words[1]}):
        yield f" takes {', '.join(map(str, words[1]))} alone"
    for keyword in _LEAST:
        if new.get(keyword, float("-inf")) > old.get(keyword, float("-inf")):
            yield f" has `{keyword}` {new[keyword]}"
    for keyword in _MOST:
        if new.get(keyword, float("inf")) < old.get(keyword, float("inf")):
            yield f" has `{keyword}` {new[keyword]}"
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield f" has `pattern` {new['pattern']}"
    if new.get("additionalProperties") is False and old.get("additionalProperties", True) is not False:
        yield " takes no other fields"


def main(path: Path, *, may_break: bool) -> int:
    """Write the current document to `path` and return the exit status; see the module."""
    document = current()
    found = breaking(json.loads(path.read_text()), document) if path.exists() else []
    if found and not may_break:
        print("This breaks clients; nothing is written (`--breaking` writes it):", *found, sep="\n", file=sys.stderr)
        return 1
    path.write_text(written(document))
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python docs/openapi_changes.py FILE [--breaking]")
    sys.exit(main(Path(sys.argv[1]), may_break="--breaking" in sys.argv[2:]))
