"""Real groups of processes, started as rarely as the tests allow."""

import pytest
from scenarios import DEADLY, Reports, run_ranks


@pytest.fixture(scope="session")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    names = [
        "conservation", "overflow", "dense_limits", "kinds", "averages", "near_limits", "changing_rates",
        "bad_gradient", "early_stop", "sync", "apart", "jointspar", "levels",
        "two_way", "two_way_replicas", "batches", "auto",
    ]  # fmt: skip
    return run_ranks(tmp_path_factory.mktemp("three"), 3, names)


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    names = [
        "equal_parameters", "early_stop", "dense_limits", "kinds", "near_limits", "pairs",
        "kinds_on_even_nodes", "kinds_on_uneven_nodes", "dense_limits_on_nodes", "replicas_on_nodes",
        "paced_messages", "sync", "sync_pairs", "sync_on_nodes", "jointspar_on_nodes",
        "two_way", "two_way_pairs", "two_way_on_nodes", "auto_pairs", "auto_on_nodes",
        "paced_average", "batches_on_nodes", "ddp", "silent_rank", DEADLY,
    ]  # fmt: skip
    return run_ranks(tmp_path_factory.mktemp("four"), 4, names)
