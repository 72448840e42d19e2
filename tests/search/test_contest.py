"""Optimizers that compete in a run's first search, on simulated losses: each has its own best rate and speed."""

import json
import math

import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.bayesian.reports import DECAY_STD
from search.budget.link import StepCost
from search.config import OPTIMIZER_TRAITS, BoConfig, Budget, OffConfig, ScheduleConfig, SobolConfig
from search.schedule_file import Entry, ScheduleFile
from search.space import Contender, SearchSpace
from search.types import Spent, Values

GUESSES = {"sgd": 0.1, "adamw": 1e-3, "schedulefree_sgd": 0.1, "muon": 0.01}
#: The simulation's loss falls fastest at twice these rates.
BEST = {"sgd": 0.05, "adamw": 2e-3, "schedulefree_sgd": 1.0, "muon": 5e-3}
STEPS = Budget(steps=3000)


def _space(kinds=tuple(GUESSES), **changes):
    first = kinds[0]
    competing = tuple(Contender(optimizer=kind, learning_rate=GUESSES[kind]) for kind in kinds)
    guess = Values(learning_rate=GUESSES[first], optimizer=first)
    return SearchSpace(optimizer=first, guess=guess, optimizers=competing, **changes)


def _controller(kinds=tuple(GUESSES), *, budget=STEPS, config=BoConfig(), **changes):  # noqa: B008
    return Controller(_space(kinds, **changes), config, 0, budget=budget)


@pytest.fixture
def contest(simulated_run):
    """Return a run in which some optimizers are faster than others; 0: it learns nothing at any rate."""

    def make(*, budget=STEPS, **speeds):
        class Contest(simulated_run):
            def _step(self, values):
                kind, before = values.optimizer, self.excess
                self.best = BEST[kind]
                loss = super()._step(values)
                self.excess = before * (self.excess / before) ** speeds.get(kind, 0.25)
                return loss

        return Contest(budget)

    return make


def _probed(run, origin=None):
    return [each.values.optimizer for each, _ in run.history if origin in (None, each.origin)]


@pytest.mark.parametrize("fastest", GUESSES)
def test_the_run_uses_the_optimizer_that_learns_most(contest, fastest):
    run = contest(**{fastest: 1.0}).train(_controller())

    assert run.decisions[0].values.optimizer == fastest
    assert f"{fastest} learned " in run.decisions[0].reason


def test_of_optimizers_that_learn_alike_the_first_is_used(contest):
    alike = dict.fromkeys(GUESSES, 0.1)
    run = contest(**alike | {"muon": 0.14}).train(_controller(("adamw", "sgd", "muon")))

    assert run.decisions[0].values.optimizer == "adamw"
    assert "a lead of less than 0.05 does not count" in run.decisions[0].reason


@pytest.mark.parametrize("revisit", ["events", "stages"])
def test_no_later_stage_changes_the_optimizer(contest, revisit):
    config = BoConfig(revisit=revisit, max_search_fraction=0.5)
    run = contest(adamw=1.0).train(_controller(config=config))

    assert len(run.decisions) > 1
    assert {decision.values.optimizer for decision in run.decisions} == {"adamw"}
    assert all(each.values.optimizer == "adamw" for each, _ in run.history if each.stage)


def test_each_has_coarse_probes_about_its_own_guess_and_one_finalist_and_the_best_has_the_others(contest):
    run = contest(muon=1.0)
    run.search(_controller(config=BoConfig(wide_probes=3)))
    coarse, finalists = _probed(run, "wide"), _probed(run, "finalist")

    for kind in GUESSES:
        rates = [each.values.learning_rate for each, _ in run.history if each.values.optimizer == kind][:3]
        traits = OPTIMIZER_TRAITS[kind]
        centre = GUESSES[kind] * traits.centre / traits.pick  # of a plateau whose pick is the guess
        assert centre in [pytest.approx(rate) for rate in rates]
        assert sorted(rates)[2] == pytest.approx(100 * sorted(rates)[0])
        assert coarse.count(kind) >= 3 and kind in finalists
    assert finalists.count("muon") >= 3
    assert all(finalists.count(kind) == 1 for kind in GUESSES if kind != "muon")


def test_a_finalist_has_the_shape_that_its_run_would_have(contest):
    run = contest()
    run.search(_controller(config=BoConfig(cooldown=0.4)))

    decays = {each.values.optimizer: each.decay for each, _ in run.history if each.origin == "finalist"}
    assert decays == {"sgd": 0.4, "adamw": 0.4, "muon": 0.4, "schedulefree_sgd": 0.0}


@pytest.mark.parametrize(("fastest", "decays"), [("adamw", True), ("schedulefree_sgd", False)])
def test_the_run_decays_as_the_optimizer_in_force_needs(contest, fastest, decays):
    controller = _controller()
    run = contest(**{fastest: 1.0})
    run.search(controller)
    chosen = controller.decide().values

    late = controller.values(Spent(steps=2700))

    assert (late.learning_rate < chosen.learning_rate) == decays
    assert late.optimizer == fastest


@pytest.mark.parametrize("kinds", [("adamw", "schedulefree_sgd"), ("schedulefree_sgd", "adamw")])
def test_a_forecast_knows_whether_the_winners_rate_decays(contest, kinds):
    controller = _controller(kinds, config=BoConfig(num_stages=1))
    contest(adamw=1.0).search(controller)

    decision = controller.decide()

    assert decision.values.optimizer == "adamw"
    assert decision.forecast.std >= DECAY_STD * decision.forecast.mean  # all of it is decayed away


@pytest.mark.parametrize("steps", [350, 900, 1000, 1400, 3000])
def test_the_search_stays_under_its_cap(contest, steps):
    budget = Budget(steps=steps)
    run = contest(budget=budget)
    run.search(_controller(budget=budget))

    assert run.searched.steps <= BoConfig().search_fraction(steps) * steps
    assert len(set(_probed(run, "finalist"))) >= 2


@pytest.mark.parametrize("steps", [250, 300, 349])
def test_where_one_option_has_room_it_is_searched_as_if_it_were_alone(contest, steps):
    budget = Budget(steps=steps)
    several, alone = contest(budget=budget), contest(budget=budget)
    several.search(_controller(budget=budget))
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=GUESSES["sgd"], optimizer="sgd"))
    alone.search(Controller(space, BoConfig(), 0, budget=budget))

    assert several.searched.steps == alone.searched.steps
    assert not _probed(several, "finalist")


@pytest.mark.parametrize(("steps", "tried"), [(300, 1), (460, 2), (1000, 3), (1400, 4)])
def test_a_short_budget_leaves_out_the_last_ones_and_says_which_one_would_try_them(contest, steps, tried):
    budget, kinds = Budget(steps=steps), list(GUESSES)
    run = contest(budget=budget).train(_controller(budget=budget))
    reason = run.decisions[0].reason

    assert set(_probed(run)) == set(kinds[:tried])
    for kind in kinds[tried:]:
        enough = int(reason.split(f"{kind} would be tried in a budget of ")[1].split()[0])
        again = contest(budget=Budget(steps=enough)).train(_controller(budget=Budget(steps=enough)))
        assert enough > steps and kind in _probed(again)
    assert ("would be tried" in reason) == (tried < len(kinds))


def test_seconds_and_bytes_leave_out_as_many_as_the_steps_that_they_hold(contest):
    cost = StepCost(bytes=1000, seconds=0.01)
    tried = []
    for budget in (Budget(steps=1000), Budget(seconds=10), Budget(bytes=1_000_000)):
        run = contest(budget=budget)
        run.search(_controller(budget=budget, step=cost))
        tried.append(_probed(run, "finalist"))

    assert {len(set(each)) for each in tried} == {3}


def test_where_none_learns_the_first_ones_guess_stays(contest):
    run = contest(**dict.fromkeys(GUESSES, 0.0)).train(_controller())

    decision = run.decisions[0]
    assert decision.values == Values(learning_rate=0.1, optimizer="sgd")
    assert "no probe trained better" in decision.reason


def test_one_that_always_diverges_is_not_chosen_and_keeps_no_other_from_its_rates(contest):
    run = contest(adamw=1.0)
    learn = run._step
    run._step = lambda values: math.nan if values.optimizer == "sgd" and not learn(values) < 0 else learn(values)
    run.search(controller := _controller())

    assert controller.decide().values.optimizer == "adamw"
    assert "no probe of sgd came to an end" in controller.decide().reason
    assert _probed(run, "wide").count("schedulefree_sgd") >= 3


def test_the_reason_tells_whose_finalists_are_missing_from_whose_probes_all_are(contest):
    run, controller = contest(adamw=1.0), _controller(("sgd", "adamw", "muon"))
    learn = run._step
    run._step = lambda values: math.nan if values.optimizer == "muon" and not learn(values) < 0 else learn(values)
    while (candidate := controller.ask()) is not None:
        controller.tell(run.probe(candidate, controller))
        if candidate.origin == "finalist":  # the budget may end here, or a person stop the run
            break
    reason = controller.decide().reason

    assert candidate.values.optimizer == "sgd"
    assert "no probe of muon came to an end; no finalist of adamw came to an end" in reason


def test_a_rate_that_diverges_under_one_optimizer_is_not_barred_under_another(contest):
    run = contest(schedulefree_sgd=1.0)
    learn = run._step
    run._step = lambda values: math.nan if values.optimizer == "sgd" and values.learning_rate > 0.05 else learn(values)
    run.search(controller := _controller(("sgd", "schedulefree_sgd")))

    assert any(told.diverged for _, told in run.history)
    assert controller.decide().values.learning_rate > 0.5


def test_a_journal_cut_off_anywhere_replays_to_the_same_search(contest):
    whole, controller = contest(adamw=1.0), _controller()
    whole.search(controller)
    expected = json.dumps(controller.state_dict()), controller.decide()
    resumed, cut = contest(adamw=1.0), _controller()
    while (candidate := cut.ask()) is not None:
        told = resumed.probe(candidate, cut)
        cut.tell(told)
        cut = Controller.from_state_dict(json.loads(json.dumps(cut.state_dict())))

    assert json.dumps(cut.state_dict()) == expected[0]
    assert cut.decide() == expected[1]
    restored = Controller.from_state_dict(json.loads(json.dumps(cut.state_dict())))
    assert restored.values(Spent(steps=2700)) == cut.values(Spent(steps=2700))


def test_several_lanes_may_probe_at_once(contest):
    controller, run = _controller(), contest(muon=1.0)
    while True:
        asked = [each for each in (controller.ask() for _ in range(3)) if each is not None]
        if not asked:
            break
        for candidate in asked:
            controller.tell(run.probe(candidate, controller))

    assert controller.decide().values.optimizer == "muon"


@pytest.mark.parametrize("config", [SobolConfig(revisit="events"), BoConfig(wide_probes=5)], ids=["sobol", "five"])
def test_other_searches_compare_them_too(contest, config):
    run = contest(adamw=1.0, sgd=0.05, muon=0.05).train(_controller(config=config, budget=STEPS))

    assert run.decisions[0].values.optimizer == "adamw"


def test_a_schedule_of_one_of_them_is_replayed_by_that_one():
    schedule = ScheduleFile(optimizer="adamw", num_steps=10, entries=(Entry(step=0, num_steps=10, learning_rate=1e-3),))
    config = ScheduleConfig(schedule=schedule)
    strategy = strategies.build(config, space=_space(), seed=0, budget=Budget(steps=10))

    assert strategy.decide().values == Values(learning_rate=1e-3, optimizer="adamw")
    assert strategies.restore(strategy.state_dict()).values(Spent(steps=3)).optimizer == "adamw"
    with pytest.raises(ValueError, match="'sgd' or 'muon', got 'adamw'"):
        strategies.build(config, space=_space(("sgd", "muon")), seed=0, budget=Budget(steps=10))


def test_without_a_search_the_first_one_trains_its_guess():
    strategy = strategies.build(OffConfig(), space=_space(("adamw", "sgd")), seed=0, budget=Budget(steps=100))

    assert strategy.decide().values == Values(learning_rate=1e-3, optimizer="adamw")
    assert strategy.values(Spent(steps=90)).learning_rate < 1e-3


def test_a_schedule_names_one_optimizer():
    entry = Entry(step=0, num_steps=10, learning_rate=1e-3, values={"optimizer": "adamw"})
    schedule = ScheduleFile(optimizer="adamw", num_steps=10, entries=(entry,))

    assert schedule.optimizer_at(3) == "adamw"
    with pytest.raises(ValueError, match=r"`entries\[0\].values.optimizer` must be 'sgd', got 'adamw'"):
        ScheduleFile(optimizer="sgd", num_steps=10, entries=(entry,))


@pytest.mark.parametrize(
    ("competing", "said"),
    [
        ((("sgd", 0.1), ("sgd", 0.2)), "must be several and distinct"),
        ((("sgd", 0.1),), "must be several and distinct"),
        ((("adamw", 0.1), ("muon", 0.2)), "with that of `guess` among them"),
    ],
)
def test_a_space_of_optimizers_that_do_not_compete_is_refused(competing, said):
    optimizers = tuple(Contender(optimizer=kind, learning_rate=rate) for kind, rate in competing)

    with pytest.raises(ValueError, match=said):
        SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1, optimizer="sgd"), optimizers=optimizers)


@pytest.mark.parametrize(("kind", "rate", "said"), [("adam", 0.1, "`optimizer` must be"), ("adamw", 1e4, "1000")])
def test_one_that_nobody_knows_or_with_a_guess_out_of_range_is_refused(kind, rate, said):
    competing = (Contender(optimizer="sgd", learning_rate=0.1), Contender(optimizer=kind, learning_rate=rate))
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1, optimizer="sgd"), optimizers=competing)

    with pytest.raises(ValueError, match=said):
        Controller(space, BoConfig(), 0, budget=STEPS)
