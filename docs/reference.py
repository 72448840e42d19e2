"""The reference pages that the code writes: jobs from their JSON Schema, REST from OpenAPI, commands, Python.

python docs/reference.py    write those of docs/reference
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

import wiretune
from api.cli.main import app
from service.job.spec import JobSpec

Schema = Mapping[str, Any]
Names = Mapping[str, str]
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


def job() -> Lines:
    """Yield the page of every field of a job."""
    schema = JobSpec.model_json_schema()
    names = _names(schema["$defs"])
    yield "# Job, field by field"
    yield from ("", "All fields of a job, from its JSON Schema. [The job](../job.md) explains them.")
    yield from ("", "## The job itself")
    yield from _fields(schema, names)
    yield from _parts("##", schema["$defs"], names)


def _names(parts: Schema, page: str = "") -> dict[str, str]:
    """Return what stands for each part of a schema: a link to its table on `page`, or the values of one without."""
    return {
        name: f"[{name}]({page}#{name.lower()})" if "properties" in part else _values(part, {})
        for name, part in parts.items()
    }


def _parts(level: str, parts: Schema, names: Names) -> Lines:
    for name, part in sorted(parts.items()):
        if "properties" in part:
            yield from ("", f"{level} {name}", "", _sentence(part.get("description", "")))
            yield from _fields(part, names)


def _fields(schema: Schema, names: Names) -> Lines:
    if schema["properties"]:
        yield from ("", "| field | values | default | meaning |", "| --- | --- | --- | --- |")
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field.get("default"))
        meaning = _cell(_sentence(field.get("description", "")))
        yield f"| `{name}` | {_cell(_values(field, names))} | {default} | {meaning} |"


def _default(value: Any) -> str:
    """Return a default; of a part that has a table, its kind alone."""
    if isinstance(value, dict):
        return _code({"kind": value["kind"]}) if "kind" in value else "its own"
    return _code(value)


def _values(field: Schema, names: Names) -> str:
    """Return the values that a field takes; `names` has what stands for other parts."""
    if "$ref" in field:
        return names[field["$ref"].rpartition("/")[2]]
    if "const" in field:
        return _code(field["const"])
    if "enum" in field:
        return " or ".join(map(_code, field["enum"]))
    if choices := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(_values(each, names) for each in choices)
    if "prefixItems" in field:
        return f"a pair of: {_values(field['prefixItems'][0], names)}"
    if "items" in field:
        return f"a list of: {_values(field['items'], names)}"
    if isinstance(by_name := field.get("additionalProperties"), Mapping):
        return f"by name: {_values(by_name, names)}"
    bounds = [text.format(field[word]) for word, text in BOUNDS.items() if word in field]
    return ", ".join([field.get("format") or field.get("type", "any"), *bounds])


def rest(document: Schema) -> Lines:
    """Yield the page of every call of the OpenAPI `document`, and of the fields of bodies and answers."""
    of_jobs, parts = JobSpec.model_json_schema()["$defs"], document["components"]["schemas"]
    own = {name: part for name, part in parts.items() if name != "JobSpec" and name not in of_jobs}
    names = _names(own) | _names(of_jobs, "job.md") | {"JobSpec": "[JobSpec](job.md#the-job-itself)"}
    yield "# REST, field by field"
    yield from (
        "",
        "All calls, from [openapi.json](../openapi.json), and then [the fields](#fields) of their bodies and answers. "
        "[REST, call by call](../rest_reference.md) explains them. Refusals are a [ProblemDocument](#problemdocument).",
    )
    for path, calls in document["paths"].items():
        for verb, call in calls.items():
            yield from ("", f"## `{verb.upper()} {path}`", "", _sentence(call.get("description") or call["summary"]))
            yield from _parameters(call, names)
            yield from ("", f"Answers: {', '.join(_answers(call['responses'], names))}.")
    yield from ("", "## Fields", "", "Those of bodies and answers. Fields of a job have [a page of their own](job.md).")
    yield from _parts("###", own, names)


def _parameters(call: Schema, names: Names) -> Lines:
    if parameters := call.get("parameters"):
        yield from ("", "| parameter | in | values | meaning |", "| --- | --- | --- | --- |")
        for each in parameters:
            values, meaning = _values(each["schema"], names), each.get("description", "")
            plain = values.replace('"', "")  # a word of a URL has no quotes
            yield f"| `{each['name']}` | {each['in']} | {_cell(plain)} | {_cell(meaning)} |"
    if body := call.get("requestBody"):
        yield from ("", f"Body: {_content(body['content'], names)}.")


def _content(content: Schema, names: Names) -> str:
    """Return what a body or an answer holds, and in which of the types of media."""
    kinds: dict[str, list[str]] = {}
    for media, each in content.items():
        kinds.setdefault(_values(each["schema"], names), []).append(f"`{media}`")
    return ", or ".join(f"{values} as {' or '.join(media)}" for values, media in kinds.items())


def _answers(responses: Schema, names: Names) -> Iterator[str]:
    for status, answer in responses.items():
        said = answer["description"].lower().rstrip(".")
        if status.startswith("2") and "content" in answer:
            said = _content(answer["content"], names)
        yield f"{status} ({said})"


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
