"""The knobs of a configuration, as its pydantic model declares them: names, defaults, and what is allowed, in words."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Schema = Mapping[str, Any]


class Knob(BaseModel):
    """One field of a configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    default: Any = Field(None, description="null where there is none")
    is_required: bool
    allowed: str = Field(description="in words; a pair [low, high] in place of a number is searched")
    description: str


@cache
def knobs_of(config: type[BaseModel]) -> tuple[Knob, ...]:
    """Return every field of `config` but its kind."""
    schema = config.model_json_schema()
    definitions, required = schema.get("$defs", {}), schema.get("required", ())
    return tuple(
        Knob(
            name=name,
            default=each.get("default"),
            is_required=name in required,
            allowed=allowed(each, definitions),
            description=each.get("description", ""),
        )
        for name, each in schema["properties"].items()
        if name != "kind"
    )


def allowed(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return which values a JSON schema lets in: `a number in (0, 1] or a pair`."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(allowed(each, definitions) for each in alternatives))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        kind = definitions[name].get("properties", {}).get("kind", {})
        return f"{{kind: {kind['const']}}}" if "const" in kind else name
    if "enum" in schema or "const" in schema:
        words = schema.get("enum", (schema.get("const"),))
        return " or ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in words)
    return _of_type(schema, definitions)


def _of_type(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    match schema.get("type"):
        case "number":
            return f"a number{_bounds(schema)}"
        case "integer":
            return f"a whole number{_bounds(schema)}"
        case "boolean":
            return "true or false"
        case "array" if "prefixItems" in schema:
            items = [allowed(each, definitions) for each in schema["prefixItems"]]
            return "a pair" if len(set(items)) == 1 else f"[{', '.join(items)}]"
        case "array":
            return "a list"
        case "string":
            return "a text"
        case "null":
            return "null"
    return "an object"


def _bounds(schema: Schema) -> str:
    """Return ` in [0, 1)`, or nothing where any number may stand."""
    ends = ("minimum", "[{:g}"), ("exclusiveMinimum", "({:g}"), ("maximum", "{:g}]"), ("exclusiveMaximum", "{:g})")
    found = {name: text.format(schema[name]) for name, text in ends if name in schema}
    low = found.get("minimum") or found.get("exclusiveMinimum") or "(-inf"
    high = found.get("maximum") or found.get("exclusiveMaximum") or "inf)"
    return f" in {low}, {high}" if found else ""
