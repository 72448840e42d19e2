"""Turns JSON or YAML text into a checked model, or into every problem at once."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode

from service.errors import InvalidJob
from service.job.parts import GIVEN
from service.job.problems import Problem, problems_of

Model = TypeVar("Model", bound=BaseModel)
#: Whole numbers are shorter than those that Python converts to text.
MAX_BITS = 10_000


def parse_json(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _unreadable(f"this is not JSON: {error}") from error


class _Constructor(SafeConstructor):
    """Refuses whole numbers that no message could show, as the reader of JSON does."""

    def construct_yaml_int(self, node: ScalarNode) -> int:
        """Return the number. Raises `ConstructorError` for one that is out of range."""
        number: int = super().construct_yaml_int(node)
        if number.bit_length() > MAX_BITS:
            raise ConstructorError(None, None, "number out of range", node.start_mark)
        return number


_Constructor.add_constructor("tag:yaml.org,2002:int", _Constructor.construct_yaml_int)


def parse_yaml(text: bytes) -> Any:
    """Raises `InvalidJob` naming line and column if `text` is not YAML 1.2, or names a field twice.

    In YAML 1.1 the key `on` would be a truth value, and 1e9 a word.
    """
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Constructor = _Constructor
        return yaml.load(text)
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
        return model.model_validate(content, context=GIVEN)
    except ValidationError as error:
        raise InvalidJob(problems_of(error, content, model)) from error


def _unreadable(message: str) -> InvalidJob:
    return InvalidJob([Problem(pointer="", message=message)])
