"""The files of the page, and plotly.js as the installed `plotly` package carries it."""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

DASHBOARD = Path(__file__).parent / "dashboard"


@cache
def plotly_source() -> bytes:
    """Return plotly.js. The package is not imported: that would cost a second and is of no use here."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package `plotly`, which carries plotly.js, is not installed")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@cache
def plotly_gzipped() -> bytes:
    """Return plotly.js in a third of its size."""
    return gzip.compress(plotly_source(), compresslevel=6, mtime=0)
