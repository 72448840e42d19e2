"""Laws of local updates, on one to three ranks whose data differ and on nodes of four, and on four in long runs."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from exchange_harness import Bench, D as GRADIENT, Place
from exchange_kinds import UNEVEN
from hypothesis import given, strategies as st
from local_definitions import (
    AdamW,
    Definition,
    cocod_sgd,
    diloco,
    local_sgd,
    overlap_local_sgd,
    slow_momentum,
    stl_sgd,
    stl_sgd_nc,
    streaming_diloco,
    vrl_sgd,
)
from scenarios import Reports, run_ranks
from sync_harness import Problem, SyncBench, solution
from sync_scenarios import ANCHORED, APART, COMPRESSED, INNER, LINEAR, LOCAL, RATES, SYNCHRONOUS

from tests.support.killed_workers import outcome
from tests.support.patience import crowd
from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.overlap_local_sgd.spec import OverlapLocalSgdConfig
from trainers.methods.sync.policy import Update
from trainers.methods.sync.spec import SyncConfig
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import collectives

DEFINITIONS: dict[str, Definition] = {
    "local_sgd": partial(local_sgd, period=4),
    "slow momentum": partial(slow_momentum, period=3, beta=0.6),
    "diloco": partial(diloco, period=4, eta=0.7, mu=0.6, nesterov=True),
    "diloco, heavy ball": partial(diloco, period=3, eta=0.7, mu=0.6, nesterov=False),
    "stl_sgd": partial(stl_sgd, period=2, length=3),
    "stl_sgd, linear": partial(stl_sgd_nc, period=2, length=3, gamma=2.0, factor=lambda stage: stage),
    "stl_sgd, double": partial(stl_sgd_nc, period=2, length=3, gamma=2.0, factor=lambda stage: 2 ** (stage - 1)),
    "vrl_sgd": partial(vrl_sgd, period=4),
    "cocod_sgd": partial(cocod_sgd, period=3),
    "overlap_local_sgd": partial(overlap_local_sgd, period=3, pull=0.6, beta=0.7),
    "streaming_diloco": partial(
        streaming_diloco, interval=3, flight=2, keep=lambda beyond, since: since, eta=0.7, mu=0.6
    ),
    "streaming_diloco, mixed": partial(
        streaming_diloco, interval=3, flight=1, keep=lambda beyond, since: 0.3 * beyond, eta=1.0, mu=0.6, nesterov=False
    ),
    "streaming_diloco, replaced": partial(
        streaming_diloco, interval=2, flight=1, keep=lambda beyond, since: 0.0 * since, eta=1.0, mu=0.0
    ),
}
ON_THREE_RANKS = ["sync", "apart", "taught"]
ON_FOUR_RANKS = ["sync_on_nodes", "paced_average", "sync_of_two"]
STREAMING = tuple(name for name in LOCAL if name.startswith("streaming_diloco"))
BEHIND = ("cocod_sgd", "overlap_local_sgd", *STREAMING)
BLOCKWISE = ("blockwise", "blockwise, 8 bits")
SPARSE_LOCO = ("sparse_loco", "sparse_loco, no decay")
Groups = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest, of_four: bool, tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """What each rank saw, in a group of two ranks and of three, or of four."""
    if of_four:
        return [run_ranks(tmp_path_factory.mktemp("sync"), 4, ["sync"])["sync"]]
    three_ranks, four_ranks = (request.getfixturevalue(name) for name in ("three_ranks", "four_ranks"))
    return [four_ranks["sync_of_two"][:2], three_ranks["sync"]]


def _traces(group: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return where each rank was after each step, `(steps, ranks, D)`."""
    return np.stack([rank["traces"][name] for rank in group], axis=1)


@pytest.mark.parametrize("name", LOCAL)
def test_ranks_train_as_the_method_defines_worker_by_worker(groups: Groups, name: str):
    for group in groups:
        problems = [Problem.of(rank) for rank in range(len(group))]
        np.testing.assert_allclose(_traces(group, name), DEFINITIONS[name](problems, RATES), atol=2e-5)


@pytest.mark.parametrize("name", LOCAL)
def test_ranks_that_share_nodes_train_as_the_method_defines_and_only_leaders_send(four_ranks: Reports, name: str):
    ranks = [rank[name] for rank in four_ranks["sync_on_nodes"]]

    traces = np.stack([rank["trace"] for rank in ranks], axis=1)
    np.testing.assert_allclose(traces, DEFINITIONS[name]([Problem.of(rank) for rank in range(4)], RATES), atol=2e-5)
    assert [rank["sent"] > 0 for rank in ranks] == [rank in (nodes[0] for nodes in UNEVEN) for rank in range(4)]


@pytest.mark.parametrize("name", LOCAL)
def test_one_rank_trains_as_the_method_defines(name: str):
    trace = SyncBench(LOCAL[name], Place(0, 1)).run(RATES)

    np.testing.assert_allclose(trace, DEFINITIONS[name]([Problem.of(0)], RATES)[:, 0], atol=2e-5)


#: VRL-SGD refuses Schedule-Free.
PAIRS = [pair for pair in product(SYNCHRONOUS, LINEAR) if pair != ("vrl_sgd", "schedule-free")]


@pytest.mark.parametrize(("policy", "optimizer"), PAIRS)
def test_an_average_in_every_step_is_synchronous_training(groups: Groups, policy: str, optimizer: str):
    for group in groups:
        for rank in group:
            traces = rank["every step"][optimizer]
            np.testing.assert_allclose(traces[policy], traces["every_step"], atol=2e-5)


@pytest.mark.parametrize("name", [name for name in LOCAL if name not in BEHIND])
def test_ranks_that_have_met_hold_equal_bits(groups: Groups, name: str):
    period = getattr(LOCAL[name], "first_stage", getattr(LOCAL[name], "period", 0))
    for group in groups:
        met = _traces(group, name)[period - 1]
        assert (met == met[0]).all()


@pytest.mark.parametrize("name", LOCAL)
def test_a_restored_state_trains_on_bit_for_bit(groups: Groups, name: str):
    for group in groups:
        assert all(rank["restored"][name] for rank in group)


@pytest.mark.parametrize("name", [name for name in LOCAL if name not in STREAMING])
def test_an_average_sends_what_was_foreseen(groups: Groups, name: str):
    for group in groups:
        for rank in group:
            traffic = rank["traffic"][name]
            due = [step for step, sent in enumerate(traffic["sent"]) if sent]
            assert [traffic["sent"][step] for step in due] == [traffic["foreseen"]] * len(due)
            assert due == [1, 3, 5] or name.startswith("stl_sgd")  # whose stages end in between


@pytest.mark.parametrize("name", LOCAL)
def test_what_is_not_finite_on_one_rank_stops_all_at_the_same_meeting(groups: Groups, name: str):
    for group in groups:
        first = group[0]["stopped"][name]
        assert first[-1] and not any(first[:-1])
        assert all(rank["stopped"][name] == first for rank in group)


@pytest.mark.parametrize("kind", ["topk", "powersgd", "signsgd", *BLOCKWISE, *SPARSE_LOCO])
def test_of_compressed_averages_what_is_not_sent_is_kept(groups: Groups, kind: str):
    for group in groups:
        ranks = [rank["compressed"][kind] for rank in group]
        moved, kept = (np.mean([rank[name] for rank in ranks], axis=0) for name in ("moved", "kept"))
        for rank in ranks:
            np.testing.assert_allclose(moved - kept, -np.array(rank["x"]), atol=1e-5)


def test_compression_that_sends_everything_is_local_sgd(groups: Groups):
    for group in groups:
        expected = local_sgd([Problem.of(rank) for rank in range(len(group))], [0.1] * 12, period=3)[-1]
        np.testing.assert_allclose([rank["compressed"]["topk, all"]["x"] for rank in group], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["diloco", "diloco, heavy ball"])
def test_diloco_leaves_each_rank_the_moments_of_its_adamw_and_moves_the_anchor_as_defined(groups: Groups, name: str):
    for group in groups:
        problems = [Problem.of(rank) for rank in range(len(group))]
        inner = AdamW(betas=(0.8, 0.95), weight_decay=0.1)
        traces = np.stack([rank["adamw inside"][name] for rank in group], axis=1)
        np.testing.assert_allclose(traces, DEFINITIONS[name](problems, RATES, inner=inner), atol=2e-5)


@pytest.mark.parametrize("optimizer", INNER)
@pytest.mark.parametrize("exchange", COMPRESSED)
def test_diloco_of_rate_one_without_momentum_is_local_sgd_bit_for_bit(groups: Groups, exchange: str, optimizer: str):
    for group in groups:
        assert all(rank["plain diloco"][exchange][optimizer] for rank in group)


def test_diloco_that_meets_in_every_step_is_sgd_with_its_outer_momentum():
    policy = DiLoCoConfig(period=1, outer_learning_rate=0.5, outer_momentum=0.8)
    outer = SyncBench(policy, Place(0, 1)).run([0.1] * 12)
    inner = SyncBench(EveryStepConfig(), Place(0, 1), optimizer=SgdConfig(momentum=0.8, nesterov=True))

    np.testing.assert_allclose(outer, inner.run([0.05] * 12), atol=2e-5)


def test_diloco_with_a_heavy_ball_is_slow_momentum_while_the_rate_stays():
    rates = [0.1] * 12
    ball = SyncBench(DiLoCoConfig(period=3, outer_momentum=0.6, nesterov=False), Place(0, 1))
    slow = SyncBench(LocalSgdConfig(period=3, slow_momentum=0.6), Place(0, 1))

    np.testing.assert_allclose(ball.run(rates), slow.run(rates), atol=2e-5)


class Slope(Problem):
    """The same gradient everywhere."""

    def gradient(self, x: torch.Tensor) -> torch.Tensor:
        return self.optimum


#: Methods with a velocity in units of gradients.
WITH_VELOCITY: dict[str, SyncConfig] = {
    "local_sgd": LocalSgdConfig(period=4, slow_momentum=0.6),
    "overlap_local_sgd": OverlapLocalSgdConfig(period=4),
}


@pytest.mark.parametrize(("name", "rounds"), [("local_sgd", 3), ("overlap_local_sgd", 1)])  # that begin at the anchor
def test_a_constant_gradient_makes_the_same_velocity_while_rates_fall(name: str, rounds: int):
    def velocities(rates: list[float]) -> list[list[float]]:
        bench, seen = SyncBench(WITH_VELOCITY[name], Place(0, 1)), []
        bench.problem = Slope(bench.problem.curvature, bench.problem.optimum)
        for number in range(rounds):
            bench.run(rates[4 * number : 4 * number + 4])
            seen.append(bench.state()[0]["velocity"].tolist())
        return seen

    falling = [0.1 * (1 - step / (4 * rounds)) for step in range(4 * rounds)]

    np.testing.assert_allclose(velocities(falling), velocities([0.1] * 4 * rounds), rtol=1e-4, atol=1e-3)


@given(st.floats(0, 1e30), st.integers(1, 99))
def test_the_mean_rate_of_a_round_whose_rate_is_constant_is_that_rate_to_the_bit(rate: float, num_steps: int):
    bench = SyncBench(LocalSgdConfig(period=100), Place(0, 1))
    for number in range(num_steps):
        bench.policy.advance(Exchanged(loss=1.0), Update(number + 1, rate, None, None))

    assert bench.state()[1]["rate"] == rate


@pytest.mark.parametrize("name", WITH_VELOCITY)
def test_a_state_that_was_saved_in_a_round_before_rates_were_goes_on(name: str):
    first, other = (SyncBench(WITH_VELOCITY[name], Place(0, 1)) for _ in range(2))
    first.run([0.1] * 6)
    state = first.state()
    del state[1]["rate"]
    other.load(state)

    assert other.run([0.1] * 6) == first.run([0.1] * 6)


def test_the_outer_rate_of_sparse_loco_is_applied_once_and_to_what_arrives_alone(groups: Groups):
    for group in groups:
        for rank in group:
            plain, slower = (rank["outer rates"][rate] for rate in ("1.0", "0.7"))
            assert np.abs(plain["x"]).max() > 0.1
            np.testing.assert_allclose(slower["x"], 0.7 * np.array(plain["x"]), rtol=1e-6)
            assert slower["kept"] == plain["kept"]


def test_sparse_loco_divides_by_all_workers_at_an_entry_that_one_of_them_sends(groups: Groups):
    for group in groups:
        num_workers = len(group)
        expected = [(1.0 + rank) / num_workers for rank in range(num_workers)]
        for rank in group:
            received = np.reshape(rank["alone"]["received"], (-1, num_workers))
            np.testing.assert_allclose(received, [expected] * len(received), rtol=1e-6)
            np.testing.assert_allclose(rank["alone"]["sum"], [sum(expected) * len(received)], rtol=1e-6)


def test_sparse_loco_keeps_bounded_memories_where_error_feedback_piles_up():
    everything = torch.ones(GRADIENT)
    kept = {}
    for decay in (0.5, 0.9, 1.0):
        bench = Bench(SparseLoCoConfig(density=0.001, decay=decay), Place(0, 1))
        norms = []
        for _ in range(100):
            bench.step(everything, None)
            norms.append(float(bench.kept().norm() / everything.norm()))
        kept[decay] = max(norms)

    # A message never leaves more than there was: |e'| <= decay |e| + |D|.
    assert kept[0.5] <= 1 / (1 - 0.5) and kept[0.9] <= 1 / (1 - 0.9)
    assert kept[1.0] > 2 / (1 - 0.9)


@pytest.mark.parametrize("name", ANCHORED)
def test_an_average_that_is_not_finite_on_one_rank_leaves_anchor_velocity_and_residual_of_all(groups, name: str):
    for group in groups:
        first = group[0]["not met"][name]
        for rank in group:
            seen = rank["not met"][name]
            assert seen["told"] == [False, False, True]
            assert seen["after"] == seen["before"]
            assert seen["before"]["anchor"] == first["before"]["anchor"]
            assert seen["before"]["velocity"] == first["before"]["velocity"]
            assert any(seen["before"]["residual"])


@pytest.mark.parametrize(("kind", "unit"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_averages_in_16_bits_are_equal_on_all_ranks_and_wrong_by_no_more_than_their_rounding(groups, kind, unit):
    for group in groups:
        moved, x = (np.array([rank["rounded"][kind][name] for rank in group]) for name in ("moved", "x"))

        # Each rank rounds once what it sends, and each sum of two ranks' is rounded once.
        allowed = len(group) * unit * np.abs(moved).mean(axis=0) + 1e-7
        wrong = np.abs(x[0] - moved.mean(axis=0))
        assert (x == x[0]).all()
        assert (wrong <= allowed).all() and wrong.max() > 0.1 * allowed.max()


def test_the_density_of_a_compressed_average_is_reported(groups: Groups):
    for group in groups:
        assert all(0 < density < 0.5 for rank in group for density in rank["compressed"]["topk"]["densities"])


@pytest.mark.parametrize("scenario", ["vrl", "vrl, momentum"])
def test_corrections_of_vrl_add_up_to_zero_at_all_times(groups: Groups, scenario: str):
    for group in groups:
        corrections = np.array([rank[scenario]["corrections"] for rank in group])
        assert np.abs(corrections).max() > 0.1
        np.testing.assert_allclose(corrections.sum(axis=0), 0.0, atol=1e-5)


@pytest.mark.parametrize("scenario", ["vrl", "vrl, momentum"])
def test_vrl_rests_at_its_fixed_point_where_local_sgd_drifts(groups: Groups, scenario: str):
    for group in groups:
        for rank in group:
            vrl, local = (rank[scenario]["ends"][name] for name in ("vrl_sgd", "local_sgd"))
            assert vrl["within"] < 1e-3 * local["within"]


def test_vrl_goes_where_gradients_add_up_to_zero_and_local_sgd_elsewhere(groups: Groups):
    for group in groups:
        target = solution([Problem.of(rank) for rank in range(len(group))]).numpy()
        ends = {name: np.array(group[0]["vrl"]["ends"][name]["begun"]) for name in ("vrl_sgd", "local_sgd")}
        assert np.abs(ends["vrl_sgd"] - target).max() < 1e-4 < 0.1 * np.abs(ends["local_sgd"] - target).max()


def test_an_average_behind_training_takes_the_links_time(four_ranks: Reports):
    for rank in four_ranks["paced_average"]:
        assert rank["seconds"] >= rank["least"] > 0.03


@pytest.fixture(params=APART)
def replicas(request: pytest.FixtureRequest, three_ranks: Reports) -> list[dict[str, Any]]:
    return [rank[request.param] for rank in three_ranks["apart"]]


def test_a_replica_rewound_or_restored_in_the_middle_of_a_round_trains_on_bit_for_bit(replicas: list[dict[str, Any]]):
    for rank in replicas:
        assert rank["losses"] == [rank["losses"][0]] * 3
        [whole], [rewound], [resumed] = rank["sent"]
        assert resumed == whole
        # an average under way that is undone was sent, too
        assert rewound == whole or (rank["overlaps"] and all(rewound[kind] > sent for kind, sent in whole.items()))
        assert rank["bits"] == [rank["bits"][0]] * 2


def test_averages_are_billed_as_parameters(replicas: list[dict[str, Any]]):
    for rank in replicas:
        [billed] = rank["sent"][0]
        assert billed["parameters"] > 0 and billed.keys() <= {"parameters", "control", "padding"}


@pytest.mark.parametrize("met", [False, True], ids=["within a round", "after an average"])
def test_a_frozen_teacher_stays_each_ranks_own_and_is_exported_as_the_mean(three_ranks: Reports, met: bool):
    seen = [rank[met] for rank in three_ranks["taught"]]

    assert all(rank["afterwards"] == rank["own"] for rank in seen)
    assert seen[0]["own"] != seen[1]["own"]
    exported = seen[0]["exported"]["teacher.weight"]
    np.testing.assert_allclose(exported, np.mean([rank["own"] for rank in seen], axis=0), atol=1e-6)


def test_an_evaluation_sends_what_differs_alone_and_a_constant_keeps_its_bits(three_ranks: Reports):
    teacher, statistics, trained = 7, 12, 19
    for rank in three_ranks["taught"]:
        for seen, parts in zip(rank, ([trained, teacher, statistics], [teacher, statistics]), strict=True):
            expected = sum(collectives.all_reduce(4 * numel, 3).bytes for numel in parts)
            assert seen["sent"]["state"] == expected
    assert {*three_ranks["taught"][0][0]["exported"]["constant"]} == {torch.tensor(0.1).item()}


@pytest.mark.long
@pytest.mark.parametrize("name", LOCAL)
def test_a_worker_that_is_killed_in_a_round_changes_nothing(name: str):
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=SgdConfig(),
        exchange=NoneConfig(),
        sync=LOCAL[name],
        collective_timeout_s=10 * crowd(),
    )
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)


def test_ranks_that_are_apart_are_evaluated_at_their_mean(replicas: list[dict[str, Any]]):
    assert len({rank["bits"][0] for rank in replicas}) == 3
    for rank in replicas:
        assert rank["evaluated"] == pytest.approx(rank["of the mean"], rel=1e-4)
        assert rank["evaluations"] == [replicas[0]["evaluations"][0]] * 3
