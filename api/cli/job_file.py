"""Job files: read a job, or changes to one, from a file or standard input; and changes to one from options."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from api.cli.terminal import STANDARD, fail, print_json
from api.documents import MAX_VALUES, checked, parse_json, parse_yaml
from search.schedule_file import ScheduleFile
from search.sweep.spec import ParamRange
from service.errors import InvalidJob
from service.job.changes import patched
from service.job.problems import Problem
from service.job.replay import values_alone
from service.job.spec import JobSpec

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="change a field, e.g. budget.seconds=80; repeatable"),
]
JobName = Annotated[str | None, typer.Option("--name", help="name the job so")]
NewLabels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="add a label to the job; repeatable")
]
#: Words that are null in YAML, and meant as such.
_NOTHING = ("", "~", "null", "Null", "NULL")
_UNCHANGED: Mapping[str, Any] = MappingProxyType({})
#: An exported schedule says several times as much as a job takes of it.
_MAX_VALUES_OF_FILE = 10 * MAX_VALUES


def with_schedules(content: Any, folder: str) -> Any:
    """Load every schedule that a job, or a patch of one, names by a `path` in `folder`, and return the content.

    Raises:
        InvalidJob: such a file cannot be read, or is not JSON.
    """
    # The job's own checks refuse content of any other form.
    parts = [("", content)]
    if isinstance(content, dict) and isinstance(content.get("arms"), list):
        parts += [(f"/arms/{index}", arm) for index, arm in enumerate(content["arms"])]
    for pointer, part in parts:
        controller = part.get("controller") if isinstance(part, dict) else None
        if not isinstance(controller, dict) or "schedule" in controller:
            continue
        if controller.get("kind", "schedule") != "schedule":  # a patch leaves the kind as it is
            continue
        if isinstance(controller.get("path"), str):
            path = os.path.join(folder, os.path.expanduser(controller.pop("path")))
            controller["schedule"] = _read(path, f"{pointer}/controller/path")
    return content


def _read(path: str, pointer: str) -> Any:
    try:
        with open(path, "rb") as file:
            return _followed(parse_json(file.read(), max_values=_MAX_VALUES_OF_FILE))
    except OSError as error:
        message = f"cannot read the schedule {path}: {error.strerror}"
    except InvalidJob as error:
        message = f"{path} holds no schedule: {error.problems[0].message}"
    raise InvalidJob([Problem(pointer=pointer, message=message, value=path)])


def _followed(content: Any) -> Any:
    """Return the schedule without what was measured in its run. The job's own checks refuse any other content."""
    try:
        return values_alone(ScheduleFile.model_validate(content))
    except ValidationError:
        return content


def read_bytes(path: Path) -> bytes:
    """Return the text of the file or of standard input. Exits with 2 if it cannot be read."""
    try:
        return typer.get_binary_stream("stdin").read() if path == STANDARD else path.read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def read_job(path: Path, changes: Mapping[str, Any] = _UNCHANGED, *, as_json: bool = False) -> JobSpec:
    """Return the job in the file with `changes`, a merge patch, and with its schedules.

    Prints every problem and exits with 2 if there are any.
    """
    text = read_bytes(path)
    try:
        content = _parsed(text)
        if isinstance(content, dict):  # the job's own checks refuse anything else
            content = patched(content, changes)
        return checked(JobSpec, with_schedules(content, str(Path.cwd())))
    except InvalidJob as error:
        if as_json:
            print_json({"valid": False, "errors": [problem.model_dump(mode="json") for problem in error.problems]})
        fail(f"{path} is not a valid job", slug=error.slug, errors=error.problems)


def _parsed(text: bytes) -> Any:
    """Parse JSON or YAML. JSON may write an emoji as two escapes, which YAML refuses."""
    if text.lstrip().startswith(b"{"):
        with suppress(InvalidJob):
            return parse_json(text)
    return parse_yaml(text)


def put_changes(
    patch: dict[str, Any], *, sets: Iterable[str] | None, name: str | None, labels: Iterable[str] | None
) -> dict[str, Any]:
    """Put the options `--set`, `--name` and `--label` into `patch`, a merge patch of a job, and return it."""
    for text in sets or ():
        _assign(patch, text)
    if name is not None:
        patch["name"] = name
    for label, value in label_pairs(labels or ()).items():
        _put(patch, ["labels", label], value)
    return patch


def read_changes(
    path: Path | None, *, sets: Iterable[str] | None, name: str | None, labels: Iterable[str] | None
) -> dict[str, Any]:
    """Return the changes in the YAML or JSON file and in the options, a merge patch of a job, with its schedules.

    Exits with 2 if they cannot be read.
    """
    try:
        patch = {} if path is None else _parsed(read_bytes(path))
        if not isinstance(patch, dict):
            fail(f"{path} must hold named fields, as a job does, got a {type(patch).__name__}")
        with_schedules(put_changes(patch, sets=sets, name=name, labels=labels), str(Path.cwd()))
    except InvalidJob as error:
        subject = "the changes are" if path is None else f"{path} is"
        fail(f"{subject} not valid", slug=error.slug, errors=error.problems)
    return patch


def label_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels in texts such as `team=vision`. Exits with 2 if one is none, or one name has two values."""
    pairs = set(map(_pair, texts))
    if len(dict(pairs)) < len(pairs):
        fail("--label is given two values for one name, and no job has both")
    return dict(pairs)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        fail(f"--label takes NAME=VALUE, e.g. team=vision, got {text!r}")
    return name, value


def _assign(patch: dict[str, Any], text: str) -> None:
    """Put `budget.seconds=80` into `patch`."""
    path, found, written = text.partition("=")
    value = yaml_value(written, f"--set {text}")
    if (path == "name" or path.startswith("labels.")) and value is not None and not isinstance(value, str):
        value = written.strip()  # text even if it looks otherwise: a name `2024`, a label `yes`
    names = _names(path, value)
    if not found or not all(names):
        fail(f"--set takes FIELD=VALUE, e.g. budget.seconds=80, got {text!r}")
    _put(patch, names, value)


def _put(patch: dict[str, Any], names: list[str], value: Any) -> None:
    """Set the field at the path of `names`. Anything on the path that is no object becomes one."""
    *above, last = names
    for name in above:
        if not isinstance(patch.get(name), dict):
            patch[name] = {}
        patch = patch[name]
    patch[last] = value


def _names(path: str, value: Any) -> list[str]:
    """Return the names on the path to a field; labels and `params` have names with dots of their own.

    `params.optimizer.momentum` takes a whole range, and `params.optimizer.momentum.uniform` its two ends.
    """
    root, _, rest = path.partition(".")
    if not rest or root not in ("labels", "params"):
        return path.split(".")
    name, _, form = rest.rpartition(".")
    is_form = root == "params" and bool(name) and form in ParamRange.model_fields and not isinstance(value, dict)
    return [root, name, form] if is_form else [root, rest]


def yaml_value(text: str, option: str) -> Any:
    """Parse a value as YAML. Exits with 2, and names the option, if it is invalid or only a comment."""
    try:
        value = parse_yaml(text.encode())
    except InvalidJob as error:
        fail(f"{option}: {error}")
    if value is None and text.strip() not in _NOTHING:
        fail(f"{option}: {text!r} says nothing in YAML; put text that begins with # in quotes of its own")
    return value
