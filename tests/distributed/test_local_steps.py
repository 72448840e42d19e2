"""0/1 Adam that exchanges ever more rarely, on two and three ranks with different optima."""

import math
from typing import Any

import pytest
import torch
from exchange_kinds import UNEVEN
from local_steps_scenarios import CONFIG, EARLY, LOCAL_RATES, OPTIMIZER
from scenarios import Reports
from sync_harness import SHAPES, D
from torch import Tensor

from tests.support.killed_workers import outcome
from tests.support.patience import crowd
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import collectives

ON_THREE_RANKS = ["local_steps"]
ON_FOUR_RANKS = ["local_steps_in_pairs"]
Group = list[dict[str, Any]]
NUM_STEPS = len(LOCAL_RATES)
DECAY, DECAY_OF_SQUARES = CONFIG.betas
EXCHANGES = [4, 5, 6, 7, 9, 11, 15, 19]


@pytest.fixture(scope="module")
def groups(three_ranks: Reports, four_ranks: Reports) -> list[Group]:
    pairs = four_ranks["local_steps_in_pairs"]
    return [three_ranks["local_steps"], pairs[:2], pairs[2:]]


def seen(group: Group, name: str) -> Tensor:
    """Return what each rank saw in each step as `name` `(steps, ranks, ...)`."""
    return torch.tensor([[step[name] for step in rank["steps"]] for rank in group]).double().transpose(0, 1)


def state(group: Group, name: str) -> Tensor:
    """Return what each step left in each rank's exchange `(steps, ranks, ...)`."""
    of_each = [[step["state"][name] for step in rank["steps"]] for rank in group]
    return torch.tensor(of_each).double().transpose(0, 1)


def interval(exchange: int) -> slice:
    """Return the steps from the exchange before on, up to `exchange`."""
    before = max([CONFIG.freeze_steps - 1, *(step for step in EXCHANGES if step < exchange)])
    return slice(before + 1, exchange + 1)


@pytest.mark.parametrize(
    ("knobs", "exchanges"),
    [
        ({}, EXCHANGES),
        ({"max_interval": 1}, [*range(4, 20)]),
        ({"interval_steps": 3}, [4, 5, 6, 8, 9, 13, 17]),
        ({"max_interval": 3, "interval_steps": 5}, [4, 5, 6, 7, 8, 10, 12, 13, 16, 19]),
        ({"max_interval": 16, "interval_steps": 1}, [4, 5, 6, 7, 23, 39]),
    ],
)
def test_intervals_between_exchanges_double_once_the_variance_stays(knobs: dict[str, int], exchanges: list[int]):
    config = CONFIG.model_copy(update=knobs)

    steps = range(4, exchanges[-1] + 1)
    assert [step for step in steps if config.steps_to_exchange(step) == 1] == exchanges
    for step in steps:
        assert step + config.steps_to_exchange(step) - 1 == min(each for each in exchanges if each >= step)
    assert all(config.steps_to_exchange(step) == 1 for step in range(4))


def test_published_intervals_are_one_for_32678_steps_and_end_at_sixteen():
    config = ZeroOneAdamConfig(freeze_steps=100, max_interval=16)

    assert [config.steps_to_exchange(100 + stage * 32_678) for stage in range(5)] == [1, 2, 4, 8, 16]


def test_without_longer_intervals_training_is_that_of_an_exchange_in_every_step(groups: list[Group]):
    for group in groups:
        for rank in group:
            never_longer, every_step = rank["always"]
            assert never_longer == every_step


def test_workers_send_nothing_between_exchanges_and_in_them_what_is_predicted(groups: list[Group]):
    for group in groups:
        # the gradient, and the loss that rides along
        dense = collectives.all_reduce(4 * math.prod(SHAPES[0]) + 4 * SHAPES[1][0] + 4, len(group)).bytes
        for rank in group:
            for number, step in enumerate(rank["steps"]):
                signs = step["predicted"] if number in EXCHANGES or number == 2 else 0
                assert step["sent"] == pytest.approx(dense if CONFIG.is_dense(number) else signs, abs=4)


def test_all_workers_hold_equal_bits_after_an_exchange_and_only_then(groups: list[Group]):
    for group in groups:
        x, is_apart = seen(group, "x"), seen(group, "is apart")
        for step in range(NUM_STEPS):
            meets = CONFIG.steps_to_exchange(step) == 1
            assert torch.equal(x[step], x[step, :1].expand_as(x[step])) == meets
            assert not is_apart[step].any() if meets else is_apart[step].all()
            left = seen(group, "to meeting")[step]
            assert left.eq(CONFIG.steps_to_exchange(step) - 1).all()


def units(group: Group) -> Tensor:
    """Return sqrt(v) + eps of the frozen variance `(D,)`."""
    variance = state(group, "second")[-1, 0]
    return (variance / (1 - DECAY_OF_SQUARES ** CONFIG.num_dense(NUM_STEPS))).sqrt() + 1e-8


def momenta(group: Group) -> Tensor:
    """Return b1 m + (1 - b1) g of each step and rank, in units of the frozen variance; zeros before."""
    most = 1 / math.sqrt(1 - DECAY_OF_SQUARES)
    before = state(group, "first").roll(1, dims=0)
    return DECAY * before + (1 - DECAY) * (seen(group, "gradient") / units(group)).clamp(-most, most)


def test_between_exchanges_each_worker_steps_by_its_own_momentum(groups: list[Group]):
    for group in groups:
        ours, rates = momenta(group), seen(group, "rate")[..., None]
        for step in set(range(CONFIG.freeze_steps, NUM_STEPS)) - {*EXCHANGES}:
            led = seen(group, "before")[step] * (1 - rates[step] * OPTIMIZER.weight_decay)
            led -= rates[step] * ours[step] / (1 - DECAY ** (step + 1))
            torch.testing.assert_close(state(group, "first")[step], ours[step], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(seen(group, "x")[step], led, atol=1e-5, rtol=1e-4)


def test_an_exchange_leads_from_the_last_one_as_if_each_step_since_had_been_along_what_arrived(groups: list[Group]):
    for group in groups:
        rates = torch.tensor(LOCAL_RATES).double()
        for step in EXCHANGES:
            since = interval(step)
            arrived = state(group, "first")[step] / (1 - DECAY ** (step + 1))
            led = seen(group, "before")[since.start]
            for rate in rates[since]:
                led = led * (1 - rate * OPTIMIZER.weight_decay) - rate * arrived
            torch.testing.assert_close(seen(group, "x")[step], led, atol=1e-5, rtol=1e-4)


def test_what_is_sent_of_mean_momenta_and_what_is_kept_add_up(groups: list[Group]):
    for group in groups:
        ours, rates = momenta(group), torch.tensor(LOCAL_RATES).double()
        kept = [_kept(group, step) for step in range(NUM_STEPS)]
        for step in EXCHANGES[1:]:
            since = interval(step)
            weights = rates[since] / rates[since].sum()
            mean = (weights[:, None, None] * ours[since]).sum(dim=0).mean(dim=0)
            sent = state(group, "first")[step, 0]
            torch.testing.assert_close(sent + kept[step], mean + kept[since.start - 1], atol=1e-4, rtol=0)
            assert kept[step].abs().max() > 0.01


def _kept(group: Group, step: int) -> Tensor:
    """Return the mean of what ranks did not send after `step`, with what they keep as owners `(D,)`."""
    kept = state(group, "residual")[step].mean(dim=0)
    shards = state(group, "server.0")[step]  # of equal size; zeros behind the last
    return kept + shards.flatten()[:D]


def test_training_goes_on_bit_for_bit_from_a_state_within_an_interval(groups: list[Group]):
    assert all(rank["resumed"] == [True] * 3 for group in groups for rank in group)


def test_what_is_not_finite_on_one_worker_stops_all_in_the_next_exchange(groups: list[Group]):
    for group in groups:
        assert all(rank["stopped"] == [[False] * 3 + [True]] * 2 for rank in group)


def test_a_replica_rewound_or_restored_within_an_interval_trains_on_bit_for_bit(three_ranks: Reports):
    replicas = [rank["replicas"] for rank in three_ranks["local_steps"]]

    for replica in replicas:
        assert replica["losses"] == [replica["losses"][0]] * 3
        assert replica["sent"] == [replica["sent"][0]] * 3
        assert replica["bits"] == [replica["bits"][0]] * 2
        assert replica["evaluations"] == [replicas[0]["evaluations"][0]] * 3
    assert EARLY.steps_to_exchange(6) > 1 and EARLY.steps_to_exchange(13) == 1  # where the two segments end
    assert len({replica["bits"][0] for replica in replicas}) == 1


def test_nodes_that_stepped_by_themselves_are_evaluated_at_their_mean(four_ranks: Reports):
    for rank in four_ranks["local_steps_in_pairs"]:
        assert rank["on nodes"]["evaluated"] == pytest.approx(rank["on nodes"]["of the mean"], rel=1e-4)


def test_losses_on_nodes_of_different_sizes_are_of_all_ranks_in_an_exchange_and_of_the_node_in_a_local_step(
    four_ranks: Reports,
):
    told = [rank["on nodes"]["losses"] for rank in four_ranks["local_steps_in_pairs"]]

    for step, losses in enumerate(zip(*told, strict=True)):
        of_node = [sum(node) / len(node) for rank in range(4) for node in UNEVEN if rank in node]
        meets = CONFIG.steps_to_exchange(step) == 1
        assert losses == pytest.approx([1.5] * 4 if meets else of_node)
        assert sum(losses) / 4 == pytest.approx(1.5)  # as results of ranks are merged


def test_a_worker_that_is_killed_within_an_interval_changes_nothing():
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=OPTIMIZER, exchange=EARLY, collective_timeout_s=10 * crowd())

    assert EARLY.steps_to_exchange(7) > 1  # where the second segment begins
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)
