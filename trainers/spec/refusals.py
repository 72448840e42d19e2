"""Say what is wrong with the fields that a model refuses: where, what was given, what is allowed. Pydantic only."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainers.spec.ranges import Conflict
from trainers.spec.wrong_kind_fields import fields_near, is_freely_named, why_wrong_kind

Model = TypeVar("Model", bound=BaseModel)

#: A field's name that is longer is like none of ours.
_LONGEST_NAME = 40
_NUM_MEANT = 3
#: So many faults are told, and so much of a value: nobody reads more, and each costs a search for its cause.
MAX_TOLD, MAX_SHOWN_CHARS = 50, 200


def checked(model: type[Model], body: Mapping[str, Any], *, at: str = "") -> Model:
    """Return `body`, which was given as the field `at` if it has a name, as a `model`.

    Raises ValueError with a line for each fault: the field, what was given, and what is allowed or meant.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise ValueError("\n".join(_line(conflict, at) for conflict in conflicts_of(error, body, model))) from None


def _line(conflict: Conflict, at: str) -> str:
    place = f"{at}{conflict.pointer}".removeprefix("/").replace("/", ".")
    return f"`{place}`: {conflict}" if place and f"`{place}`" not in conflict.message else str(conflict)


def conflicts_of(error: ValidationError, body: Any, model: type[BaseModel]) -> list[Conflict]:
    """Return what is wrong with `body`, which is no `model`, each with the JSON pointer of the field at fault.

    Of more than `MAX_TOLD` the last entry says how many there are besides.
    """
    details = error.errors(include_url=False)
    found = [(detail, conflict) for detail in details[:MAX_TOLD] for conflict in _conflicts(detail, body, model)]
    told = [
        conflict
        for number, (detail, conflict) in enumerate(found)
        if not (_is_an_echo(detail) and _is_told_better(found, number))
    ]
    if (num_untold := len(details) - MAX_TOLD) > 0:
        told.append(Conflict("", None, f"and {num_untold} more faults: mend these first"))
    return told


def _is_an_echo(detail: ErrorDetails) -> bool:
    """Return whether the fault may only follow from another one: in `number or pair` the form that was not meant
    complains about the type, and a list whose items are refused is too short."""
    return detail["type"].endswith("_type") or detail["type"] == "too_short"


def _is_told_better(found: Sequence[tuple[ErrorDetails, Conflict]], number: int) -> bool:
    """Return whether an echo repeats a fault told further inside, or at its place by another or an earlier one."""
    place = found[number][1].pointer
    return any(
        conflict.pointer.startswith(f"{place}/")
        or (conflict.pointer == place and (each < number or not _is_an_echo(detail)))
        for each, (detail, conflict) in enumerate(found)
    )


def _conflicts(detail: ErrorDetails, body: Any, model: type[BaseModel]) -> list[Conflict]:
    if detail["type"] != "conflicts":
        return [_conflict(detail, body, model)]
    place = pointer_to(_path(detail["loc"], body, keep_last=False))
    conflicts: list[Conflict] = detail["ctx"]["conflicts"]  # of a check across fields, which knows the fields at fault
    return [each._replace(pointer=place + each.pointer) for each in conflicts]


def _conflict(detail: ErrorDetails, body: Any, model: type[BaseModel]) -> Conflict:
    given = detail["input"]
    missing = detail["type"] == "missing"
    shown = None if missing or isinstance(given, dict | list | tuple) else cut(given)
    path = _path(detail["loc"], body, keep_last=missing)
    if detail["type"] == "union_tag_invalid":
        path.append("kind" if "kind" in detail["ctx"]["discriminator"] else "mode")
        shown = cut(detail["ctx"]["tag"])
    if detail["type"] == "union_tag_not_found":
        described = detail["ctx"]["discriminator"]  # as `_kind_of()` where a function tells the members apart
        path.append("kind" if described.endswith("()") else described.strip("'"))
    of_other_kind = None
    if path and (detail["type"] == "extra_forbidden" or detail["type"].endswith("_type")):
        of_other_kind = why_wrong_kind(model, body, path, given)
    message = of_other_kind or _message(detail, path, shown)
    if detail["type"] == "extra_forbidden" and not of_other_kind:
        message += meant(str(path[-1]), fields_near(model, body, path[:-1]))
    return Conflict(pointer_to(path), shown, message)


def meant(name: str, fields: Mapping[str, Sequence[str]]) -> str:
    """Return what may have been meant by a field that is not there: one of its fellows, or one inside of them."""
    close = difflib.get_close_matches(name[:_LONGEST_NAME], fields, n=1)
    inside = [f"{field}.{name}" for field, inner in fields.items() if name in inner]
    if found := inside[:_NUM_MEANT] or close:
        return f"; did you mean {' or '.join(f'`{each}`' for each in found)}?"
    return f"; available: {', '.join(fields)}" if fields else ""


def cut(value: Any, max_chars: int = MAX_SHOWN_CHARS) -> Any:
    """Return a long text's beginning, and any other value as it is."""
    if isinstance(value, str) and len(value) > max_chars:
        return f"{value[:max_chars]}... ({len(value)} characters)"
    return value


def pointer_to(path: Sequence[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of what is at `path`."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _path(loc: Sequence[str | int], body: Any, *, keep_last: bool) -> list[str | int]:
    """Drop from `loc` what names a member of a union and not a place in `body`."""
    path: list[str | int] = []
    is_member_named = False  # by its tag, once: a field of the member may have the same name
    for index, part in enumerate(loc):
        may_be_tag = not is_member_named and isinstance(body, dict) and not is_freely_named(path)
        if may_be_tag and part in (body.get("kind"), body.get("mode")):
            is_member_named = True
        elif _holds(body, part):
            body, is_member_named = body[part], False
            path.append(part)
        elif keep_last and index == len(loc) - 1:
            path.append(part)
    return path


def _holds(body: Any, part: str | int) -> bool:
    if isinstance(body, dict):
        return part in body
    return isinstance(body, list | tuple) and isinstance(part, int) and part < len(body)


def field_name(path: Sequence[str | int]) -> str:
    """Return what people call the field at `path`."""
    if len(path) > 1 and isinstance(path[-1], int):
        return f"{path[-2]}[{path[-1]}]"
    return str(path[-1]) if path else "job"


def _message(detail: ErrorDetails, path: list[str | int], shown: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    field = field_name(path)
    if kind == "union_tag_invalid":
        return _unknown_word(shown, context["expected_tags"])
    if kind == "literal_error":
        return _unknown_word(shown, context["expected"])
    if kind == "extra_forbidden":
        return f"there is no field `{field}`"
    if kind in ("missing", "union_tag_not_found"):
        return f"`{field}` is required"
    if kind == "too_short":
        return f"`{field}` needs at least {context['min_length']} items, got {context['actual_length']}"
    if kind == "too_long":
        return f"`{field}` takes at most {context['max_length']} items, got {context['actual_length'] or 'more'}"
    if kind in ("tuple_type", "list_type"):
        as_given = "" if shown is None else f", as [{shown!r}], got {shown!r}"
        return f"`{field}` must be a list{as_given}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"`{field}` must be an object with named fields"
    if _wants_one_number(detail, path):
        return f"`{field}` must be one number, got {cut(str(list(detail['input'])))}: it is not searched"
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if text.startswith("should"):
        text = f"`{field}` {text}"
    return text if shown is None or "got " in text else f"{text}, got {shown!r}"


def _wants_one_number(detail: ErrorDetails, path: Sequence[str | int]) -> bool:
    """Return whether a list is given for a plain number: not for a union of a number and others, as a pair."""
    is_number = detail["type"] in ("float_type", "int_type") and [*detail["loc"][-1:]] == [*path[-1:]]
    return is_number and isinstance(detail["input"], list | tuple)


def _unknown_word(word: Any, expected: str) -> str:
    known = [w.strip().strip("'") for w in expected.replace(" or ", ", ").split(",") if w.strip()]
    close = difflib.get_close_matches(str(word), known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"unknown: `{word}`; available: {', '.join(known)}{hint}"
