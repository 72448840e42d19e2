"""Checkpoints of Accelerate, with the real package, on two ranks."""

from typing import Any

import pytest
from torchrun import by_two_ranks

KINDS = ("topk", "local_sgd", "cser")
Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what each rank has found of each of `KINDS`."""
    return by_two_ranks("accelerate_scenario.py", tmp_path_factory.mktemp("accelerate"), package="accelerate")


pytestmark = pytest.mark.long  # `make test-long` installs this package


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_a_checkpoint_of_accelerate_goes_on_as_if_it_had_not_stopped(ranks: Found, kind: str):
    for rank in ranks:
        assert rank[kind]["resumed"] == rank[kind]["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_has_its_file_and_trains_on_from_where_it_was(ranks: Found, kind: str):
    for rank in ranks:
        assert rank[kind]["files"] == ["wiretune-0.pt", "wiretune-1.pt"]
        assert rank[kind]["kept"]
