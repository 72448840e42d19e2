"""One host's end of an arm: a process in the host's namespace, told what to do in JSON, answering in kind."""

import json
import os
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from races import tasks
from races.ours import Ours, configuration
from races.rivals import Rival


class Contender(Protocol):
    """A rank of an arm."""

    #: They load kernels, fill caches and open connections, before the clock: until hosts have met.
    warm_up_steps: int

    def connect(self, init_method: str) -> None:
        """Join the other hosts at a torch URL."""

    def begin(self, rate: float) -> None:
        """Go to the state before the first step, at this learning rate from now on."""

    def run(self, num_steps: int) -> dict[str, Any]:
        """Take the steps; returns what is to be known of them, `loss` at least, as JSON."""

    def publish(self, folder: str) -> None:
        """Leave in `folder` what the other hosts need to evaluate."""

    def evaluate(self, folder: str) -> dict[str, float]:
        """Return the validation losses of this host's `own` model and of the hosts' `mean` model."""


def build(launch: dict[str, Any]) -> Contender:
    """Return the arm that `launch` describes: a name is a rival's, anything else overrides the product's defaults."""
    arm, task, place = launch["arm"], launch["task"], (launch["seed"], launch["rank"], launch["num_workers"])
    workload, (seed, rank, num_workers) = tasks.build(task), place
    if isinstance(arm, str):
        return Rival(arm, workload, tasks.OPTIMIZERS[task], place=place)
    return Ours(configuration(arm, task, seed, launch["link"]), workload, rank=rank, num_workers=num_workers)


def answer(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    """Do what `request` says, and return what came of it."""
    match request:
        case {"do": "begin", "rate": rate}:
            contender.begin(rate)
            contender.run(contender.warm_up_steps)
            contender.begin(rate)
            return {}
        case {"do": "run", "num_steps": num_steps}:
            started = time.monotonic()
            told = contender.run(num_steps)
            return {"seconds": time.monotonic() - started, **told}
        case {"do": "publish", "folder": folder}:
            contender.publish(folder)
            return {}
        case {"do": "evaluate", "folder": folder}:
            return contender.evaluate(folder)
        case _:
            raise ValueError(f"`do` must be begin, run, publish or evaluate with its arguments, got {request}")


def work(launch: dict[str, Any], requests: Connection) -> None:
    """Build the arm, join the others, and answer until there are no more requests, or something fails."""
    os.environ["GLOO_SOCKET_IFNAME"] = launch["interface"]
    torch.set_num_threads(1)
    try:
        contender = build(launch)
        contender.connect(launch["init_method"])
        reply: dict[str, Any] = {}
        while True:
            requests.send_bytes(json.dumps(reply).encode())
            reply = answer(contender, json.loads(requests.recv_bytes()))
    except EOFError:
        return
    except Exception:  # the border of the process: the other end reports it
        requests.send_bytes(json.dumps({"failed": traceback.format_exc()}).encode())
