"""Recorded benchmarks: processor seconds of an exchange, and steps to a loss, for each method.

`benchmarks/predict.py evidence` writes the file from the benchmark rows.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from search.config import Config
from service.prediction.model import OwnCost
from service.wire.predictions import Task
from trainers.methods.replica_config import ReplicaConfig

FILE = Path(__file__).parent / "evidence.json"
#: The key that stands for every other method.
ANY = "*"


class Lesson(Config):
    """A method's steps to a loss on one task and number of hosts, as a multiple of dense training's steps."""

    method: str
    task: Task
    hosts: int
    ratios: tuple[float, ...] = Field(description="one for each seed that reached the loss")
    num_missed: int = Field(description="seeds that did not reach it in the steps they had")


class RecordedTask(Config):
    """A task with the compute time of a step, measured alone on a core of its own."""

    model: str = Field(description="for a person")
    job: dict[str, Any] = Field(description="the parts of a job that are like it")
    shapes: str
    compute_ms: float


class Recorded(Config):
    """All recorded evidence."""

    methods: dict[str, dict[str, Any]] = Field(description="by name: the parts of a job that choose it")
    own: dict[str, OwnCost] = Field(description="by kind of exchange and sync, as `topk/every_step`; `*`: all others")
    lessons: tuple[Lesson, ...]
    tasks: dict[Task, RecordedTask]
    usual_error: float = Field(description="of four steps in five, predicted where no row was, the relative error")
    num_rows: int

    def own_cost(self, replica: ReplicaConfig) -> OwnCost:
        """Return the cost of an exchange by this method, or the usual cost if it was never timed."""
        return self.own.get(cost_key(replica), self.own[ANY])

    def is_timed(self, replica: ReplicaConfig) -> bool:
        """Return whether the method's steps were ever timed."""
        return cost_key(replica) in self.own

    def lessons_of(self, method: str, task: str, hosts: int) -> Lesson | None:
        """Return the lesson on the method and task with the nearest number of hosts, or None."""
        known = [each for each in self.lessons if (each.method, each.task) == (method, task)]
        return min(known, key=lambda each: abs(each.hosts - hosts), default=None)


def cost_key(replica: ReplicaConfig) -> str:
    """Return the key of a method's computation in an exchange. It does not depend on the level."""
    blocks = "" if replica.blocks.kind == "all" else f"/{replica.blocks.kind}"
    return f"{replica.exchange.kind}/{replica.sync.kind}{blocks}"


@cache
def recorded() -> Recorded:
    """Return the evidence that the package contains."""
    return Recorded.model_validate_json(FILE.read_text())
