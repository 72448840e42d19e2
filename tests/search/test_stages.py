"""`revisit: stages`: where a stage searches, what it remembers, which probes end early, which steps stay."""

import dataclasses
import json
import math
from typing import NamedTuple

import numpy as np
import pytest

from search import strategies
from search.bayesian import promotion
from search.bayesian.controller import Controller
from search.bayesian.decision import Duel, choose, may_switch
from search.bayesian.early_stopping import course_of, events_of, is_hopeless, signs_of, stays_behind
from search.bayesian.history import DRIFT, discounted, extended, learned_drift
from search.bayesian.next_stage import next_stage
from search.bayesian.probe_costs import StepCosts, room
from search.bayesian.regions import trust_region
from search.bayesian.rewards import scores
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, RateCourse, Score, Stage
from search.config import BoConfig, Budget
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Signs
from search.curves.faults import LossLevel
from search.space import SearchSpace
from search.types import Allowance, Candidate, Decision, Observation, Spent, Values

BUDGET = Budget(steps=10_000)
RATE = Values(learning_rate=0.1)


def _setup(budget=BUDGET, **config):
    space = SearchSpace(optimizer="schedulefree_sgd", guess=RATE)
    return SearchSetup(space=space, config=BoConfig(revisit="stages", **config), budget=budget, seed=0)


def _observe(candidate, losses, *, total, bytes_per_step=1, **changes):
    return Observation(
        candidate_id=candidate.id if candidate else None,
        losses=tuple(losses),
        step_seconds=(0.01,) * len(losses),
        bytes_sent=bytes_per_step * len(losses),
        spent=Spent(steps=total, bytes=bytes_per_step * total, seconds=total / 100),
        **changes,
    )


def _candidate(number, rate, allowance):
    origin = "incumbent" if number == 0 else "move"
    values = Values(learning_rate=rate)
    return Candidate(id=f"1-{number}", stage=1, values=values, allowance=allowance, origin=origin)


def _falling(num_steps, *, fall, noise=0.0, seed=0, start=2.0):
    shocks = np.random.default_rng(seed).normal(0, noise, num_steps) if noise else np.zeros(num_steps)
    return (start * np.exp(-fall * np.arange(num_steps)) + shocks).tolist()


# -- where a stage looks ---------------------------------------------------------------------------


def _closed(stage, setup, *, switched, rolled_back=False):
    probe = _candidate(0, 0.1, Allowance(steps=40))
    stage.candidates, stage.incumbent = [probe], RATE
    stage.readings = {probe.id: Reading.of(_observe(probe, _falling(40, fall=0.01), total=40))}
    values = Values(learning_rate=0.2) if switched else RATE
    until = Allowance(steps=1000)
    stage.decision = Decision(stage=stage.index, values=values, reason="", switched=switched, commit_until=until)
    observation = _observe(None, [1.5] * 100, total=200, rolled_back=rolled_back)
    signs = signs_of(setup, stage, observation)
    ending = Ending.of(observation, signs, events_of(setup, stage, observation, signs))
    return next_stage(setup, stage, ending, search=Spent(steps=40))


@pytest.mark.parametrize(
    ("before", "switched", "rolled_back", "after"),
    [
        (1.0, False, False, 0.5),
        (0.25, False, False, 0.25),
        (0.25, True, False, 0.5),
        (1.0, True, False, 1.0),
        (1.0, True, True, 0.5),
    ],
)
def test_the_trust_region_narrows_without_success_and_widens_with_it(before, switched, rolled_back, after):
    stage = Stage(index=1, incumbent=RATE, width=before)

    assert _closed(stage, _setup(), switched=switched, rolled_back=rolled_back).width == after


@pytest.mark.parametrize(("width", "low", "high"), [(1.0, 0.025, 0.2), (0.5, 0.05, 0.1 * math.sqrt(2))])
def test_a_width_is_the_exponent_of_the_limits(width, low, high):
    region = trust_region(_setup(), RATE, may_rise=True, width=width)

    assert region.learning_rate == pytest.approx((low, high))


@pytest.mark.parametrize(("awakens", "raised"), [(True, 1.0), (False, 2.5)])
def test_what_has_woken_a_net_uses_up_none_of_the_rises_that_gradients_may_ask_for(awakens, raised):
    stage = Stage(index=1, incumbent=RATE, course=RateCourse(awakens=awakens, rise=2.5))

    assert _closed(stage, _setup(), switched=False).course.raised == raised


# -- what a stage remembers ------------------------------------------------------------------------


def _scores(*rewards, variance=1e-6):
    rates = np.geomspace(0.01, 1.0, len(rewards))
    return tuple(Score(Values(learning_rate=float(r)), y, variance) for r, y in zip(rates, rewards, strict=True))


def test_three_stages_are_remembered_relative_to_the_present_incumbent():
    history = ()
    for offset in (1.0, 2.0, 3.0, 4.0):
        history = extended(history, _scores(offset, offset + 0.1, offset + 0.3), incumbent=RATE)

    assert [[score.reward for score in stage] for stage in history] == [pytest.approx([-0.1, 0.0, 0.2])] * 3


def test_what_was_seen_earlier_counts_less():
    history = extended(extended((), _scores(0, 1, 2), incumbent=RATE), _scores(0, 1, 2), incumbent=RATE)
    known = discounted(history, DRIFT)

    spread = np.var([0, 1, 2])
    assert [score.variance for score in known] == pytest.approx([1e-6 + 0.25 * spread] * 3 + [1e-6 + 0.5 * spread] * 3)


@pytest.mark.parametrize(
    ("older", "newer", "least", "most"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3), 0.0, 0.3),  # the landscape stood still
        ((0, 1, 2, 3), (3, 2, 1, 0), 0.8, 2.0),  # it turned round
    ],
)
def test_drift_is_learned_from_values_tried_in_two_stages(older, newer, least, most):
    history = extended(extended((), _scores(*older), incumbent=RATE), _scores(*newer), incumbent=RATE)

    assert least <= learned_drift(history) <= most


def test_without_a_comparison_the_drift_is_the_prior():
    assert learned_drift(()) == learned_drift((_scores(0, 1), ())) == DRIFT


# -- which probes end early ------------------------------------------------------------------------


def test_noise_alone_ends_no_probe():
    gaps = np.random.default_rng(0).normal(0, 0.05, (500, 40))

    assert sum(stays_behind(gap, left=1.0) for gap in gaps) <= 3


@pytest.mark.parametrize(
    ("gaps", "is_behind"),
    [
        (np.linspace(0.0, 0.3, 40), True),
        (np.linspace(0.3, 0.28, 40), True),
        (np.linspace(0.6, 0.1, 40), False),  # in a straight line it is ahead before the end
        (np.linspace(0.0, -0.3, 40), False),
        (np.linspace(0.0, 0.3, 8), False),  # too few to tell
    ],
)
def test_only_a_gap_that_stays_ends_a_probe(gaps, is_behind):
    noise = np.random.default_rng(1).normal(0, 0.005, len(gaps))

    assert stays_behind(gaps + noise, left=1.0) is is_behind


def _running(num_steps, *, fall, allowance=None, bytes_per_step=1, start=2.0, option=None, wide=False):
    """A stage whose control fell by 0.01 a step for 100 steps, and the reading of a rival that still runs."""
    allowance = allowance or Allowance(steps=100, min_steps=20)
    control, rival = _candidate(0, 0.1, allowance), _candidate(1, 0.05, allowance)
    origin = "option" if option else rival.origin
    rival = rival.model_copy(update={"values": rival.values.model_copy(update={"option": option}), "origin": origin})
    stage = Stage(
        index=1, incumbent=RATE, has_incumbent=not wide, line=CommittedLine(start_loss=2.0), candidates=[control, rival]
    )
    seen = _observe(control, _falling(100, fall=0.01, noise=0.01), total=100, bytes_per_step=10)
    stage.readings[control.id] = Reading.of(seen)
    losses = _falling(num_steps, fall=fall, noise=0.01, start=start)
    return stage, rival, _observe(rival, losses, total=100 + num_steps, bytes_per_step=bytes_per_step)


@pytest.mark.parametrize(("fall", "start", "ends"), [(0.002, 2.0, True), (0.02, 2.0, False), (-0.1, 2.0, True)])
def test_a_probe_ends_when_it_is_hopeless_or_diverges(fall, start, ends):
    stage, _, seen = _running(50, fall=fall, start=start)

    assert is_hopeless(stage, Reading.of(seen)) is ends


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("fall", "bytes_per_step", "ends"),
    [(0.006, 10, True), (0.006, 2, False), (0.012, 10, False), (0.012, 20, True), (0.03, 20, False)],
)
def test_a_probe_of_another_exchange_is_compared_where_both_had_spent_as_much(fall, bytes_per_step, ends, wide):
    allowance = Allowance(bytes=1000, min_steps=20)
    given = {"allowance": allowance, "bytes_per_step": bytes_per_step, "option": "topk 0.1", "wide": wide}
    stage, _, seen = _running(40, fall=fall, **given)

    assert is_hopeless(stage, Reading.of(seen)) is ends


def test_what_looks_for_the_rate_of_a_fresh_run_is_not_cut():
    stage, _, seen = _running(50, fall=0.002, wide=True)

    assert not is_hopeless(stage, Reading.of(seen))


@pytest.mark.parametrize("bytes_per_step", [5, 20])
def test_a_probe_that_was_cut_is_as_far_behind_as_where_both_had_spent_as_much(bytes_per_step):
    allowance = Allowance(bytes=1000, min_steps=20)
    fall = 0.008 * bytes_per_step / 10  # per byte, a fifth less than the control
    given = {"allowance": allowance, "bytes_per_step": bytes_per_step, "option": "topk 0.1"}
    stage, rival, seen = _running(40, fall=fall, **given)
    stage.readings[rival.id] = Reading.of(seen.model_copy(update={"is_cut": True}))

    control, cut = scores(stage)
    num_steps = 40 * bytes_per_step / 10  # of the control
    assert control.reward - cut.reward == pytest.approx(0.002 * 0.75 * num_steps, rel=0.2)


def test_a_probe_that_was_cut_is_told_as_far_behind_as_it_was_and_less_surely():
    cut, _, seen = _running(50, fall=0.004)
    cut.readings["1-1"] = Reading.of(seen.model_copy(update={"is_cut": True}))
    whole, _, seen = _running(100, fall=0.004)
    whole.readings["1-1"] = Reading.of(seen)

    (control, early), (_, late) = scores(cut), scores(whole)
    assert late.reward < early.reward < control.reward
    assert early.variance > late.variance


# -- which steps stay, and which switches ------------------------------------------------------------


class _Line:
    """Drives a controller: probes fall the faster the nearer their rate is to the best one."""

    def __init__(self, budget=BUDGET, **config):
        setup = _setup(budget, **config)
        self.controller, self.total = Controller(setup.space, setup.config, 0, budget=budget), 0

    def search(self, *, best=0.1, start=2.0):
        """Tell the open stage's probes, which start from the loss `start`; returns them."""
        candidates = []
        while (candidate := self.controller.ask()) is not None:
            num_steps = max(candidate.allowance.min_steps, candidate.allowance.steps or 0)
            fall = 0.004 * (3 - abs(math.log10(candidate.values.learning_rate / best)))
            self.total += num_steps
            losses = _falling(num_steps, fall=fall, noise=0.001, start=start)
            self.controller.tell(_observe(candidate, losses, total=self.total))
            candidates.append(candidate)
        return candidates

    def commit(self, losses, **changes):
        self.total += len(losses)
        self.controller.tell(_observe(None, losses, total=self.total, **changes))

    def first_stage(self):
        self.search(start=8.0)
        until = self.controller.decide().commit_until
        self.commit(np.linspace(8.0, 0.0, until.steps - self.total).clip(2.0))
        return self

    def restored(self):
        journal = json.dumps(dict(self.controller.state_dict()), allow_nan=False)
        return strategies.restore(json.loads(journal))


class _Switch(NamedTuple):
    """A run at its second decision, a switch, and what led to it."""

    line: _Line
    probes: list[Candidate]
    leading: str | None
    decision: Decision


@pytest.fixture(scope="module")
def switch():
    line = _Line().first_stage()
    probes, leading = line.search(best=0.01), line.controller.leading()
    return _Switch(line, probes, leading, line.controller.decide([leading, probes[0].id]))


def test_the_winner_leads_and_its_steps_are_the_commits_not_the_searchs(switch):
    decision, num_steps = switch.decision, {probe.id: probe.allowance.steps for probe in switch.probes}

    assert decision.switched and decision.promoted == switch.leading
    kept = num_steps.pop(decision.promoted)
    assert decision.search_steps == sum(num_steps.values())
    searched = [
        event["decide"]["search_steps"] for event in switch.line.controller.state_dict()["events"] if "decide" in event
    ]
    assert decision.tax.budget_share == pytest.approx(sum(searched) / 10_000)
    begun = switch.line.total - kept
    assert decision.commit_until.steps == begun + round((10_000 - begun) * 2 / 14)


@pytest.mark.parametrize(
    ("share", "loss", "course"),
    [
        (0.15, 1.9, "go_on"),  # too early to tell
        (0.25, 2.3, "roll_back"),
        (0.25, 0.5, "go_on"),
        (0.6, 1.9, "go_on"),  # going back would cost more
        (0.6, 2.4, "roll_back"),  # but for losing what the stage began with
    ],
)
def test_a_switch_is_rolled_back_if_it_does_worse_than_the_incumbent_was_forecast_to(switch, share, loss, course):
    begun = switch.line.total - switch.probes[0].allowance.steps
    total = begun + round(share * (switch.decision.commit_until.steps - begun))
    losses = np.random.default_rng(0).normal(loss, 0.001, 200).tolist()

    assert switch.line.controller.watch(_observe(None, losses, total=total)) == course


@pytest.mark.parametrize(
    ("probability", "gain", "trusted", "failed"), [(0.93, 0.038, False, True), (0.99, 0.01, True, True)]
)
def test_after_a_failure_the_best_rival_wins_however_unsure(probability, gain, trusted, failed):
    verdict = Duel(winner=1, probability=probability, gain=gain)

    assert may_switch(verdict, BoConfig()) is trusted
    assert may_switch(verdict, BoConfig(), is_trusted=False) is failed
    assert not may_switch(verdict._replace(winner=0), BoConfig(), is_trusted=False)


@pytest.mark.parametrize(("fall", "switches"), [(0.0, False), (0.01, True)])
def test_where_no_probe_made_progress_noise_alone_switches_nothing(fall, switches):
    stage = Stage(index=1, incumbent=RATE, line=CommittedLine(start_loss=2.0))
    for number, rate in enumerate((0.1, 0.05)):
        candidate = _candidate(number, rate, Allowance(steps=100))
        losses = _falling(100, fall=fall * (1 + number), noise=0.001, start=2.05 - 0.04 * number)
        stage.candidates.append(candidate)
        stage.readings[candidate.id] = Reading.of(_observe(candidate, losses, total=100))
    choice = choose(_setup(), stage)

    assert (choice.values != RATE) is switches
    assert switches or "no probe got below the loss that it started from" in choice.reason


def test_after_a_roll_back_the_incumbent_returns_and_nothing_like_the_switch_is_tried(switch):
    line = _Line()
    line.controller, line.total = switch.line.restored(), switch.line.total
    line.commit([2.5] * 300, rolled_back=True)

    tried = [probe.values for probe in line.search()]

    assert tried[0] == switch.probes[0].values
    half_way = math.sqrt(switch.decision.values.learning_rate * tried[0].learning_rate)
    assert switch.decision.values.learning_rate < half_way
    assert all(values.learning_rate > half_way for values in tried)
    assert "rolled back" in line.controller.decide().reason


@pytest.mark.parametrize("signs", [Signs(), Signs(is_dead=True), Signs(has_diverged=True), Signs(has_worsened=True)])
def test_a_rise_is_the_datas_only_where_the_commit_before_was_rolled_back_for_one(signs):
    until = Allowance(steps=1000)
    before = Ending.of(_observe(None, [1.0] * 300, total=300, rolled_back=True), signs, ())
    stage = Stage(index=2, incumbent=RATE, line=CommittedLine(start_loss=1.0, before=before))
    stage.decision = Decision(stage=2, values=RATE, reason="", switched=False, commit_until=until)
    rising = _observe(None, np.linspace(1.0, 3.0, 300).tolist(), total=300)

    found = signs_of(_setup(), stage, rising)

    assert found.has_diverged is not (signs.has_diverged or signs.has_worsened)


def test_a_rise_comes_from_the_rate_where_the_next_commit_sees_other_batches():
    before = Ending.of(_observe(None, [1.0] * 300, total=300, rolled_back=True), Signs(has_diverged=True), ())
    stage = Stage(index=2, incumbent=RATE, line=CommittedLine(start_loss=1.0, before=before), is_paired=False)
    until = Allowance(steps=1000)
    stage.decision = Decision(stage=2, values=RATE, reason="", switched=False, commit_until=until)
    rising = _observe(None, np.linspace(1.0, 3.0, 300).tolist(), total=300)

    assert signs_of(_setup(), stage, rising).has_diverged
    stage.line = dataclasses.replace(stage.line, num_taken_back=_setup().config.num_stages + 1)
    assert not signs_of(_setup(), stage, rising).has_diverged  # a sixteenth of the rate rises too


@pytest.mark.parametrize(
    ("losses", "start", "course"),
    [
        ([2.3, 2.3, *np.geomspace(3, 400, 18)], 2.3, "roll_back"),  # it blew up
        ([0.5] * 6 + [2.3] * 30, 0.5, "roll_back"),  # it died
        ([2.3] * 100, 2.3, "go_on"),  # it was dead, or is slow
    ],
)
@pytest.mark.parametrize("course_of_rate", [RateCourse(), RateCourse(awakens=True)])
def test_after_a_commit_that_was_rolled_back_as_dead_only_one_that_was_dead_before_is_spared(
    losses, start, course, course_of_rate
):
    shown = Signs(is_dead=True, has_diverged=True)  # as a blow-up does
    before = Ending.of(_observe(None, [2.3] * 100, total=100, rolled_back=True), shown, ("divergence",))
    line = CommittedLine(
        start_loss=start, initial=2.3, best=LossLevel(min(start, 1.0), 0.01), before=before, num_taken_back=1
    )
    stage = Stage(index=2, incumbent=RATE, line=line, course=course_of_rate)
    until = Allowance(steps=len(losses))
    stage.decision = Decision(stage=2, values=RATE, reason="", switched=False, commit_until=until)
    told = _observe(None, losses, total=len(losses))

    assert course_of(_setup(), stage, told, costs=StepCosts(_setup()), search=Spent()) == course


@pytest.mark.parametrize("config", [{"promote": False}, {}])
def test_nothing_is_promoted_that_may_not_be_or_is_not_held(config):
    line = _Line(**config)
    wide = line.search()
    assert line.controller.decide([probe.id for probe in wide]).promoted is None  # no finalist of Schedule-Free decays

    line.commit([2.0] * 300)
    later = line.search()
    held = [probe.id for probe in later] if config else []
    assert line.controller.decide(held).promoted is None


def test_where_all_probes_blew_up_the_rate_is_below_theirs_and_none_is_promoted():
    stage, rival, _ = _running(0, fall=0.0)
    for candidate in stage.candidates:
        risen = _falling(100, fall=-0.1)
        stage.readings[candidate.id] = Reading.of(_observe(candidate, risen, total=100))

    chosen = choose(_setup(), stage).values

    assert chosen.learning_rate < min(each.values.learning_rate for each in stage.candidates)
    assert promotion.winner(_setup(), stage, rival.values) is None


def test_a_restored_controller_knows_what_was_promoted(switch):
    line = _Line()
    line.controller, line.total = switch.line.restored(), switch.line.total
    assert line.controller.decide() == switch.decision
    line.commit([1.0] * 300)

    assert line.restored().ask() == line.controller.ask()


@pytest.mark.parametrize("num_left", [1, 30, 400])
def test_probes_leave_as_much_of_the_run_as_they_take(num_left: int):
    left = room(_setup(Budget(steps=2000)), Spent(), Spent(steps=2000 - num_left))

    assert left["steps"] <= num_left / 2


@pytest.mark.parametrize(
    ("max_search_fraction", "num_probes", "num_steps"), [(0.9, 3, 30), (0.14, 3, 27), (0.045, 2, 20), (0.035, 0, 0)]
)
def test_over_the_cap_probes_shrink_to_their_least_and_then_are_dropped(max_search_fraction, num_probes, num_steps):
    given = {"max_search_fraction": max_search_fraction, "min_probe_steps": 20, "num_stages": 3}
    line = _Line(Budget(steps=2000), **given).first_stage()
    probes = line.search()

    lengths = {max(probe.allowance.steps, probe.allowance.min_steps) for probe in probes}
    assert (len(probes), lengths) == (num_probes, {num_steps} if num_probes else set())
