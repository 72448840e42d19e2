"""Find the kinds that have a field which the chosen one lacks, from the JSON schema of the models."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from trainers.spec.knobs import Schema, allowed

#: Fields by which a job tells the members of a union apart.
WORDS = ("kind", "mode")
#: Objects of a job in which people choose the names: a `kind` or `mode` in one of them is a name like any other.
_FREELY_NAMED = (("labels",), ("workload", "params"), ("workload", "data"))


class TaggedFields(NamedTuple):
    """An object that is one of several kinds, and the fields that each can be given."""

    word: str  # that names the kind
    kind: str
    fields: Mapping[str, Mapping[str, Schema]]  # by kind, by name
    definitions: Mapping[str, Schema]


def is_freely_named(place: Sequence[str | int]) -> bool:
    """Return whether people choose the names in the object at `place` of a job, or of what holds one as `job`."""
    inside = tuple(place[1:] if place and place[0] == "job" else place)
    return any(inside[: len(each)] == each for each in _FREELY_NAMED)


def why_wrong_kind(model: type[BaseModel], body: Any, path: Sequence[str | int], given: Any) -> str | None:
    """Return why the field at `path` cannot be what is `given` there, and which other kinds of its object take it.

    None: the kind that `body` has there takes such a value too, or no kind does.
    """
    *place, name = path
    choice = _choice(model, body, place)
    if choice is None or not isinstance(name, str):
        return None
    is_object = isinstance(given, dict)
    kinds = [
        kind
        for kind, fields in choice.fields.items()
        if name in fields
        and any((each.get("type") == "object") is is_object for each in _alternatives(fields[name], choice.definitions))
    ]
    if not kinds or choice.kind in kinds:
        return None
    chosen = f"`{next(part for part in reversed(place) if isinstance(part, str))}.{choice.word}: {choice.kind}`"
    listed = ", ".join(f"`{kind}`" for kind in kinds)
    own = choice.fields[choice.kind].get(name)
    if own is None:
        return f"{chosen} has no `{name}`; {choice.word}s that have it: {listed}"
    told = f" ({own['description']})" if "description" in own else ""
    return (
        f"`{name}` of {chosen} must be {allowed(own, choice.definitions)}{told}; "
        f"{choice.word}s whose `{name}` is {'an' if is_object else 'no'} object: {listed}"
    )


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def fields_near(model: type[BaseModel], body: Any, place: Sequence[str | int]) -> dict[str, tuple[str, ...]]:
    """Return the fields of the object at `place`, each with those of the object that it may be."""
    offered, found = _offered(model, body, place)
    definitions = _schema(model).get("$defs", {})
    fields: dict[str, tuple[str, ...]] = {}
    for each in [one for one in offered if _suits(one, found)] or offered:
        for name, inner in each.get("properties", {}).items():
            objects = [one.get("properties", {}) for one in _alternatives(inner, definitions)]
            fields[name] = tuple(dict.fromkeys((*fields.get(name, ()), *(field for one in objects for field in one))))
    return fields


def _choice(model: type[BaseModel], body: Any, place: Sequence[str | int]) -> TaggedFields | None:
    """Return what the object at `place` was chosen among; None: there is nothing to choose."""
    offered, found = _offered(model, body, place)
    for word in WORDS:
        fields = {_names(each)[word]: each["properties"] for each in offered if word in _names(each)}
        for kind in fields:
            if isinstance(found, dict) and found.get(word) == kind:
                return TaggedFields(word, kind, fields, _schema(model).get("$defs", {}))
    return None


def _offered(model: type[BaseModel], body: Any, place: Sequence[str | int]) -> tuple[list[Schema], Any]:
    """Return the schemas of which the object at `place` may fit any, and that object."""
    schema = _schema(model)
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    offered = [schema]
    for part in place:
        inner = [
            each.get("items") if isinstance(part, int) else each.get("properties", {}).get(part)
            for each in offered
            if _suits(each, body)
        ]
        offered = [each for found in inner if found for each in _alternatives(found, definitions)]
        body = body[part]
    return offered, body


def _suits(schema: Schema, body: Any) -> bool:
    """Return whether `body` names the kind that the schema is of, if that has one."""
    named = body if isinstance(body, dict) else {}
    return all(named.get(word) == kind for word, kind in _names(schema).items())


def _alternatives(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the schemas of which a value may fit any, with references followed."""
    if "$ref" in schema:
        yield from _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif alternatives := schema.get("anyOf") or schema.get("oneOf"):
        for each in alternatives:
            yield from _alternatives(each, definitions)
    else:
        yield schema


def _names(schema: Schema) -> dict[str, str]:
    """Return the fields that have but one value, which names the kind."""
    return {name: each["const"] for name, each in schema.get("properties", {}).items() if "const" in each}
