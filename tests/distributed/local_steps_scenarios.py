"""Scenarios of one rank in a real group under 0/1 Adam, which exchanges ever more rarely; each returns its findings."""

import json
import math
from typing import Any

import torch
import torch.distributed as dist
from exchange_harness import Place
from exchange_kinds import UNEVEN
from sync_harness import SHAPES, SyncBench
from sync_scenarios import RATES, SEGMENT, joined_replica, loss_of_the_mean, replicas_apart

from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.methods.optimizer.spec import FromExchangeConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.traffic import cost

#: Dense in the steps 0, 1 and 3; exchanges in 4, 5, 6, 7 (every step), 9, 11 (every other one), 15 and 19.
CONFIG = ZeroOneAdamConfig(refreshes=2, freeze_steps=4, max_interval=4, interval_steps=4, betas=(0.8, 0.99), block=32)
#: As before, where it never comes to a longer interval, and where it must not.
ALWAYS = (CONFIG.model_copy(update={"interval_steps": 1000}), CONFIG.model_copy(update={"max_interval": 1}))
#: A worker's own steps begin early, so that a segment of replicas ends between two exchanges.
EARLY = CONFIG.model_copy(update={"freeze_steps": 2, "interval_steps": 2, "block": 4096})
OPTIMIZER = FromExchangeConfig(weight_decay=0.1)
LOCAL_RATES = (RATES + RATES)[:20]


def local_steps(rank: int, num_workers: int) -> dict[str, Any]:
    replicas = replicas_apart(rank, num_workers, exchange=EARLY, optimizer=OPTIMIZER)
    return _trials(Place(rank, num_workers)) | {"replicas": replicas}


def local_steps_in_pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for pairs of the ranks; and replicas on nodes of different sizes, within an interval."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    replica = joined_replica(rank, num_workers, nodes=UNEVEN, exchange=EARLY, optimizer=OPTIMIZER)
    replica.run(SEGMENT)
    seen = {"of the mean": loss_of_the_mean(replica), "evaluated": replica.evaluate().loss}
    seen["losses"] = _losses(Place.on_nodes(rank, UNEVEN))
    return _trials(Place(rank % 2, 2, groups[rank // 2])) | {"on nodes": seen}


def _trials(place: Place) -> dict[str, Any]:
    return {
        "steps": _steps(place),
        "always": [_bench(place, config).run(RATES) for config in ALWAYS],
        "resumed": [_resumed(place, number) for number in (9, 13, 14)],
        "stopped": [_stopped(place, bad) for bad in (math.inf, math.nan)],
    }


def _bench(place: Place, config: ZeroOneAdamConfig = CONFIG) -> SyncBench:
    return SyncBench(EveryStepConfig(), place, exchange=config, optimizer=OPTIMIZER)


def _steps(place: Place) -> list[dict[str, Any]]:
    """What each step started from, led to, kept and sent."""
    bench, seen = _bench(place), []
    for rate in LOCAL_RATES:
        before, gradient = bench.x, bench.problem.gradient(bench.x)
        bench.step(rate)
        seen.append(
            {
                "rate": rate,
                "before": before.tolist(),
                "gradient": gradient.tolist(),
                "x": bench.x.tolist(),
                "direction": bench.buffer.gradient.tolist(),
                "state": {name: tensor.tolist() for name, tensor in bench.policy.exchange.tensors().items()},
                "is apart": bench.policy.is_apart,
                "to meeting": bench.policy.steps_to_meeting,
                "sent": sum(bench.node_links.between.ledger.take().values()),
            }
        )
    predicted = cost.step_traffic(SHAPES, num_workers=place.num_workers, exchange=CONFIG).bytes
    return [step | {"predicted": predicted} for step in seen]


def _losses(place: Place) -> list[float]:
    """What each step tells a rank of the loss, which is the rank's number on each."""
    bench = _bench(place)
    bench.loss = float(place.rank)
    return [bench.step(rate).loss for rate in LOCAL_RATES]


def _resumed(place: Place, number: int) -> bool:
    """Whether training goes on alike on another bench, from a copy of the state after so many steps."""
    first, other = _bench(place), _bench(place)
    first.run(LOCAL_RATES[:number])
    state, exchange = first.state(), first.policy.exchange
    tensors = {name: tensor.clone() for name, tensor in exchange.tensors().items()}
    scalars = json.dumps([state[1], exchange.scalars()])
    expected = first.run(LOCAL_RATES[number:])
    of_policy, of_exchange = json.loads(scalars)
    other.load((state[0], of_policy, *state[2:]))
    for name, tensor in other.policy.exchange.tensors().items():
        tensor.copy_(tensors[name])
    other.policy.exchange.load_scalars(of_exchange)
    return other.run(LOCAL_RATES[number:]) == expected


def _stopped(place: Place, bad: float) -> list[bool]:
    """Whether the steps of an interval diverge in the first of which one rank has a gradient that is not finite."""
    bench = _bench(place)
    bench.run(LOCAL_RATES[:12])
    told = []
    for number in range(12, 16):
        gradient = bench.problem.gradient(bench.x)
        if number == 12 and place.rank == place.num_workers - 1:
            gradient[7] = bad
        bench.buffer.expect()
        bench.buffer.gradient.copy_(gradient)
        bench.buffer.finish()
        told.append(bench.policy.gradients.step(torch.tensor(1.0), None, 0.1).diverged)
    return told
