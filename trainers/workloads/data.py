"""Finds data sets on this machine. Nothing is downloaded: a message says where one was missed, and how to get it."""

import importlib.util
import os
from pathlib import Path

from trainers.workload import NoData

#: The folder of data sets, in the environment of the workers.
FOLDER_VARIABLE = "WIRETUNE_DATA_DIR"


def find(name: str, *, installed: Path | None, remedy: str) -> Path:
    """Return the file or folder `name` below WIRETUNE_DATA_DIR, or else `installed` if that exists.

    Raises NoData with the places looked at and the `remedy`, a command that installs the data.
    """
    folder = _folder()
    places = [place for place in (folder and folder / name, installed) if place]
    for place in places:
        if place.exists():
            return place
    looked = f" (looked for {' and '.join(map(str, places))})" if places else ""
    raise NoData(
        f"this machine lacks the data `{name}`{looked}. Get it on every node that trains: {remedy}; or put it "
        f"below the folder that {FOLDER_VARIABLE} names in the workers' environment, where it is {folder or 'not set'}"
    )


def _folder() -> Path | None:
    given = os.environ.get(FOLDER_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_absolute():  # each worker has a working directory of its own
        raise NoData(f"{FOLDER_VARIABLE} must be an absolute path, got `{given}`")
    return folder


def in_package(package: str, name: str) -> Path | None:
    """Return the path of `name` in an installed package, which is not imported; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / name
