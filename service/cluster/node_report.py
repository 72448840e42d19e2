"""Print a line for each node of a Ray cluster: its versions, its load, and whether it sees a file.

`wiretune doctor --ray` sends this source text to Ray, since nodes may have another release of Wiretune, or none. It
therefore imports nothing from Wiretune.
"""

import json
import os
import platform
import sys
import time
from importlib.metadata import distributions
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

#: The prefix of each line.
MARK = "wiretune-doctor "
#: Seconds to wait for all nodes to answer, and for a file that a network folder may show late.
ANSWER_S, SEEN_S = 90.0, 30.0


def report(packages: list[str], file: str) -> dict[str, Any]:
    """Return the report of this node. Without a `file`, none is looked for."""
    found = {name: next((each.version for each in distributions(name=name)), "missing") for name in packages}
    return {
        "versions": {"python": platform.python_version()} | found,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count() or 1,
        "sees": sees(file) if file else None,
    }


def sees(file: str) -> bool:
    """Return whether the file exists or appears within `SEEN_S`."""
    deadline = time.monotonic() + SEEN_S
    while not os.path.exists(file):  # raises nothing if the folder is unreadable or its server is down
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.5)
    return True


def main(packages: list[str], file: str) -> None:
    """Ask all nodes at once, without reserving a core, and print a JSON line for each."""
    ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    ask = ray.remote(num_cpus=0, max_retries=0)(report)
    calls = [ask.options(scheduling_strategy=place).remote(packages, file) for place in places]
    ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)
    for node, call in zip(nodes, calls, strict=True):
        machine = {"machine": f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"}
        print(MARK + json.dumps(machine | _answer(call)), flush=True)


def _answer(call: Any) -> dict[str, Any]:
    """Return a node's report, or the fault of the node."""
    try:
        found: dict[str, Any] = ray.get(call, timeout=0)
    except GetTimeoutError:
        return {"error": f"no answer in {ANSWER_S:.0f} s"}
    except RayTaskError as error:  # its text is a traceback that ends with the error
        return {"error": str(error).strip().splitlines()[-1]}
    except RayError as error:  # some texts are a page long
        return {"error": str(error).strip().splitlines()[0]}
    return found


if __name__ == "__main__":
    main(sys.argv[1].split(), sys.argv[2])
