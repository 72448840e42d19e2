"""Client drift: workers that train on their own data have losses that hide those of their average."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from search.bayesian import reasons
from search.bayesian.controller import Controller
from search.bayesian.early_stopping import drift_of_commit
from search.bayesian.exchange_shortlist import without_drift
from search.bayesian.rewards import fastest_option, scores
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, Stage
from search.config import BoConfig, Budget
from search.curves.client_drift import as_averaged, client_drift, first_steps
from search.curves.curve_summary import Reading
from search.space import OptionAxis, SearchSpace
from search.trace import Trace
from search.types import Allowance, Candidate, Observation, Spent, Values

LOCAL, OTHER, THIRD = "local_sgd 16", "powersgd 4", "threshold 0.01"
OPTIONS = OptionAxis(options=(OTHER, THIRD, LOCAL))
SPACE = SearchSpace.model_validate(
    {
        "optimizer": "adamw",
        "guess": Values(learning_rate=0.001, option=LOCAL),
        "axes": (OPTIONS,),
        "periods": ((LOCAL, 16),),
        "teaching": tuple((option, 0.6) for option in OPTIONS.options),
    }
)


def _losses(num_steps: int, *, rise: float, noise: float, period: int = 16, seed: int = 0) -> list[float]:
    """Losses that fall slowly; those of workers that fit their own data lie `rise` below their average's."""
    rng = np.random.default_rng(seed)
    averaged = [3.0 * (1 + step) ** -0.05 + noise * rng.standard_normal() for step in range(num_steps)]
    return [loss - (rise if step % period else 0.0) for step, loss in enumerate(averaged)]


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 39))
def test_the_first_steps_after_averages_follow_from_when_the_next_one_is(num_steps: int, period: int, offset: int):
    averaged = [step for step in range(num_steps) if (step + offset) % period == 0]

    found = first_steps(num_steps, period=period, steps_to_meeting=-(num_steps + offset) % period)

    assert list(found) == averaged


def test_workers_that_train_as_one_have_no_averages():
    assert list(first_steps(10, period=1, steps_to_meeting=0)) == []
    assert list(first_steps(10, period=4, steps_to_meeting=None)) == []  # who knows when they averaged


@given(st.integers(0, 10**6))
def test_noise_is_hardly_ever_taken_for_drift(seed: int):
    found = [client_drift(_losses(33, rise=0.0, noise=0.1, seed=seed + index), range(0, 33, 16)) for index in range(40)]

    assert sum(rise > 0 for rise in found) <= 6  # 2.3 % of normal noise are that far out


@pytest.mark.parametrize("period", [2, 3, 4, 16])
def test_a_rise_at_averages_is_measured(period: int):
    losses = _losses(200, rise=0.4, noise=0.1, period=period)

    assert client_drift(losses, range(0, 200, period)) == pytest.approx(0.4, abs=0.06)


def test_beside_workers_that_train_as_one_less_is_enough():
    shared = 0.5 * np.random.default_rng(1).standard_normal(20)  # of the batches that both see
    own, beside = (np.array(_losses(20, rise=rise, noise=0.02)) + shared for rise in (0.4, 0.0))

    assert client_drift(own.tolist(), [0, 16]) == 0.0
    assert client_drift(own.tolist(), [0, 16], beside.tolist()) == pytest.approx(0.4, abs=0.1)


def test_losses_without_an_average_or_that_are_not_finite_tell_nothing():
    losses = _losses(10, rise=1.0, noise=0.0)

    assert client_drift(losses, [0]) == client_drift([*losses, math.nan], [0, 5]) == 0.0
    assert as_averaged([1.0, 1.0, 1.0], [0, 2], 0.5) == (1.0, 1.5, 1.0)


def _stage(rise: float) -> Stage:
    """A stage in which local updates seem to learn most."""
    teaching = dict(SPACE.teaching)
    stage = Stage(
        index=0,
        incumbent=Values(learning_rate=0.001),
        has_incumbent=False,
        line=CommittedLine(start_loss=4.0),
        teaching=teaching,
    )
    for option, lead in ((OTHER, 0.0), (THIRD, 0.0), (LOCAL, 0.3)):
        candidate = Candidate(
            id=option,
            stage=0,
            values=Values(learning_rate=0.001, option=option),
            allowance=Allowance(steps=33),
            origin="option",
            rung=1,
        )
        losses = np.array(_losses(33, rise=rise if option == LOCAL else 0.0, noise=0.02)) - lead * (rise == 0)
        seen = Observation(
            candidate_id=option,
            losses=tuple(losses),
            step_seconds=(0.01,) * 33,
            bytes_sent=0,
            spent=Spent(),
            steps_to_meeting=15 if option == LOCAL else 0,
        )
        stage.candidates.append(candidate)
        stage.readings[option] = Reading.of(seen, period=16 if option == LOCAL else 1)
    return stage


def _best(stage: Stage) -> str | None:
    return max(scores(stage), key=lambda score: score.reward or -math.inf).values.option


def test_a_lead_that_workers_have_on_their_own_data_alone_wins_nothing():
    alike, apart = _stage(0.0), _stage(0.5)
    setup = SearchSetup(space=SPACE, config=BoConfig(), budget=Budget(seconds=10.0), seed=0)

    assert _best(alike) == fastest_option(alike) == LOCAL
    assert LOCAL not in (_best(apart), fastest_option(apart))
    said = [
        " ".join(reasons.remarks(setup, stage, Values(learning_rate=0.001, option=OTHER), None))
        for stage in (alike, apart)
    ]
    assert ["workers drift apart" in each for each in said] == [False, True]


class _Run:
    """A controller whose commit goes on by local updates, which no probe has shown to be apart."""

    def __init__(self, rise: float, budget: int = 100) -> None:
        config = BoConfig(max_search_fraction=0.001)  # which has no room for a search
        self.controller = Controller(SPACE, config, 0, budget=Budget(steps=budget))
        self.course, self.steps = "go_on", 0
        assert self.controller.ask() is None
        assert self.controller.decide().values.option == LOCAL
        while self.course == "go_on" and self.steps < 96:
            self.steps += 16
            losses = tuple(_losses(self.steps, rise=rise, noise=0.05))
            self.told = Observation(
                candidate_id=None,
                losses=losses,
                step_seconds=(0.01,) * self.steps,
                bytes_sent=0,
                steps_to_meeting=0,
                spent=Spent(steps=self.steps),
            )
            self.course = self.controller.watch(self.told)
        self.controller.tell(self.told)


def test_a_commit_whose_workers_drift_apart_ends_and_another_exchange_takes_over_for_good():
    run = _Run(rise=0.8)
    assert (run.course, run.steps) == ("end", 80)

    assert run.controller.ask() is None
    decision = run.controller.decide()
    assert decision.values.option in (OTHER, THIRD)
    assert "workers drift apart: the loss of their average is 0.8" in decision.reason
    again = Controller.from_state_dict(run.controller.state_dict())
    assert again.decide() == decision


def test_what_takes_over_is_held_against_the_losses_of_the_average():
    run = _Run(rise=0.8, budget=1500)
    controller = run.controller
    controller.decide()
    course, steps, trace = "go_on", run.steps, Trace()
    rng = np.random.default_rng(7)
    while course == "go_on" and steps < 400:  # it begins where the average was, and learns
        losses = [2.4 * (1 + trace.num_steps + step) ** -0.05 + 0.05 * rng.standard_normal() for step in range(20)]
        trace, steps = trace.extended(losses, [0.01] * 20, [1.0] * 20), steps + 20
        told = Observation(
            candidate_id=None,
            losses=tuple(losses),
            step_seconds=(0.01,) * 20,
            trace=trace,
            bytes_sent=0,
            spent=Spent(steps=steps),
        )
        course = controller.watch(told)

    assert course == "go_on"


def test_where_local_updates_compete_no_more_probes_are_as_short_as_without_them():
    setup = SearchSetup(space=SPACE, config=BoConfig(), budget=Budget(steps=2000), seed=0)

    space = without_drift(setup).space

    assert space.options == (OTHER, THIRD) and space.guess.option in space.options
    assert (setup.space.longest_period, space.longest_period) == (16, 1)


def test_a_commit_whose_data_are_alike_goes_on_with_local_updates():
    run = _Run(rise=0.0)

    assert run.course == "go_on"
    assert run.controller.decide().values.option == LOCAL


def test_noise_in_a_long_commit_of_a_small_loss_is_not_taken_for_drift():
    setup = SearchSetup(space=SPACE, config=BoConfig(), budget=Budget(steps=100_000), seed=0)
    rng = np.random.default_rng(3)
    stage = _stage(0.0)
    stage.decision = Controller(SPACE, BoConfig(), 0, budget=Budget(steps=100)).decide()
    found = []
    for start in range(0, 50_000, 100):  # looks at the last 200 losses, which scatter by as much as they are
        losses = tuple(0.01 * rng.gamma(1.0, 1.0, 200))
        told = Observation(
            candidate_id=None,
            losses=losses,
            step_seconds=(),
            bytes_sent=0,
            steps_to_meeting=0,
            spent=Spent(steps=start),
        )
        found.append(drift_of_commit(setup, stage, told))

    assert sum(rise > 0 for rise in found) <= 2  # of 500 looks
