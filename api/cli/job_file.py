"""Job files: read a job, or changes to one, from a file or standard input."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from api.cli.terminal import STANDARD, fail, print_json
from api.documents import checked, parse_json, parse_yaml
from service.errors import InvalidJob
from service.job.problems import Problem
from service.job.spec import JobSpec


def with_schedules(content: Any, folder: str) -> Any:
    """Load every schedule that a job's `content` names by a `path` in `folder`, and return the content.

    Raises:
        InvalidJob: such a file cannot be read, or is not JSON.
    """
    # The job's own checks refuse content of any other form.
    parts = [("", content)]
    if isinstance(content, dict) and isinstance(content.get("arms"), list):
        parts += [(f"/arms/{index}", arm) for index, arm in enumerate(content["arms"])]
    for pointer, part in parts:
        controller = part.get("controller") if isinstance(part, dict) else None
        if not isinstance(controller, dict) or controller.get("kind") != "schedule" or "schedule" in controller:
            continue
        if isinstance(controller.get("path"), str):
            path = os.path.join(folder, os.path.expanduser(controller.pop("path")))
            controller["schedule"] = _read(path, f"{pointer}/controller/path")
    return content


def _read(path: str, pointer: str) -> Any:
    try:
        with open(path, "rb") as file:
            return parse_json(file.read())
    except OSError as error:
        message = f"cannot read the schedule {path}: {error.strerror}"
    except InvalidJob as error:
        message = f"{path} holds no schedule: {error.problems[0].message}"
    raise InvalidJob([Problem(pointer=pointer, message=message, value=path)])


def read_bytes(path: Path) -> bytes:
    """Return the text of the file or of standard input. Exits with 2 if it cannot be read."""
    try:
        return typer.get_binary_stream("stdin").read() if path == STANDARD else path.read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def read_document(path: Path) -> Any:
    """Return the content of the YAML or JSON file, with its schedules. Exits with 2 if it is neither."""
    try:
        return with_schedules(_parsed(read_bytes(path)), str(Path.cwd()))
    except InvalidJob as error:
        fail(f"{path}: {error}")


def read_job(path: Path, *, as_json: bool = False) -> JobSpec:
    """Return the job in the file, with its schedules. Prints every problem and exits with 2 if there are any."""
    text = read_bytes(path)
    try:
        return checked(JobSpec, with_schedules(_parsed(text), str(Path.cwd())))
    except InvalidJob as error:
        if as_json:
            print_json({"valid": False, "errors": [problem.model_dump(mode="json") for problem in error.problems]})
        fail("\n".join([f"{path} is not a valid job:", *(f"  {problem}" for problem in error.problems)]))


def _parsed(text: bytes) -> Any:
    """Parse JSON or YAML. JSON may write an emoji as two escapes, which YAML refuses."""
    if text.lstrip().startswith(b"{"):
        with suppress(InvalidJob):
            return parse_json(text)
    return parse_yaml(text)
