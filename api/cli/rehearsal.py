"""A trial run of a workload, in a process of its own since it may be slow or crash."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from search.config import RateRange
from service.job.parts import TrialSpec

Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="give up after this many seconds")]
DEFAULT_S = 60.0

#: The part of a guess to rehearse with if the guess itself diverges, where the controller need not use it.
LOWEST_PART = 1e-3


class CannotTrain(Exception):
    """The workload cannot be trained, or not in time; the message gives the reason and the remedy."""


def lowest_rates(trials: Iterable[TrialSpec]) -> dict[str, float]:
    """Return a low learning rate for each arm whose controller searches it, and so need not use the guess."""
    return {
        trial.arm: max(LOWEST_PART * trial.replica.optimizer.learning_rate, trial.controller.min_learning_rate or 0.0)
        for trial in trials
        if isinstance(trial.controller, RateRange)
    }


def answers(order: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Return the answers of `trainers.training.rehearsal` to `order`, by name. Raises CannotTrain."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainers.training.rehearsal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    is_late = False
    try:
        said, _ = process.communicate(json.dumps(order), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        is_late = True
        os.killpg(process.pid, signal.SIGKILL)  # with its data loaders
        said, _ = process.communicate()
    except BaseException:  # Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = [json.loads(line) for line in said.splitlines()]
    doing = next((line["doing"] for line in reversed(lines) if "doing" in line), "starting Python")
    if failed := [line["failed"] for line in lines if "failed" in line]:
        raise CannotTrain(f"{failed[0]}\n  while {doing}")
    if is_late:
        raise CannotTrain(f"time was up after {timeout_s:g} s, while {doing}; give more with --timeout")
    if process.returncode:
        raise CannotTrain(f"the process ended ({_end(process.returncode)}) while {doing}")
    return {line["name"]: line["found"] for line in lines if "name" in line}


def _end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed: by the system, if memory was short"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
