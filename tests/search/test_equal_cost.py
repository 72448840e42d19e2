"""Probes are compared over the number of steps that all of them could afford."""

import numpy as np
import pytest

from search.bayesian.rewards import at_equal_cost
from search.bayesian.stage import Probe
from search.curves.curve_summary import Reading, side_by_side
from search.types import Allowance, Candidate, Observation, Spent, Values

ALLOWED = Allowance(seconds=1.0, min_steps=20)


def _probe(
    number: int, option: str, num_steps: int, step_s: float, *, is_cut: bool = False, allowed: Allowance = ALLOWED
) -> Probe:
    values = Values(learning_rate=0.1, option=option)
    seen = Observation(
        candidate_id=str(number),
        losses=tuple(float(step) for step in range(num_steps)),
        step_seconds=(step_s,) * num_steps,
        bytes_sent=10 * num_steps,
        is_cut=is_cut,
        spent=Spent(),
    )
    return Probe(Candidate(id=str(number), stage=0, values=values, allowance=allowed, origin="wide"), Reading.of(seen))


def test_of_costly_steps_those_count_that_the_others_had_the_time_for() -> None:
    cheap, costly = at_equal_cost([_probe(0, "powersgd 1", 50, 0.02), _probe(1, "none", 20, 0.1)])

    assert cheap.reading.num_steps == 50
    assert costly.reading.losses == tuple(float(step) for step in range(10))
    assert (costly.reading.num_steps, costly.reading.bytes_sent) == (10, 100)


def test_where_all_steps_cost_the_same_all_of_them_count_though_the_machine_delayed_some() -> None:
    probes = [_probe(0, "none", 50, 0.02), _probe(1, "none", 20, 0.1), _probe(2, "none", 48, 0.021)]

    assert at_equal_cost(probes) == probes


def test_a_delayed_probe_makes_no_other_exchange_look_costly() -> None:
    others = [_probe(number, "none", 50, 0.02) for number in range(3)]
    probes = [_probe(3, "none", 20, 0.3), *others, _probe(4, "fp16", 70, 0.015)]

    assert at_equal_cost(probes) == probes


def test_a_probe_that_was_cut_before_its_share_was_spent_stays_as_it_was() -> None:
    cut = _probe(2, "none", 8, 0.1, is_cut=True)

    assert at_equal_cost([_probe(0, "powersgd 1", 50, 0.02), _probe(1, "none", 20, 0.1), cut])[-1] == cut


def test_where_nothing_was_left_but_the_shortest_probe_costs_are_equal_too() -> None:
    nothing = Allowance(seconds=0.0, min_steps=20)
    probes = [_probe(0, "powersgd 1", 20, 0.05, allowed=nothing), _probe(1, "none", 20, 0.1, allowed=nothing)]

    cheap, costly = at_equal_cost(probes)

    assert (cheap.reading.num_steps, costly.reading.num_steps) == (20, 10)


@pytest.mark.parametrize("num_steps", [399, 400, 401, 500, 1001, 5000])
@pytest.mark.parametrize("share", [0.0001, 0.33, 0.66, 0.999])
def test_of_a_long_curve_the_first_steps_are_the_same_losses(num_steps: int, share: float) -> None:
    whole = _probe(0, "none", num_steps, 0.1).reading

    begun = whole.begun(share * num_steps)
    seen, same = side_by_side(begun, whole, begun.num_steps, begun.num_steps)

    assert len(begun.losses) == max(1, round(share * len(whole.losses)))
    assert np.allclose(seen, same)
    assert begun.begun(begun.num_steps) == begun
