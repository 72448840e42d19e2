"""Puts a method of another package through a job, the catalogue and the laws; prints what came of it as JSON.

Run with the package on the path: its entry point is read when the registry is imported.
"""

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exchange_harness import Bench, Place, digest, gradients
from exchange_kinds import CONSERVING, KINDS, trial
from pydantic import ValidationError

from service.catalog.methods import methods
from service.job.spec import JobSpec
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.segment import Segment
from trainers.traffic import cost
from trainers.training.process_group import ProcessGroup

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 20}, "optimizer": {"kind": "sgd"}}
KIND = {"kind": "every_kth", "density": 0.1}
NUM_STEPS = 5


def main() -> None:
    [view] = methods("every_kth", workers=2).methods
    print(
        json.dumps(
            {
                "summary": view.summary,
                "predicted in the catalogue": view.traffic.bytes_per_step,
                "refused beside jointspar": _refusal(blocks={"kind": "jointspar"}),
                "refused beside local_sgd": _refusal(sync={"kind": "local_sgd"}, exchange=KIND | {"memory": "none"}),
                "asked all laws": "every_kth" in KINDS and "every_kth" in CONSERVING,
                "job": _train(),
                "laws": _laws(),
            }
        )
    )


def _refusal(**parts: Any) -> str:
    try:
        JobSpec.model_validate(JOB | {"exchange": KIND} | parts)
    except ValidationError as error:
        return str(error)
    return ""


def _train() -> dict[str, Any]:
    """Train the job's first steps with real workers, as its stage loop does."""
    spec = next(JobSpec.model_validate(JOB | {"exchange": KIND}).trials())
    with ProcessGroup(spec.replica, 2, device="cpu") as group:
        result = group.run(Segment(num_steps=NUM_STEPS, learning_rate=0.1, level=0.1))
        predicted = cost.step_traffic(group.shapes, num_workers=2, exchange=spec.replica.exchange, level=0.1).bytes
    return {
        "diverged": result.diverged,
        "sent": [sum(each.values()) for each in result.bytes_sent],
        "predicted": NUM_STEPS * predicted,
    }


def _laws() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("forkserver")
        ranks = [context.Process(target=_rank, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    place, exchange = Place(rank, 2), JobSpec.model_validate(JOB | {"exchange": KIND}).exchange
    found = trial(exchange, 0.1, place, torch.float32)
    whole = Bench(exchange.model_copy(update={"density": 1.0}), place), Bench(NoneConfig(), place)
    for bench, level in zip(whole, (1.0, None), strict=True):
        bench.step(gradients(rank, 0), level)
    everything, dense = (digest([bench.buffer.gradient]) for bench in whole)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found | {"dense": everything == dense}))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
