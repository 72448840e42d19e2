"""A past search helps if it explains the present one, and costs almost nothing if not."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest

from search import strategies
from search.bayesian.coarse_plan import coarse_plan
from search.bayesian.controller import Controller
from search.bayesian.decision import choose
from search.bayesian.probe_costs import MIN_COARSE
from search.bayesian.proposals import propose
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.bayesian.usual_rate import usual_rate
from search.config import BoConfig, Budget
from search.curves.curve_summary import Reading
from search.past_jobs.prior import NO_PRIOR, PastProbe, PastSearch, Prior
from search.past_jobs.transfer import expectation, shape_of
from search.space import Axis, Box, SearchSpace, Weights
from search.types import Allowance, Candidate, Observation, Spent, Values

NOISE = 0.02
SEEDS = range(32)
BOX = Box(axes=(Axis(name="learning_rate", low=1e-3, high=10.0),))


def _reward(decades):
    """The fall of the log loss of plain descent, `decades` above the best rate; None: it diverges."""
    ratio = 10**decades
    return 0.6 * ratio * (2 - ratio) if ratio < 2.3 else None


def _losses(reward, rng):
    if reward is None:
        return (2.0, math.nan)
    tail = 2.0 * math.exp(-reward)
    return (*np.linspace(2.0, tail, 10).tolist(), *(tail * np.exp(rng.normal(0, NOISE, 10))).tolist())


class Search(NamedTuple):
    regret: float
    num_probes: int
    reason: str


def _opened(setup, prior):
    return Stage(index=0, incumbent=setup.opening, has_incumbent=False, prior=prior)


def _search(best, prior, seed, config=BoConfig()):  # noqa: B008  (frozen)
    """Search around a guess of 1 where `best` is the best rate, as a controller does."""
    space = SearchSpace(optimizer="schedulefree_sgd", guess=Values(learning_rate=0.05))
    setup = SearchSetup(space=space, config=config, budget=Budget(steps=100_000), seed=seed)
    stage, rng = _opened(setup, prior), np.random.default_rng(seed)
    while (proposal := propose(setup, stage)) is not None:
        values, origin, rung = proposal
        name = str(len(stage.candidates))
        candidate = Candidate(id=name, stage=0, values=values, allowance=Allowance(), origin=origin, rung=rung)
        stage.candidates.append(candidate)
        losses = _losses(_reward(math.log10(values.learning_rate / best)), rng)
        stage.readings[name] = Reading.of(
            Observation(
                candidate_id=name,
                losses=losses,
                step_seconds=(),
                bytes_sent=0,
                diverged=math.isnan(losses[-1]),
                spent=Spent(),
            )
        )
    choice = choose(setup, stage)
    reached = _reward(math.log10(choice.values.learning_rate / best))
    return Search(0.6 - (-1.0 if reached is None else reached), len(stage.candidates), choice.reason)


def _past(best, *, job="past", scale=0.6, offset=0.3, sign=1):
    """A search about `best`, of a run whose rewards have another scale and another origin."""
    probes = []
    for decades in (-2.2, -1.2, -0.5, -0.2, 0.15, 0.8, 1.8):
        reward = _reward(decades)
        if reward is not None or sign > 0:
            worth = None if reward is None else sign * scale * reward + offset
            probes.append(PastProbe(values=Values(learning_rate=best * 10**decades), reward=worth, variance=1e-4))
    return Prior(searches=(PastSearch(job=job, probes=tuple(probes)),))


@pytest.fixture(scope="module")
def bests():
    return [10 ** np.random.default_rng(seed).uniform(-1.5, 1.5) for seed in SEEDS]


@pytest.fixture(scope="module")
def cold(bests):
    return [_search(best, NO_PRIOR, seed) for seed, best in zip(SEEDS, bests, strict=True)]


def _median(searches):
    return float(np.median([search.regret for search in searches]))


def test_a_past_that_is_like_the_present_saves_probes_and_ends_nearer_to_the_best(bests, cold):
    shifts = np.random.default_rng(0).normal(0, 0.1, len(bests))
    warm = [_search(best, _past(best * 10 ** shifts[seed]), seed) for seed, best in zip(SEEDS, bests, strict=True)]

    assert np.mean([search.num_probes for search in warm]) <= np.mean([search.num_probes for search in cold]) - 1
    assert _median(warm) <= _median(cold)


@pytest.mark.parametrize("kind", ["30x off", "inverted"])
def test_a_misleading_past_costs_at_most_a_probe_and_no_regret(bests, cold, kind):
    def prior(best, seed):
        phase = np.random.default_rng(seed).uniform(-0.5, 0.5)
        return _past(best, sign=-1) if kind == "inverted" else _past(best * 10**phase * 30 ** (-1) ** seed)

    half = list(zip(SEEDS, bests, strict=True))[: len(bests) // 2]
    misled = [_search(best, prior(best, seed), seed) for seed, best in half]
    regrets = [search.regret for search in cold]
    noise = 1.25 * np.std(regrets) / math.sqrt(len(misled))  # of a median

    assert _median(misled) <= _median(cold) + 2 * noise
    assert max(search.num_probes for search in misled) <= max(search.num_probes for search in cold) + 1


def _expected(prior, rewards, *, std=0.01):
    points = np.array([BOX.to_unit(Values(learning_rate=rate)) for rate in (0.01, 0.1, 1.0)])
    variances = np.full(len(points), std**2)
    return expectation(prior, BOX, points, np.array(rewards), variances, otherwise=lambda cloud: np.zeros(len(cloud)))


@pytest.mark.parametrize("best", [1e-3, 0.05, 1.0])
def test_a_past_whose_best_rate_ends_the_range_leaves_enough_to_compare(best):
    probes = [PastProbe(values=Values(learning_rate=best * 10**step), reward=-abs(step), variance=1e-4)
              for step in (-2, -1, -0.5, 0, 0.5, 1, 2) if 1e-3 <= best * 10**step <= 1.0]  # fmt: skip
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.05), min_learning_rate=1e-3, max_learning_rate=1)
    config = BoConfig(min_learning_rate=1e-3, max_learning_rate=1.0)
    setup = SearchSetup(space=space, config=config, budget=Budget(steps=1000), seed=0)
    stage = _opened(setup, Prior(searches=(PastSearch(job="past", probes=tuple(probes)),)))

    planned = [values.learning_rate for values in coarse_plan(setup, stage)]

    assert len(set(planned)) == len(planned) >= MIN_COARSE


def test_the_weight_follows_from_how_well_the_past_explains_the_probes():
    past = _past(0.5)
    points = np.array([BOX.to_unit(Values(learning_rate=rate)) for rate in (0.01, 0.1, 1.0)])
    as_before = shape_of(past.searches[0], BOX)(points)

    assert _expected(past, 7 + 0.4 * as_before).weight > 0.8
    assert _expected(past, 7 - 0.4 * as_before).weight < 0.2
    assert _expected(NO_PRIOR, as_before).weight == 0


def test_offset_and_scale_of_the_rewards_do_not_matter():
    past = _past(0.5)
    cloud = np.linspace(0, 1, 20)[:, None]
    one, other = _expected(past, [0.1, 0.3, 0.4]), _expected(past, [-5.0, -3.0, -2.0], std=0.1)

    assert other.weight == pytest.approx(one.weight)
    assert other.mean(cloud) == pytest.approx(one.mean(cloud))


def test_the_search_that_explains_more_weighs_more():
    right, wrong = _past(0.5), _past(0.5, sign=-1)
    points = np.array([BOX.to_unit(Values(learning_rate=rate)) for rate in (0.01, 0.1, 1.0)])
    as_before = shape_of(right.searches[0], BOX)(points)
    both = _expected(Prior(searches=right.searches + wrong.searches), as_before)

    assert both.mean(points) == pytest.approx(_expected(right, as_before).mean(points), abs=0.1)


def test_a_search_that_says_nothing_of_an_axis_is_left_out():
    box = Box(axes=(*BOX.axes, Axis(name="level", low=0.001, high=0.1)))

    assert shape_of(_past(0.5).searches[0], box) is None


def test_the_reason_says_what_the_past_did():
    config = BoConfig(wide_probes=3)
    told = [
        _search(1.0, _past(past), 0, config).reason.rpartition("; prior from 1 job, weight ") for past in (1.0, 30.0)
    ]
    right, wrong = (float(weight) for _, _, weight in told)

    assert all(reason for reason, _, _ in told)
    assert 0 <= wrong < right <= 1


def _tell(controller, candidate, steps):
    rng = np.random.default_rng(int(candidate.id.partition("-")[2]))
    losses = _losses(_reward(math.log10(candidate.values.learning_rate / 0.3)), rng)
    controller.tell(
        Observation(
            candidate_id=candidate.id,
            losses=losses,
            step_seconds=(),
            bytes_sent=0,
            diverged=math.isnan(losses[-1]),
            spent=Spent(steps=steps),
        )
    )


def test_a_restored_controller_learns_from_the_same_past_bit_for_bit():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    controller = Controller(space, BoConfig(), 0, budget=Budget(steps=100_000), prior=_past(0.25))
    for steps in (20, 40, 60):
        _tell(controller, controller.ask(), steps)
    restored = strategies.restore(json.loads(json.dumps(dict(controller.state_dict()), allow_nan=False)))
    for each in (controller, restored):
        steps = 60
        while (candidate := each.ask()) is not None:
            steps += 20
            _tell(each, candidate, steps)

    assert restored.decide() == controller.decide()
    assert "prior from 1 job" in restored.decide().reason
    assert restored.state_dict() == controller.state_dict()


def test_a_decision_is_read_as_a_past_search():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    controller = Controller(space, BoConfig(), 0, budget=Budget(steps=100_000))
    steps = 0
    while (candidate := controller.ask()) is not None:
        steps += 20
        _tell(controller, candidate, steps)
    decision = controller.decide()
    search = PastSearch.of("job-1", json.loads(decision.model_dump_json()))
    last_rung = max(report.candidate.rung for report in decision.probes)
    reports = [report for report in decision.probes if report.candidate.rung == last_rung]

    assert [probe.values for probe in search.probes] == [report.candidate.values for report in reports]
    assert [probe.reward for probe in search.probes] == [report.reward for report in reports]
    assert [probe.variance for probe in search.probes] == [report.variance for report in reports]
    assert search.num_finite == sum(report.reward is not None for report in reports)
    assert Prior.model_validate_json(Prior(searches=(search,)).model_dump_json()).searches == (search,)


def _decision(*rungs):
    """Return a decision as JSON: of each rung the rewards of its probes."""
    values = Values(learning_rate=0.1).model_dump(mode="json")
    return {
        "probes": [
            {"candidate": {"values": values, "rung": rung}, "reward": reward}
            for rung, rewards in enumerate(rungs)
            for reward in rewards
        ]
    }


@pytest.mark.parametrize(
    ("rungs", "kept"),
    [
        (((0.1, 0.2, 0.3, 0.4), (0.7, 0.8, 0.9, 1.0)), (0.7, 0.8, 0.9, 1.0)),
        (((0.1, 0.2, 0.3, 0.4), (0.7, 0.8, 0.9)), (0.1, 0.2, 0.3, 0.4)),  # three tell no shape
        (((0.1, 0.2), (0.7,)), (0.1, 0.2)),
        ((), ()),
    ],
)
def test_a_past_search_keeps_the_probes_of_one_rung_since_others_have_another_length(rungs, kept):
    assert tuple(probe.reward for probe in PastSearch.of("past", _decision(*rungs)).probes) == kept


def test_a_past_that_searched_other_values_leaves_what_is_usual():
    space = SearchSpace(
        optimizer="adamw",
        guess=Values(learning_rate=0.003, momentum=0.9),
        weights=Weights(num_matrices=4, scale=0.02),
        axes=(Axis(name="momentum", low=0.8, high=0.98),),
    )
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(steps=600), seed=0)
    like = PastSearch(
        job="like",
        probes=tuple(
            PastProbe(values=probe.values.model_copy(update={"momentum": 0.9}), reward=probe.reward)
            for probe in _past(0.5).searches[0].probes
        ),
    )
    usual = [usual_rate(setup, _opened(setup, prior)) for prior in (_past(0.5), Prior(searches=(like,)), NO_PRIOR)]

    assert usual == [pytest.approx(0.004), None, pytest.approx(0.004)]
