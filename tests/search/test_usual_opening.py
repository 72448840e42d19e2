"""If a new model reveals its usual rate, a run begins with that, without a probe."""

import json
import re

import pytest

from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.past_jobs.prior import PastProbe, PastSearch, Prior
from search.space import Axis, SearchSpace, Weights
from search.types import Observation, Spent, Steer, Values

SHARP = {"optimizer": "sgd", "first_loss": 2.0, "sharpness": 3.0}
FREE = {"optimizer": "schedulefree_sgd", "first_loss": 2.0, "sharpness": 3.0}
SHALLOW = {"optimizer": "adamw", "weights": Weights(num_matrices=4, scale=0.05)}
PAST = tuple(PastProbe(values=Values(learning_rate=0.01 * 10**power), reward=-abs(power - 1)) for power in range(4))
DEEP = {"optimizer": "adamw", "weights": Weights(num_matrices=9, scale=0.05)}
FREE_ADAMW = SHALLOW | {"optimizer": "schedulefree_adamw"}
MUON = SHALLOW | {"optimizer": "muon"}


def _controller(space, *, guess=0.1, steps=300, prior=None, first_search=None, **config):
    given = SearchSpace.model_validate({"guess": Values(learning_rate=guess)} | space)
    more = {} if prior is None else {"prior": prior}
    first_search = first_search or ("unless_known" if "adamw" in given.optimizer else "auto")
    return Controller(given, BoConfig(first_search=first_search, **config), 0, budget=Budget(steps=steps), **more)


def _opened(space, **more):
    controller = _controller(space, **more)
    assert controller.ask() is None
    return controller.decide()


def _rate(space, **more):
    return _opened(space, **more).values.learning_rate


def test_a_run_begins_with_what_is_usual_for_its_model_whatever_the_guess_and_however_short_it_is():
    for space in (SHARP, FREE, SHALLOW, FREE_ADAMW, MUON):
        rates = {_rate(space, guess=guess, steps=steps) for guess in (1e-4, 0.1, 10.0) for steps in (20, 300)}
        assert len(rates) == 1
    assert _rate(SHALLOW) == pytest.approx(0.4 * 0.05 / 2)
    assert "0.0514 is usual for a loss of 2 and a sharpness of 3, so nothing is probed" in _opened(SHARP).reason
    assert "0.01 is usual for such weights, so nothing is probed" in _opened(SHALLOW).reason
    assert "0.01 is usual for `muon`, so nothing is probed" in _opened(MUON).reason


def test_the_help_of_the_first_search_names_every_optimizer_whose_rate_is_usual():
    named = set(re.findall(r"`(\w+)`", BoConfig.model_fields["first_search"].description or ""))

    usual = {kind for kind, traits in OPTIMIZER_TRAITS.items() if traits.usual is not None}
    assert named - {"auto", "always", "unless_known"} == usual


def test_sgd_takes_a_sharper_loss_and_a_higher_momentum_at_a_lower_rate():
    rate = _rate(SHARP)

    assert _rate(SHARP | {"sharpness": 30.0}) == pytest.approx(rate / 10**0.8)
    assert _rate(SHARP | {"momentum": 0.99}) == pytest.approx(rate / 10**0.75)


@pytest.mark.parametrize("space", [SHARP, FREE], ids=lambda space: space["optimizer"])
def test_a_loss_in_another_unit_is_trained_alike(space):
    for unit in (1e-3, 1e3):
        in_unit = space | {"first_loss": unit * space["first_loss"], "sharpness": unit * space["sharpness"]}
        assert unit * _rate(in_unit) == pytest.approx(_rate(space))


def test_the_average_of_schedule_free_does_not_change_its_rate():
    assert _rate(FREE) == _rate(FREE | {"momentum": 0.5}) == pytest.approx(1.75 / 3**0.8 / 2**0.2)


def test_schedule_free_adamw_takes_a_quarter_more_than_adamw_and_muon_the_same_of_any_weights():
    assert _rate(FREE_ADAMW) == pytest.approx(1.25 * _rate(SHALLOW))
    assert _rate(MUON) == _rate(MUON | {"weights": Weights(num_matrices=9, scale=0.5, is_new=False)}) == 0.01
    assert _opened(MUON | {"weights": DEEP["weights"]}).ramp_steps == 0


def test_sparse_gradients_let_schedule_free_take_a_higher_rate_and_not_sgd():
    sparse = {"guess": Values(learning_rate=0.1, level=0.01), "level_name": "density"}

    assert _rate(FREE | sparse) == pytest.approx(_rate(FREE) * 10**0.2)
    assert _rate(FREE | sparse | {"level_name": "rank"}) == _rate(FREE)
    assert _rate(SHARP | sparse) == _rate(SHARP)


def test_a_batch_of_more_workers_is_trained_at_a_higher_rate_and_a_long_run_of_adamw_at_a_lower_one():
    assert _rate(SHARP | {"num_alone": 8}) == pytest.approx(2 * _rate(SHARP))
    assert _rate(SHARP, steps=3000) == _rate(SHARP)
    assert _rate(SHALLOW, steps=3000) == pytest.approx(_rate(SHALLOW) / 10**0.32)


@pytest.mark.parametrize("optimizer", ["muon", "schedulefree_plus"])
def test_one_rate_for_all_models_is_one_for_any_number_of_workers(optimizer):
    space = MUON | {"optimizer": optimizer}
    assert _rate(space | {"num_alone": 8}) == _rate(space) == OPTIMIZER_TRAITS[optimizer].usual


def test_the_rate_of_a_deep_model_rises_to_what_is_usual():
    assert (_opened(DEEP).ramp_steps, _opened(SHALLOW).ramp_steps) == (90, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"first_search": "always"},
        {"space": SHALLOW, "first_search": "auto"},  # a model that was trained before would be ruined
        {"space": SHALLOW | {"weights": Weights(num_matrices=4, scale=0.05, is_new=False)}},  # and so may this one
        {"wide_probes": 3},
        {"min_learning_rate": 1e-3, "max_learning_rate": 1.0},
        {"space": SHARP | {"sharpness": None}},
        {"space": SHARP | {"first_loss": 0.0}},  # which has no scale
        {"space": SHARP | {"optimizer": "lars"}},
        {"space": SHARP | {"axes": (Axis(name="momentum", low=0.8, high=0.98),)}},
        {"prior": Prior(searches=(PastSearch(job="job-1", probes=PAST),))},  # which did best at 0.1
    ],
    ids=str,
)
def test_it_searches_where_somebody_asks_for_it_or_more_is_to_be_found_than_the_model_tells(changes):
    controller = _controller(**{"space": SHARP} | changes)

    assert controller.ask() is not None


def _past(factor=1.0):
    """Return past jobs that did best at 0.1 x `factor`."""
    probes = (
        PastProbe(values=Values(learning_rate=factor * each.values.learning_rate), reward=each.reward) for each in PAST
    )
    return Prior(searches=(PastSearch(job="job-1", probes=tuple(probes)),))


def test_the_past_leads_where_its_three_probes_have_room_and_is_passed_over_where_they_have_none(simulated_run):
    run = simulated_run(Budget(steps=150))  # of which probes may spend 30: three probes of 7 steps, and not five
    led, begun = run.run_stage(_controller(SHARP, steps=150, prior=_past())), _opened(SHARP, steps=100, prior=_past())

    assert len(led.probes) == 3 and "from 3 probes" in led.reason
    assert begun.values.learning_rate == _rate(SHARP, steps=100)
    assert begun.is_usual and not led.is_usual


@pytest.fixture
def searched():
    """Return the decision after `num_told` of three probes whose steps turn out too slow for three; which diverged?"""

    def searched(num_told, *, diverged=False, prior=None, steers=()):
        space, losses = SearchSpace(guess=Values(learning_rate=0.1), **SHARP), tuple(2.0 - 0.1 * n for n in range(7))
        more = {} if prior is None else {"prior": prior}
        controller = Controller(space, BoConfig(), 0, budget=Budget(seconds=10), **more)  # of which probes may spend 2
        controller.steer(steers)
        asked = [controller.ask() for _ in range(3)]
        for number, candidate in enumerate(asked[:num_told], 1):
            told = Observation(
                candidate_id=candidate.id,
                losses=(2.0, float("inf")) if diverged else losses,
                step_seconds=(0.15,) * (2 if diverged else 7),
                bytes_sent=0,
                spent=Spent(steps=7 * number, seconds=1.05 * number),
                diverged=diverged,
            )
            controller.tell(told)
        assert controller.ask() is None
        return controller.decide()

    return searched


WANTED = [{"prior": _past()}, {"steers": [Steer(id=1, by="ada", search_now=True)]}]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: next(iter(wanted)))
def test_probes_that_turn_out_slow_decide_if_they_are_enough_and_else_the_run_begins_as_usual(searched, wanted):
    enough, few = searched(3, **wanted), searched(1, **wanted)

    assert "from 3 probes" in enough.reason and not enough.is_usual
    assert few.values.learning_rate == _rate(SHARP)
    assert "is usual for a loss of 2 and a sharpness of 3: a search needs" in few.reason


def test_a_past_whose_slow_first_probe_diverged_about_the_usual_rate_leaves_half_of_its_rate(searched):
    decision = searched(1, diverged=True, prior=_past(0.4))
    [probe] = decision.probes

    assert decision.values.learning_rate == pytest.approx(probe.candidate.values.learning_rate / 2)


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_a_past_that_did_best_where_this_run_would_not_look_leaves_what_is_usual(factor):
    assert _rate(SHARP, prior=_past(factor)) == _rate(SHARP)


@pytest.mark.parametrize("space", [SHARP, FREE, SHALLOW, MUON], ids=lambda space: space["optimizer"])
def test_it_searches_for_a_person_who_asks_before_it_begins_and_is_drawn_to_what_is_usual(simulated_run, space):
    run, controller = simulated_run(Budget(steps=300)), _controller(space)
    controller.steer([Steer(id=1, by="ada", search_now=True)])
    first = run.run_stage(controller)
    quiet = run.run_stage(controller)

    assert len(first.probes) >= 3 and not first.is_usual
    assert ", which is usual for" in first.reason and "ada asked for a search" in first.reason
    assert not quiet.probes and not quiet.steers


def test_a_search_is_made_also_if_it_is_asked_for_after_there_was_nothing_to_probe():
    controller = _controller(SHARP)
    assert controller.ask() is None
    controller.steer([Steer(id=1, by="ada", search_now=True)])
    restored = Controller.from_state_dict(json.loads(json.dumps(controller.state_dict())))

    assert controller.ask() == restored.ask() is not None


def test_it_begins_as_usual_where_the_search_that_a_person_asks_for_has_no_room():
    controller = _controller(SHARP, steps=20)
    controller.steer([Steer(id=1, by="ada", search_now=True)])
    assert controller.ask() is None
    decision = controller.decide()

    assert decision.values.learning_rate == _rate(SHARP, steps=20)
    assert (
        "0.0514 is usual for a loss of 2 and a sharpness of 3: a search needs 35 steps, and probes may spend 4"
        in decision.reason
    )


def test_a_usual_rate_that_diverges_is_taken_back_to_a_quarter_of_it():
    controller = _controller(SHARP)
    rate = _rate(SHARP)
    controller.ask()
    controller.decide()
    told = Observation(
        candidate_id=None,
        losses=(2.0, 2.1, float("inf")),
        step_seconds=(),
        bytes_sent=0,
        spent=Spent(steps=3),
        diverged=True,
        rolled_back=True,
    )
    controller.tell(told)
    controller.ask()

    assert controller.decide().values.learning_rate == pytest.approx(rate / 4)


def _told(steps, *losses, **ending):
    return Observation(
        candidate_id=None, losses=losses, step_seconds=(), bytes_sent=0, spent=Spent(steps=steps), **ending
    )


def test_a_run_that_blew_up_at_once_still_knows_what_a_dead_net_is():
    controller = _controller(SHARP | {"first_loss": 2.3}, steps=3000)
    controller.ask()
    controller.decide()
    controller.tell(_told(5, 2.3, 9.0, 80.0, 900.0, float("inf"), diverged=True, rolled_back=True))
    controller.ask()
    controller.decide()

    assert controller.watch(_told(100, *[2.3] * 95)) == "go_on"  # is given time
    assert controller.watch(_told(200, *[2.3] * 195)) == "roll_back"


def test_the_first_commit_is_long_enough_to_show_a_net_that_died_in_it():
    assert _opened(SHARP, steps=150).commit_until.steps == 20
    assert _opened(SHARP, steps=15).commit_until.steps == 15
    assert _opened(SHARP, steps=1500).commit_until.steps == 100


def test_commits_that_are_taken_back_leave_the_next_one_its_length_until_there_are_as_many_as_stages():
    controller, ends = _controller(SHARP, steps=1500), []
    for _ in range(8):
        controller.ask()
        ends.append(controller.decide().commit_until.steps)
        controller.tell(_told(3 * len(ends), 2.0, 2.1, float("inf"), diverged=True, rolled_back=True))

    assert all(end <= 120 for end in ends[:5])
    assert ends[5:] == sorted(ends[5:]) and ends[-1] == 1500


def test_a_restored_controller_stands_by_it():
    controller = _controller(DEEP)
    controller.ask()
    decision = controller.decide()
    restored = Controller.from_state_dict(json.loads(json.dumps(controller.state_dict())))

    assert restored.decide() == decision
    assert all(restored.values(Spent(steps=step)) == controller.values(Spent(steps=step)) for step in (0, 50, 120))


def test_a_usual_rate_outside_the_range_is_told_with_the_end_that_stands_in_for_it_and_what_helps():
    raw, flat = SHARP | {"first_loss": 4e6, "sharpness": 1e12}, SHARP | {"first_loss": 1e-9, "sharpness": 1e-12}

    low, high = _opened(raw), _opened(flat)

    assert (low.values.learning_rate, high.values.learning_rate) == (1e-8, 1e3)
    assert (
        "1e-08 is the lowest rate that may be used (1.71e-12 is usual for a loss of 4e+06 and a sharpness of 1e+12: "
        "scale inputs and targets, or give `clip`), so nothing is probed" in low.reason
    )
    assert "1e+03 is the highest rate that may be used (" in high.reason and "scale" not in high.reason


def test_where_a_person_has_vetoed_lower_rates_the_loss_is_not_blamed():
    controller = _controller(SHARP)
    controller.steer([Steer(id=1, by="ada", veto={"learning_rate": {"below": 0.1}})])
    assert controller.ask() is None

    reason = controller.decide().reason

    assert "0.1 is the lowest rate that may be used (0.0514 is usual for a loss of 2 and a sharpness of 3)" in reason


def test_probes_that_show_nothing_do_not_make_a_rate_outside_the_range_usual():
    controller, steps = _controller(SHARP | {"first_loss": 4e6, "sharpness": 1e12}, first_search="always"), 0
    while (candidate := controller.ask()) is not None:
        steps += 7
        losses, spent = (4e6,) * 7, Spent(steps=steps)
        told = Observation(candidate_id=candidate.id, losses=losses, step_seconds=(), bytes_sent=0, spent=spent)
        controller.tell(told)

    assert "1e-08, by the lowest rate that may be used (1.71e-12 is usual for a loss of" in controller.decide().reason
