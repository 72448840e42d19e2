"""Turns JSON or YAML text into a checked model, or into every problem at once."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from service.errors import InvalidJob
from service.job.problems import Problem, problems_of

Model = TypeVar("Model", bound=BaseModel)


def parse_json(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _unreadable(f"this is not JSON: {error}") from error


def parse_yaml(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not YAML 1.2, or names a field twice.

    In YAML 1.1 the key `on` would be a truth value, and 1e9 a word.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise _unreadable(f"this is not YAML: {error.problem}{where}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(f"this is not YAML: {error}") from error


def checked(model: type[Model], content: Any) -> Model:
    """Return `content` as a `model`. Raises `InvalidJob` with every problem of it."""
    if not isinstance(content, dict):
        given = "nothing" if content is None else f"a {type(content).__name__}"
        raise _unreadable(f"named fields are expected here, got {given}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidJob(problems_of(error, content, model)) from error


def _unreadable(message: str) -> InvalidJob:
    return InvalidJob([Problem(pointer="", message=message)])
