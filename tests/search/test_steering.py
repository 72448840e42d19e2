"""Users steer a running controller: it uses pins, obeys vetoes, and replays both from the journal."""

import json

import pytest

from search import strategies
from search.bayesian.controller import Controller
from search.config import BoConfig, Budget, LocalConfig, SobolConfig
from search.space import Axis, OptionAxis, SearchSpace
from search.types import Band, Steer, Values

STEPS = Budget(steps=6000)
LEVELS = Axis(name="level", low=0.003, high=0.5)


def _controller(guess=0.1, *, config=None, optimizer="schedulefree_sgd", **space):
    level = 0.02 if space.get("axes") else None
    where = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=guess, level=level), **space)
    return Controller(where, config or BoConfig(), 0, budget=STEPS)


def _tried(run, stage):
    return [candidate.values for candidate, _ in run.history if candidate.stage == stage]


def test_a_pinned_rate_is_committed_without_a_search_and_the_reason_names_who_pinned_it(simulated_run):
    run, controller = simulated_run(STEPS), _controller()
    run.run_stage(controller)
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.05})])
    decision = run.run_stage(controller)

    assert decision.values.learning_rate == 0.05 and not _tried(run, 1)
    assert "ada pinned learning rate 0.05" in decision.reason
    assert [steer.id for steer in decision.steers] == [1]
    assert decision.forecast is None  # the commit before says nothing of another rate


def test_a_rate_that_is_pinned_from_the_start_opens_no_wide_search(simulated_run):
    run, controller = simulated_run(STEPS), _controller()
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.05})])

    assert run.run_stage(controller).values.learning_rate == 0.05
    assert not run.history


def test_a_pinned_rate_does_not_rise_while_it_trains(simulated_run):
    run, controller = simulated_run(STEPS), _controller(optimizer="sgd")
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.05})])
    run.search(controller)
    decision = controller.decide()
    losses, _ = run.steps(lambda: controller.values(run.spent), until=decision.commit_until, most=100)
    seen = run.observation(None, losses, decision.values).model_copy(update={"alignments": (1.0,) * 100})

    controller.watch(seen)

    assert controller.values(run.spent).learning_rate == 0.05


def test_the_rest_is_searched_beside_a_pinned_level_by_the_name_that_the_exchange_gives_it(simulated_run):
    run, controller = simulated_run(STEPS), _controller(axes=(LEVELS,), level_name="density")
    controller.steer([Steer(id=1, by="ada", pin={"density": 0.01})])
    decision = run.run_stage(controller)

    assert {values.level for values in _tried(run, 0)} == {decision.values.level} == {0.01}
    assert len({values.learning_rate for values in _tried(run, 0)}) >= 3
    assert "ada pinned density 1 %" in decision.reason


def test_once_it_is_withdrawn_the_pinned_value_is_the_incumbent_of_the_next_search(simulated_run):
    run, controller = simulated_run(STEPS), _controller(config=BoConfig(revisit="stages"))
    run.run_stage(controller)
    controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.05})])
    run.run_stage(controller)
    controller.steer([])
    decision = run.run_stage(controller)

    assert _tried(run, 2)[0].learning_rate == 0.05
    assert not decision.steers and "ada" not in decision.reason


@pytest.mark.parametrize("config", [BoConfig(revisit="stages"), SobolConfig(revisit="stages"), LocalConfig()])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_nothing_vetoed_is_tried_or_used(simulated_run, config, first):
    run = simulated_run(STEPS)
    controller = _controller(
        config=config, axes=(LEVELS, OptionAxis(options=("none", "threshold 0.01", "powersgd 1"))), level_name="density"
    )
    steer = Steer(
        id=1,
        by="ada",
        veto={
            "learning_rate": Band(above=0.08, below=0.002),
            "density": Band(above=0.05),
            "option": ("none",),
        },
    )
    while not run.is_over():
        if len(run.decisions) == first:
            controller.steer([steer])
        run.run_stage(controller)
    used = [decision.values for decision in run.decisions[first:]]
    tried = [candidate.values for candidate, _ in run.history if candidate.stage >= first]

    assert len(run.decisions) > first and (tried or config.revisit == "events")
    for values in (*used, *tried):
        assert 0.002 <= values.learning_rate <= 0.08 and values.level <= 0.05 and values.option != "none"
    assert "ada vetoed learning rate above 0.08 and learning rate below 0.002, density above 5 %, option none" in (
        run.decisions[first].reason
    )


@pytest.mark.parametrize(
    ("steer", "used"),
    [
        (Steer(id=1, by="ada", pin={"option": "qsgd 4"}), "qsgd 4"),  # one that does not compete on this link
        (Steer(id=1, by="ada", veto={"option": ("none", "threshold 0.01")}), "powersgd 1"),
        (Steer(id=1, by="ada", veto={"option": ("none", "threshold 0.01", "powersgd 1")}), "qsgd 4"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_one_exchange_is_left_where_people_say_so(simulated_run, steer, used, first):
    competing = OptionAxis(options=("none", "threshold 0.01", "powersgd 1"))
    run = simulated_run(STEPS)
    controller = _controller(
        config=BoConfig(revisit="stages"), axes=(competing,), menu=("none", "qsgd 4", "threshold 0.01", "powersgd 1")
    )
    for _ in range(first):
        run.run_stage(controller)
    controller.steer([steer])
    decision = run.run_stage(controller)

    assert {values.option for values in _tried(run, first)} == {decision.values.option} == {used}
    assert len({values.learning_rate for values in _tried(run, first)}) > 1


def test_an_exchange_that_was_pinned_and_does_not_compete_gives_way_to_one_that_does(simulated_run):
    competing = OptionAxis(options=("none", "threshold 0.01", "powersgd 1"))
    run, menu = simulated_run(STEPS), ("none", "qsgd 4", "threshold 0.01", "powersgd 1")
    controller = _controller(axes=(competing,), menu=menu)
    run.run_stage(controller)
    controller.steer([Steer(id=1, by="ada", pin={"option": "qsgd 4"})])
    run.run_stage(controller)
    controller.steer([Steer(id=2, by="ada", search_now=True)])
    decision = run.run_stage(controller)

    assert decision.values.option in menu and len({values.option for values in _tried(run, 2)}) > 1


def test_a_person_who_asks_for_a_search_gets_one_at_the_next_stage_and_no_other(simulated_run):
    run, controller = simulated_run(STEPS), _controller()
    run.run_stage(controller)
    asked = [Steer(id=1, by="ada", search_now=True)]
    controller.steer(asked)
    decision = run.run_stage(controller)
    controller.steer(asked)  # it is said again until it is withdrawn
    quiet = run.run_stage(controller)

    assert len(_tried(run, 1)) >= 2 and "ada asked for a search" in decision.reason
    assert not _tried(run, 2) and not quiet.steers


def test_a_pinned_rate_that_fails_is_over_and_the_run_goes_on_as_before(simulated_run):
    run, controller = simulated_run(STEPS), _controller()
    before = run.run_stage(controller).values
    pinned = [Steer(id=1, by="ada", pin={"learning_rate": 12 * run.best})]
    controller.steer(pinned)
    run.run_stage(controller)
    assert run.commits[-1].rolled_back
    controller.steer(pinned)
    after = run.run_stage(controller)

    assert _tried(run, 2)[0] == before  # the incumbent of the search that follows a failure
    assert after.values.learning_rate <= before.learning_rate
    assert not after.steers and "so that pin is over" in after.reason


def test_a_restored_controller_stands_by_what_was_steered(simulated_run):
    run, controller = simulated_run(STEPS), _controller(axes=(LEVELS,), config=BoConfig(revisit="stages"))
    said = [
        [Steer(id=1, by="ada", pin={"level": 0.01}, veto={"learning_rate": Band(above=0.08)})],
        [Steer(id=2, by="bob", pin={"learning_rate": 0.02})],
        [],
    ]
    for steers in said:
        controller.steer(steers)
        run.search(controller)
        journal = json.loads(json.dumps(controller.state_dict()))
        restored = strategies.restore(journal)
        assert restored.decide() == controller.decide()
        assert restored.values(run.spent) == controller.values(run.spent)
        run.commit(controller)
        restored = strategies.restore(json.loads(json.dumps(controller.state_dict())))
        assert restored.ask() == strategies.restore(json.loads(json.dumps(controller.state_dict()))).ask()


def test_an_open_stage_is_not_steered_any_more(simulated_run):
    controller = _controller()
    controller.ask()

    with pytest.raises(ValueError, match="`steer` before its first `ask`"):
        controller.steer([Steer(id=1, by="ada", pin={"learning_rate": 0.05})])


@pytest.mark.parametrize("steer", [{"pin": {"density": 0.02}}, {"veto": {"density": Band(above=0.1)}}])
def test_a_name_that_a_run_has_no_value_of_is_refused_and_leaves_the_journal_as_it_was(steer):
    controller = _controller()
    before = controller.state_dict()

    with pytest.raises(
        ValueError, match=r"steer 1 names `density`, which is no value here: these are .*`learning_rate`"
    ):
        controller.steer([Steer(id=1, by="ada", **steer)])
    assert controller.state_dict() == before


@pytest.mark.parametrize(("band", "fault"), [({}, "needs `above`, `below`"), ({"above": 1, "below": 2}, "at most")])
def test_a_band_names_numbers(band, fault):
    with pytest.raises(ValueError, match=fault):
        Band.model_validate(band)


@pytest.mark.parametrize(
    ("band", "left"),
    [
        (Band(above=0.3), (0.1, 0.3)),
        (Band(below=0.2), (0.2, 0.5)),
        (Band(above=0.3, below=0.2), (0.2, 0.3)),
        (Band(above=0.7, below=0.0), (0.1, 0.5)),
    ],
)
def test_a_band_narrows_a_range_to_what_is_not_vetoed(band, left):
    assert band.narrow(0.1, 0.5) == left


def test_a_band_that_vetoes_a_whole_range_leaves_its_ends_crossed():
    low, high = Band(below=0.6).narrow(0.1, 0.5)

    assert low > high
