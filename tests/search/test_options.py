"""Competing exchanges: which deserve a probe, how they are searched, and the choice on a fast and a slow link."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from search import strategies
from search.bayesian.controller import Controller
from search.bayesian.proposals import MAX_FINALIST_EXTENSIONS
from search.bayesian.stage import is_barred
from search.budget import link
from search.budget.link import DENSE, OptionCost, short_list
from search.config import PAYING_STEPS, BoConfig, Budget, ScheduleConfig, SobolConfig
from search.schedule import Schedule
from search.schedule_file import Entry, ScheduleFile
from search.space import Axis, Box, OptionAxis, SearchSpace, are_within, distance
from search.types import Spent, Values
from trainers.methods.exchange.auto.spec import DEFAULT, Option, mean_traffic
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.spec.link import EmulateLink
from trainers.spec.method import Competing

OPTIONS = ("none", "threshold 0.01", "powersgd 1")
AXIS = OptionAxis(options=OPTIONS)
RATES = Axis(name="learning_rate", low=0.01, high=1.0)
SHAPES = [(512, 64), (512,), (512, 512), (512,), (10, 512), (10,)]
#: How fast the loss falls by each, as a share of dense training.
TEACHES = {"none": 1.0, "threshold 0.01": 0.75, "powersgd 1": 0.5}


def _costs(mbps: float, compute_s: float, latency_ms: float = 0.0) -> list[OptionCost]:
    """What the default options cost on such a link, for four workers and a model of 0.3 million parameters."""
    slow, costs = EmulateLink(mbps=mbps, latency_ms=latency_ms), []
    for option in DEFAULT:
        sent = mean_traffic(option, SHAPES, num_workers=4, like=NoneConfig())
        family = DENSE if option.level is None else option.kind
        cost = compute_s + sent.seconds(slow)
        told = {"option": option.name, "bytes": sent.bytes, "cost": cost, "family": family, "teaches": option.teaches}
        costs.append(OptionCost(**told))
    return costs


# -- the short list --------------------------------------------------------------------------------


def test_the_slower_the_link_the_less_is_sent_for_what_is_learned_by_what_a_run_opens_with():
    sent = {each.option: each.bytes / each.teaches for each in _costs(100, 0.01)}
    openings = [short_list(_costs(mbps, 0.01))[1] for mbps in np.geomspace(0.1, 1e6, 40)]
    opened = [sent[each] for each in openings]

    assert opened == sorted(opened)
    assert openings[0] == "local_sgd 16 sparse_loco" and openings[-1] == "none"
    assert len(set(openings)) > 3


@given(st.floats(0.1, 1e5), st.floats(0, 50), st.floats(1e-4, 1))
def test_a_run_opens_with_what_costs_least_for_what_it_teaches(mbps: float, latency_ms: float, compute_s: float):
    costs = {each.option: each.cost_of_dense for each in _costs(mbps, compute_s, latency_ms)}

    assert costs[short_list(_costs(mbps, compute_s, latency_ms))[1]] <= min(costs.values()) / 0.95


@pytest.mark.parametrize("kinds", [("threshold", "topk"), ("powersgd",), ("local_sgd",)])
def test_what_sends_more_is_expected_to_teach_no_less_and_nothing_more_than_a_dense_step(kinds: tuple[str, ...]):
    levels = {"powersgd": range(1, 65), "local_sgd": [1 / period for period in range(2, 1000)]}
    for kind in kinds:
        denser = levels.get(kind, np.geomspace(1e-5, 1, 50))
        teaches = [Option(kind, 1 / level if kind == "local_sgd" else level).teaches for level in denser]
        assert sorted(teaches) in (teaches, teaches[::-1]) and 0 < min(teaches) <= max(teaches) <= 1


def test_of_a_kind_that_says_nothing_a_step_is_expected_to_teach_a_half_unless_it_sends_all():
    assert (Competing("density").teaches(0.01), Competing().teaches(None)) == (0.5, 1.0)


@given(st.floats(0.1, 1e5), st.floats(0, 50))
def test_of_dense_exchanges_one_is_probed_and_the_16_bits_only_where_they_save_a_twentieth(
    mbps: float, latency_ms: float
):
    costs = {each.option: each.cost for each in _costs(mbps, 0.01, latency_ms)}
    options, _ = short_list(_costs(mbps, 0.01, latency_ms))

    assert not {"none", "fp16"} <= {*options}
    if "fp16" in options:
        assert costs["fp16"] < 0.95 * costs["none"]


def test_what_gains_nothing_by_sending_less_is_not_probed():
    assert short_list(_costs(1e6, 0.01)) == (("none",), "none")


@pytest.mark.parametrize(("share", "is_probed"), [(0.94, True), (0.96, False)])
def test_a_compressed_average_is_probed_only_where_it_saves_a_twentieth_of_a_dense_one(share: float, is_probed: bool):
    costs = {each.option: each for each in _costs(100, 0.01)}
    dense, compressed = costs["local_sgd 16"], costs["local_sgd 16 blockwise"]

    options, _ = short_list([dense, compressed.model_copy(update={"cost": share * dense.cost})])

    assert options == ("local_sgd 16", "local_sgd 16 blockwise")[: 1 + is_probed]


def test_what_cannot_pay_for_itself_is_not_probed():
    costs = {each.option: each for each in _costs(1, 0.01)}
    options, opening = short_list([*costs.values()])

    assert "none" not in options
    assert all(costs[each].cost <= costs[opening].cost / costs[opening].teaches ** 2 for each in options)
    assert costs["fp16"].cost > costs[opening].cost / costs[opening].teaches ** 2 and "fp16" not in options


@pytest.mark.parametrize("mbps", [0.1, 10, 100, 1000, 1e5])
def test_a_short_list_is_short_from_dense_to_sparse_and_holds_its_opening(mbps: float):
    sent = {each.option: each.bytes for each in _costs(mbps, 0.01)}
    options, opening = short_list(_costs(mbps, 0.01))

    assert opening in options and 1 <= len(options) <= 4
    assert [sent[each] for each in options] == sorted((sent[each] for each in options), reverse=True)


@given(st.floats(0.1, 1e5), st.floats(0, 50), st.floats(1e-4, 1))
@example(5.0, 13.0, 0.078125)  # the best of a family costs too much, and another one of it does not
def test_each_family_that_is_worth_a_probe_is_on_the_short_list(mbps: float, latency_ms: float, compute_s: float):
    costs = _costs(mbps, compute_s, latency_ms)
    family = {each.option: each.family for each in costs}
    short, _ = short_list(costs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(link, "MOST_OPTIONS", len(costs))
        whole, _ = short_list(costs)

    assert {*short} <= {*whole} and len(short) == min(4, len(whole))
    assert {family[each] for each in short} == {family[each] for each in whole}


def test_a_budget_that_counts_nothing_of_what_is_sent_is_for_the_densest():
    costs = [each.model_copy(update={"cost": 1.0}) for each in _costs(100, 0.01)]

    assert short_list(costs) == (("none",), "none")


# -- the axis --------------------------------------------------------------------------------------


def test_each_option_has_a_coordinate_of_its_own():
    box = Box(axes=(RATES, AXIS))
    values = [Values(learning_rate=0.1, option=option) for option in OPTIONS]

    assert [box.to_unit(each)[1:] for each in values] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert [box.from_unit(box.to_unit(each), values[0]).option for each in values] == list(OPTIONS)


def test_a_cloud_snaps_to_options_and_only_to_those_of_the_region():
    box, region = Box(axes=(RATES, AXIS)), Box(axes=(RATES, AXIS.among(["powersgd 1", "none"])))
    low, high = box.bounds(region)
    cloud = box.snap(low + np.random.default_rng(0).random((64, 4)) * (high - low))
    found = {box.from_unit(point.tolist(), Values(learning_rate=1.0)).option for point in cloud}

    assert found == {"none", "powersgd 1"}
    assert np.all(cloud[:, 1:].sum(axis=1) == 1)


def test_the_same_rate_at_another_option_is_another_thing_to_try():
    one, other = (Values(learning_rate=0.1, option=option) for option in OPTIONS[:2])

    assert distance(one, other) > 1 and not are_within(one, other, 3.0)
    assert not is_barred(other, (one,))
    assert is_barred(one.model_copy(update={"learning_rate": 0.2}), (one,))


def test_options_are_several_and_distinct():
    with pytest.raises(ValueError, match="several and distinct"):
        SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1), axes=(OptionAxis(options=("none",)),))


# -- the search ------------------------------------------------------------------------------------


def _run(
    simulated_run,
    mbps: float,
    *,
    config: object = None,
    seconds: float = 30.0,
    budget: Budget | None = None,
    opening: str = "threshold 0.01",
):
    """A simulated run whose exchanges teach and cost differently on a link; returns it with its controller."""
    num_bytes = {"none": 400_000, "threshold 0.01": 8_000, "powersgd 1": 4_000}

    class Run(simulated_run):
        def loss_of(self, values: Values) -> float:
            before = self.excess
            loss = super().loss_of(values)
            self.excess = before + (self.excess - before) * TEACHES[values.option]
            return loss

    budget = budget or Budget(seconds=seconds)
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1, option=opening), axes=(AXIS,))
    controller = Controller(space, config or BoConfig(max_search_fraction=0.2), 0, budget=budget)
    run = Run(
        budget=budget,
        seconds_per_step=lambda values: 0.005 + num_bytes[values.option] * 8 / (mbps * 1e6),
        bytes_per_step=lambda values: num_bytes[values.option],
    )
    return run, controller


@pytest.fixture(scope="module")
def searched(simulated_run):
    """A finished wide search on a fast link, and its controller."""
    run, controller = _run(simulated_run, 50_000)
    run.search(controller)
    return run, controller


def test_a_fast_link_leads_to_a_dense_exchange(searched):
    decision = searched[1].decide()

    assert decision.values.option == "none"
    assert "at option none" in decision.reason


def test_a_slow_link_leads_to_a_sparse_exchange(simulated_run):
    run, controller = _run(simulated_run, 20, opening="powersgd 1")
    run.search(controller)

    assert controller.decide().values.option == "threshold 0.01"


def test_a_probe_of_costly_steps_is_judged_by_those_that_others_had_the_time_for(simulated_run):
    config = BoConfig(max_search_fraction=0.2, min_probe_steps=20)
    run, controller = _run(simulated_run, 100, seconds=21.0, config=config)
    run.seconds_per_step = lambda values: 0.03 if values.option == "none" else 0.01
    run.search(controller)  # the shortest probe of `none` takes three times what one of `threshold 0.01` may

    lengths = {candidate.values.option: len(seen.losses) for candidate, seen in run.history if candidate.rung}
    assert lengths["none"] < lengths["threshold 0.01"] / 2
    assert controller.decide().values.option == "threshold 0.01"


def test_every_option_has_one_probe_at_the_best_rate_and_the_rest_look_for_it(searched):
    probes = [candidate for candidate, _ in searched[0].history]
    others = [each for each in probes if each.values.option != "threshold 0.01"]

    assert sorted(each.values.option for each in others) == ["none", "powersgd 1"]
    assert {each.origin for each in others} == {"option"} and probes[-2:] == others
    assert len({each.values.learning_rate for each in others}) == 1
    assert 0.1 < others[0].values.learning_rate / 0.2 < 3  # steepest descent is at 0.2


@pytest.mark.parametrize(("steps", "num_at_opening"), [(7_000, 1), (7_200, 3)])
def test_the_opening_exchange_has_three_finalists_where_each_of_all_has_forty_steps(
    simulated_run, steps: int, num_at_opening: int
):
    run, controller = _run(simulated_run, 50_000, budget=Budget(steps=steps), config=BoConfig())
    run.search(controller)
    finalists = [candidate for candidate, _ in run.history if candidate.rung]
    tried = [each.values.option for each in finalists if each.origin != "option"]

    assert num_at_opening <= len(tried) <= num_at_opening + MAX_FINALIST_EXTENSIONS * (num_at_opening > 1)
    assert {*tried} == {"threshold 0.01"} and finalists[-1].origin == "option"
    assert all(each.allowance.steps >= PAYING_STEPS for each in finalists)
    assert controller.decide().values.option == "none"


def test_a_search_without_a_surrogate_chooses_an_option_too(simulated_run):
    config = SobolConfig(max_search_fraction=0.3, revisit="events")
    run, controller = _run(simulated_run, 50_000, config=config)
    run.search(controller)

    assert controller.decide().values.option == "none"


def test_when_steps_take_longer_the_next_sparser_option_is_tried_beside_the_incumbent(simulated_run):
    run, controller = _run(simulated_run, 50_000, seconds=20.0)
    run.run_stage(controller)  # whose commit shows what a step takes
    usual = run.seconds_per_step
    run.seconds_per_step = lambda values: usual(values) * (4 if values.option == "none" else 1)
    run.run_stage(controller)  # in which that is an event
    run.search(controller)
    later = [candidate for candidate, _ in run.history if candidate.stage > 0]

    assert [each.values.option for each in later[:2]] == ["none", "threshold 0.01"]


def test_a_journal_with_options_replays_to_the_same_decision(searched):
    state = json.loads(json.dumps(dict(searched[1].state_dict()), allow_nan=False))

    assert strategies.restore(state).decide() == searched[1].decide()


def test_a_posterior_with_options_is_drawn_over_rates_at_the_chosen_one(simulated_run):
    run, controller = _run(simulated_run, 50_000, config=BoConfig(max_search_fraction=0.3, wide_probes=3))
    run.search(controller)
    posterior = controller.decide().posterior

    assert posterior is not None
    assert [axis.name for axis in posterior.axes] == ["learning_rate"]
    assert all(math.isfinite(mean) for mean in posterior.mean)


# -- the schedule ----------------------------------------------------------------------------------

LEARNED = ScheduleFile(
    optimizer="sgd",
    num_steps=30,
    entries=(
        Entry(step=0, num_steps=10, learning_rate=0.1, values={"option": "threshold 0.01"}),
        Entry(step=10, num_steps=20, learning_rate=0.1, values={"option": "none"}),
    ),
)


def test_a_schedule_carries_its_options_through_json():
    again = Schedule.from_json(LEARNED.to_json())

    assert [again.option_at(step) for step in (0, 9, 10, 99)] == ["threshold 0.01"] * 2 + ["none"] * 2


def test_a_schedule_is_replayed_with_its_options_a_stage_for_each():
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=1.0, option="powersgd 1"))
    strategy = strategies.build(ScheduleConfig(schedule=LEARNED), space=space, seed=0, budget=Budget(steps=50))

    assert strategy.decide().commit_until.steps == 10
    assert [strategy.values(Spent(steps=step)).option for step in (0, 10)] == ["threshold 0.01", "none"]
