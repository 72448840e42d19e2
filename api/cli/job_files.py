"""Read what a job's file may say and a request may not: paths of files that become part of the job."""

import os
from collections.abc import Iterator
from typing import Any

from api.documents import parse_json
from service.errors import InvalidJob
from service.job.problems import Problem


def with_schedules(content: Any, folder: str) -> Any:
    """Put into a job's `content`, which is returned, every schedule that it names by a `path`, taken from `folder`.

    Raises:
        InvalidJob: such a file cannot be read, or holds no JSON.
    """
    for pointer, controller in _controllers(content):
        is_named = isinstance(controller.get("path"), str) and "schedule" not in controller
        if controller.get("kind") == "schedule" and is_named:
            controller["schedule"] = _read(os.path.join(folder, os.path.expanduser(controller.pop("path"))), pointer)
    return content


def _controllers(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every controller with its JSON pointer; what has not a job's form is left to the job's own checks."""
    parts = [("", content)]
    if isinstance(content, dict) and isinstance(content.get("arms"), list):
        parts += [(f"/arms/{index}", arm) for index, arm in enumerate(content["arms"])]
    for pointer, part in parts:
        if isinstance(part, dict) and isinstance(part.get("controller"), dict):
            yield f"{pointer}/controller", part["controller"]


def _read(path: str, pointer: str) -> Any:
    try:
        with open(path, "rb") as file:
            return parse_json(file.read())
    except OSError as error:
        message = f"cannot read the schedule {path}: {error.strerror}"
    except InvalidJob as error:
        message = f"{path} holds no schedule: {error.problems[0].message}"
    raise InvalidJob([Problem(pointer=f"{pointer}/path", message=message, value=path)])
