"""Turns JSON or YAML text into a checked model, or into every problem at once."""

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from service.errors import InvalidJob
from service.problems import Problem, problems_of

Model = TypeVar("Model", bound=BaseModel)


def parse_json(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _unreadable(f"this is not JSON: {error}") from error


def parse_yaml(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not YAML."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(f"this is not YAML: {error}") from error


def checked(model: type[Model], content: Any) -> Model:
    """Return `content` as a `model`. Raises `InvalidJob` with every problem of it."""
    if not isinstance(content, dict):
        raise _unreadable(f"named fields are expected here, got {type(content).__name__}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidJob(problems_of(error, content)) from error


def _unreadable(message: str) -> InvalidJob:
    return InvalidJob([Problem(pointer="", message=message)])
