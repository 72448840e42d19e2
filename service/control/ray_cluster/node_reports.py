"""Ask each node of a cluster for a report, by a separate driver."""

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from uuid import uuid4

from pydantic import BaseModel

from service.control.ray_cluster.clusters import RayApi
from service.control.ray_cluster.ray_jobs import LIVE
from service.errors import Unavailable

#: How the program's lines begin, and its version of a package that is not there (`service/cluster/node_report.py`).
_MARK, MISSING = "wiretune-doctor ", "missing"
#: Seconds for the driver, which waits for nodes that do not answer, and between two looks at it.
_DRIVER_S, _LOOK_S = 180.0, 0.5


class NodeReport(BaseModel):
    """A node's versions and load, and whether it sees the given file; or its fault."""

    machine: str
    versions: dict[str, str] = {}
    load: float = 0.0
    cores: int = 1
    sees: bool | None = None
    error: str = ""


def ask_nodes(ray: RayApi, python: str, *, packages: Sequence[str], file: str = "") -> list[NodeReport]:
    """Return each living node's versions of `packages`, and whether it sees the local `file`. Raises Unavailable."""
    program = (files("service.cluster") / "node_report.py").read_text()
    name = f"wiretune-doctor-{uuid4().hex}"
    ray.submit(name, entrypoint=f"{python} -c {shlex.join([program, ' '.join(packages), file])}", env_vars={})
    deadline = time.monotonic() + _DRIVER_S
    while (status := ray.status(name)) in LIVE:
        if time.monotonic() > deadline:
            ray.stop(name)
            raise Unavailable(f"the driver {name} did not end in {_DRIVER_S:.0f} s")
        time.sleep(_LOOK_S)
    lines = b"".join(ray.log(name)).decode(errors="replace").strip().splitlines()
    found = [NodeReport.model_validate_json(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
    if not found:
        raise Unavailable(f"the driver {name} ended as {status}: {lines[-1] if lines else 'nothing'}")
    with suppress(Unavailable):  # then it stays in Ray's list, as one that failed does
        ray.delete(name)
    return found
