"""The Lightning callback with the real package, on two ranks: a resumed run, and one model in validation."""

import pytest
from torchrun import by_two_ranks

KINDS = ("topk", "local_sgd", "cser")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    """Return what each rank has found of each of `KINDS`."""
    return by_two_ranks("lightning_scenario.py", tmp_path_factory.mktemp("lightning"), package="lightning")


pytestmark = pytest.mark.long  # `make test-long` installs this package


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_from_a_checkpoint_goes_on_as_if_it_had_not_stopped(ranks: list[dict[str, dict[str, object]]], kind: str):
    for rank in ranks:
        assert rank[kind]["resumed"] == rank[kind]["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_validate_and_end_with_one_model(ranks: list[dict[str, dict[str, object]]], kind: str):
    first, second = (rank[kind] for rank in ranks)

    assert first["validated"] == second["validated"]
    assert first["whole"] == second["whole"]


def test_no_part_outlives_its_checkpoint(ranks: list[dict[str, dict[str, object]]]):
    for kind in KINDS:
        assert ranks[0][kind]["files"] == ["epoch=3.ckpt", "epoch=3.wiretune-0.pt", "epoch=3.wiretune-1.pt"]
