"""Laws of exchanges that compress both ways, on ranks whose data differ.

On one to three ranks and on nodes of four; on four in long runs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from exchange_harness import Place
from exchange_kinds import UNEVEN
from local_definitions import Traces
from scenarios import Reports, run_ranks
from sync_harness import D, Problem
from sync_scenarios import RATES
from two_way_definitions import cser, double_squeeze, integers, liec_sgd
from two_way_scenarios import (
    BLOCK,
    CSER_PERIOD,
    DRIFTING,
    EXCHANGES,
    LIEC_PERIOD,
    MOMENTUM,
    REPLICAS,
    trials,
)

from tests.support.killed_workers import outcome
from tests.support.patience import crowd
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.traffic.block_shards import BlockShards

ON_THREE_RANKS = ["two_way", "two_way_replicas"]
ON_FOUR_RANKS = ["two_way_on_nodes", "drifting_replicas_on_nodes", "two_way_of_two"]
Array = np.ndarray
Groups = list[list[dict[str, Any]]]
DEFINITIONS: dict[str, Callable[..., Traces]] = {
    "doublesqueeze": double_squeeze,
    "dist_ef_sgd": partial(double_squeeze, follows=True),
    "dist_ef_sgd, momentum": partial(double_squeeze, follows=True, momentum=MOMENTUM),
    "cser": partial(cser, period=CSER_PERIOD),
    "liec_sgd": partial(liec_sgd, period=LIEC_PERIOD),
}
#: A sign is another one where rounding decides, and then the entry is sent otherwise: parameters of size 1.
ATOL = 2e-5


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest, of_four: bool, tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """What each rank saw, alone, and in a group of two ranks and of three, or of four."""
    alone = [trials(Place(0, 1))]
    if of_four:
        return [alone, run_ranks(tmp_path_factory.mktemp("two_way"), 4, ["two_way"])["two_way"]]
    three_ranks, four_ranks = (request.getfixturevalue(name) for name in ("three_ranks", "four_ranks"))
    return [alone, four_ranks["two_way_of_two"][:2], three_ranks["two_way"]]


def _series(group: list[dict[str, Any]], kind: str, name: str) -> Array:
    """Return what each rank noted as `name` in each step, `(steps, ranks, ...)`."""
    return np.stack([[step[name] for step in rank["steps"][kind]] for rank in group], axis=1)


def _left(group: list[dict[str, Any]], kind: str, name: str) -> Array:
    """Return what was left in each rank's state as `name`, `(steps, ranks, ...)`."""
    return np.stack([[step["left"][name] for step in rank["steps"][kind]] for rank in group], axis=1)


def _of_servers(group: list[dict[str, Any]], kind: str) -> Array:
    """Return what all servers together kept after each step `(steps, D)`."""
    shards, left = BlockShards(D, len(group), BLOCK), _left(group, kind, "server.0")
    spans = [shards.span(owner) for owner in range(len(group))]
    return np.concatenate([left[:, i, : span.stop - span.start] for i, span in enumerate(spans)], axis=1)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_ranks_train_as_the_method_defines_with_one_server(groups: Groups, kind: str):
    for group in groups:
        problems = [Problem.of(rank) for rank in range(len(group))]
        expected = DEFINITIONS[kind](problems, RATES, block=_block(kind, len(group)))
        np.testing.assert_allclose(_series(group, kind, "x"), expected, atol=ATOL)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_ranks_that_share_nodes_train_as_nodes_and_only_leaders_send(four_ranks: Reports, kind: str):
    ranks = [rank[kind] for rank in four_ranks["two_way_on_nodes"]]

    expected = DEFINITIONS[kind]([_pooled(node) for node in UNEVEN], RATES, block=_block(kind, len(UNEVEN)))
    for number, node in enumerate(UNEVEN):
        for rank in node:
            np.testing.assert_allclose([step["x"] for step in ranks[rank]], expected[:, number], atol=ATOL)
            sends = {bool(step["sent"]) and sum(step["sent"].values()) > 0 for step in ranks[rank]}
            assert sends == {rank == node[0]}


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_go_to_one_server_and_back_as_defined(groups: Groups, bits: int):
    # Step by step: an error of the last digit may take a scale to the next float16, and all that follows with it.
    kind, most, rates = f"blockwise, {bits} bits", 2 ** (bits - 1) - 1, np.array(RATES)[:, None]
    for group in groups:
        block = _block(kind, len(group))
        gradients, x = (_series(group, kind, name).astype(np.float32) for name in ("gradient", "x"))
        errors, of_servers = _left(group, kind, "residual").astype(np.float32), _of_servers(group, kind)
        corrected = gradients + _before(errors)
        sent = integers(corrected, block, bits=bits)
        np.testing.assert_array_equal(errors, corrected - sent)

        total = _before(of_servers) + sent.mean(axis=1)
        got = total - of_servers
        assert bool(of_servers.any()) == (
            len(group) > 2
        )  # two ranks have no server; codes of one, encoded again, are the same
        np.testing.assert_allclose(x[:, 0], _before(x[:, 0]) - rates * got, atol=1e-6)
        if len(group) == 2:
            continue
        # Within half a scale, and whole numbers of scales: sent again, they would arrive as they are.
        blocks = range(block, D, block)
        for of_all, kept in zip(*(np.split(each, blocks, axis=-1) for each in (total, of_servers)), strict=True):
            scale = np.abs(of_all).max(axis=-1, keepdims=True) / most
            assert (np.abs(kept) <= 0.501 * scale).all()
        again = integers(got.astype(np.float32), block, bits=bits)
        np.testing.assert_allclose(again, got, atol=2e-3 * np.abs(got).max())


def test_what_a_server_had_kept_is_not_lost_where_two_ranks_go_on_without_one(groups: Groups):
    for group in groups:
        told = [rank["from a server"] for rank in group]
        shards = BlockShards(D, len(group), BLOCK)
        spans = [shards.span(owner) for owner in range(len(group))]
        kept, left = (
            np.concatenate([each[name][: span.stop - span.start] for each, span in zip(told, spans, strict=True)])
            for name in ("kept", "left")
        )
        gradient, residual = (np.mean([each[name] for each in told], axis=0) for name in ("gradient", "residual"))
        np.testing.assert_allclose(told[0]["got"] + residual + left, gradient + kept, atol=1e-5)
        assert len(group) != 2 or not left.any()


def _before(states: Array) -> Array:
    """Return what was there before each step, of what was left after it `(steps, ...)`; at first, zeros."""
    return np.concatenate([np.zeros_like(states[:1]), states[:-1]])


def _block(kind: str, num_nodes: int) -> int:
    """Return the entries of a block, which differ with the shards where there are some."""
    return BLOCK if kind == "cser" else BlockShards(D, num_nodes, BLOCK).block


def _pooled(node: tuple[int, ...]) -> Problem:
    """Return the problem of a node, whose gradients are scaled so that the nodes' mean is the mean over all ranks."""
    problems, share = [Problem.of(rank) for rank in node], len(UNEVEN) / 4
    curvature = share * torch.stack([each.curvature for each in problems]).sum(dim=0)
    pull = share * torch.stack([each.curvature * each.optimum for each in problems]).sum(dim=0)
    return Problem(curvature, pull / curvature)


def test_the_mean_of_liecs_workers_less_what_servers_keep_is_plain_sgd(groups: Groups):
    rates = np.array(RATES)[:, None]
    for group in groups:
        mean = _series(group, "liec_sgd", "x").mean(axis=1)
        virtual = mean - rates * _of_servers(group, "liec_sgd")
        plain = -np.cumsum(rates * _series(group, "liec_sgd", "gradient").mean(axis=1), axis=0)
        np.testing.assert_allclose(virtual, plain, atol=1e-5)


def test_what_cser_applied_apart_is_all_that_tells_its_workers_apart(groups: Groups):
    rates = np.array(RATES)[:, None, None]
    for group in groups[1:]:
        x, errors = _series(group, "cser", "x"), _left(group, "cser", "residual")
        common = x + rates * errors
        assert np.abs(x - x[:, :1]).max() > 0.1
        np.testing.assert_allclose(common, np.broadcast_to(common[:, :1], common.shape), atol=1e-5)


@pytest.mark.parametrize("kind", ["dist_ef_sgd", "dist_ef_sgd, momentum"])
def test_what_is_applied_and_what_is_kept_adds_up_to_all_gradients(groups: Groups, kind: str):
    rates = np.array(RATES)[:, None]
    for group in groups:
        gradients = _series(group, kind, "gradient").mean(axis=1)
        velocity = np.zeros_like(gradients)
        if kind != "dist_ef_sgd":
            velocity = MOMENTUM * _left(group, kind, "momentum").mean(axis=1)
        kept = _left(group, kind, "residual").mean(axis=1) + _of_servers(group, kind)
        applied = _series(group, kind, "x")[:, 0] - rates * kept
        np.testing.assert_allclose(applied, -np.cumsum(rates * (gradients + velocity), axis=0), atol=1e-5)


def test_liec_that_averages_in_every_step_is_dense_training_bit_for_bit(groups: Groups):
    for group in groups:
        assert all(rank["liec_sgd in every step"] == rank["dense"] for rank in group)


@pytest.mark.parametrize("kind", EXCHANGES)
def test_ranks_hold_equal_bits_but_where_the_method_leads_them_apart(groups: Groups, kind: str):
    for group in groups[1:]:
        bits, told = _series(group, kind, "bits"), _series(group, kind, "is_apart")
        are_apart = [len(set(step)) > 1 for step in bits]
        every = {"cser": len(RATES) + 1, "liec_sgd": LIEC_PERIOD}.get(kind, 1)  # CSER's never agree again
        assert are_apart == [step % every != 0 for step in range(1, len(RATES) + 1)]
        assert (told == np.array(are_apart)[:, None]).all()


def test_with_schedule_free_liec_brings_both_iterates_together(groups: Groups):
    for group in groups[1:]:
        steps = zip(*(rank["liec_sgd, schedule-free"] for rank in group), strict=True)
        are_equal = [len(set(bits)) == 1 for bits in steps]
        assert are_equal == [step % LIEC_PERIOD == 0 for step in range(1, len(RATES) + 1)]


def test_after_a_meeting_liecs_servers_keep_nothing(groups: Groups):
    for group in groups[1:]:
        kept = np.abs(_of_servers(group, "liec_sgd")).max(axis=1)
        assert [bool(each) for each in kept] == [step % LIEC_PERIOD != 0 for step in range(1, len(RATES) + 1)]


@pytest.mark.parametrize("kind", EXCHANGES)
def test_every_step_sends_what_was_foreseen_and_parameters_are_billed_as_such(groups: Groups, kind: str):
    for group in groups:
        for rank in group:
            for number, step in enumerate(rank["steps"][kind], start=1):
                assert sum(step["sent"].values()) == step["foreseen"]
                averages = kind == "liec_sgd" and number % LIEC_PERIOD == 0
                assert ("parameters" in step["sent"]) == averages


@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_restored_state_trains_on_bit_for_bit(groups: Groups, kind: str):
    for group in groups:
        assert all(rank["restored"][kind] for rank in group)


@pytest.mark.parametrize("kind", EXCHANGES)
def test_what_is_not_finite_on_one_rank_stops_all_and_changes_no_state(groups: Groups, kind: str):
    for group in groups:
        assert [rank["refused"][kind] for rank in group] == [[True] * 4] * len(group)


@pytest.mark.parametrize("kind", REPLICAS)
def test_a_replica_rewound_or_restored_within_a_period_trains_on_bit_for_bit(three_ranks: Reports, kind: str):
    for rank in three_ranks["two_way_replicas"]:
        replica = rank[kind]
        assert replica["losses"] == [replica["losses"][0]] * 3
        assert replica["sent"] == [replica["sent"][0]] * 3
        assert replica["bits"] == [replica["bits"][0]] * 2


@pytest.mark.parametrize("kind", DRIFTING)
def test_ranks_that_drifted_apart_are_evaluated_at_their_mean(three_ranks: Reports, kind: str):
    replicas = [rank[kind] for rank in three_ranks["two_way_replicas"]]

    assert len({replica["bits"][0] for replica in replicas}) == 3
    for replica in replicas:
        assert replica["evaluated"] == pytest.approx(replica["of the mean"], rel=1e-4)
        assert replica["evaluations"] == [replicas[0]["evaluations"][0]] * 3


@pytest.mark.parametrize("kind", DRIFTING)
def test_nodes_that_drifted_apart_count_alike_where_they_differ_in_size(four_ranks: Reports, kind: str):
    for rank in four_ranks["drifting_replicas_on_nodes"]:
        assert rank[kind]["evaluated"] == pytest.approx(rank[kind]["of the mean"], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_worker_that_is_killed_changes_nothing(kind: str):
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=SgdConfig(momentum=0.0),
        exchange=EXCHANGES[kind],
        collective_timeout_s=10 * crowd(),
    )
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)
