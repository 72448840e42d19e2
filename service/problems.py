"""Turns a refused job into problems a person can act on: where, what was given, what is allowed."""

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from search.config import FUTURE_CONTROLLERS
from trainers.config import FUTURE_EXCHANGES, FUTURE_OPTIMIZERS, FUTURE_WORKLOADS

#: Words of the job language that this version refuses by name.
FUTURE = {*FUTURE_CONTROLLERS, *FUTURE_EXCHANGES, *FUTURE_OPTIMIZERS, *FUTURE_WORKLOADS, "events", "factory"}


class Problem(BaseModel):
    """One thing wrong with a request."""

    pointer: str  # RFC 6901, into the request's body
    message: str
    value: Any = None


def problems_of(error: ValidationError, body: Any) -> list[Problem]:
    """Return every problem of `body`, each with the JSON pointer of the field at fault."""
    details = error.errors(include_url=False)
    found = [_problem(detail, body) for detail in details]
    # Of `number or pair` the form that was not meant complains too: only about the type.
    return [
        problem
        for problem, detail in zip(found, details, strict=True)
        if not (detail["type"].endswith("_type") and _says_more(found, problem))
    ]


def _says_more(found: Sequence[Problem], problem: Problem) -> bool:
    return any(other is not problem and f"{other.pointer}/".startswith(f"{problem.pointer}/") for other in found)


def _problem(detail: ErrorDetails, body: Any) -> Problem:
    if detail["type"] == "job":  # a check across fields, which knows its own place
        context = detail["ctx"]
        return Problem(pointer=context["pointer"], message=context["message"], value=context["value"])
    given = detail["input"]
    missing = detail["type"] == "missing"
    shown = None if missing or isinstance(given, dict | list | tuple) else given
    path = _path(detail["loc"], body, keep_last=missing)
    if detail["type"] == "union_tag_invalid":
        path.append("kind" if "kind" in detail["ctx"]["discriminator"] else "mode")
        shown = detail["ctx"]["tag"]
    pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
    return Problem(pointer=pointer, message=_message(detail, path, shown), value=shown)


def _path(loc: Sequence[str | int], body: Any, *, keep_last: bool) -> list[str | int]:
    """Drop from `loc` what names a member of a union and not a place in `body`."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        if _holds(body, part):
            body = body[part]
        elif not (keep_last and index == len(loc) - 1):
            continue
        path.append(part)
    return path


def _holds(body: Any, part: str | int) -> bool:
    if isinstance(body, dict):
        return part in body
    return isinstance(body, list | tuple) and isinstance(part, int) and part < len(body)


def _message(detail: ErrorDetails, path: list[str | int], shown: Any) -> str:
    kind, field, context = detail["type"], _name(path), detail.get("ctx", {})
    if kind == "union_tag_invalid":
        return _unknown_word(shown, context["expected_tags"])
    if kind == "literal_error":
        return _unknown_word(shown, context["expected"])
    if kind == "extra_forbidden":
        return f"`{field}` is not available in this version" if field in FUTURE else f"there is no field `{field}`"
    if kind == "missing":
        return f"`{field}` is required"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"`{field}` must be an object with named fields"
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if text.startswith("should"):
        text = f"`{field}` {text}"
    return text if shown is None or "got " in text else f"{text}, got {shown!r}"


def _name(path: list[str | int]) -> str:
    if not path:
        return "job"
    return f"{path[-2]}[{path[-1]}]" if isinstance(path[-1], int) and len(path) > 1 else str(path[-1])


def _unknown_word(word: Any, expected: str) -> str:
    known = [w.strip().strip("'") for w in expected.replace(" or ", ", ").split(",") if w.strip()]
    if word in FUTURE:
        return f"`{word}` is not available in this version; available: {', '.join(known)}"
    close = difflib.get_close_matches(str(word), known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"unknown: `{word}`; available: {', '.join(known)}{hint}"
