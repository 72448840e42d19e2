"""Following a learned schedule again: the same values at the same steps, and then its last ones."""

import pytest

from search.baselines.scheduled import Scheduled, stage_starts
from search.config import Budget, ScheduleConfig
from search.schedule_file import Entry, RecordedSchedule, ScheduleFile
from search.space import SearchSpace
from search.types import Observation, Spent, Values
from trainers.segment import Segment


def _schedule(*pieces, optimizer="sgd"):
    entries, step = [], 0
    for num_steps, rates, level in pieces:
        first, last = rates if isinstance(rates, tuple) else (rates, None)
        entries.append(
            Entry(step=step, num_steps=num_steps, learning_rate=first, final_learning_rate=last, level=level)
        )
        step += num_steps
    return ScheduleFile(optimizer=optimizer, num_steps=step, entries=tuple(entries))


#: Held, held lower and denser, decayed in three pieces.
LEARNED = _schedule(
    (30, 0.1, 0.01), (20, 0.05, 0.02), (4, (0.05, 0.035), 0.02), (4, (0.03, 0.015), 0.02), (1, 0.01, 0.02)
)


def _scheduled(schedule=LEARNED, *, level=0.1, budget=None):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=1.0, level=level))
    return Scheduled(space, budget or Budget(steps=80), ScheduleConfig(schedule=schedule))


def test_every_committed_step_has_the_rate_and_the_level_of_the_schedule_and_later_ones_the_last():
    strategy = _scheduled()

    used = [strategy.values(Spent(steps=step)) for step in range(80)]

    assert [each.learning_rate for each in used] == [LEARNED.learning_rate_at(step) for step in range(80)]
    assert [each.level for each in used] == [LEARNED.level_at(step) for step in range(80)]
    assert {each.learning_rate for each in used[59:]} == {0.01}


def test_a_run_follows_it_to_the_budgets_end(simulated_run):
    run = simulated_run(Budget(steps=80)).train(_scheduled())

    assert [decision.commit_until.steps for decision in run.decisions] == [30, 50, 59, 80]
    assert [decision.values.learning_rate for decision in run.decisions] == [0.1, 0.05, 0.05, 0.01]
    assert "ends at step 59" in run.decisions[-1].reason
    assert run.searched.steps == 0


@pytest.mark.parametrize(
    ("ended", "reason", "rate", "until"),
    [(20, "from its step 20 on", 0.1, 30), (30, "from its step 30 on", 0.05, 50), (70, "ends at step 59", 0.01, 80)],
)
def test_after_an_extension_it_goes_on_where_the_budget_had_ended(ended, reason, rate, until):
    strategy = _scheduled()
    strategy.tell(_committed(ended))

    decision = strategy.decide()

    assert reason in decision.reason
    assert (decision.values.learning_rate, decision.commit_until.steps) == (rate, until)


@pytest.mark.parametrize(("num_kept", "rate"), [(0, 0.1), (1, 0.05), (3, 0.01), (5, 0.01)])
def test_a_run_that_an_earlier_release_began_goes_on(num_kept, rate):
    state = dict(_scheduled().state_dict())
    del state["step"]

    assert Scheduled.from_state_dict(state | {"num_kept": num_kept}).decide().values.learning_rate == rate


def test_a_decay_that_is_stored_in_pieces_is_one_stage():
    assert stage_starts(LEARNED) == (0, 30, 50)
    assert stage_starts(_schedule((10, (0.3, 0.21), None), (10, (0.2, 0.11), None))) == (0,)
    assert stage_starts(_schedule((10, (0.3, 0.21), None), (10, (0.05, 0.02), None))) == (0, 10)


def _committed(num_steps, *, diverged=False):
    spent = Spent(steps=num_steps)
    return Observation(candidate_id=None, losses=(), step_seconds=(), bytes_sent=0, diverged=diverged, spent=spent)


def _followed(schedule):
    """Return the rate of each step of the pieces that `schedule` is followed by, as a trial takes them."""
    strategy, rates = _scheduled(schedule), []
    while len(rates) < schedule.num_steps:
        piece = strategy.piece(Spent(steps=len(rates)))
        assert piece is not None and piece.step == len(rates)
        ends = {"learning_rate": piece.learning_rate, "final_learning_rate": piece.final_learning_rate}
        segment = Segment(num_steps=piece.num_steps, piece_steps=piece.piece_steps, **ends)
        rates += [segment.learning_rate_at(index) for index in range(piece.num_steps)]
    return rates


@pytest.mark.parametrize(
    "schedule",
    [
        _schedule((10, (0.1, 0.091), None), (1, 0.0899, None), (10, (0.089, 0.0755), None)),
        _schedule((10, 0.1, None), (1, 0.1, None), (10, (0.099, 0.0755), None)),
        LEARNED,
    ],
)
def test_each_entry_is_a_piece_of_its_own_so_that_no_line_is_drawn_across_two(schedule):
    assert _followed(schedule) == [schedule.learning_rate_at(step) for step in range(schedule.num_steps)]


def test_a_warm_up_is_left_to_the_optimizer_of_the_job_that_follows_the_schedule():
    recorded = RecordedSchedule(**dict(LEARNED), warmup_steps=40)

    config = ScheduleConfig.model_validate_json(ScheduleConfig(schedule=recorded).model_dump_json())

    assert config.schedule == LEARNED
    assert _scheduled(config.schedule).values(Spent()).learning_rate == LEARNED.learning_rate_at(0)


def test_after_the_last_entry_no_piece_is_given():
    assert _scheduled().piece(Spent(steps=LEARNED.num_steps)) is None


def test_what_else_was_searched_changes_at_its_step():
    held, changed = _schedule((10, 0.3, None), (10, 0.3, None)).entries
    entries = (held, changed.model_copy(update={"values": {"momentum": 0.95}}))

    assert stage_starts(ScheduleFile(optimizer="sgd", num_steps=20, entries=entries)) == (0, 10)


@pytest.mark.parametrize(("level", "used"), [(None, None), (0.3, 0.01)])
def test_its_level_needs_an_exchange_that_has_one(level, used):
    assert _scheduled(level=level).decide().values.level == used


def test_without_levels_it_leaves_the_exchange_its_own():
    assert _scheduled(_schedule((10, 0.1, None)), level=0.3).decide().values.level == 0.3


def test_a_commit_that_diverged_is_offered_again_as_another_stage():
    strategy = _scheduled()
    first = strategy.decide()
    strategy.tell(_committed(0, diverged=True))

    assert (strategy.decide().stage, strategy.decide().values) == (1, first.values)


def test_the_schedule_of_another_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"`schedule.optimizer` must be 'sgd', got 'adamw'"):
        _scheduled(_schedule((10, 0.1, None), optimizer="adamw"))
