"""Exchanges are judged by their probes, and by their expected teaching for their cost."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from search.bayesian import reasons
from search.bayesian.rewards import fastest_option, scores
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, Stage
from search.config import BoConfig, Budget
from search.curves.curve_summary import Reading
from search.space import OptionAxis, SearchSpace
from search.types import Allowance, Candidate, Observation, Spent, Values

ALLOWED = Allowance(seconds=2.0, min_steps=14)
#: Seconds of a step; what a dense step teaches in 2 s the sparse one has 1.5 times the steps for.
STEP_S = {"powersgd 4": 0.03, "threshold 0.01": 0.02}


def _stage(factors: Mapping[str, float], teaching: Mapping[str, float], *, num_steps: float = 1.0) -> Stage:
    """A stage with a probe by each exchange, whose losses fall as if each step were `factors` steps."""
    stage = Stage(
        index=0,
        incumbent=Values(learning_rate=0.1),
        has_incumbent=False,
        line=CommittedLine(start_loss=4.0),
        teaching=teaching,
    )
    for option, factor in factors.items():
        values = Values(learning_rate=0.1, option=option)
        candidate = Candidate(id=option, stage=0, values=values, allowance=ALLOWED, origin="option", rung=1)
        steps = round(num_steps * 2.0 / STEP_S[option])
        seen = Observation(
            candidate_id=option,
            losses=tuple(4.0 * (1 + factor * step) ** -0.1 for step in range(steps)),
            step_seconds=(STEP_S[option],) * steps,
            bytes_sent=0,
            spent=Spent(),
        )
        stage.candidates.append(candidate)
        stage.readings[option] = Reading.of(seen)
    return stage


def _best(stage: Stage) -> str | None:
    return max(scores(stage), key=lambda score: score.reward or -math.inf).values.option


def test_who_starts_a_little_faster_loses_to_what_teaches_as_much_for_less() -> None:
    factors = {"powersgd 4": 1.0, "threshold 0.01": 0.55}

    assert _best(_stage(factors, {})) == "powersgd 4"
    assert _best(_stage(factors, dict.fromkeys(factors, 0.7))) == "threshold 0.01"


def test_who_starts_much_faster_wins_whatever_was_expected() -> None:
    factors = {"powersgd 4": 1.0, "threshold 0.01": 0.1}

    assert _best(_stage(factors, dict.fromkeys(factors, 0.7))) == "powersgd 4"


def test_what_was_expected_is_what_is_seen_changes_no_reward() -> None:
    factors = {"powersgd 4": 1.0, "threshold 0.01": 2 / 3}  # for a second as much as the other
    told, untold = (scores(_stage(factors, teaching)) for teaching in (factors, {}))

    assert [score.reward for score in told] == pytest.approx([score.reward for score in untold], abs=0.01)


@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.floats(0.3, 1.0))
def test_the_first_probe_keeps_its_reward_and_all_keep_their_variances(
    dense: float, sparse: float, part: float
) -> None:
    factors = {"powersgd 4": 1.0, "threshold 0.01": 0.5}
    told = scores(_stage(factors, {"powersgd 4": dense, "threshold 0.01": sparse}, num_steps=part))
    untold = scores(_stage(factors, {}, num_steps=part))

    assert told[0] == untold[0]
    assert [score.variance for score in told] == [score.variance for score in untold]


def test_probes_that_learn_nothing_move_no_exchange_ahead() -> None:
    factors = {"powersgd 4": 0.0, "threshold 0.01": 0.0}

    assert {score.reward for score in scores(_stage(factors, {"powersgd 4": 1.0, "threshold 0.01": 0.1}))} == {0.0}


def test_a_decision_says_whose_probe_was_passed_over() -> None:
    factors = {"powersgd 4": 1.0, "threshold 0.01": 0.55}
    stage = _stage(factors, dict.fromkeys(factors, 0.7))
    space = SearchSpace(optimizer="sgd", guess=stage.incumbent, axes=(OptionAxis(options=tuple(factors)),))
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(seconds=60.0), seed=0)
    chosen, passed_over = (Values(learning_rate=0.1, option=option) for option in ("threshold 0.01", "powersgd 4"))
    words = "powersgd 4 got lower in its probe, and is expected to teach less for its cost in the long run"

    assert fastest_option(stage) == "powersgd 4"
    assert words in reasons.remarks(setup, stage, chosen, None)
    assert words not in reasons.remarks(setup, stage, passed_over, None)
