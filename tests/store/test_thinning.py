"""Thinning keeps the features that a reader looks for."""

import pytest
from hypothesis import given, strategies as st

from service.control.metrics.points import thin

VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=300)


@given(values=VALUES, max_points=st.integers(2, 400))
def test_a_thinned_series_is_short_ordered_and_whole_where_it_may_be(values, max_points):
    kept = thin(values, max_points)

    assert len(kept) <= max_points
    assert kept == sorted(set(kept))
    if len(values) <= max_points:
        assert kept == list(range(len(values)))


@given(values=VALUES.filter(lambda values: len(values) > 40), max_points=st.integers(4, 40))
def test_both_ends_the_lowest_value_and_a_missing_one_stay(values, max_points):
    kept = [values[index] for index in thin(values, max_points)]

    known = [value for value in values if value is not None]
    assert (kept[0], kept[-1]) == (values[0], values[-1])
    assert (None in kept) == (None in values)
    assert not known or min(known) in kept


@pytest.mark.parametrize("peak", [1, 498, 997])
def test_a_single_peak_stays_wherever_it_is(peak):
    values = [0.0] * 999
    values[peak] = 1.0

    assert peak in thin(values, 10)
