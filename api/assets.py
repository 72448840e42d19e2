"""The files of the page, and plotly.js from the installed `plotly` package."""

import gzip
import posixpath
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

DASHBOARD = Path(__file__).parent / "dashboard"
_IMPORTED = re.compile(r'(?:\bfrom |^import )"(\.[^"]*)"', re.MULTILINE)


def imported_by(path: str) -> dict[str, str]:
    """Return the paths of the modules that a module of the page imports, by the names in its imports."""
    folder = posixpath.dirname(path)
    named = _IMPORTED.findall((DASHBOARD / path).read_text("utf-8"))
    return {each: posixpath.normpath(posixpath.join(folder, each)) for each in named}


def modules(start: str) -> list[str]:
    """Return the paths of a module of the page and of all its imports, `start` first."""
    found = [start]
    for path in found:  # grows during the loop
        found += [each for each in imported_by(path).values() if each not in found]
    return found


@cache
def plotly_source() -> bytes:
    """Return plotly.js. Importing the package would take a second for nothing."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package `plotly`, which carries plotly.js, is not installed")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@cache
def plotly_gzipped() -> bytes:
    """Return plotly.js compressed to a third of its size."""
    return gzip.compress(plotly_source(), compresslevel=6, mtime=0)
