"""A commit whose gradients keep their direction gets a higher rate, without a probe."""

import dataclasses
import json
import math

import pytest

from search import strategies
from search.bayesian.awakening import AWAKENING_MOST, is_asleep
from search.bayesian.controller import Controller
from search.bayesian.next_stage import next_stage
from search.bayesian.refinement import LEAST_RISE, RISE_PER_STEP, raise_of
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import BARRED_SHARE, RateCourse, Stage, is_barred
from search.config import BoConfig, Budget
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Signs
from search.space import SearchSpace, Weights
from search.trace import MOST_ALIGNED, Trace
from search.types import Allowance, Candidate, Decision, Observation, Spent, Values

BUDGET = Budget(steps=4000)


class Line:
    """A run without probes, whose commits show cosines at will."""

    def __init__(self, *, optimizer: str = "sgd", num_alone: int = 1, **config: object) -> None:
        space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.1), num_alone=num_alone)
        self.controller = Controller(space, BoConfig(max_search_fraction=0.001, **config), 0, budget=BUDGET)
        assert self.controller.ask() is None
        self.controller.decide()
        self.trace, self.steps = Trace(), 0
        self.first = self.rate

    def train(self, cosine: float, num_steps: int = 20, loss: float = 1.0) -> float:
        """Commit steps that all show `cosine`; return the rate that follows."""
        self.steps += num_steps
        done = self.trace.num_steps
        series = [loss * 0.99 ** (done + step) for step in range(num_steps)]  # it learns, or it would be given up
        self.trace = self.trace.extended(series, series, series, [cosine] * num_steps)
        self.controller.watch(self.told())
        return self.rate

    def told(self) -> Observation:
        spent = Spent(steps=self.steps)
        losses = self.trace.losses[-20:]
        return Observation(
            candidate_id=None, losses=losses, step_seconds=(), trace=self.trace, bytes_sent=0, spent=spent
        )

    @property
    def rate(self) -> float:
        return self.controller.values(Spent(steps=self.steps)).learning_rate

    def next_stage(self, *, rolled_back: bool = False) -> float:
        """Close the commit, open the next one without a probe, and return its rate."""
        self.controller.tell(self.told().model_copy(update={"rolled_back": rolled_back, "diverged": rolled_back}))
        assert self.controller.ask() is None
        self.controller.decide()
        self.trace = Trace()
        return self.rate


def _probe(stage: Stage, values: Values, *, alone: bool, told: dict[str, object]) -> None:
    """Add a finished probe to an open stage."""
    candidate = Candidate(
        id=f"c{stage.index}-0",
        stage=stage.index,
        values=values,
        origin="wide",
        allowance=Allowance(steps=7),
        alone=alone,
    )
    stage.candidates.append(candidate)
    stage.readings[candidate.id] = Reading.of(Observation(candidate_id=candidate.id, **told))


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adamw", "muon"])
def test_the_rate_rises_with_the_cosines_of_its_steps(optimizer: str) -> None:
    line = Line(optimizer=optimizer)

    assert line.train(0.2) == pytest.approx(line.first * math.exp(RISE_PER_STEP * 0.2 * 20))


def test_gradients_that_point_back_never_lower_it() -> None:
    line = Line()

    assert line.train(-0.5, 200) == 0.1
    assert line.train(0.2) == pytest.approx(0.1 * math.exp(RISE_PER_STEP * 0.2 * 20))  # what was before is forgotten
    assert line.train(-0.5, 20) == 0.1  # it comes down from a rise alone


def test_it_rises_no_further_than_the_job_says_whatever_the_number_of_commits() -> None:
    line = Line(max_raise=2.0)
    first = line.train(0.05, 200)
    rates = [line.next_stage(), line.train(0.9, 100), line.next_stage(), line.train(0.9, 100)]

    assert 0.1 < first == pytest.approx(rates[0]) and rates[1:] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("failed", ["barred", "diverged"])
def test_it_rises_to_just_below_a_rate_at_which_a_commit_failed_or_a_probe_diverged(failed: str) -> None:
    line = Line()
    stage = line.controller._stage
    stage.line = dataclasses.replace(stage.line, **{failed: (Values(learning_rate=0.2),)})

    assert line.train(0.1) == pytest.approx(0.1 * math.exp(RISE_PER_STEP * 0.1 * 20))
    assert line.train(1.0) == pytest.approx(BARRED_SHARE * 0.2 / LEAST_RISE)
    assert not is_barred(line.controller.values(Spent(steps=line.steps)), (Values(learning_rate=0.2),))


@pytest.mark.parametrize("num_stages", [0, 1])
@pytest.mark.parametrize(("alone", "factor"), [(False, 1.0), (True, 2.0)])
def test_a_probe_of_a_worker_alone_that_diverged_stops_the_rate_of_all_at_a_higher_one(
    alone: bool, factor: float, num_stages: int
) -> None:
    line = Line(num_alone=8)
    lost = {"losses": (), "step_seconds": (), "bytes_sent": 0, "diverged": True, "spent": Spent()}
    _probe(line.controller._stage, Values(learning_rate=0.2), alone=alone, told=lost)
    for _ in range(num_stages):
        line.train(0.0)
        line.next_stage()

    assert line.train(1.0, 30) == pytest.approx(factor * BARRED_SHARE * 0.2 / LEAST_RISE)


def test_the_next_stage_goes_on_at_the_rate_and_says_why() -> None:
    line = Line()
    risen = line.train(0.2)

    assert line.next_stage() == pytest.approx(risen)
    assert "the rate had risen from 0.1 to 0.12, since gradients kept their course" in line.controller.decide().reason


def test_after_a_divergence_it_starts_below_the_rate_of_the_decision_and_rises_no_more() -> None:
    line = Line()
    line.train(0.2)
    lowered = line.next_stage(rolled_back=True)

    assert lowered < 0.1 and line.train(0.9, 100) == lowered


def test_while_the_rate_decays_it_does_not_rise() -> None:
    line = Line()
    risen = line.train(0.2)
    line.steps = 2000
    line.train(0.9, 100)

    assert line.rate == pytest.approx(risen * 0.95)


@pytest.mark.parametrize("case", [{"max_raise": 1.0}, {"optimizer": "schedulefree_sgd"}, {"optimizer": "own"}])
def test_where_it_is_not_wanted_or_was_not_tried_the_rate_stays(case: dict[str, object]) -> None:
    assert Line(**case).train(0.9, 100) == 0.1


def test_a_restored_controller_uses_the_risen_rate_and_goes_on_alike() -> None:
    line = Line()
    line.train(0.2)
    restored = strategies.restore(json.loads(json.dumps(dict(line.controller.state_dict()), allow_nan=False)))

    assert restored.values(Spent(steps=20)) == line.controller.values(Spent(steps=20))
    for controller in (restored, line.controller):
        controller.tell(line.told())
    assert restored.decide() == line.controller.decide()


def test_a_trace_sums_cosines_within_bounds_however_its_steps_are_split() -> None:
    cosines = [math.sin(index) for index in range(100)]
    series = [1.0] * 100
    whole, pieces = Trace().extended(series, series, series, cosines), Trace()
    for index in range(0, 100, 7):
        part = slice(index, index + 7)
        pieces = pieces.extended(series[part], series[part], series[part], cosines[part])

    assert pieces.aligned == whole.aligned
    assert Trace().extended(series, series, series, [1.0] * 100).aligned == MOST_ALIGNED
    assert Trace().extended(series, series, series, [-1.0] * 100).aligned == 0.0


@pytest.mark.parametrize("num_steps", [40, 1000, 10**6])
def test_a_run_of_unknown_length_awakens_as_one_of_the_length_that_its_pace_foretells(num_steps: int):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    spent = Spent(steps=num_steps, seconds=36.0)  # a hundredth of the budget
    known, unknown = (
        SearchSetup(space=space, config=BoConfig(), budget=budget, seed=0)
        for budget in (Budget(steps=100 * num_steps), Budget(seconds=3600.0))
    )
    stage = Stage(index=1, incumbent=Values(learning_rate=0.1), course=RateCourse(awakens=True))
    told = Observation(candidate_id=None, losses=(2.3,), step_seconds=(), bytes_sent=0, spent=spent)
    signs = Signs(num_steps=num_steps, is_ignorant=True)

    assert raise_of(unknown, stage, told, signs) == raise_of(known, stage, told, signs) < 4.0


def test_a_budget_that_grows_while_a_net_is_woken_does_not_lower_its_rate():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    before, grown = (
        SearchSetup(space=space, config=BoConfig(), budget=Budget(steps=steps), seed=0) for steps in (2000, 20_000)
    )
    stage = Stage(index=1, incumbent=Values(learning_rate=0.1), course=RateCourse(awakens=True))
    told = Observation(candidate_id=None, losses=(2.3,), step_seconds=(), bytes_sent=0, spent=Spent(steps=400))
    risen = raise_of(before, stage, told, Signs(num_steps=320, is_ignorant=True))
    stage.course = dataclasses.replace(stage.course, rise=risen)
    later = [raise_of(grown, stage, told, Signs(num_steps=steps, is_ignorant=True)) for steps in (320, 6400)]

    assert later == [risen, pytest.approx(AWAKENING_MOST)] and 1 < risen < AWAKENING_MOST


def test_the_longest_sleep_raises_the_rate_by_the_cap_and_no_more():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(steps=100), seed=0)
    stage = Stage(index=1, incumbent=Values(learning_rate=0.1), course=RateCourse(awakens=True))
    told = Observation(candidate_id=None, losses=(2.3,), step_seconds=(), bytes_sent=0, spent=Spent(steps=10))

    assert raise_of(setup, stage, told, Signs(num_steps=10**7, is_ignorant=True)) == pytest.approx(AWAKENING_MOST)


def test_a_rate_that_is_to_wake_a_net_stays_below_what_a_probe_of_the_run_saw_diverge():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    controller = Controller(space, BoConfig(first_search="always", max_search_fraction=0.3), 0, budget=BUDGET)
    while (candidate := controller.ask()) is not None:  # nothing learns anything, and 1 diverges
        is_lost = candidate.values.learning_rate > 0.5
        losses = () if is_lost else (2.3,) * candidate.allowance.steps
        told = {"step_seconds": (0.01,) * len(losses), "bytes_sent": 0, "diverged": is_lost, "spent": Spent(steps=10)}
        controller.tell(Observation(candidate_id=candidate.id, losses=losses, **told))
    controller.decide()
    asleep = {"losses": (2.3,) * 50, "step_seconds": (), "bytes_sent": 0, "spent": Spent(steps=60)}
    for _ in range(2):  # the commit of the wide search, and that of the stage after it
        stage = dataclasses.replace(controller._stage, course=RateCourse(awakens=True))
        told = Observation(candidate_id=None, **asleep)
        rise = raise_of(controller._setup, stage, told, Signs(num_steps=10**7, is_ignorant=True))
        assert stage.decision.values.learning_rate * rise == pytest.approx(BARRED_SHARE)
        controller.tell(told)
        controller.decide()


@pytest.mark.parametrize(("has_learned", "rate"), [(False, 0.1), (True, 1.6)])
def test_a_net_that_no_rate_has_woken_goes_back_to_the_rate_that_was_given_up(has_learned: bool, rate: float):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    setup = SearchSetup(space=space, config=BoConfig(), budget=BUDGET, seed=0)
    until = Allowance(steps=1000)
    stage = Stage(index=1, incumbent=Values(learning_rate=0.1))
    asleep = Signs(is_ignorant=True)
    rose = Signs(has_diverged=True, is_lost=True, has_learned=has_learned, loss=1.0, start=0.7)
    for signs, rise, events in ((asleep, 1.0, ()), (rose, 256.0, ("divergence",))):
        values = stage.incumbent
        stage.decision = Decision(stage=stage.index, values=values, reason="", switched=False, commit_until=until)
        stage.course = dataclasses.replace(stage.course, rise=rise)
        told = Observation(
            candidate_id=None,
            losses=(0.7,) * 50,
            step_seconds=(),
            bytes_sent=0,
            spent=Spent(steps=50 * stage.index),
            rolled_back=True,
        )
        stage = next_stage(setup, stage, Ending.of(told, signs, events), search=Spent())

    assert stage.incumbent.learning_rate == pytest.approx(rate)
    assert not stage.course.awakens and "was rolled back at 3.2" in stage.note


@pytest.mark.parametrize("is_new", [True, False])
def test_a_net_that_was_trained_before_is_never_taken_for_one_that_sleeps(is_new: bool):
    space = SearchSpace(optimizer="adamw", guess=Values(learning_rate=0.1), weights=Weights(3, 0.02, is_new=is_new))
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(steps=1000), seed=0)
    told = Observation(candidate_id=None, losses=(2.3,), step_seconds=(), bytes_sent=0, spent=Spent(steps=100))
    until = Allowance(steps=1000)
    decision = Decision(stage=1, values=setup.opening, reason="", switched=False, commit_until=until)

    gives_up = is_asleep(
        setup,
        Stage(index=1, incumbent=setup.opening, decision=decision),
        Signs(num_steps=100, is_ignorant=True),
        told,
        is_over=False,
    )

    assert gives_up == is_new


@pytest.mark.parametrize(("steps", "gives_up"), [(200, True), (400, False)])
def test_a_net_that_sleeps_is_given_up_only_while_the_rate_could_rise_to_where_it_was(steps: int, gives_up: bool):
    setup = SearchSetup(
        SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1)), BoConfig(), Budget(steps=1000), seed=0
    )
    until = Allowance(steps=1000)
    decision = Decision(stage=1, values=setup.opening, reason="", switched=False, commit_until=until)
    told = Observation(candidate_id=None, losses=(2.3,), step_seconds=(), bytes_sent=0, spent=Spent(steps=steps))
    stage, signs = Stage(index=1, incumbent=setup.opening, decision=decision), Signs(num_steps=100, is_ignorant=True)

    assert is_asleep(setup, stage, signs, told, is_over=False) == gives_up


def test_a_net_is_not_woken_by_a_rate_at_which_a_commit_diverged():
    setup = SearchSetup(
        SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1)), BoConfig(), Budget(steps=1000), seed=0
    )
    low, high = setup.opening.model_copy(update={"learning_rate": 0.001}), setup.opening
    until = Allowance(steps=1000)
    stage = Stage(index=0, incumbent=high)
    stage.decision = Decision(stage=0, values=high, reason="", switched=False, commit_until=until)
    told = Observation(
        candidate_id=None,
        losses=(2.3, math.inf),
        step_seconds=(),
        bytes_sent=0,
        spent=Spent(steps=2),
        diverged=True,
        rolled_back=True,
    )
    stage = next_stage(setup, stage, Ending.of(told, Signs(), ("divergence",)), search=Spent())
    stage.decision = Decision(stage=1, values=low, reason="", switched=False, commit_until=until)
    stage.course = dataclasses.replace(stage.course, awakens=True)
    asleep = told.model_copy(update={"losses": (2.3,) * 300, "diverged": False, "spent": Spent(steps=302)})

    rise = raise_of(setup, stage, asleep, Signs(num_steps=300))

    assert 1 < rise < 100 * BARRED_SHARE * 1.001
