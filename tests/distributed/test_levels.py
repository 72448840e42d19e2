"""Laws of levels that change from step to step, on two and three ranks whose gradients differ, on four in long runs."""

from typing import Any

import numpy as np
import pytest
from exchange_harness import SHAPES
from level_scenarios import BATCH_RATES, CHECKS, DECAY, LEVELS, NUM_STEPS, TRAINED
from local_definitions import accordion_batch
from scenarios import Reports, run_ranks
from sync_harness import Problem

from tests.support.killed_workers import outcome
from tests.support.patience import crowd
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.levels import AccordionConfig, CatConfig
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import collectives, cost

Groups = list[list[dict[str, Any]]]
ON_THREE_RANKS = ["levels", "batches"]
ON_FOUR_RANKS = ["batches", "batches_in_pairs", "batches_on_nodes", "levels_in_pairs"]
ACCORDION = [name for name in LEVELS if name.startswith("accordion")]
#: What goes by a clock, and what has no memory.
MEASURED, LOSSY = "cat, measured", "cat, drawn"


@pytest.fixture
def ranks(request: pytest.FixtureRequest, three_ranks: Reports) -> list[dict[str, Any]]:
    """What each rank saw of one of the exchanges."""
    return [rank["steps"][request.param] for rank in three_ranks["levels"]]


@pytest.fixture(scope="module")
def all_steps(request: pytest.FixtureRequest, of_four: bool, tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """What each rank of three and of two pairs, or of four, saw of all exchanges."""
    if of_four:
        four_ranks = run_ranks(tmp_path_factory.mktemp("levels"), 4, ["levels"])
        return [[rank["steps"] for rank in four_ranks["levels"]]]
    three_ranks, four_ranks = (request.getfixturevalue(name) for name in ("three_ranks", "four_ranks"))
    paired = four_ranks["levels_in_pairs"]
    return [[rank["steps"] for rank in three_ranks["levels"]], paired[:2], paired[2:]]


@pytest.fixture
def groups(request: pytest.FixtureRequest, all_steps: Groups) -> Groups:
    """What each rank saw of one of the exchanges."""
    return [[rank[request.param] for rank in group] for group in all_steps]


accordion = pytest.mark.parametrize("ranks", ACCORDION, indirect=True)


@pytest.mark.parametrize("groups", LEVELS, indirect=True)
def test_all_ranks_receive_equal_bits_whatever_their_levels(groups):
    for ranks in groups:
        assert all(rank["bits"] == ranks[0]["bits"] for rank in ranks)


@pytest.mark.parametrize("groups", [name for name in LEVELS if name != LOSSY], indirect=True)
def test_nothing_is_lost_when_levels_change(groups):
    assert max(rank["lost"] for ranks in groups for rank in ranks) < 1e-6


@pytest.mark.parametrize("groups", [name for name in LEVELS if name != MEASURED], indirect=True)
def test_a_restored_exchange_goes_on_bit_for_bit_in_the_middle_of_an_epoch(groups):
    assert all(rank["restored"] for ranks in groups for rank in ranks)


@pytest.mark.parametrize("groups", ACCORDION, indirect=True)
def test_accordions_levels_are_identical_on_all_ranks(groups):
    for ranks in groups:
        assert all(rank["critical"] == ranks[0]["critical"] for rank in ranks)


@accordion
def test_levels_change_at_comparisons_and_when_the_learning_rate_falls_alone(ranks):
    critical = [[True] * len(ranks[0]["critical"][0]), *ranks[0]["critical"]]

    changes = {step for step in range(NUM_STEPS) if critical[step + 1] != critical[step]}

    assert changes and changes <= {*CHECKS, DECAY}
    assert all(critical[CHECKS[0] + 1]) and all(critical[DECAY + 1])
    assert not all(critical[CHECKS[1] + 1])


# A threshold that is given has room for what the step before wanted.
@pytest.mark.parametrize("ranks", [name for name in ACCORDION if name != "accordion, absolute"], indirect=True)
def test_fewer_bytes_are_sent_outside_of_critical_regimes(ranks):
    sent, critical = ranks[0]["sent"], ranks[0]["critical"]
    relaxed = [step for step in range(1, NUM_STEPS) if not any(critical[step - 1]) and step != DECAY]

    assert all(sent[step] < 0.95 * sent[CHECKS[0] + 1] for step in relaxed)


@accordion
def test_what_the_first_rank_decides_is_billed_as_control(ranks):
    told = collectives.broadcast(len(ranks[0]["critical"][0]), len(ranks)).bytes

    for rank in ranks:
        # in the steps before they are compared, levels are the same
        assert [rank["control"][step] - rank["control"][step - 1] for step in CHECKS[1:]] == [told] * 2


@pytest.mark.parametrize("ranks", ["cat, packets", "cat, signs"], indirect=True)
def test_cat_sends_at_most_what_was_foreseen_of_its_density(ranks, request):
    config = LEVELS[request.node.callspec.params["ranks"]].model_copy(update={"bucket_mib": 0.001})

    most = cost.step_traffic(SHAPES, num_workers=len(ranks), exchange=config, level=0.3).bytes

    for rank in ranks:
        assert rank["sent"][0] == most  # nobody knows yet how much that will be
        assert max(rank["sent"][1:]) < most


@pytest.mark.parametrize("ranks", [MEASURED], indirect=True)
def test_a_link_that_nobody_states_is_measured(ranks):
    for rank in ranks:
        rounds, _, squares, *seconds = rank["selector"]["price"]["sums"]
        assert min(rounds, squares, *seconds) > 0


@pytest.mark.parametrize("name", TRAINED)
def test_a_replica_rewound_or_restored_trains_on_bit_for_bit(three_ranks: Reports, name: str):
    for rank in (each["resumed"][name] for each in three_ranks["levels"]):
        assert rank["losses"] == [rank["losses"][0]] * 3
        assert rank["sent"] == [rank["sent"][0]] * 3
        assert rank["bits"] == [three_ranks["levels"][0]["resumed"][name]["bits"][0]] * 2


@pytest.fixture
def batch_groups(three_ranks: Reports, four_ranks: Reports) -> list[list[dict[str, Any]]]:
    """What each rank saw, in a group of two, of three, of four, and of four that share nodes."""
    pair = four_ranks["batches_in_pairs"][:2]
    return [pair, three_ranks["batches"], four_ranks["batches"], four_ranks["batches_on_nodes"]]


def test_batches_grow_with_the_rate_as_they_are_defined_to(batch_groups):
    for group in batch_groups:
        problems = [Problem.of(rank) for rank in range(len(group))]
        expected = accordion_batch(problems, BATCH_RATES, factor=3, epoch_steps=2, eta=0.5)
        traces = np.stack([rank["trace"] for rank in group], axis=1)
        np.testing.assert_allclose(traces, expected, atol=2e-5)
        assert (traces == traces[:, :1]).all()


def test_a_batch_is_exchanged_once(batch_groups):
    for group in batch_groups:
        exchanged = [step for step, sent in enumerate(group[0]["sent"]) if sent]
        assert exchanged == [0, 1, 2, 3, 6, 9, 12]


def test_a_batch_that_was_begun_is_gone_on_with_bit_for_bit(batch_groups):
    assert all(rank["restored"] for group in batch_groups for rank in group)


@pytest.mark.long
@pytest.mark.parametrize(
    "exchange",
    [
        PowerSgdConfig(rank=1, levels=AccordionConfig(critical=4, interval=1, epoch_steps=5)),
        TopKConfig(density=0.1, levels=CatConfig()),
        TopKConfig(density=0.1, values="sign", levels=CatConfig()),
        TopKConfig(density=0.1, memory="none", levels=CatConfig(variant="drawn")),
    ],
    ids=["accordion", "cat", "signs", "drawn"],
)
def test_a_worker_that_is_killed_while_levels_change_changes_nothing(exchange):
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=SgdConfig(),
        exchange=exchange,
        link=EmulateLink(mbps=10_000, latency_ms=0.1),
        collective_timeout_s=10 * crowd(),
    )
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)
