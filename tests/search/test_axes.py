"""The joint search: more than the learning rate, on a simulated landscape with a valley in every axis."""

import json
import math

import numpy as np
import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.bayesian.rewards import scores
from search.bayesian.stage import Stage, is_barred
from search.config import BoConfig, Budget
from search.curves.curve_summary import Reading
from search.curves.forecast import standard_error
from search.space import Axis, SearchSpace
from search.types import Allowance, Candidate, Observation, Spent, Values

MOMENTUM = Axis(name="momentum", low=0.5, high=0.99)
DECAY = Axis(name="weight_decay", low=1e-5, high=1e-1)
NESTEROV = Axis(name="nesterov", low=False, high=True)
SIZE = Axis(name="batch_size", low=16, high=256)
LEVEL = Axis(name="level", low=0.001, high=0.5)
BUDGET = Budget(steps=20_000)
STEPS = 40  # of a probe


def _space(*axes, optimizer="sgd", **guess):
    return SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.01, **guess), axes=axes)


def _speed(values):
    """How fast the loss falls, as a share of the best; momentum and rate trade off, as in theory."""
    distance = math.log10(values.learning_rate / 0.05) ** 2
    if values.momentum is not None:
        distance += math.log10((1 - values.momentum) / 0.05) ** 2
    if values.weight_decay is not None:
        distance += 0.15 * math.log10(values.weight_decay / 1e-3) ** 2
    return math.exp(-distance - (0.15 if values.nesterov is False else 0.0))


def _probe(candidate, steps, *, speed, noise=0.02, seed=0):
    rng = np.random.default_rng(seed)
    losses = [0.3 + 2 * math.exp(-0.05 * speed * step + rng.normal(0, noise)) for step in range(STEPS)]
    return Observation(
        candidate_id=candidate.id,
        losses=tuple(losses),
        step_seconds=(0.01,) * STEPS,
        bytes_sent=STEPS,
        spent=Spent(steps=steps),
    )


def _search(controller, speed=_speed, **simulated):
    asked = []
    while (candidate := controller.ask()) is not None:
        asked.append(candidate)
        observation = _probe(candidate, STEPS * len(asked), speed=speed(candidate.values), **simulated)
        controller.tell(observation)
    return asked


@pytest.fixture(scope="module")
def searched():
    """A finished wide search over four dimensions."""
    config = BoConfig(revisit="stages", max_search_fraction=0.9)
    space = _space(MOMENTUM, DECAY, NESTEROV, nesterov=False, optimizer="schedulefree_sgd")  # runs at what it finds
    controller = Controller(space, config, 0, budget=BUDGET)
    return controller, _search(controller)


def test_each_axis_beyond_rate_and_level_adds_two_probes(searched):
    finalists = [candidate for candidate in searched[1] if candidate.rung]
    assert len(finalists) >= 3 + 3 * BoConfig().wide_probes_per_axis


def test_the_wide_search_opens_at_the_jobs_start_and_then_fills_the_ranges():
    space = _space(LEVEL, MOMENTUM, DECAY, level=0.02)
    asked = _search(Controller(space, BoConfig(max_search_fraction=0.9), 0, budget=BUDGET))
    decades = [candidate.values for candidate in asked if candidate.rung == 0]
    finalists = [candidate.values for candidate in asked if candidate.rung]
    units = np.array([[axis.to_unit(getattr(each, axis.name)) for axis in (MOMENTUM, DECAY)] for each in finalists])

    assert {each.model_copy(update={"learning_rate": 0.0}) for each in decades} == {
        space.opening.model_copy(update={"learning_rate": 0.0})
    }
    for column in units.T:
        assert len(set(column)) >= 3
        assert column.min() < 0.4 and column.max() > 0.6


def test_four_dimensions_are_searched_to_near_the_best(searched):
    controller, asked = searched
    decided = controller.decide().values

    assert _speed(decided) > 0.8
    assert _speed(decided) > 1.4 * _speed(asked[0].values)


def test_the_reason_names_what_was_chosen(searched):
    reason = searched[0].decide().reason

    assert all(word in reason for word in ("momentum 0.9", "weight decay", "nesterov "))


def test_a_journal_of_four_dimensions_replays_to_the_same_decision(searched):
    state = json.loads(json.dumps(dict(searched[0].state_dict()), allow_nan=False))

    assert strategies.restore(state).decide() == searched[0].decide()
    del state["events"][-1]
    assert strategies.restore(state).decide().values == searched[0].decide().values


def test_later_stages_stay_near_the_incumbent_on_every_axis(searched):
    controller = strategies.restore(json.loads(json.dumps(dict(searched[0].state_dict()))))
    incumbent = controller.decide().values
    controller.tell(
        Observation(candidate_id=None, losses=(1.0,), step_seconds=(), bytes_sent=0, spent=Spent(steps=2000))
    )
    asked = [controller.ask().values for _ in range(3)]

    assert asked[0] == incumbent
    for values in asked[1:]:
        assert 0.25 - 1e-9 <= (1 - values.momentum) / (1 - incumbent.momentum) <= 4 + 1e-9
        assert 0.25 - 1e-9 <= values.weight_decay / incumbent.weight_decay <= 4 + 1e-9


def _pick_of_level(rule, slope):
    """Return the factor from `rule` to the level that a search with 5 % noise picks."""
    space = _space(LEVEL, optimizer="schedulefree_sgd", level=rule)
    controller = Controller(space, BoConfig(max_search_fraction=0.9), 1, budget=BUDGET)

    def speed(values):
        rate = math.exp(-(math.log10(values.learning_rate / 0.2) ** 2) / 2)
        return rate * (1 + slope * math.log10(values.level / rule))

    rng = np.random.default_rng(1)
    steps = 0
    while (candidate := controller.ask()) is not None:
        steps += STEPS
        controller.tell(_probe(candidate, steps, speed=speed(candidate.values), noise=0.05, seed=rng))
    return controller.decide().values.level / rule


def test_where_the_level_makes_no_difference_the_pick_stays_near_the_links_rule():
    assert 0.5 < _pick_of_level(0.02, slope=0.0) < 1.6  # without the belief: 23 times the rule


def test_where_a_higher_level_is_clearly_better_the_pick_leaves_the_links_rule():
    assert _pick_of_level(0.02, slope=1.0) > 1.7


def _stage_of(*probes):
    """A stage whose probes, given as (batch size, losses), are finished."""
    stage = Stage(index=0, incumbent=Values(learning_rate=0.1))
    for number, (size, losses) in enumerate(probes):
        values = Values(learning_rate=0.1, batch_size=size)
        candidate = Candidate(id=str(number), stage=0, values=values, allowance=Allowance(), origin="wide")
        told = Observation(candidate_id=str(number), losses=losses, step_seconds=(), bytes_sent=0, spent=Spent())
        stage.candidates.append(candidate)
        stage.readings[str(number)] = Reading.of(told)
    return stage


def test_probes_with_another_batch_size_saw_other_batches_and_are_not_paired():
    losses = 1.0 + np.random.default_rng(0).normal(0, 0.1, 40)
    better = tuple((losses - 0.01).tolist())
    _, paired, unpaired = scores(_stage_of((32, tuple(losses.tolist())), (32, better), (64, better)))

    assert paired.reward == unpaired.reward
    assert paired.variance < 1e-9
    both = 2 * standard_error(losses[20:]) ** 2  # the noise of the one and of the other
    assert unpaired.variance == pytest.approx(both / np.mean(better[20:]) ** 2)


@pytest.mark.parametrize("num_steps", [100, 95, 60, 40, 210])
def test_rewards_of_probes_that_differ_in_length_differ_by_as_much_as_their_variance_says(num_steps):
    scored = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        shared = rng.normal(0, 0.03, max(num_steps, 100))  # by the batch; most of the noise
        losses = [tuple(1 + shared[:size] + rng.normal(0, 0.01, size)) for size in (100, num_steps)]
        scored.append(scores(_stage_of(*((32, each) for each in losses))))

    differences = [second.reward - first.reward for first, second in scored]
    stated = math.sqrt(np.mean([second.variance for _, second in scored]))
    assert stated == pytest.approx(np.std(differences), rel=0.2)


def test_what_diverged_at_a_high_momentum_bars_its_rate_only_there():
    diverged = (Values(learning_rate=1.0, momentum=0.98, weight_decay=1e-3),)

    assert is_barred(Values(learning_rate=0.8, momentum=0.97, weight_decay=1e-5), diverged)
    assert not is_barred(Values(learning_rate=0.8, momentum=0.9, weight_decay=1e-3), diverged)
    assert not is_barred(Values(learning_rate=0.5, momentum=0.98, weight_decay=1e-3), diverged)


def test_batch_sizes_are_whole_and_cost_what_their_steps_cost():
    controller = Controller(_space(SIZE), BoConfig(max_search_fraction=0.5), 0, budget=Budget(seconds=100.0))
    spent, asked = 0.0, []
    while (candidate := controller.ask()) is not None:
        asked.append(candidate)
        per_step = 0.001 * candidate.values.batch_size
        num_steps = max(candidate.allowance.min_steps, round((candidate.allowance.seconds or 0.0) / per_step))
        spent += num_steps * per_step
        losses = tuple(2.0 * math.exp(-0.002 * _speed(candidate.values) * step) for step in range(num_steps))
        observation = Observation(
            candidate_id=candidate.id,
            losses=losses,
            step_seconds=(per_step,) * num_steps,
            bytes_sent=num_steps,
            spent=Spent(steps=1, seconds=spent),
        )
        controller.tell(observation)

    assert all(isinstance(each.values.batch_size, int) and 16 <= each.values.batch_size <= 256 for each in asked)
    assert controller.decide().values.batch_size < 64  # here a larger batch learns no more and costs more
