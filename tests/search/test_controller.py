"""The controller on a simulated run finds the rate, stays within its budget, and replays to the bit."""

import json
import math

import numpy as np
import pytest

from search import strategies
from search.bayesian import rewards
from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.curves.calibration import FIRST_WEIGHT
from search.space import Axis, SearchSpace
from search.types import Decision, Observation, Spent, Values

STEPS = Budget(steps=2000)
LEVELS = {"axes": (Axis(name="level", low=0.003, high=0.1),)}


def _controller(guess=0.1, *, optimizer="sgd", budget=STEPS, seed=0, space=None, **config):
    level = 0.02 if space else None
    where = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=guess, level=level), **(space or {}))
    return Controller(where, BoConfig(**{"revisit": "stages"} | config), seed, budget=budget)


def _observe(candidate, losses, *, steps=0, diverged=False):
    return Observation(
        candidate_id=candidate.id if candidate else None,
        losses=tuple(losses),
        step_seconds=(0.01,) * len(losses),
        bytes_sent=len(losses),
        diverged=diverged,
        spent=Spent(steps=steps, bytes=steps, seconds=steps / 100),
    )


def _through_json(controller):
    return strategies.restore(json.loads(json.dumps(dict(controller.state_dict()), allow_nan=False)))


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree_sgd"])
@pytest.mark.parametrize("guess", [0.01, 0.1, 1.0])
def test_from_any_guess_within_a_decade_it_ends_near_the_best_rate(simulated_run, optimizer, guess):
    run = simulated_run(STEPS).train(_controller(guess, optimizer=optimizer))

    # the simulation's loss falls fastest at twice its `best`, and diverges from four times on
    assert 0.02 <= run.decisions[-1].values.learning_rate <= 0.3


def test_a_guess_1000_times_too_low_extends_the_range(simulated_run):
    run = simulated_run(STEPS).train(_controller(1e-4))

    assert max(candidate.values.learning_rate for candidate, _ in run.history) > 0.05
    assert run.decisions[-1].values.learning_rate > 0.005


def test_the_range_is_extended_at_most_twice(simulated_run):
    run = simulated_run(STEPS, best=1e3)
    run.search(_controller(1e-4))

    decades = [candidate.values.learning_rate for candidate, _ in run.history if candidate.origin == "wide"]
    assert max(decades) == pytest.approx(1.0)
    assert len(decades) == 5 + 2


def test_an_extension_that_the_space_cuts_to_almost_nothing_is_none(simulated_run):
    run = simulated_run(STEPS, best=1e3)
    run.search(_controller(0.1, space={"max_learning_rate": 13.0}))

    decades = [candidate.values.learning_rate for candidate, _ in run.history if candidate.origin == "wide"]
    assert max(decades) == pytest.approx(10.0)


def test_candidates_asked_for_at_a_time_share_a_fit_and_are_those_of_a_controller_restored_after_each(monkeypatch):
    controller, fits = _controller(0.1, space=LEVELS, wide_probes=9, max_search_fraction=0.5), []
    for _ in range(5 + 5):
        candidate = controller.ask()
        distance = math.log10(candidate.values.learning_rate / 0.1)
        controller.tell(_observe(candidate, [2.0] * 5 + [1.0 + distance**2 / 20] * 15))
    restored = _through_json(controller)
    fit = rewards.fit
    monkeypatch.setattr(rewards, "fit", lambda *args, **options: fits.append(fit(*args, **options)) or fits[-1])

    together = [controller.ask().values for _ in range(3)]
    num_fits = len(fits)
    one_by_one = []
    for _ in range(3):
        one_by_one.append(restored.ask().values)
        restored = _through_json(restored)

    assert together == one_by_one
    assert (num_fits, len(fits) - num_fits) == (1, 3)


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [("sgd", [0.001, 0.01, 0.1, 1.0, 10.0]), ("schedulefree_sgd", [0.02, 0.2, 2.0, 20.0, 200.0])],
)
def test_the_wide_search_begins_with_decades(optimizer, rates):
    controller = _controller(0.1, optimizer=optimizer)

    asked = [controller.ask().values.learning_rate for _ in rates]

    assert sorted(asked) == pytest.approx(rates)


def test_decades_are_probed_at_one_level_and_finalists_on_both_sides_of_it(simulated_run):
    run = simulated_run(STEPS)
    run.search(_controller(0.1, space=LEVELS))
    levels = {
        origin: {candidate.values.level for candidate, _ in run.history if candidate.origin == origin}
        for origin in ("wide", "finalist")
    }

    assert levels["wide"] == {0.02}
    assert min(levels["finalist"]) < 0.02 < max(levels["finalist"])


def test_every_later_stage_probes_the_incumbent_first_and_three_in_all(simulated_run):
    run = simulated_run(STEPS).train(_controller())

    for stage in (1, 2):  # in the last one the rate decays
        probes = [candidate for candidate, _ in run.history if candidate.stage == stage]
        assert len(probes) == 3
        assert probes[0].origin == "incumbent"
        assert probes[0].values == run.decisions[stage - 1].values
        assert len({candidate.allowance for candidate in probes}) == 1


def test_later_candidates_stay_in_the_trust_region(simulated_run):
    run = simulated_run(STEPS).train(_controller(space=LEVELS))

    later = [(candidate, run.decisions[candidate.stage - 1].values) for candidate, _ in run.history if candidate.stage]
    assert later
    for candidate, incumbent in later:
        assert 0.25 - 1e-9 <= candidate.values.learning_rate / incumbent.learning_rate <= 2 + 1e-9
        assert 0.25 - 1e-9 <= candidate.values.level / incumbent.level <= 4 + 1e-9
        assert 0.003 <= candidate.values.level <= 0.1


def test_after_half_of_the_budget_no_rate_rises(simulated_run):
    run = simulated_run(STEPS).train(_controller(space=LEVELS, optimizer="schedulefree_sgd"))
    last = run.decisions[-2].values.learning_rate

    late = [candidate for candidate, _ in run.history if candidate.stage == 3]
    assert late  # Schedule-Free has no decay in which nothing is searched
    assert all(candidate.values.learning_rate <= last * (1 + 1e-9) for candidate in late)


@pytest.mark.parametrize("budget", [Budget(steps=2000), Budget(bytes=2_000_000), Budget(seconds=20.0)])
def test_commits_take_1_2_4_8_of_the_budget_and_end_with_it(simulated_run, budget):
    run = simulated_run(budget).train(_controller(budget=budget))
    unit = next(unit for unit in ("steps", "bytes", "seconds") if getattr(budget, unit) is not None)
    ends = [getattr(decision.commit_until, unit) for decision in run.decisions]

    assert len(ends) == 4
    assert ends == sorted(ends)
    assert ends[-1] == getattr(budget, unit)


@pytest.mark.parametrize("num_steps", [60, 200, 1000])
@pytest.mark.parametrize("unit", ["steps", "seconds", "bytes"])
def test_searching_spends_at_most_its_share_and_one_probe(simulated_run, unit, num_steps):
    per_step = {"steps": 1, "seconds": 0.01, "bytes": 1000}[unit]
    budget = Budget(**{unit: num_steps * per_step})

    run = simulated_run(budget).train(_controller(budget=budget))

    assert run.searched.steps <= 0.2 * num_steps + 20


def test_dense_levels_that_cost_much_do_not_break_the_share(simulated_run):
    budget = Budget(seconds=40.0)
    run = simulated_run(budget, seconds_per_step=lambda values: 0.005 + 2 * values.level)

    run.train(_controller(budget=budget, space=LEVELS))

    assert run.searched.seconds <= 0.2 * 40 + 20 * 0.205


def test_without_room_the_incumbent_stays_and_the_reason_says_so(simulated_run):
    budget = Budget(steps=60)
    controller = _controller(budget=budget)
    run = simulated_run(budget)
    run.run_stage(controller)

    assert controller.ask() is None
    decision = controller.decide()
    assert not decision.switched
    assert "no room" in decision.reason


class _Recorder:
    """A controller, what it was told, and its journal before every `tell`."""

    def __init__(self, controller):
        self.controller, self.states, self.told = controller, [], []
        self.ask, self.watch = controller.ask, controller.watch
        self.decide, self.values = controller.decide, controller.values

    def tell(self, observation):
        self.states.append(json.dumps(dict(self.controller.state_dict()), allow_nan=False))
        self.told.append(observation)
        self.controller.tell(observation)


@pytest.fixture(scope="module")
def recorded(simulated_run):
    recorder = _Recorder(_controller(space=LEVELS))
    simulated_run(STEPS, noise=0.05).train(recorder)
    return recorder


def _assert_goes_on_alike(recorded, told, *, write=lambda event: event):
    state, observations = json.loads(recorded.states[told]), iter(recorded.told[told:])
    restored = strategies.restore({**state, "events": [write(event) for event in state["events"]]})

    for event in recorded.controller.state_dict()["events"][len(state["events"]) :][:8]:
        if "tell" in event or "close" in event:
            restored.tell(next(observations))
        elif "ask" in event:
            assert json.loads(restored.ask().model_dump_json()) == event["ask"]
        else:
            assert restored.ask() is None
            assert json.loads(restored.decide().model_dump_json()) == event["decide"]


@pytest.mark.parametrize("told", [0, 5, 9, 14])
def test_a_restored_controller_goes_on_bit_for_bit(recorded, told):
    _assert_goes_on_alike(recorded, told)


def test_a_controller_goes_on_from_the_journal_of_an_earlier_release(recorded):
    _assert_goes_on_alike(recorded, 14, write=_as_earlier)


def _as_earlier(event):
    if "close" not in event:
        return event
    ending = dict(event["close"])
    return {"close": {"level": ending.pop("end_loss"), **ending}}


def test_a_decision_tells_what_it_knew_and_what_searching_had_taken(recorded):
    events = recorded.controller.state_dict()["events"]
    decisions = [Decision.model_validate(event["decide"]) for event in events if "decide" in event]

    searched = np.cumsum([decision.search_steps for decision in decisions])
    assert [decision.tax.budget_share for decision in decisions] == pytest.approx((searched / STEPS.steps).tolist())
    assert [decision.tax.cap_share for decision in decisions] == pytest.approx((searched / STEPS.steps / 0.2).tolist())
    assert decisions[0].forecast_weight == FIRST_WEIGHT
    assert len({decision.forecast_weight for decision in decisions}) > 1
    assert [axis.name for axis in decisions[0].posterior.axes] == ["learning_rate", "level"]
    assert max(len(decision.model_dump_json()) for decision in decisions) < 40_000


@pytest.mark.parametrize(("name", "written"), [("threshold", "threshold 0.02"), ("density", "density 2 %")])
def test_a_reason_calls_the_level_what_the_job_calls_it(name, written):
    controller = _controller(space=LEVELS | {"level_name": name}, budget=Budget(steps=10))

    assert controller.ask() is None
    assert f"0.1 at {written} stays" in controller.decide().reason


@pytest.fixture(scope="module")
def long_probes():
    budget = Budget(steps=10**9)
    recorder = _Recorder(_controller(budget=budget, wide_probes=10, probes=8, space=LEVELS))
    rng, num_probes = np.random.default_rng(0), 0
    while num_probes < 20:
        candidate = recorder.ask()
        if candidate is None:
            recorder.decide()
            recorder.tell(_observe(None, rng.normal(1.0, 0.1, 50_000).tolist(), steps=10**8))
            continue
        num_probes += 1
        losses = np.linspace(2.0, 1.9 - 0.01 * num_probes, 50_000) + rng.normal(0, 0.1, 50_000)
        recorder.tell(_observe(candidate, losses.tolist(), steps=50_000 * num_probes))
    return recorder


def test_20_probes_of_50000_steps_make_a_journal_below_500_kb(long_probes):
    assert len(json.dumps(dict(long_probes.controller.state_dict()))) < 500_000


@pytest.mark.parametrize("told", [6, 10, 14])
def test_with_long_probes_too_a_restored_controller_goes_on_bit_for_bit(long_probes, told):
    _assert_goes_on_alike(long_probes, told)


def test_several_candidates_may_run_at_once():
    controller, steps = _controller(wide_probes=3), 0
    for num_together in (5, 3):  # the decades, then the finalists about their pick
        asked = [controller.ask() for _ in range(num_together)]
        assert controller.ask() is None
        assert len({candidate.values for candidate in asked}) == num_together
        for candidate in reversed(asked):
            distance = abs(math.log10(candidate.values.learning_rate / 0.1))
            steps += candidate.allowance.min_steps
            losses = [2.0 - 0.01 * step / (1 + distance) for step in range(candidate.allowance.min_steps)]
            controller.tell(_observe(candidate, losses, steps=steps))
    assert controller.decide().values.learning_rate > 0


def test_a_budget_in_steps_reads_no_clock(simulated_run):
    budget = Budget(steps=800)

    def train(seconds_per_step):
        run = simulated_run(budget, seconds_per_step=seconds_per_step).train(_controller(space=LEVELS, budget=budget))
        return [decision.model_copy(update={"search_seconds": 0.0}) for decision in run.decisions]

    assert train(lambda values: 0.01) == train(lambda values: 0.3 + 5 * values.level)


def test_a_plain_optimizer_cools_down_to_zero(simulated_run):
    controller = _controller()
    run = simulated_run(STEPS)
    run.run_stage(controller)
    rate = run.decisions[0].values.learning_rate
    rates = [controller.values(Spent(steps=steps)).learning_rate for steps in (1000, 1500, 2000)]

    assert rates == pytest.approx([rate, rate / 2, 0.0])


def test_no_probe_opens_inside_the_cool_down():
    controller = _controller(num_stages=2)
    controller.tell(_observe(controller.ask(), [1.0] * 20, steps=20))
    controller.decide()
    controller.tell(_observe(None, [1.0] * 50, steps=1750))

    assert controller.ask() is None


def test_schedule_free_does_not_cool_down():
    controller = _controller(optimizer="schedulefree_sgd")

    assert controller.values(Spent(steps=2000)).learning_rate == 0.1


def test_a_committed_line_that_diverged_is_cut_to_a_quarter(simulated_run):
    controller, run = _controller(), simulated_run(STEPS)
    run.search(controller)
    used = controller.decide().values.learning_rate
    controller.tell(_observe(None, [2.0, 50.0], steps=run.spent.steps + 2, diverged=True))

    later = []
    while (candidate := controller.ask()) is not None:
        later.append(candidate.values.learning_rate)
        losses = [2.0 - 0.01 * step for step in range(20)]
        controller.tell(_observe(candidate, losses, steps=run.spent.steps + 22 * len(later)))

    assert later[0] == pytest.approx(used / 4)
    assert max(later) < 0.7 * used
    assert "diverged" in controller.decide().reason


def _search(controller, steps, level=2.0):
    """Tell probes that fall from `level`, the faster the higher their rate; return the rates, and the steps then."""
    rates = []
    while (candidate := controller.ask()) is not None:
        steps += 20
        rates.append(candidate.values.learning_rate)
        fall = 0.005 * (5 + math.log10(rates[-1]))
        controller.tell(_observe(candidate, [level * math.exp(-fall * step) for step in range(20)], steps=steps))
    return rates, steps


@pytest.mark.parametrize(("stds", "rises"), [(0.0, True), (1.9, True), (2.1, False)])
def test_after_a_divergence_no_rate_rises_until_a_commit_meets_its_forecast(stds, rises):
    controller = _controller(0.01, budget=Budget(steps=100_000), probes=6)
    _, steps = _search(controller, 0)
    controller.decide()
    controller.tell(_observe(None, [2.0, 50.0], steps=steps + 2, diverged=True))
    after_divergence, steps = _search(controller, steps)
    decision = controller.decide()
    end = decision.forecast.mean + stds * decision.forecast.std
    falling = [*np.linspace(1.5 * end, end, 80).tolist(), *[end] * 20]
    controller.tell(_observe(None, falling, steps=steps + 100))
    later, _ = _search(_through_json(controller), steps + 100, level=end)

    assert max(after_divergence) <= after_divergence[0] * (1 + 1e-9)
    assert later[0] == decision.values.learning_rate
    assert (max(later) > 1.2 * later[0]) is rises


@pytest.mark.parametrize(("fall", "share"), [(0.0, 0.4), (-0.05, 0.4), (0.5, 1.0)])
def test_a_commit_whose_loss_stands_still_is_followed_by_one_at_a_lower_rate(fall, share):
    controller, rng = _controller(0.01, revisit="events"), np.random.default_rng(0)
    _search(controller, 0)

    def commit(start, end):
        decision = controller.decide()
        losses = np.linspace(start, end, 200) + rng.normal(0, 0.02, 200)
        controller.tell(_observe(None, losses, steps=decision.commit_until.steps))
        return decision

    commit(2.0, 1.0)
    second = commit(1.0, 1.0 - fall)
    third = _through_json(controller).decide()

    assert third.values.learning_rate == pytest.approx(share * second.values.learning_rate)
    assert ("the loss stood still" in third.reason) is ("without a search" in third.reason) is (share < 1)


def test_a_commit_in_which_the_rate_decays_is_forecast_lower_and_less_surely():
    held, decayed = (_controller(0.01, num_stages=1, cooldown=share) for share in (0.0, 0.5))
    for controller in (held, decayed):
        _search(controller, 0)
    without, with_decay = held.decide(), decayed.decide()

    assert without.values == with_decay.values
    assert 0.9 * without.forecast.mean < with_decay.forecast.mean < without.forecast.mean
    assert with_decay.forecast.std > without.forecast.std


def test_a_diverged_probe_bars_rates_like_it(simulated_run):
    run = simulated_run(STEPS, best=0.01)
    run.search(_controller(0.1))
    lowest_diverged = math.inf
    for candidate, observation in run.history:
        if candidate.origin in ("acquisition", "sobol"):
            assert candidate.values.learning_rate < 0.7 * lowest_diverged
        if observation.diverged:
            lowest_diverged = min(lowest_diverged, candidate.values.learning_rate)
    assert lowest_diverged < math.inf


def test_if_all_probes_diverge_the_rate_is_halved_and_the_reason_says_so():
    controller, steps = _controller(0.1), 0
    rates = []
    while (candidate := controller.ask()) is not None:
        steps += 1
        rates.append(candidate.values.learning_rate)
        controller.tell(_observe(candidate, [], steps=steps, diverged=True))
    decision = controller.decide()

    assert decision.values.learning_rate == pytest.approx(min(rates) / 2)
    assert "diverged" in decision.reason
    assert all(report.reward is None for report in decision.probes)


def _switches_on_noise(seed):
    rng, controller = np.random.default_rng(seed), _controller(num_stages=2, seed=seed)
    controller.tell(_observe(controller.ask(), [1.0] * 20, steps=20))
    controller.decide()
    controller.tell(_observe(None, [1.0] * 50, steps=600))
    steps = 600
    while (candidate := controller.ask()) is not None:
        steps += 20
        controller.tell(_observe(candidate, rng.normal(1.0, 0.05, 20).tolist(), steps=steps))
    return controller.decide().switched


def test_noise_alone_rarely_switches():
    # twice 5 % by the rule, as each of the two rivals may win by chance
    assert sum(_switches_on_noise(seed) for seed in range(30)) <= 6


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"optimizer": "magic"}, "optimizer"),
        ({"guess": Values(learning_rate=1e9)}, "guess.learning_rate"),
    ],
)
def test_an_impossible_space_names_its_argument(change, argument):
    space = SearchSpace(**({"optimizer": "sgd", "guess": Values(learning_rate=0.1)} | change))

    with pytest.raises(ValueError, match=f"`{argument}`"):
        Controller(space, BoConfig(), 0, budget=STEPS)


def test_calls_out_of_turn_are_refused():
    controller = _controller()
    candidate = controller.ask()

    with pytest.raises(ValueError, match="no commit"):
        controller.tell(_observe(None, [1.0]))
    controller.tell(_observe(candidate, [1.0] * 20, steps=20))
    with pytest.raises(ValueError, match="`candidate_id`"):
        controller.tell(_observe(candidate, [1.0] * 20, steps=20))
    controller.decide()
    with pytest.raises(ValueError, match="is decided"):
        controller.ask()


def test_a_decision_asked_for_twice_is_the_same():
    controller = _controller()
    controller.tell(_observe(controller.ask(), [1.0] * 20, steps=20))

    assert controller.decide() is controller.decide()
