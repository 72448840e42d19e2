"""Coarse probes by single workers: requested together, counted once per round, and not used to time the exchange."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest

from search.bayesian.controller import Controller
from search.bayesian.probe_costs import coarse_cost
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.budget.link import StepCost
from search.config import FINALISTS, BoConfig, Budget
from search.space import Axis, SearchSpace
from search.types import Candidate, Decision, Observation, Spent, Values

STEP = StepCost(bytes=1000.0, seconds=10.25)


def _controller(budget: Budget, num_alone: int, **space: Any) -> Controller:
    given = {"optimizer": "sgd", "guess": Values(learning_rate=0.1), "num_alone": num_alone, "step": STEP}
    return Controller(SearchSpace(**(given | space)), BoConfig(wide_probes=3), 0, budget=budget)


class Searching:
    """Trains what `controller` asks for; workers that train alone send nothing, which takes a fraction of the time."""

    def __init__(self, controller: Controller, num_workers: int) -> None:
        self.controller, self.num_workers = controller, num_workers
        self.spent = Spent()
        self.rounds: list[list[Candidate]] = []

    def decide(self) -> Decision:
        for candidates in self._asked():
            self.rounds.append(candidates)
            self._charge(candidates[0])
            for candidate in candidates:
                self.controller.tell(self._observe(candidate))
        return self.controller.decide()

    def _asked(self) -> Iterator[list[Candidate]]:
        while (first := self.controller.ask()) is not None:
            most = self.num_workers if first.alone else 1
            yield [first, *itertools.islice(iter(self.controller.ask, None), most - 1)]

    def _charge(self, candidate: Candidate) -> None:
        num_steps = _length(candidate)
        self.spent = Spent(
            steps=self.spent.steps + num_steps,
            bytes=self.spent.bytes + num_steps * _step_bytes(candidate),
            seconds=self.spent.seconds + num_steps * _step_seconds(candidate),
        )

    def _observe(self, candidate: Candidate) -> Observation:
        num_steps, fall = _length(candidate), 1.0 + 0.1 * math.log10(candidate.values.learning_rate / 0.1) ** 2
        return Observation(
            candidate_id=candidate.id,
            losses=(2.0, *[fall] * (num_steps - 1)),
            step_seconds=(_step_seconds(candidate),) * num_steps,
            bytes_sent=num_steps * _step_bytes(candidate),
            diverged=False,
            spent=self.spent,
        )


def _length(candidate: Candidate) -> int:
    own = candidate.allowance
    by_seconds = 0 if own.seconds is None else int(own.seconds / _step_seconds(candidate))
    by_bytes = 0 if own.bytes is None else own.bytes // _step_bytes(candidate)
    return max(own.steps or 0, by_seconds, by_bytes, own.min_steps)


def _step_bytes(candidate: Candidate) -> int:
    return 0 if candidate.alone else round(10_000 * (candidate.values.level or 0.1))


def _step_seconds(candidate: Candidate) -> float:
    return 0.25 + _step_bytes(candidate) / 100


def _searched(budget: Budget, num_alone: int, **space: Any) -> tuple[Searching, Decision]:
    searching = Searching(_controller(budget, num_alone, **space), num_alone)
    return searching, searching.decide()


@pytest.mark.parametrize(("num_workers", "rounds"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (8, 1)])
def test_five_decades_cost_the_rounds_that_workers_need_for_them(num_workers: int, rounds: int) -> None:
    searching, decision = _searched(Budget(steps=1000), num_workers)

    coarse = [each for each in searching.rounds if each[0].origin == "wide"]
    finalists = [each for each in searching.rounds if each[0].origin != "wide"]
    assert len(coarse) == rounds and sum(map(len, coarse)) == 5
    assert all(candidate.alone == (num_workers > 1) for each in coarse for candidate in each)
    assert not any(candidate.alone for [candidate] in finalists)
    steps = 7 * rounds + sum(_length(candidate) for [candidate] in finalists)
    assert decision.search_steps == searching.spent.steps == steps


@pytest.mark.parametrize(("num_workers", "least"), [(1, 175), (2, 105), (3, 70), (5, 35)])
def test_with_more_workers_a_search_opens_in_a_shorter_run(num_workers: int, least: int) -> None:
    assert len(_searched(Budget(steps=least), num_workers)[0].rounds) > 0
    assert len(_searched(Budget(steps=least - 1), num_workers)[0].rounds) == 0


@pytest.mark.parametrize(
    ("num_workers", "num_lanes", "rounds"), [(1, 1, 5), (2, 1, 3), (2, 2, 2), (1, 3, 2), (5, 2, 1), (1, 8, 1)]
)
def test_lanes_save_seconds_and_neither_steps_nor_bytes(num_workers: int, num_lanes: int, rounds: int) -> None:
    space = {"optimizer": "sgd", "guess": Values(learning_rate=0.1), "num_alone": num_workers, "step": STEP}
    space |= {"num_lanes": num_lanes, "alone_s": STEP.seconds}
    setup = SearchSetup(SearchSpace(**space), BoConfig(), Budget(steps=1000, bytes=10**9, seconds=10**5), seed=0)

    cost = coarse_cost(setup, Stage(index=0, incumbent=setup.opening, has_incumbent=False), 5)

    assert cost["seconds"] == 7 * rounds * STEP.seconds
    assert cost["steps"] == 7 * math.ceil(5 / num_workers)
    assert cost["bytes"] == (7 * 5 * STEP.bytes if num_workers == 1 else 0)


@pytest.mark.parametrize("steps", [300, 1000])
def test_what_is_saved_is_the_finalists(steps: int) -> None:
    def finalist_steps(num_workers: int) -> int:
        asked = itertools.chain(*_searched(Budget(steps=steps), num_workers)[0].rounds)
        finalists = [candidate for candidate in asked if candidate.origin != "wide"]
        return sum(map(_length, finalists[:FINALISTS]))  # one more may extend their range

    few, more, most = (finalist_steps(count) for count in (1, 2, 5))
    assert few < more <= most


def test_a_run_of_more_workers_gets_a_rate_that_is_higher_by_the_cube_root() -> None:
    space = {"optimizer": "sgd", "guess": Values(learning_rate=0.1), "step": STEP}
    rates = []
    for count in (1, 2, 4):
        controller = Controller(SearchSpace(**space, num_alone=count), BoConfig(), 0, budget=Budget(steps=1000))
        rates.append(Searching(controller, count).decide().values.learning_rate)

    assert rates == pytest.approx([rates[0], rates[0] * 2 ** (1 / 3), rates[0] * 4 ** (1 / 3)])


def test_a_journal_says_who_trains_alone_and_is_replayed_to_the_same_asks() -> None:
    controller = _controller(Budget(steps=1000), 2)
    first, second = controller.ask(), controller.ask()
    assert first is not None and second is not None and first.alone and second.alone
    searching = Searching(controller, 2)
    searching._charge(first)
    controller.tell(searching._observe(first))

    again = Controller.from_state_dict(controller.state_dict())

    assert [each.alone for each in again._stage.candidates] == [True, True]
    assert again.ask() == controller.ask()
    with pytest.raises(ValueError, match="`candidate_id` must be one of"):
        again.tell(searching._observe(first))
    for each in (controller, again):
        each.tell(searching._observe(second))
    assert again.state_dict() == controller.state_dict()


def test_a_journal_from_before_goes_on_with_all_workers_together() -> None:
    state = dict(_controller(Budget(steps=1000), 1).state_dict())
    del state["space"]["num_alone"]

    candidate = Controller.from_state_dict(state).ask()

    assert candidate is not None and not candidate.alone


@pytest.mark.parametrize(("alone_s", "is_probed"), [(0.25, True), (10.0, False)])
def test_a_round_of_workers_alone_has_to_fit_before_it_begins(alone_s: float, is_probed: bool) -> None:
    searching, _ = _searched(Budget(seconds=300.0), 5, alone_s=alone_s)

    assert bool(searching.rounds) == is_probed


@pytest.mark.parametrize("budget", [Budget(seconds=10_000.0), Budget(bytes=1_000_000)])
def test_steps_without_an_exchange_are_no_measure_of_those_with_one(budget: Budget) -> None:
    searching, decision = _searched(budget, 2)
    alone = [report for report in decision.probes if report.candidate.alone]

    # a commit of steps that cost nothing would be endless, and its forecast as wide as no other
    assert len(alone) == 5
    assert all(report.forecast.std < 1.0 for report in alone)
    lengths = [_length(candidate) for [candidate] in searching.rounds[3:]]
    assert len(lengths) >= 3 and min(lengths) >= 14


def test_a_link_is_measured_by_steps_that_use_it() -> None:
    level = {
        "axes": (Axis(name="level", low=0.01, high=1.0),),
        "guess": Values(learning_rate=0.1, level=0.1),
        "dense_bytes": 10_000,
    }

    _, decision = _searched(Budget(seconds=90_000.0), 2, **level)

    # a dense step sends for 100 s and computes for a quarter of one
    assert "the link asks for level 0.01, which is used: a step computes for 250 ms" in decision.reason
