"""The controller with `revisit: events`: it searches once, and again only after something happened."""

import json
import re

import numpy as np
import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.budget.link import BELOW
from search.config import BoConfig, Budget
from search.space import Axis, SearchSpace
from search.types import Values

STEPS = Budget(steps=4000)
LEVELS = {"axes": (Axis(name="level", low=0.003, high=0.5),), "dense_bytes": 1_000_000}


def _controller(guess=0.1, *, optimizer="schedulefree_sgd", budget=STEPS, space=None, **config):
    level = 0.02 if space else None
    where = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=guess, level=level), **(space or {}))
    return Controller(where, BoConfig(**config), 0, budget=budget)


def _searches(run):
    """Return the number of probes by stage."""
    stages = [candidate.stage for candidate, _ in run.history]
    return [stages.count(decision.stage) for decision in run.decisions]


def _jumping(at):
    """The gradient's scale at a step of a commit, if it jumps eightfold at the step `at`."""
    return lambda step: 1.0 if step < at else 8.0


def test_without_an_event_it_searches_once_and_says_that_nothing_happened(simulated_run):
    run = simulated_run(STEPS).train(_controller())
    cap = BoConfig().search_fraction(4000)

    assert _searches(run)[0] >= 3 and sum(_searches(run)[1:]) == 0
    assert len({decision.values for decision in run.decisions}) == 1
    assert all("stays: nothing happened (gradient scale 1x, loss" in decision.reason for decision in run.decisions[1:])
    assert all(decision.forecast is not None for decision in run.decisions)
    assert run.searched.steps <= cap * 4000


def test_an_event_ends_the_commit_and_opens_a_search_around_the_incumbent(simulated_run):
    run = simulated_run(Budget(steps=8000), scale_at=_jumping(700))
    controller = _controller(budget=run.budget)
    for _ in range(3):
        run.run_stage(controller)

    assert run.commits[1].trace.num_steps < 8000 * 2 / 15
    assert _searches(run)[2] >= 2
    incumbent = run.decisions[1].values.learning_rate
    rates = {candidate.values.learning_rate / incumbent for candidate, _ in run.history if candidate.stage == 2}
    assert 0.25 <= min(rates) < max(rates) == 1.0  # after an event none is higher
    assert "the gradient's scale jumped 8x" in run.decisions[2].reason


def test_gradients_that_grow_while_a_model_begins_to_learn_are_no_event(simulated_run):
    run = simulated_run(Budget(steps=8000), scale_at=_jumping(300))
    run.run_stage(_controller(budget=run.budget))

    assert run.commits[0].trace.num_steps >= 500


@pytest.mark.parametrize("budget", [Budget(steps=5000), Budget(bytes=5_000_000)])
def test_events_without_end_neither_thrash_nor_pass_the_cap(simulated_run, budget):
    run = simulated_run(budget, scale_at=_jumping(60)).train(_controller(budget=budget))

    assert 2 <= sum(count > 0 for count in _searches(run)) == len(run.decisions) <= 8
    assert run.searched.steps <= BoConfig().search_fraction(budget.steps) * 5000
    assert run.commits[-1].trace.num_steps > 2500  # there was no room for another search


def test_before_its_dwell_a_commit_is_not_ended(simulated_run):
    run = simulated_run(Budget(steps=8000), scale_at=_jumping(60))
    run.run_stage(_controller(budget=run.budget, event_dwell=1.0))

    assert run.commits[0].trace.num_steps >= 500


def test_a_commit_that_diverges_slowly_is_taken_back_and_the_next_searches_below(simulated_run):
    run = simulated_run(Budget(steps=8000))
    controller = _controller(budget=run.budget)
    run.run_stage(controller)
    run.best = run.decisions[0].values.learning_rate / 4.3  # from 4 x best on losses grow
    run.excess = 1.0
    run.run_stage(controller)

    assert run.commits[-1].rolled_back and run.excess == 1.0
    run.run_stage(controller)
    assert "was rolled back" in run.decisions[2].reason and "the loss rose" in run.decisions[2].reason
    assert run.decisions[2].values.learning_rate <= run.decisions[1].values.learning_rate / 2
    assert _searches(run)[2] >= 2


def test_a_net_that_dies_is_taken_back_and_the_next_stage_starts_from_a_quarter(simulated_run):
    run = simulated_run(Budget(steps=8000), scale_at=lambda step: 1.0 if step < 60 else 0.0)
    controller, learn = _controller(budget=run.budget), run.loss_of
    run.search(controller)
    opened = run.step
    run.loss_of = lambda values: learn(values) if run.step < opened + 60 else learn(values) * 0 + 2.3
    run.commit(controller)

    assert run.commits[0].rolled_back and run.commits[0].trace.num_steps < 8000 / 15 and run.step == opened
    run.loss_of = learn
    run.run_stage(controller)
    assert "the net is dead at loss 2.3" in run.decisions[1].reason
    assert run.decisions[1].values.learning_rate <= run.decisions[0].values.learning_rate / 4


@pytest.mark.parametrize("num_steps", [500, 280])
def test_a_line_that_never_learns_what_its_probes_did_is_dead(simulated_run, num_steps):
    run = simulated_run(Budget(steps=num_steps))
    controller, learn = _controller(budget=run.budget), run.loss_of
    run.search(controller)
    run.loss_of = lambda values: learn(values) * 0 + 2.3
    while not run.commits or not run.commits[-1].rolled_back:
        run.run_stage(controller)

    assert len(run.commits) == 1  # the first one is long enough to tell
    assert "the net is dead at loss 2.3" in controller.decide().reason
    assert controller.decide().values.learning_rate <= run.decisions[0].values.learning_rate / 4


def _learn_only(run, is_right):
    """Have steps at any other rate change nothing but what is spent."""
    learn = run.loss_of
    at_rest = {"learning_rate": 0.0}
    run.loss_of = lambda values: learn(values if is_right(values.learning_rate) else values.model_copy(update=at_rest))


def test_where_probes_show_nothing_the_rate_rises_until_something_is_learned(simulated_run):
    run = simulated_run(Budget(steps=2000))
    _learn_only(run, lambda rate: rate >= 0.015)
    controller = _controller(1e-4, optimizer="sgd", budget=run.budget)
    run.run_stage(controller)
    restored = Controller.from_state_dict(json.loads(json.dumps(controller.state_dict())))
    asked = [(each.ask(), each.values(run.spent)) for each in (controller, restored)]
    run.train(controller)

    assert "rising until something is learned" in run.decisions[0].reason
    assert run.decisions[0].values.learning_rate < 1e-3 and asked[0] == asked[1]
    assert max(decision.values.learning_rate for decision in run.decisions) >= 0.015
    assert run.excess < 0.2 and not any(commit.rolled_back for commit in run.commits)


def test_a_commit_that_learns_nothing_is_given_up_once_for_a_rate_that_rises_from_below(simulated_run):
    run = simulated_run(Budget(steps=2000), noise=0.005)
    controller, learn = _controller(budget=run.budget, optimizer="sgd"), run.loss_of
    run.loss_of = lambda values: 20 + learn(values)  # of which probes remove too little to count
    run.search(controller)
    chosen = controller.decide().values.learning_rate
    run.best = chosen / 4
    _learn_only(run, lambda rate: chosen / 10 <= rate <= chosen / 2)
    run.commit(controller)
    run.train(controller)

    assert [commit.rolled_back for commit in run.commits].count(True) == 1
    assert "learned nothing" in run.decisions[1].reason and run.commits[0].trace.num_steps <= 250
    assert run.decisions[1].values.learning_rate == pytest.approx(chosen / 8)
    assert run.decisions[2].values.learning_rate < chosen / 2 and run.excess < 0.1


@pytest.mark.parametrize(
    ("optimizer", "budget"),
    [
        ("sgd", Budget(steps=500)),
        ("sgd", Budget(bytes=500_500)),
        ("sgd", Budget(seconds=5.003)),
        ("schedulefree_sgd", Budget(steps=500)),
    ],
)
def test_a_first_commit_that_learns_nothing_is_given_up_at_its_end_however_short_it_is(
    simulated_run, optimizer, budget
):
    run = simulated_run(budget, noise=0.005)
    controller, learn = _controller(budget=run.budget, optimizer=optimizer), run.loss_of
    run.loss_of = lambda values: 20 + learn(values)  # of which probes remove too little to count
    run.search(controller)
    opened = run.step
    _learn_only(run, lambda rate: False)
    run.commit(controller)

    assert run.commits[0].rolled_back and run.commits[0].trace.num_steps < 40 and run.step == opened
    assert "learned nothing" in controller.decide().reason


def test_a_rate_rises_no_further_once_the_gradients_grow(simulated_run):
    run, rates = simulated_run(Budget(steps=3000), scale_at=lambda step: 1.0 if step < 60 else 3.0), []
    _learn_only(run, lambda rate: False)
    controller, rest = _controller(1e-4, optimizer="sgd", budget=run.budget), run.loss_of
    run.search(controller)
    run.loss_of = lambda values: rates.append(values.learning_rate) or rest(values)
    run.commit(controller)

    assert "rising until something is learned" in run.decisions[0].reason
    assert len(set(rates[:100])) > 1 and len(set(rates[100:])) == 1 and len(rates) > 150


def test_a_net_that_is_killed_while_it_wakes_goes_back_and_is_woken_at_a_lower_rate(simulated_run):
    run = simulated_run(Budget(steps=3000), scale_at=lambda step: 10.0 if 60 <= step < 90 else 1.0)
    _learn_only(run, lambda rate: False)
    controller = _controller(1e-4, optimizer="sgd", budget=run.budget)
    run.search(controller)
    opened = run.step
    run.commit(controller)

    assert run.commits[0].rolled_back and run.step == opened
    assert "learned nothing" in controller.decide().reason and "until it does" in controller.decide().reason


def test_a_line_that_worsens_from_stage_to_stage_is_taken_back_at_a_stages_end(simulated_run):
    run = simulated_run(Budget(steps=8000), noise=0.001)
    controller, learn = _controller(budget=run.budget), run.loss_of
    run.run_stage(controller)
    begun = run.step
    run.loss_of = lambda values: learn(values) * 0 + 0.31 + min(0.3, 0.0002 * (run.step - begun))
    while not run.commits[-1].rolled_back:
        run.run_stage(controller)

    assert len(run.commits) <= 3 and "the loss rose to" in controller.decide().reason
    assert controller.decide().values.learning_rate <= run.decisions[0].values.learning_rate / 2


def test_the_level_follows_a_link_that_changes(simulated_run):
    budget, compute_s = Budget(seconds=120.0), 0.01
    run = simulated_run(budget, bytes_per_step=lambda values: int(1e6 * values.level))
    run.seconds_per_step = lambda values: compute_s + values.level * 8 / (100 if run.spent.seconds < 20 else 10)
    run.train(_controller(budget=budget, space=LEVELS))
    first, last = run.decisions[0], run.decisions[-1]

    share = BELOW / (1 - BELOW)
    assert first.values.level == pytest.approx(share * compute_s / 0.08, rel=1.0)  # within the rule's dead band
    assert last.values.level == pytest.approx(share * compute_s / 0.8, rel=0.1)
    assert last.values.learning_rate == first.values.learning_rate
    [changed] = [decision for decision in run.decisions if "the step time changed" in decision.reason]
    assert "a dense exchange takes 800 ms" in changed.reason and changed.switched


@pytest.mark.parametrize(
    ("space", "num_searches"),
    [
        ({}, 1),
        ({"axes": (Axis(name="momentum", low=0.8, high=0.98),)}, 1),
        ({"axes": (Axis(name="batch_size", low=8, high=64),)}, 2),
        (LEVELS, 2),
    ],
)
def test_another_step_time_matters_only_to_values_that_decide_what_a_step_costs(simulated_run, space, num_searches):
    budget = Budget(seconds=120.0)
    run = simulated_run(budget)
    run.seconds_per_step = lambda values: 0.01 if run.spent.seconds < 20 else 0.02
    run.train(_controller(budget=budget, space=space))

    assert sum(number > 0 for number in _searches(run)) == num_searches
    has_looked = any("step " in decision.reason for decision in run.decisions[1:])
    assert has_looked == (num_searches == 2)


def test_the_level_follows_a_link_too_slow_to_probe_the_incumbent_on(simulated_run):
    budget, compute_s = Budget(seconds=120.0), 0.01
    run = simulated_run(budget, bytes_per_step=lambda values: int(1e6 * values.level))
    run.seconds_per_step = lambda values: compute_s + values.level * 8 / (100 if run.spent.seconds < 20 else 1)
    run.train(_controller(budget=budget, space=LEVELS, max_search_fraction=0.08))

    [refused] = [decision for decision in run.decisions if decision.refused and decision.stage]
    assert refused.refused[0].values == run.decisions[0].values
    assert "its own probe took too long" in refused.reason
    assert refused.values.level == pytest.approx(0.003)  # what steps came to take longer is put down to the link
    assert run.decisions[-1].values.level == pytest.approx(0.003)


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree_sgd"])
def test_where_no_search_fits_the_guess_stays_as_it_is(simulated_run, optimizer):
    budget = Budget(steps=120)
    run = simulated_run(budget).train(_controller(0.1, optimizer=optimizer, budget=budget))

    assert run.searched.steps == 0
    assert {decision.values.learning_rate for decision in run.decisions} == {0.1}
    assert run.decisions[0].reason == (
        "the guess 0.1 stays: a search needs 35 steps, and probes may spend 24 steps "
        "(give a budget of 175 steps, or raise `max_search_fraction`)"
    )


def test_the_budget_that_the_reason_names_opens_a_search(simulated_run):
    def first_stage(steps):
        budget = Budget(steps=steps)
        run = simulated_run(budget)
        run.run_stage(_controller(0.1, optimizer="sgd", budget=budget, coarse_probe_steps=50))
        return run

    short = first_stage(1000)
    named = int(re.search(r"give a budget of (\d+) steps", short.decisions[0].reason)[1])

    assert named > 1000 and not short.history and first_stage(named).history


def test_the_first_probe_shows_that_no_search_fits(simulated_run):
    budget = Budget(seconds=10.0)
    run = simulated_run(budget, seconds_per_step=lambda values: 0.1).train(_controller(budget=budget))

    assert _searches(run) == [1, 0, 0, 0]
    assert "a search needs 3.5 seconds, and probes may spend 2 seconds" in run.decisions[0].reason
    assert "give a budget of 17.5 seconds" in run.decisions[0].reason
    assert run.decisions[-1].values.learning_rate == 0.1


def test_levels_whose_probes_take_too_long_are_refused_and_told(simulated_run):
    budget = Budget(seconds=120.0)
    run = simulated_run(budget, seconds_per_step=lambda values: 0.002 if values.level < 0.03 else 1.0)
    run.run_stage(_controller(budget=budget, space=LEVELS, max_search_fraction=0.08))

    decision = run.decisions[0]
    too_slow = [refusal for refusal in decision.refused if refusal.kind == "too_slow"]
    assert too_slow
    assert all(refusal.values.level > 0.03 and "14 steps take 14" in refusal.reason for refusal in too_slow)
    assert len(decision.probes) >= 5
    assert run.searched.seconds <= 0.08 * 120 + 14


def test_a_range_whose_end_was_refused_is_not_extended_to_it_again(simulated_run):
    run = simulated_run(
        Budget(seconds=60.0), best=5.0, seconds_per_step=lambda v: 3.0 if v.learning_rate > 5 else 0.002
    )
    controller = _controller(0.1, optimizer="sgd", budget=run.budget)
    while (candidate := controller.ask()) is not None and len(run.history) < 30:
        run.history.append((candidate, run.probe(candidate, controller)))
        controller.tell(run.history[-1][1])
    tried = [candidate.values for candidate, _ in run.history]
    tried += [refusal.values for refusal in controller.decide().refused if refusal.values not in tried]

    assert controller.decide().refused and len(set(tried)) == len(tried) <= 2 * 7 + 2


def test_a_budget_in_steps_reads_no_clock(simulated_run):
    budget = Budget(steps=3000)

    def train(seconds_per_step):
        run = simulated_run(budget, seconds_per_step=seconds_per_step)
        run.train(_controller(space=LEVELS, budget=budget))
        return [decision.model_copy(update={"search_seconds": 0.0}) for decision in run.decisions]

    clock = iter(np.geomspace(0.001, 10, 10**6))
    assert train(lambda values: 0.01) == train(lambda values: next(clock))


class _Recorder:
    """A controller, and its journal before every call that it answers."""

    def __init__(self, controller):
        self.controller, self.calls = controller, []
        self.values = controller.values

    def _call(self, name, *args):
        state = json.dumps(dict(self.controller.state_dict()), allow_nan=False)
        answer = getattr(self.controller, name)(*args)
        self.calls.append((state, name, args, answer))
        return answer

    def ask(self):
        return self._call("ask")

    def tell(self, observation):
        return self._call("tell", observation)

    def watch(self, observation):
        return self._call("watch", observation)

    def decide(self):
        return self._call("decide")


def test_replayed_at_any_point_it_gives_the_same_answers(simulated_run):
    budget = Budget(seconds=60.0)
    run = simulated_run(budget, scale_at=_jumping(100))
    run.seconds_per_step = lambda values: 0.01 if values.level < 0.03 else 2.0
    recorder = _Recorder(_controller(budget=budget, space=LEVELS, max_search_fraction=0.3))
    run.train(recorder)
    kinds = {next(iter(event)) for event in recorder.controller.state_dict()["events"]}
    answers = {answer for _, name, _, answer in recorder.calls if name == "watch"}

    assert kinds == {"ask", "tell", "refuse", "decide", "close"} and answers == {"go_on", "end"}
    for state, name, args, answer in recorder.calls[::20]:
        restored = strategies.restore(json.loads(state))
        assert getattr(restored, name)(*args) == answer
    assert strategies.restore(recorder.controller.state_dict()).state_dict() == recorder.controller.state_dict()


def test_a_guess_that_diverged_is_not_kept(simulated_run):
    budget = Budget(seconds=10.0)
    run = simulated_run(budget, best=1e-4, seconds_per_step=lambda values: 0.1)
    run.run_stage(_controller(1.0, optimizer="sgd", budget=budget))

    assert _searches(run) == [1] and run.decisions[0].values.learning_rate < 1.0
