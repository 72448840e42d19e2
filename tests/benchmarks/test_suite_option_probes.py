"""The expected teaching of exchanges matches the records, and choosing by it is no worse than by probes alone."""

import math

import numpy as np
import pytest

pytest.importorskip("tests.support.suite_packages")

from suite import option_probes
from suite.option_probes import DENSITIES, LINKS, SENT, TRANSFERS, Cell

from search.bayesian.rewards import PROBED_PART
from search.budget.link import ABOVE, BELOW
from trainers.methods.exchange.auto.spec import Option

pytestmark = pytest.mark.long  # `make test-long` installs these packages


@pytest.mark.parametrize("option", SENT)
def test_an_option_is_expected_to_teach_what_it_taught_on_the_recorded_tasks(option: str) -> None:
    assert Option.parse(option).teaches == pytest.approx(math.exp(option_probes.taught(option)), rel=0.15)


@pytest.mark.parametrize("share", option_probes.SHARES)
def test_with_each_tasks_data_left_out_choices_by_both_lose_less_time_than_by_probes_alone(share: float) -> None:
    alone, both = (
        np.mean([option_probes.behind(cell, each, choose) for cell in option_probes.cells() for each in TRANSFERS], 0)
        for choose in (option_probes.by_probes(share, 1.0), option_probes.by_probes(share, PROBED_PART))
    )

    assert both[0] < alone[0] and both[1] < alone[1] + 0.01


def test_half_as_many_dense_steps_teach_a_half() -> None:
    dense = 4.0 * np.arange(1.0, 201.0) ** -0.3
    slow = 4.0 * (np.arange(1.0, 201.0) / 2) ** -0.3

    assert Cell("task", {"none": dense, "slow": slow}).teaches["slow"] == pytest.approx(math.log(0.5), abs=0.05)
    assert Cell("task", {"none": dense, "same": dense}).teaches["same"] == pytest.approx(0.0, abs=0.02)


def test_a_density_is_expected_to_teach_by_the_powers_of_the_recorded_tasks() -> None:
    assert pytest.approx(option_probes.powers(), abs=0.01) == (BELOW, ABOVE)


def test_with_each_familys_data_left_out_the_density_that_costs_least_for_what_it_teaches_is_the_best_choice() -> None:
    always = [lambda cell, _, option=option: option for option in DENSITIES]
    chosen, *others = (
        np.mean(
            [option_probes.behind(cell, each, choose) for cell in option_probes.density_cells() for each in LINKS], 0
        )
        for choose in (option_probes.by_powers, option_probes.by_quarter, *always)
    )

    assert all(chosen[0] < time and chosen[1] < loss for time, loss in others)
