"""The table of states is consistent."""

import pytest

from service.job.states import ALLOWED_IN, RULES, TERMINAL, JobState, Verb


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_rule_and_leads_to_an_end(state):
    reached, following = {state}, {state}
    while following:
        following = {after for before in following for after in RULES[before].next} - reached
        reached |= following

    assert reached & TERMINAL


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL))
def test_a_state_that_does_not_end_has_an_owner(state):
    assert RULES[state].owner != "nobody"


def test_only_a_running_job_has_no_deadline():
    endless = {state for state in set(JobState) - TERMINAL if RULES[state].deadline_s is None}

    assert endless == {JobState.RUNNING}  # the driver's lease ends it


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL))
def test_a_job_that_is_not_over_can_be_cancelled_unless_it_is_being(state):
    assert (state in ALLOWED_IN[Verb.CANCEL]) == (state is not JobState.CANCELLING)


@pytest.mark.parametrize("state", [state for state in JobState if RULES[state].deadline_s is not None])
def test_a_deadline_says_what_to_do(state):
    assert len(RULES[state].on_deadline) > 20
