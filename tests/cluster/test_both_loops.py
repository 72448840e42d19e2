"""The loop of a job and the loop of a script that trains by itself do the same with the same strategy."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from search import strategies
from search.config import Budget
from search.loop.orders import Loop, Order, Taken, Task
from search.protocol import Strategy
from search.types import Allowance, Candidate, Course, Decision, Observation, Spent, Values
from service.cluster import segment_length, trial
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation

PROBE_STEPS = 20


class Over(Exception):
    """The script has no further stage."""


class Planned(NamedTuple):
    """A stage of a script: what is probed, what is said of it, what is decided, and what is said of the commit."""

    probes: tuple[float, ...] = ()  # their rates
    leading: str | None = None  # once it has ended
    promoted: str | None = None
    starts_over: bool = False
    rate: float = 3.0
    steps: int | None = None  # of the commit, without those of a promoted probe; None: to the budget's end
    courses: Mapping[tuple[str | None, int], Course] = {}  # by probe, or None, and its steps; else `go_on`


class Script(Strategy):
    """A strategy whose stages are planned. It logs how it is called.

    When a commit is looked at that begins with a probe's steps depends on the lengths of pushes, so that is left out.
    """

    def __init__(self, stages: Sequence[Planned]) -> None:
        self.log = list[tuple[Any, ...]]()
        self._stages, self._number, self._spent = stages, 0, 0
        self._asked, self._told = 0, set[str]()

    @property
    def tells(self) -> list[str]:
        """What it was told, in words."""
        told = [each[1:] for each in self.log if each[0] == "tell"]
        return [" ".join([name or "commit", str(num_steps), *ends]) for name, num_steps, *ends in told]

    def ask(self) -> Candidate | None:
        if self._number == len(self._stages):
            raise Over
        name, probes = f"{self._number}-{self._asked}", self._stage.probes
        if self._asked == len(probes):
            self.log.append(("ask", None))
            return None
        self.log.append(("ask", name))
        values, allowance = Values(learning_rate=probes[self._asked]), Allowance(steps=PROBE_STEPS)
        self._asked += 1
        return Candidate(id=name, stage=self._number, values=values, allowance=allowance, origin="sobol")

    def watch(self, observation: Observation) -> Course:
        name, num_steps = observation.candidate_id, _num_steps(observation)
        if name is not None or self._stage.promoted is None:
            self.log.append(("watch", name, num_steps))
        return self._stage.courses.get((name, num_steps), "go_on")

    def leading(self) -> str | None:
        return self._stage.leading if self._stage.leading in self._told else None

    def tell(self, observation: Observation) -> None:
        flags = ("is_cut", "diverged", "rolled_back", "started_over")
        ends = [flag for flag in flags if getattr(observation, flag)]
        self.log.append(("tell", observation.candidate_id, _num_steps(observation), *ends))
        self._spent = observation.spent.steps
        if observation.candidate_id is not None:
            self._told.add(observation.candidate_id)
            return
        self._number, self._asked = self._number + 1, 0

    def decide(self, held: Collection[str] = ()) -> Decision:
        self.log.append(("decide", *sorted(held)))
        stage = self._stage
        return Decision(
            stage=self._number,
            values=Values(learning_rate=stage.rate),
            reason="as planned",
            switched=False,
            promoted=stage.promoted,
            starts_over=stage.starts_over,
            commit_until=Allowance(steps=None if stage.steps is None else self._spent + stage.steps),
        )

    def values(self, spent: Spent) -> Values:
        return Values(learning_rate=self._stage.rate)

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    @property
    def _stage(self) -> Planned:
        return self._stages[self._number]


def _num_steps(observation: Observation) -> int:
    assert observation.trace is not None
    return observation.trace.num_steps


#: By case: the budget in steps, the stages, and what the strategy is told.
CASES: dict[str, tuple[int, list[Planned], list[str]]] = {
    "cut at each part": (
        200,
        [
            Planned(
                probes=(1.0, 2.0, 3.0, 4.0, 60.0),
                courses={("0-0", 5): "end", ("0-1", 10): "end", ("0-2", 15): "end"},
                steps=50,
            )
        ],
        ["0-0 5 is_cut", "0-1 10 is_cut", "0-2 15 is_cut", "0-3 20", "0-4 12 diverged", "commit 50"],
    ),
    "the last probe is promoted": (
        200,
        [Planned(probes=(2.0, 3.0), leading="0-0", promoted="0-1", steps=40), Planned()],
        ["0-0 20", "0-1 20", "commit 60", "commit 120"],
    ),
    "the leading probe is promoted": (
        200,
        [Planned(probes=(3.0, 2.0, 1.0), leading="0-0", promoted="0-0", steps=40), Planned()],
        ["0-0 20", "0-1 20", "0-2 20", "commit 60", "commit 100"],
    ),
    "rolled back": (
        150,
        [Planned(steps=30), Planned(steps=100, courses={(None, 30): "roll_back"}), Planned(rate=2.0)],
        ["commit 30", "commit 30 rolled_back", "commit 90"],
    ),
    "rolled back at the end, which is better": (
        100,
        [Planned(courses={(None, 100): "roll_back"})],
        ["commit 100"],
    ),
    "rolled back at the end, which is no better": (
        100,
        [Planned(rate=1e-17, courses={(None, 100): "roll_back"})],
        ["commit 100 rolled_back"],
    ),
    "ended by a look": (100, [Planned(courses={(None, 40): "end"}), Planned()], ["commit 40", "commit 60"]),
    "diverged, and recovered": (
        300,
        [Planned(rate=60.0), Planned(probes=(60.0, 3.0), steps=50)],
        ["commit 12 diverged rolled_back", "1-0 12 diverged", "1-1 20", "commit 50"],
    ),
    "no rate helps": (
        300,
        [Planned(rate=rate) for rate in (70.0, 60.0, 55.0, 51.0)],
        ["commit 12 diverged rolled_back"] * 3,
    ),
    "started over by a look": (
        100,
        [Planned(steps=30), Planned(courses={(None, 20): "start_over"}), Planned()],
        ["commit 30", "commit 20 rolled_back started_over", "commit 50"],
    ),
    "started over by a decision": (
        100,
        [Planned(steps=30), Planned(probes=(3.0,), starts_over=True), Planned()],
        ["commit 30", "1-0 20", "commit 0 rolled_back started_over", "commit 50"],
    ),
    "started over by a look at the end": (100, [Planned(courses={(None, 100): "start_over"})], ["commit 100"]),
    "started over by a decision at the end": (
        60,
        [Planned(steps=40), Planned(probes=(3.0,), starts_over=True)],
        ["commit 40", "1-0 20", "commit 0"],
    ),
    "no step": (
        100,
        [Planned(steps=0), Planned(probes=(3.0,), steps=0), Planned()],
        ["commit 0", "1-0 20", "commit 0", "commit 80"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_strategy_is_called_in_the_same_way_by_both_loops(
    case: str, tmp_path: Path, arithmetic_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, stages, tells = CASES[case]
    in_a_job, in_a_script = Script(stages), Script(stages)

    monkeypatch.setattr(strategies, "build", lambda *_, **__: in_a_job)
    group = arithmetic_group(patience=12)
    group.evaluate = lambda **_: Evaluation(loss=_loss(group.rates), num_samples=10, bytes_sent=({"control": 8},) * 2)
    spec = digits_trial(
        budget={"steps": steps},
        optimizer={"kind": "sgd"},
        controller={"kind": "bo"},
        checkpoint={"export": "best"},
        objective={"every": 10},
    )
    with suppress(Over):
        trial.train(spec, group, Memory(), trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")
    loop = Loop(in_a_script, Budget(steps=steps), clock=lambda: 0.0, holds=True)
    with suppress(Over):
        loop.run(_by(arithmetic_group(patience=12)))

    assert in_a_job.tells == in_a_script.tells == tells
    assert in_a_job.log == in_a_script.log


def _loss(rates: Sequence[float]) -> float:
    """Return a validation loss that falls whenever that of training does."""
    return 3.0 / (1.0 + 0.01 * sum(min(rate / 3, 3 / rate) for rate in rates))


def _by(group: Any) -> Callable[[Order], Taken | None]:
    """Return a function that has `group` carry out orders."""

    def carry_out(order: Order) -> Taken | None:
        match order.task:
            case Task.SNAPSHOT | Task.HOLD:
                group.snapshot(str(order.task))
            case Task.RESTORE:
                group.restore(str(Task.SNAPSHOT))
            case Task.KEEP:
                group.restore(str(Task.HOLD))
            case Task.START_OVER:
                group.rates = []
            case Task.PROBE | Task.COMMIT:
                return _taken(group, order.steps)
        return None

    return carry_out


def _taken(group: Any, steps: Sequence[Values]) -> Taken:
    losses = list[float]()
    for values in steps:
        result = group.run(segment_length.segment(values, values, 1))
        losses += result.losses or [math.nan]
        if result.diverged:
            break
    return Taken(losses)
