"""The controller's picks among recorded probes: real losses, and their later outcomes."""

import forecasts
import numpy as np
import pytest
from loss_curves import recorded


@pytest.fixture(scope="module")
def regrets():
    return forecasts.regrets(forecasts.by_controller, recorded())


def test_the_lowest_last_half_is_no_worse_a_choice_than_the_median_of_the_last_fifth(regrets):
    differences = regrets - forecasts.regrets(forecasts.by_tail, recorded())

    assert forecasts.interval(differences)[0] <= 0


def test_a_pick_after_100_steps_loses_5_percent_at_most_unless_the_model_has_all_but_fitted_its_data(regrets):
    # of the loss at the fork; the late digits fall from 0.25 to 0.01, and 100 steps do not show who gets there
    is_fitted = np.array([line.name.startswith("digits-mlp/late") for line in recorded()])

    assert regrets[~is_fitted].max() <= 0.05
    assert regrets.mean() <= 0.1
