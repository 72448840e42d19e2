"""The controller survives all measurements: finite candidates, a status for every probe, and a decision."""

import json
import math
from typing import get_args

from hypothesis import Phase, given, settings, strategies as st

from search import strategies
from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.space import Axis, SearchSpace
from search.types import Course, Observation, Spent, Values

BUDGETS = [Budget(steps=2000), Budget(seconds=20.0), Budget(bytes=2000)]
SPACES = [
    SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1)),
    SearchSpace(
        optimizer="schedulefree_sgd",
        guess=Values(learning_rate=0.1, level=0.02),
        axes=(Axis(name="level", low=0.003, high=0.1),),
    ),
]

odd_numbers = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, -2.5, 1e30, 1e308, 1e-300, 2.3, 2.2])
series = st.one_of(
    st.just([]),
    st.lists(odd_numbers, min_size=1, max_size=1),
    st.lists(odd_numbers, max_size=41),
    st.builds(lambda loss, length: [loss] * length, odd_numbers, st.integers(1, 41)),
    st.lists(st.floats(-5, 5), min_size=2, max_size=41),
)


@st.composite
def observations(draw, candidate_id, steps):
    losses = draw(series)
    return Observation(
        candidate_id=candidate_id,
        losses=tuple(losses),
        step_seconds=tuple(draw(st.sampled_from([[], [0.0], [1e-9, 1e6], [0.01] * len(losses)]))),
        gradient_scales=tuple(draw(st.lists(odd_numbers, max_size=12))),
        is_cut=candidate_id is not None and draw(st.booleans()),
        rolled_back=candidate_id is None and draw(st.booleans()),
        bytes_sent=draw(st.sampled_from([0, 1, 10**15])),
        density=draw(st.sampled_from([None, 0.0, 0.5, math.nan])),
        diverged=not all(map(math.isfinite, losses)) or draw(st.booleans()),
        spent=Spent(steps=steps, bytes=steps, seconds=steps / 100),
    )


@given(
    data=st.data(),
    space=st.sampled_from(SPACES),
    budget=st.sampled_from(BUDGETS),
    together=st.integers(1, 3),
)
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])  # to shrink a run takes minutes
def test_no_observation_crashes_the_controller_or_reaches_a_candidate(data, space, budget, together):
    controller, steps = Controller(space, BoConfig(), 0, budget=budget), 0
    for _ in range(3):
        while asked := [candidate for _ in range(together) if (candidate := controller.ask()) is not None]:
            for candidate in reversed(asked):
                assert _is_sound(candidate.values, space)
                steps += 20
                _watch_and_tell(controller, data.draw(observations(candidate.id, steps)))
        decision = controller.decide()
        assert _is_sound(decision.values, space)
        assert all(math.isfinite(report.forecast.mean + report.forecast.std) for report in decision.probes)
        steps += 200
        _watch_and_tell(controller, data.draw(observations(None, steps)))
    restored = strategies.restore(json.loads(json.dumps(dict(controller.state_dict()), allow_nan=False)))
    assert restored.decide() == controller.decide()


def _watch_and_tell(controller, observation):
    assert controller.watch(observation) in get_args(Course)
    controller.tell(observation)


def _is_sound(values, space):
    axis = space.axis("level")
    low, high = (axis.low, axis.high) if axis else (-math.inf, math.inf)
    is_rate = space.min_learning_rate <= values.learning_rate <= space.max_learning_rate
    return is_rate and (values.level is None or low * (1 - 1e-9) <= values.level <= high * (1 + 1e-9))
