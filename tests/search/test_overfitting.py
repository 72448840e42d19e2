"""A model that learns its data by heart is told from one that learns, and its run starts over at a lower rate."""

import math
from collections.abc import Sequence
from functools import partial

import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.bayesian.next_stage import STALLED_FACTOR, STARTED_OVER_FACTOR, next_stage
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, RateCourse, Stage, is_barred
from search.bayesian.steering import steered_setup, steered_stage, steering_of
from search.config import BoConfig, Budget
from search.curves.curve_summary import Ending
from search.curves.events import Signs
from search.curves.overfitting import LEAST_LOSSES, Validation
from search.loop.orders import Loop, Order, Taken, Task
from search.space import SearchSpace
from search.types import Allowance, Band, Decision, Observation, Spent, Steer, Values

EVERY = 50
PICKED = 0.142  # the usual rate of SGD at a sharpness and a loss of 1


def course(losses: Sequence[float], *, training_loss: float) -> list[bool]:
    """Return whether the model overfits at each evaluation, if its loss was so low in training at all of them."""
    validation, found = Validation(), list[bool]()
    for number, loss in enumerate(losses):
        validation = validation.after(loss, [training_loss] * LEAST_LOSSES, EVERY * (number + 1))
        found.append(validation.overfits)
    return found


def test_more_steps_do_not_help_where_half_of_them_set_no_record_and_the_training_loss_is_far_lower():
    assert course([1.0, 0.8, 0.9, 0.9, 0.9, 0.9], training_loss=0.1) == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("losses", "training_loss"),
    [
        ([1.0, 0.8, 0.9, 0.9, 0.9], 0.7),
        ([1.0, 0.9, 0.89, 0.88, 0.87], 0.1),
        ([1.0, 1.1], 0.1),
        ([-0.9, -0.8, -0.8, -0.8], -0.7),
        ([0.9, 0.3, 0.4, 0.4, 0.4], -0.5),
        ([0.9, -0.1, 0.4, 0.4, 0.4], 0.1),
        ([math.nan, 1.0, 0.9, 0.8, 0.7], 0.1),
    ],
    ids=[
        "trains as badly",
        "still learns",
        "one evaluation",
        "has negative losses",
        "has them in training",
        "had one in validation",
        "was not finite at first",
    ],
)
def test_it_is_not_said_of_a_model_that(losses: list[float], training_loss: float):
    assert not any(course(losses, training_loss=training_loss))


def test_a_training_loss_of_zero_is_that_of_data_known_by_heart():
    assert course([1.0, 0.8, 0.9, 0.9], training_loss=0.0)[-1]  # a cross-entropy rounds to it


def test_nor_where_the_metric_of_the_job_is_better_than_ever():
    seen = Validation().after(0.8, [0.1] * LEAST_LOSSES, 50)
    for step in (100, 150, 200):
        seen = seen.after(0.9, [0.1] * LEAST_LOSSES, step, is_record=True)

    assert not seen.overfits


def test_nor_by_the_losses_of_a_few_batches():
    seen = Validation().after(0.8, [0.1], 50)
    for step in (100, 150, 200):
        seen = seen.after(0.9, [0.1] * (LEAST_LOSSES - 1), step)

    assert not seen.overfits


@pytest.mark.parametrize(("again", "overfits"), [(0.7, True), (0.85, False)], ids=["better", "no better"])
def test_a_run_that_started_over_does_so_again_only_if_that_has_helped(again: float, overfits: bool):
    seen = Validation().after(0.8, [0.1] * LEAST_LOSSES, 50).anew()
    for number, loss in enumerate([again, 0.9, 0.9, 0.9]):
        seen = seen.after(loss, [0.1] * LEAST_LOSSES, EVERY * (number + 1))

    assert seen.overfits is overfits


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_loss_does_not_matter(unit: float):
    losses = [1.0, 0.8, 0.9, 0.9]

    assert course([unit * each for each in losses], training_loss=0.39 * unit)[-1]
    assert not course([unit * each for each in losses], training_loss=0.46 * unit)[-1]


class Learner:
    """Carries out orders: its training loss falls, and from step `learned` on it overfits."""

    def __init__(self, learned: int) -> None:
        self.learned, self.step, self.slots = learned, 0, dict[Task, int]()
        self.orders = list[Order]()

    def carry_out(self, order: Order, *, loop: Loop) -> Taken | None:
        self.orders.append(order)
        if order.task in (Task.SNAPSHOT, Task.HOLD):
            self.slots[order.task] = self.step
        elif order.task in (Task.RESTORE, Task.KEEP):
            self.step = self.slots[Task.SNAPSHOT if order.task == Task.RESTORE else Task.HOLD]
        elif order.task == Task.START_OVER:
            self.step = 0
        if not order.steps:
            return None
        losses = [2.0 / (1 + 0.01 * (self.step + index)) for index in range(len(order.steps))]
        self.step += len(losses)
        loop.overfits = self.step >= self.learned
        return Taken(losses, [0.01] * len(losses), [1.0] * len(losses), [0.0] * len(losses))


def trained(learned: int, *, optimizer: str = "sgd", **config: object) -> tuple[Loop, Learner]:
    """Return the loop and the learner of a run of 1,000 steps."""
    space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.1), first_loss=1.0, sharpness=1.0)
    budget, learner = Budget(steps=1000), Learner(learned)
    strategy = strategies.build(BoConfig(**config), space=space, seed=0, budget=budget)
    loop = Loop(strategy, budget, clock=lambda: 0.0)
    loop.run(partial(learner.carry_out, loop=loop))
    return loop, learner


def num_starts(learner: Learner) -> int:
    return sum(order.task == Task.START_OVER for order in learner.orders)


def test_a_run_that_overfits_starts_over_at_three_tenths_of_its_rate_without_a_search():
    loop, learner = trained(400)

    first, *_, last = loop.decisions
    [over] = [each for each in loop.decisions if "starts over" in each.reason]
    assert num_starts(learner) == 1
    assert over.values.learning_rate == pytest.approx(0.3 * first.values.learning_rate)
    assert not over.probes and not last.probes
    assert "nothing happened" not in over.reason
    assert last.values.learning_rate <= over.values.learning_rate
    assert loop.spent().steps == 1000


RATE = Values(learning_rate=0.1)
LINE = CommittedLine(initial=3.0)
SETUP = SearchSetup(SearchSpace(optimizer="sgd", guess=RATE), BoConfig(), Budget(steps=10_000), seed=0)


def ended(stage: Stage, *, setup: SearchSetup = SETUP, started_over: bool = False) -> Stage:
    """Return the stage after one that kept its incumbent, whose loss did not fall."""
    stage.decision = Decision(
        stage=stage.index, values=stage.incumbent, reason="", switched=False, commit_until=Allowance(steps=1000)
    )
    told = Observation(
        candidate_id=None,
        losses=tuple(1.5 + 0.001 * step for step in range(100)),
        step_seconds=(),
        bytes_sent=0,
        spent=Spent(steps=200),
        rolled_back=started_over,
        started_over=started_over,
    )
    return next_stage(setup, stage, Ending.of(told, Signs(has_learned=True), ()), search=Spent())


@pytest.mark.parametrize("num_stalls", [0, 1, 2])
@pytest.mark.parametrize("rise", [1.0, 2.0])
def test_a_run_starts_over_at_a_share_of_the_rate_that_was_picked_whatever_commits_made_of_it(
    num_stalls: int, rise: float
):
    stage = ended(Stage(index=0, incumbent=RATE, line=LINE, course=RateCourse(rise=rise)))
    for _ in range(num_stalls):
        stage = ended(stage)
    over = ended(stage, started_over=True)

    assert stage.incumbent.learning_rate == pytest.approx(0.1 * rise * STALLED_FACTOR**num_stalls)
    assert over.incumbent.learning_rate == pytest.approx(STARTED_OVER_FACTOR * 0.1)
    assert not is_barred(over.incumbent, over.line.barred)


@pytest.mark.parametrize("num_stages", [0, 1])
def test_neither_the_rate_that_was_picked_nor_one_that_it_rose_to_is_used_again(num_stages: int):
    stage = Stage(index=0, incumbent=RATE, line=LINE, course=RateCourse(rise=2.0))
    for _ in range(num_stages):
        stage = ended(stage)
    over = ended(stage, started_over=True)

    assert all(is_barred(Values(learning_rate=rate), over.line.barred) for rate in (0.1, 0.2))


def test_a_run_whose_rate_is_vetoed_starts_over_at_a_share_of_the_rate_that_is_left():
    veto = steering_of([Steer(id=1, by="ada", veto={"learning_rate": Band(above=0.02)})])
    stage = steered_stage(ended(Stage(index=0, incumbent=RATE, line=LINE)), SETUP.space, veto)
    over = ended(stage, setup=steered_setup(SETUP, veto), started_over=True)

    assert stage.incumbent.learning_rate == 0.02
    assert steered_stage(over, SETUP.space, veto).incumbent.learning_rate == pytest.approx(STARTED_OVER_FACTOR * 0.02)
    assert is_barred(stage.incumbent, over.line.barred) and not is_barred(over.incumbent, over.line.barred)


@pytest.mark.parametrize("num_stages", [0, 1])
def test_a_net_that_was_woken_starts_over_at_a_share_of_the_rate_that_woke_it(num_stages: int):
    stage = Stage(index=1, incumbent=RATE, course=RateCourse(awakens=True, rise=64.0))
    for _ in range(num_stages):
        stage = ended(stage)
    over = ended(stage, started_over=True)

    assert over.incumbent.learning_rate == pytest.approx(STARTED_OVER_FACTOR * 6.4)
    assert not is_barred(over.incumbent, over.line.barred)


def test_it_does_so_again_while_half_of_the_budget_is_left():
    _, learner = trained(150)

    assert num_starts(learner) == 3


@pytest.mark.parametrize(
    ("learned", "config"),
    [
        (510, {}),
        (400, {"start_over": False}),
        (400, {"revisit": "stages"}),
        (400, {"optimizer": "schedulefree_sgd"}),
    ],
    ids=["in the last half", "the job forbids it", "each stage searches", "the rate needs no decay"],
)
def test_it_goes_on_where(learned: int, config: dict[str, object]):
    assert not num_starts(trained(learned, **config)[1])


def test_a_restored_controller_goes_on_as_the_one_that_started_over():
    controller = trained(400)[0].strategy
    assert isinstance(controller, Controller)

    assert Controller.from_state_dict(controller.state_dict()).state_dict() == controller.state_dict()


def test_a_loss_that_stands_still_where_nothing_was_learned_cuts_no_rate():
    stage = ended(Stage(index=1, incumbent=RATE, line=CommittedLine(initial=1.5)))

    assert stage.incumbent == RATE
