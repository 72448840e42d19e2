"""The reference pages that the code writes: jobs from their JSON Schema, REST from OpenAPI, commands, Python.

python docs/reference.py    write those of docs/reference
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

import wiretune
from api.cli.main import app
from service.job.spec import JobSpec

Schema = Mapping[str, Any]
Lines = Iterator[str]
#: Words of JSON Schema for a bound, as people write them.
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}
#: Pages that lie in docs/reference; that of Python is made of docstrings, which only the site shows.
KEPT = ("job.md", "rest.md", "commands.md")
HERE = Path(__file__).parent
#: Parts of the schema that have no table to link to.
WITHOUT_FIELDS = ("JsonValue", "Priority")


def job() -> Lines:
    """Yield the page of every field of a job."""
    schema = JobSpec.model_json_schema()
    yield "# Job, field by field"
    yield from ("", "All fields of a job, from its JSON Schema. [The job](../job.md) explains them.")
    yield from ("", "## The job itself", "")
    yield from _fields(schema)
    for name, part in sorted(schema["$defs"].items()):
        if "properties" in part:
            yield from ("", f"## {name}", "", _sentence(part.get("description", "")), "")
            yield from _fields(part)


def _fields(schema: Schema) -> Lines:
    yield from ("| field | values | default | meaning |", "| --- | --- | --- | --- |")
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field.get("default"))
        meaning = _cell(_sentence(field.get("description", "")))
        yield f"| `{name}` | {_cell(_values(field))} | {default} | {meaning} |"


def _default(value: Any) -> str:
    """Return a default; of a part that has a table, its kind alone."""
    if isinstance(value, dict):
        return _code({"kind": value["kind"]}) if "kind" in value else "its own"
    return _code(value)


def _values(field: Schema) -> str:
    """Return the values that a field takes, with links to the parts that are tables of their own."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name not in WITHOUT_FIELDS else name
    if "const" in field:
        return _code(field["const"])
    if "enum" in field:
        return " or ".join(map(_code, field["enum"]))
    if choices := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(map(_values, choices))
    if "prefixItems" in field:
        return f"a pair of: {_values(field['prefixItems'][0])}"
    if "items" in field:
        return f"a list of: {_values(field['items'])}"
    bounds = [text.format(field[word]) for word, text in BOUNDS.items() if word in field]
    return ", ".join([field.get("type", "any"), *bounds])


def rest(document: Schema) -> Lines:
    """Yield the page of every call of the OpenAPI `document`."""
    yield "# REST, call by call"
    yield from (
        "",
        "All calls, from [openapi.json](../openapi.json). [REST in five minutes](../rest.md) shows them at work.",
    )
    for path, calls in document["paths"].items():
        for verb, call in calls.items():
            yield from ("", f"## `{verb.upper()} {path}`", "", _sentence(call.get("description") or call["summary"]))
            yield from _parameters(call)
            yield from ("", f"Answers: {', '.join(_answers(call['responses']))}.")


def _parameters(call: Schema) -> Lines:
    if parameters := call.get("parameters"):
        yield from ("", "| parameter | in | values | meaning |", "| --- | --- | --- | --- |")
        for each in parameters:
            meaning = _cell(each.get("description", ""))
            yield f"| `{each['name']}` | {each['in']} | {_cell(_plain_values(each['schema']))} | {meaning} |"
    if content := call.get("requestBody", {}).get("content"):
        yield from ("", f"Body: {', '.join(f'`{kind}`' for kind in content)}.")


def _plain_values(schema: Schema) -> str:
    return re.sub(r"\[(\w+)\]\(#\w+\)", r"`\1`", _values(schema))


def _answers(responses: Schema) -> Iterator[str]:
    for status, answer in responses.items():
        yield f"{status} ({answer['description'].lower().rstrip('.')})"


def commands() -> Lines:
    """Yield the page of every command of `wiretune`."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="wiretune")
    yield text.replace("# `wiretune`", "# Commands, option by option", 1)


def python(names: Sequence[str] = wiretune.__all__) -> Lines:
    """Yield the page of the public names, which mkdocstrings fills with their docstrings."""
    yield "# Python, name by name"
    yield from (
        "",
        "The public names of `wiretune`, from their docstrings. [The package](../library.md) says what each is for.",
    )
    for name in names:
        found = getattr(wiretune, name)
        yield from ("", f"## {name}", "", f"::: {inspect.getmodule(found).__name__}.{found.__name__}")


def _sentence(text: str) -> str:
    """Return the text on one line, without the reStructuredText that Markdown does not know."""
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(value: object) -> str:
    """Return the value as JSON in code; what a default leaves out is `null`."""
    return f"`{_cell(json.dumps(value))}`"


def pages(document: Schema) -> dict[str, Iterable[str]]:
    """Return the lines of each generated page, by the name of its file."""
    return {"job.md": job(), "rest.md": rest(document), "commands.md": commands(), "python.md": python()}


def text(lines: Iterable[str]) -> str:
    """Return the text of a page: its lines, without empty ones at the end."""
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    (HERE / "reference").mkdir(exist_ok=True)
    made = pages(json.loads((HERE / "openapi.json").read_text()))
    for name in KEPT:
        (HERE / "reference" / name).write_text(text(made[name]))


if __name__ == "__main__":
    main()
