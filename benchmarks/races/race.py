"""Races: a few arms on the same hosts at the same time, which take turns, block by block of steps: A B C A B C.

Only the arm whose turn it is trains, so all of them meet the same machine in the same minutes, and quotients of
two arms' times hold even where other work slows both.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from races.cables import Cables
from races.team import Block, Team

Json = dict[str, Any]


def turned(arms: Sequence[str], turn: int, *, of: int) -> Sequence[str]:
    """Return the arms in an order that turns, so that in `of` turns none is always the first or the last."""
    cut = turn % of * len(arms) // of
    return (*arms[cut:], *arms[:cut])


@dataclass(frozen=True)
class Rules:
    """The rules of a race: its arms' work, and when one of them is done."""

    task: str
    seed: int
    mbps: float | None  # of every cable; None: no limit
    block_steps: int
    max_steps: int
    target: float | None = None  # validation loss that ends an arm's race; None: there is no validation
    timed_steps: Mapping[str, int] = field(default_factory=dict)  # arms whose further steps are taken without a limit


@dataclass(frozen=True)
class Validation:
    """A look at an arm's models, off the clock."""

    step: int
    seconds: float  # of training until here
    own: float  # loss of the hosts' own models, mean over the hosts
    mean: float  # loss of their mean model

    @property
    def loss(self) -> float:
        """The lower one, which favours arms whose hosts differ: the rivals and controls among them."""
        return min(self.own, self.mean) if math.isfinite(self.own) else math.inf


@dataclass
class Runner:
    """An arm's record in a race. Mutable."""

    team: Team
    rate: float
    timed_steps: float = math.inf  # steps after which the clock is computed
    timed: list[Block] = field(default_factory=list)
    untimed: list[Block] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return steps_of(self.timed) + steps_of(self.untimed)

    @property
    def is_timed(self) -> bool:
        """Return whether the next block counts for the clock."""
        return self.steps < self.timed_steps

    @property
    def seconds(self) -> float:
        """The training clock: steps that were not timed count as the mean of those that were."""
        timed_s = sum(block.seconds for block in self.timed)
        return timed_s * self.steps / steps_of(self.timed)

    def advance(self, rules: Rules) -> None:
        """Take a block of steps, and look at the models if the race is to a loss."""
        blocks = self.timed if self.is_timed else self.untimed
        blocks.append(self.team.run(rules.block_steps))
        if rules.target is not None:
            self.validations.append(Validation(self.steps, self.seconds, **self.team.evaluate()))

    def is_done(self, rules: Rules) -> bool:
        last = self.validations[-1].loss if self.validations else math.inf
        blocks = self.untimed or self.timed
        has_failed = bool(blocks) and not math.isfinite(blocks[-1].loss)
        return has_failed or self.steps >= rules.max_steps or (rules.target is not None and last <= rules.target)


def steps_of(blocks: Sequence[Block]) -> int:
    return sum(block.num_steps for block in blocks)


def race(network: Cables, rules: Rules, arms: Mapping[str, str | Json], rates: Mapping[str, float]) -> list[Json]:
    """Run the arms against each other; returns a row for each. Raises WorkerFailed."""
    with contextlib.ExitStack() as stack:
        network.limit(rules.mbps)
        teams = {
            name: stack.enter_context(Team(network, arm, task=rules.task, seed=rules.seed, number=number))
            for number, (name, arm) in enumerate(arms.items())
        }
        runners = {
            name: Runner(team, rates[name], rules.timed_steps.get(name, math.inf)) for name, team in teams.items()
        }
        for runner in runners.values():
            runner.team.wait()
            runner.team.begin(runner.rate)
        for runner in turns(list(runners.values()), rules):
            with unlimited(network, rules, when=not runner.is_timed):
                runner.advance(rules)
    ended = int(time.time())
    return [row(name, runner, rules, network.num_hosts) | {"race": ended} for name, runner in runners.items()]


def turns(runners: Sequence[Runner], rules: Rules) -> Iterator[Runner]:
    """Yield who is to run next, until all are done."""
    while open_runners := [runner for runner in runners if not runner.is_done(rules)]:
        yield from open_runners


@contextlib.contextmanager
def unlimited(network: Cables, rules: Rules, *, when: bool) -> Iterator[None]:
    """Lift the limit for a while: for steps whose time is computed from others, but whose losses are not."""
    if not when or rules.mbps is None:
        yield
        return
    network.limit(None)
    yield
    network.limit(rules.mbps)


def row(name: str, runner: Runner, rules: Rules, num_hosts: int) -> Json:
    """Return what is recorded of an arm: plain JSON. Bytes are means per host and timed step."""
    reached = crossing(runner.validations, rules.target)
    sent = [each for block in runner.timed for each in block.sent]
    host_steps = num_hosts * steps_of(runner.timed)
    return {
        "task": rules.task,
        "hosts": num_hosts,
        "mbps": rules.mbps,
        "seed": rules.seed,
        "arm": name,
        "rate": runner.rate,
        "target": rules.target,
        "steps": reached and reached[0],
        "seconds": reached and reached[1],
        "is_computed": reached is not None and reached[0] > runner.timed_steps,
        "steps_taken": runner.steps,
        "best_loss": min((each.loss for each in runner.validations), default=None),
        "block_steps": rules.block_steps,
        "block_seconds": [block.seconds for block in runner.timed],
        "wire_bytes": sum(each.bytes for each in sent) / host_steps,
        "payload_bytes": sum(each.payload for each in sent) / host_steps,
        "ledger": mean_ledger(runner.timed, num_hosts),
        "saved_bytes": runner.timed[0].saved_bytes if runner.timed else None,
        "densities": [block.density for block in runner.timed],
        "validations": [[each.step, each.seconds, each.own, each.mean] for each in runner.validations],
        "load": os.getloadavg()[0],
    }


def mean_ledger(blocks: Sequence[Block], num_hosts: int) -> dict[str, float]:
    """Return the bytes by purpose that the product says a host sent in a step; empty for rivals."""
    total: dict[str, float] = {}
    for ledger in (ledger for block in blocks for ledger in block.ledgers):
        for purpose, num_bytes in ledger.items():
            total[purpose] = total.get(purpose, 0.0) + num_bytes / num_hosts / steps_of(blocks)
    return total


def crossing(validations: Sequence[Validation], target: float | None) -> tuple[float, float] | None:
    """Return (steps, seconds) at which the loss first came down to `target`, between looks by a straight line."""
    if target is None:
        return None
    before = None
    for look in validations:
        if look.loss <= target:
            if before is None or not math.isfinite(before.loss):
                return look.step, look.seconds
            share = (before.loss - target) / (before.loss - look.loss)
            steps = before.step + share * (look.step - before.step)
            return steps, before.seconds + share * (look.seconds - before.seconds)
        before = look
    return None
