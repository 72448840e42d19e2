"""Reads request bodies: JSON or YAML in, a checked model out, or every problem at once."""

import json
from typing import Any, TypeVar

import yaml
from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.errors import InvalidJob
from service.problems import Problem, problems_of
from service.records import Batch, Lease
from service.spec import JobSpec

Model = TypeVar("Model", bound=BaseModel)

YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")


async def job_spec(request: Request) -> JobSpec:
    """Return the job in the request's body. Raises `InvalidJob`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    return checked(JobSpec, parse_yaml(body) if kind in YAML_TYPES else parse_json(body))


async def batch(request: Request) -> Batch:
    """Return the records in the request's body. Raises `InvalidJob`."""
    return checked(Batch, parse_json(await request.body()))


async def lease(request: Request) -> Lease:
    """Return the heartbeat in the request's body. Raises `InvalidJob`."""
    return checked(Lease, parse_json(await request.body()))


def parse_json(body: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `body` is not JSON."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"the body is not JSON: {error}") from error


def parse_yaml(body: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `body` is not YAML."""
    try:
        return yaml.safe_load(body)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(f"the body is not YAML: {error}") from error


def checked(model: type[Model], content: Any) -> Model:
    """Return `content` as a `model`. Raises `InvalidJob` with every problem of it."""
    if not isinstance(content, dict):
        raise _unreadable(f"the body must be an object with named fields, got {type(content).__name__}")
    try:
        # As JSON, not as Python: strings stand for enums and lists for tuples there.
        return model.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        raise InvalidJob(problems_of(error, content)) from error


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _unreadable(message: str) -> InvalidJob:
    return InvalidJob([Problem(pointer="", message=message)])
