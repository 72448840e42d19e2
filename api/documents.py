"""Parsing of JSON or YAML text into a checked model or a list of problems, at a bounded cost for every text."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from service.errors import InvalidJob
from service.job.parts import GIVEN
from service.job.problems import Problem, misread, problems_of
from service.wire.records import MAX_WHOLE
from trainers.spec.refusals import MAX_SHOWN_CHARS, MAX_TOLD, cut, field_name, pointer_to

Model = TypeVar("Model", bound=BaseModel)

#: Limits far above any job, for the time and memory that a text can cost: see `tests/api/test_hostile_bodies.py`.
MAX_VALUES, MAX_DEPTH, MAX_NAME_CHARS, MAX_INTEGER_DIGITS = 20_000, 50, 200, 100
_SHOWN_DIGITS = 30
#: Every value except the first in a list or object follows a comma; every list and object has a bracket.
_BEFORE_VALUES = (b",", b"[", b"{")
_TAG_DIRECTIVE = re.compile("(?:\\A\ufeff?|[\r\n\x85\u2028\u2029])%TAG")


def parse_json(text: bytes, *, max_values: int = MAX_VALUES, is_of_driver: bool = False) -> Any:
    """Parse JSON. Raises `InvalidJob`, with line and column where known, for bad JSON, an excess or a repeated name.

    The names in a driver's batches are not checked, since the batches are large.
    """
    # Counted before parsing: a list of empty lists takes thirty times as much memory.
    if sum(map(text.count, _BEFORE_VALUES)) > max_values:
        raise _unreadable(f"at most {max_values} values are allowed; here are more commas and brackets than that")
    try:
        content = from_json(text, allow_inf_nan=False)
        if not is_of_driver:  # checks the names only, so numbers stay text
            json.loads(text, object_pairs_hook=_require_each_once, parse_int=str, parse_float=str)
    except ValueError as error:
        raise _unreadable(f"this is not JSON: {error}") from error
    _require_shallow(content)
    return content


def _require_each_once(fields: list[tuple[str, Any]]) -> None:
    """Raise `InvalidJob` for a repeated name; otherwise all but its last value would be lost."""
    seen = set()
    for name, _ in fields:
        if name in seen:
            raise _unreadable(f"duplicate key `{cut(name, MAX_SHOWN_CHARS)}`: a field can be given once")
        seen.add(name)


def _require_shallow(content: Any) -> None:
    """Raise `InvalidJob` for a long name, and for lists and objects nested too deep."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        if long := [name for each in level if isinstance(each, dict) for name in each if len(name) > MAX_NAME_CHARS]:
            raise _unreadable(f"a name has {len(long[0])} characters; at most {MAX_NAME_CHARS} are allowed")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise _unreadable(_TOO_DEEP)


_TOO_DEEP = f"lists and objects are more than {MAX_DEPTH} deep in each other, which is the most that is allowed"


def parse_yaml(text: bytes) -> Any:
    """Parse YAML 1.2. Raises `InvalidJob` with line and column for bad YAML, a repeated field, or an alias.

    YAML 1.1 would read the key `on` as a truth value, and 1e9 as text.
    """
    try:
        decoded = text.decode()
        _require_plain(decoded)
        content = yaml.load(decoded, Loader=_Yaml12)  # safe, and as fast as libyaml
    except yaml.MarkedYAMLError as error:
        raise _unreadable(f"this is not YAML: {error.problem}{_place(error.problem_mark)}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(f"this is not YAML: {error}") from error
    _require_shallow(content)
    return content


def _require_plain(text: str) -> None:
    """Raise `InvalidJob` if `text` exceeds a limit or uses costly features. It reads a stream and keeps nothing."""
    if _TAG_DIRECTIVE.search(text):  # libyaml's time is quadratic in their number
        raise _unreadable("a %TAG directive is not allowed")
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        place = _place(event.start_mark)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            # A few aliases can stand for billions of values.
            raise _unreadable(f"anchors and aliases (`&{event.anchor}`) are not allowed: write it out{place}")
        if number > 2 * MAX_VALUES:  # a name and its value are two
            raise _unreadable(f"at most {MAX_VALUES} values are allowed{place}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _unreadable(f"{_TOO_DEEP}{place}")


def _place(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


class _Yaml12(yaml.CSafeLoader):
    """Reads plain words and numbers as YAML 1.2's core schema does (yaml.org/spec/1.2.2, section 10.3.2).

    From YAML 1.1 it keeps text, lists and objects only. Names in an object must be unique.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: construct
        for tag, construct in yaml.CSafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("map", "seq", "str")
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the object at `node`; its names must be text, as in JSON. Raises ConstructorError."""
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if no_text := [each for each in found if not isinstance(each, str)]:
            message = f"a name must be text, got `{cut(str(no_text[0]), _SHOWN_DIGITS)}`: put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        if len(found) < len(node.value):
            seen = set()
            for each, _ in node.value:
                name = self.construct_object(each)
                if name in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key `{name}`", each.start_mark)
                seen.add(name)
        return found


def _reads(tag: str, pattern: str, first: Iterable[str], construct: Callable[[str], Any]) -> None:
    """Read plain scalars as this kind if they match `pattern` and begin with one of `first`."""
    name, form = f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$")

    def read(loader: _Yaml12, node: Any) -> Any:
        text = loader.construct_scalar(node)
        if not form.match(text):  # an explicit tag, such as `!!int x`
            raise yaml.constructor.ConstructorError(None, None, f"this is no {tag}", node.start_mark)
        return construct(text)

    _Yaml12.add_implicit_resolver(name, form, list(first))
    _Yaml12.add_constructor(name, read)


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer has {len(text)} characters; at most {MAX_INTEGER_DIGITS} are allowed")
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_reads("null", "null|Null|NULL|~|", ("n", "N", "~", ""), lambda text: None)
_reads("bool", "true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true")
_reads("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", _integer)
_reads("float", _FLOAT, "-+.0123456789", lambda text: float(re.sub(r"\.(?=[a-zA-Z])", "", text)))


def checked(model: type[Model], content: Any, *, is_of_driver: bool = False) -> Model:
    """Return `content` as a `model`. Raises `InvalidJob` with its problems.

    Content from a driver may be unusual, such as the large numbers in a controller's state, so it is checked less.
    """
    if not isinstance(content, dict):
        given = "nothing" if content is None else f"a {type(content).__name__}"
        raise _unreadable(f"named fields are expected here, got {given}")
    if not is_of_driver:
        _require(_too_large(content, ()))
    try:
        found = model.model_validate(content, context=GIVEN)
    except OverflowError as error:
        raise _unreadable(f"a number is too large, or too close to 0: {error}") from error
    except ValidationError as error:
        if (num_faults := error.error_count()) > MAX_VALUES:  # each would become a hundred times as long
            raise _unreadable(f"{num_faults} fields are at fault") from error
        raise InvalidJob(problems_of(error, content, model)) from error
    if not is_of_driver:
        _require(map(Problem.of, misread(content, found)))
    return found


def _require(problems: Iterable[Problem]) -> None:
    if told := list(islice(problems, MAX_TOLD)):
        raise InvalidJob(told)


def _too_large(content: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield a problem for each integer too large for a database column."""
    if isinstance(content, int) and not -MAX_WHOLE <= content <= MAX_WHOLE:
        shown = cut(str(content), _SHOWN_DIGITS)
        message = f"`{field_name(path)}` must be at most 2^63 - 1 in size, as every whole number, got {shown}"
        yield Problem(pointer=pointer_to(path), message=message, value=shown)
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _too_large(value, (*path, name))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _too_large(value, (*path, index))


def require_no_nul(content: Any) -> None:
    """Raise `InvalidJob` for each text and name that contains NUL: PostgreSQL cannot store JSON with it."""
    _require(Problem(pointer=place, message="must have no NUL") for place in _nuls(content, ""))


def _nuls(content: Any, place: str) -> Iterator[str]:
    if isinstance(content, str) and "\0" in content:
        yield place
    elif isinstance(content, dict):
        for name, value in content.items():
            if isinstance(name, str) and "\0" in name:
                yield place
            yield from _nuls(value, place + pointer_to([name]))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _nuls(value, f"{place}/{index}")


def _unreadable(message: str) -> InvalidJob:
    return InvalidJob([Problem(pointer="", message=cut(message, 2 * MAX_SHOWN_CHARS))])
