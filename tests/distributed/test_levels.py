"""Laws of levels that change from step to step, on three ranks whose gradients differ."""

import os
import signal
from typing import Any

import pytest
from exchange_bench import SHAPES
from level_scenarios import CHECKS, DECAY, LEVELS, NUM_STEPS, TRAINED
from scenarios import Reports

from trainers import cost
from trainers.config import DigitsMlp, EmulateLink, ReplicaConfig, SgdConfig
from trainers.exchange.config import PowerSgdConfig, TopKConfig
from trainers.exchange.levels.config import AccordionConfig, CatConfig
from trainers.group import ProcessGroup
from trainers.repair import RepairingGroup
from trainers.segment import Segment

ACCORDION = [name for name in LEVELS if name.startswith("accordion")]
#: What goes by a clock, and what has no memory.
MEASURED, LOSSY = "cat, measured", "cat, drawn"


@pytest.fixture
def ranks(request: pytest.FixtureRequest, three_ranks: Reports) -> list[dict[str, Any]]:
    """What each rank saw of one of the exchanges."""
    return [rank["steps"][request.param] for rank in three_ranks["levels"]]


every = pytest.mark.parametrize("ranks", LEVELS, indirect=True)
accordion = pytest.mark.parametrize("ranks", ACCORDION, indirect=True)


@every
def test_all_ranks_receive_equal_bits_whatever_their_levels(ranks):
    assert all(rank["bits"] == ranks[0]["bits"] for rank in ranks)


@pytest.mark.parametrize("ranks", [name for name in LEVELS if name != LOSSY], indirect=True)
def test_nothing_is_lost_when_levels_change(ranks):
    assert max(rank["lost"] for rank in ranks) < 1e-6


@pytest.mark.parametrize("ranks", [name for name in LEVELS if name != MEASURED], indirect=True)
def test_a_restored_exchange_goes_on_bit_for_bit_in_the_middle_of_an_epoch(ranks):
    assert all(rank["restored"] for rank in ranks)


@accordion
def test_accordions_levels_are_identical_on_all_ranks(ranks):
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
    told = cost.broadcast(len(ranks[0]["critical"][0]), len(ranks)).bytes

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
        collective_timeout_s=10,
    )
    runs = []
    for is_killed in (False, True):
        workers = ProcessGroup(config, 3, device="cpu")
        with RepairingGroup(workers) as group:
            results = [group.run(Segment(num_steps=7, learning_rate=0.1))]
            if is_killed:
                os.kill(workers.pids[1], signal.SIGKILL)
            results.append(group.run(Segment(num_steps=40, learning_rate=0.1)))
            assert group.recovery.repairs == is_killed
            runs.append([(result.losses, result.bytes_sent) for result in results] + [group.evaluate().loss])

    assert runs[0] == runs[1]
