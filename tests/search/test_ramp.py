"""After the wide search, the rate of a deep model warms up slowly to the chosen one."""

import json
import math

import pytest

from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.space import SearchSpace, Weights
from search.trace import Trace
from search.types import Band, Observation, Spent, Steer, Values

DEEP = Weights(num_matrices=12, scale=0.02)
STEPS = 1000


def _controller(
    weights: Weights | None = DEEP, *, optimizer: str = "adamw", steps: int = STEPS, **config
) -> Controller:
    space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.003), weights=weights)
    return Controller(space, BoConfig(**config), 0, budget=Budget(steps=steps))


def _told(candidate_id, losses, steps, **more) -> Observation:
    return Observation(
        candidate_id=candidate_id, losses=losses, step_seconds=(), bytes_sent=0, spent=Spent(steps=steps), **more
    )


def _search(controller: Controller) -> int:
    """Have the wide search find that 0.003 trains best; return the steps that it took."""
    spent = 0
    while (candidate := controller.ask()) is not None:
        spent += 10
        ends = 1.0 if candidate.values.learning_rate > 0.0005 else 1.9
        losses = () if candidate.values.learning_rate > 0.1 else (2.0,) * 5 + (ends,) * 5
        controller.tell(_told(candidate.id, losses, spent, diverged=not losses))
    return spent


def _rate(controller: Controller, steps: int) -> float:
    return controller.values(Spent(steps=steps)).learning_rate


def test_the_rate_rises_linearly_to_the_decisions_and_then_stays() -> None:
    controller = _controller()
    start, decision = _search(controller), controller.decide()
    found = decision.values.learning_rate

    assert decision.ramp_steps == 100 and decision.forecast is None
    assert [_rate(controller, start + step) / found for step in (0, 49, 99, 150)] == pytest.approx([0.01, 0.5, 1, 1])


def test_the_ramp_goes_on_through_the_next_stages_without_a_rise() -> None:
    controller = _controller()
    start = _search(controller)
    found = controller.decide().values.learning_rate
    middle = start + 30
    course = (0.9**step for step in range(30))
    trace = Trace().extended(losses := tuple(course), losses, losses, [0.5] * 30)
    controller.watch(_told(None, losses, middle, trace=trace))
    controller.tell(_told(None, losses, middle, trace=trace))
    assert controller.ask() is None
    controller.decide()

    assert _rate(controller, middle) == pytest.approx(found * 31 / 100)


def test_a_controller_restored_on_the_ramp_goes_on_alike() -> None:
    controller = _controller()
    start = _search(controller)
    controller.decide()
    restored = Controller.from_state_dict(json.loads(json.dumps(controller.state_dict())))

    steps = range(start, start + 120, 7)
    assert [_rate(restored, step) for step in steps] == [_rate(controller, step) for step in steps]


@pytest.mark.parametrize(
    ("case", "num_steps"),
    [
        ({}, 100),
        ({"steps": 240}, 80),  # a third of the run
        ({"weights": Weights(6, 0.02)}, 60),
        ({"weights": Weights(4, 0.02)}, 0),
        ({"weights": None}, 0),
        ({"optimizer": "sgd"}, 0),
        ({"ramp_steps": 0}, 0),
        ({"optimizer": "sgd", "weights": None, "ramp_steps": 30}, 30),
    ],
)
def test_its_length_follows_from_model_optimizer_and_run_unless_it_is_stated(case, num_steps) -> None:
    controller = _controller(**case)
    _search(controller)

    assert controller.decide().ramp_steps == num_steps


def test_without_a_search_there_is_no_ramp() -> None:
    controller = _controller(steps=60)
    assert controller.ask() is None

    assert controller.decide().ramp_steps == 0
    assert _rate(controller, 0) == 0.003


def test_a_pinned_rate_is_used_as_it_is() -> None:
    controller = _controller()
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.002})])
    controller.ask()
    controller.decide()

    assert _rate(controller, 0) == 0.002


def test_a_pinned_rate_of_a_run_that_would_begin_as_usual_has_no_ramp_after_it_either() -> None:
    controller = _controller(first_search="unless_known")
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.002})])
    assert controller.ask() is None
    decision = controller.decide()
    controller.tell(_told(None, tuple(2.0 - 0.01 * step for step in range(20)), 20))
    controller.steer([])
    assert controller.ask() is None
    controller.decide()

    assert decision.ramp_steps == 0 and "rises" not in decision.reason
    assert _rate(controller, 20) == 0.002


def test_a_net_that_learns_nothing_on_the_ramp_is_not_taken_for_dead() -> None:
    controller = _controller()
    start = _search(controller)
    controller.decide()
    flat, scales = tuple(2.0 + 0.001 * (step % 2) for step in range(60)), (1e-6,) * 60
    trace = Trace().extended(flat, flat, scales, (0.0,) * 60)

    assert controller.watch(_told(None, flat, start + 60, trace=trace)) == "go_on"


def test_gradients_that_grow_on_the_ramp_open_no_search() -> None:
    controller = _controller()
    start = _search(controller)
    controller.decide()
    losses = tuple(2.0 - 0.01 * step for step in range(60))
    trace = Trace().extended(losses, losses, (0.01,) * 30 + (0.1,) * 30, (0.0,) * 60)
    told = _told(None, losses, start + 60, trace=trace)

    assert controller.watch(told) == "go_on"
    controller.tell(told)
    assert controller.ask() is None


def test_a_commit_that_is_taken_back_was_no_part_of_the_ramp() -> None:
    controller = _controller()
    start = _search(controller)
    controller.decide()
    controller.tell(_told(None, (2.0,) * 50, start + 50, diverged=True, rolled_back=True))
    assert controller.ask() is None
    again = controller.decide().values.learning_rate

    assert _rate(controller, start + 50) == pytest.approx(again / 100)


@pytest.mark.parametrize("asked", [{"revisit": "stages"}, {}])
def test_nothing_is_searched_on_the_ramp_and_whoever_asks_waits_for_its_end(asked) -> None:
    controller = _controller(**asked)
    spent = _search(controller)
    found = controller.decide().values.learning_rate
    searched = []
    for _ in range(3):
        spent += 60
        controller.tell(_told(None, tuple(2.0 - 0.01 * step for step in range(60)), spent))
        controller.steer([] if asked else [Steer(id=1, by="ada", search_now=True)])
        searched.append(controller.ask() is not None)
        if not searched[-1]:
            decision = controller.decide()
            assert "while the rate rises to what was found nothing is searched" in decision.reason
            assert _rate(controller, spent) == pytest.approx(found * 61 / 100)
        else:
            break

    assert searched == [False, True]


@pytest.mark.parametrize(("beside", "held"), [({}, []), ({"veto": {"learning_rate": Band(above=0.5)}}, [False])])
def test_a_decision_names_a_search_that_was_asked_for_once_it_is_made(beside, held) -> None:
    controller = _controller()
    spent = _search(controller)
    controller.decide()
    asked = []
    for _ in range(3):
        spent += 60
        controller.tell(_told(None, tuple(2.0 - 0.01 * step for step in range(60)), spent))
        controller.steer([Steer(id=1, by="ada", search_now=True, **beside)])
        controller = Controller.from_state_dict(json.loads(json.dumps(controller.state_dict())))
        while (candidate := controller.ask()) is not None:
            spent += 20
            controller.tell(_told(candidate.id, (1.5,) * 20, spent))
        asked.append([steer.search_now for steer in controller.decide().steers])

    assert asked == [held, [True], held]  # on the ramp, at its end, and after the search


def test_the_ramp_begins_after_the_steps_of_a_promoted_finalist() -> None:
    controller = _controller(steps=4000)
    candidates, spent, last = [], 0, None
    while (candidate := controller.ask()) is not None:
        length = candidate.allowance.steps or 10
        spent += length
        away = abs(math.log10(candidate.values.learning_rate / 0.002))
        losses = tuple(2.0 - (1.0 - 0.3 * min(away, 3)) * step / length for step in range(length))
        controller.tell(_told(candidate.id, losses, spent))
        candidates.append(candidate)
        last = controller.leading() or last
    decision = controller.decide([each.id for each in candidates])

    assert decision.promoted is not None and decision.ramp_steps == 100
    assert _rate(controller, spent) == pytest.approx(decision.values.learning_rate / 100)


def test_a_loss_that_stands_still_on_the_ramp_lowers_no_rate() -> None:
    controller = _controller()
    spent = _search(controller)
    found = controller.decide().values.learning_rate
    for _ in range(2):
        losses = tuple(1.5 + 0.01 * (step % 2) for step in range(45))
        spent += 45
        controller.tell(_told(None, losses, spent))
        assert controller.ask() is None
        assert controller.decide().values.learning_rate == found


def test_of_seconds_without_a_warm_up_probes_tell_what_a_third_of_the_run_is() -> None:
    space = SearchSpace(optimizer="adamw", guess=Values(learning_rate=0.003), weights=DEEP)
    controller = Controller(space, BoConfig(), 0, budget=Budget(seconds=10))
    spent = 0
    while (candidate := controller.ask()) is not None:
        length = candidate.allowance.steps or 10
        spent += length
        losses = tuple(2.0 - candidate.values.learning_rate * step for step in range(length))
        controller.tell(
            Observation(
                candidate_id=candidate.id,
                losses=losses,
                step_seconds=(0.05,) * length,
                bytes_sent=0,
                spent=Spent(steps=spent, seconds=0.05 * spent),
            )
        )

    assert controller.decide().ramp_steps == 66  # of 200 steps


def test_an_optimizer_that_warms_up_by_itself_needs_no_ramp() -> None:
    space = SearchSpace(optimizer="adamw", guess=Values(learning_rate=0.003), weights=DEEP, warms_up=True)
    controller = Controller(space, BoConfig(), 0, budget=Budget(steps=STEPS))
    _search(controller)

    assert controller.decide().ramp_steps == 0
