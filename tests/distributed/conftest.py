"""Real groups of processes, started as rarely as the tests allow: one of each size for a file of tests.

A file names the scenarios that its tests look at in ON_TWO_RANKS, ON_THREE_RANKS and ON_FOUR_RANKS.
"""

import pytest
from scenarios import Reports, run_ranks


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["", "of four"])
def of_four(request: pytest.FixtureRequest) -> bool:
    """Whether a test of groups of ranks looks at four ranks together, as long runs do besides the smaller ones."""
    return bool(request.param)


@pytest.fixture(scope="module")
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(tmp_path_factory.mktemp("two"), 2, request.module.ON_TWO_RANKS)


@pytest.fixture(scope="module")
def three_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(tmp_path_factory.mktemp("three"), 3, request.module.ON_THREE_RANKS)


@pytest.fixture(scope="module")
def four_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(tmp_path_factory.mktemp("four"), 4, request.module.ON_FOUR_RANKS)
