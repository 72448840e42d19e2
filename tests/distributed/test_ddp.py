"""Laws of the exchange under torch's DistributedDataParallel, on four ranks."""

import re
from typing import Any

import pytest
import torch
from ddp_scenario import IN_BFLOAT16, KINDS
from scenarios import Reports
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.own_loop.attach import attach
from trainers.own_loop.ddp import CompressionConfig, compress_gradients

ON_FOUR_RANKS = ["ddp"]


@pytest.mark.parametrize("kind", KINDS | IN_BFLOAT16)
def test_all_ranks_hold_equal_parameters(four_ranks: Reports, kind: str):
    assert len({rank[kind]["whole"] for rank in four_ranks["ddp"]}) == 1


@pytest.mark.parametrize("kind", KINDS | IN_BFLOAT16)
def test_a_loaded_state_trains_on_bit_for_bit(four_ranks: Reports, kind: str):
    for rank in four_ranks["ddp"]:
        assert rank[kind]["halves"] == rank[kind]["whole"]


def test_where_everything_is_sent_it_trains_like_plain_ddp(four_ranks: Reports):
    first = four_ranks["ddp"][0]

    assert first["everything"]["whole"] == first["none"]["whole"]
    assert first["everything, bfloat16"]["whole"] == first["none, bfloat16"]["whole"]
    assert first["none"]["weights"] == pytest.approx(first["plain"], rel=1e-4, abs=1e-6)


def test_an_overflow_on_one_rank_is_a_skipped_step_that_spares_all_memories(four_ranks: Reports):
    expected = {"skipped": True, "memory kept": True, "goes on": True}

    assert [rank["overflow"] for rank in four_ranks["ddp"]] == [expected] * 4


def test_memories_do_not_follow_the_loss_scale(four_ranks: Reports):
    assert all(rank["scaled"]["like unscaled"] for rank in four_ranks["ddp"])


@pytest.mark.parametrize("kind", ["none", "topk"])
def test_bfloat16_trains_like_float32_up_to_its_rounding(four_ranks: Reports, kind: str):
    first = four_ranks["ddp"][0]

    assert first[f"{kind}, bfloat16"]["weights"] == pytest.approx(first[kind]["weights"], rel=0.05, abs=0.01)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("unused", "`find_unused_parameters` must be False: `topk` sends later what it keeps"),
        ("unused, two ways", "`find_unused_parameters` must be False: `doublesqueeze`"),
        ("unused, without a memory", "nothing"),
        ("unused, without a residual", "nothing"),
        ("unused, dense", "nothing"),
        ("a range", "`density` must be one number"),
        ("float16", "must be float32 or bfloat16, .*got cpu, torch.float16"),
        ("accordion", "`accordion` needs `follow_decay: false` and `epoch_steps`"),
        ("lr_corrected", "`lr_corrected` must be false"),
        ("liec_sgd", "follows the learning rate, .*give `doublesqueeze`"),
        ("local steps", "by themselves under this `zero_one_adam`, .*give it to `attach`"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(four_ranks: Reports, case: str, message: str):
    for rank in four_ranks["ddp"]:
        assert re.search(message, rank["refused"][case])


def _moves(exchange: dict[str, Any], *, in_another_order: bool) -> list[Tensor]:
    """Return how far six steps move the parameters of a net whose weights lie in memory as their shape, or not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16 * 36, 8))
    if in_another_order:
        net.to(memory_format=torch.channels_last)
        net[3].weight.data = net[3].weight.data.t().contiguous().t()
        assert not any(layer.weight.is_contiguous() for layer in (net[0], net[3]))
    before = [each.detach().clone() for each in net.parameters()]
    ddp, inputs = DistributedDataParallel(net), torch.randn(6, 4, 3, 8, 8)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    attach(ddp, optimizer, exchange=exchange)
    for rows in inputs:
        optimizer.zero_grad()
        ddp(rows).square().mean().backward()
        optimizer.step()
    return [now.detach() - then for now, then in zip(net.parameters(), before, strict=True)]


@pytest.mark.parametrize(
    "exchange",
    [
        {"kind": "powersgd", "rank": 1},
        {"kind": "dion", "rank_fraction": 0.25},
        {"kind": "zero_one_adam", "freeze_steps": 2, "interval_steps": 2, "max_interval": 2},
    ],
    ids=lambda exchange: exchange["kind"],
)
@pytest.mark.usefixtures("alone_in_a_group")
def test_the_order_of_a_parameter_in_memory_changes_no_step(exchange: dict[str, Any]):
    usual = _moves(exchange, in_another_order=False)
    other = _moves(exchange, in_another_order=True)

    for one, two in zip(usual, other, strict=True):
        assert torch.cosine_similarity(one.flatten(), two.flatten(), dim=0) > 0.99


@pytest.mark.usefixtures("alone_in_a_group")
def test_an_exchange_is_given_as_its_fields_too_or_refused_by_name():
    ddp = DistributedDataParallel(nn.Linear(4, 4))

    with pytest.raises(ValueError, match=r"`exchange.density`: .*got 2"):
        compress_gradients(ddp, {"kind": "topk", "density": 2})
    with pytest.raises(ValueError, match=r"`config` must be a CompressionConfig, or its fields .* got 'topk'"):
        compress_gradients(ddp, "topk")  # type: ignore[arg-type]
    handle = compress_gradients(ddp, {"kind": "topk", "density": 0.1})

    ddp(torch.ones(2, 4)).sum().backward()
    assert handle.last is not None


@pytest.mark.usefixtures("alone_in_a_group")
def test_a_trained_parameter_without_entries_is_refused_by_name():
    net = nn.Linear(4, 4)
    net.register_parameter("nobody", nn.Parameter(torch.empty(0, 3)))

    with pytest.raises(ValueError, match=r"parameter `module.nobody` must have entries .*got shape \(0, 3\)"):
        compress_gradients(DistributedDataParallel(net), CompressionConfig(kind="topk", density=0.1))


@pytest.mark.usefixtures("alone_in_a_group")
def test_sparse_gradients_are_refused_by_name_where_they_would_be_exchanged():
    ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    message = "embedding `module.0` must have dense gradients"

    with pytest.raises(ValueError, match=message):
        compress_gradients(ddp, CompressionConfig(kind="topk", density=0.1))
    with pytest.raises(ValueError, match=message):
        attach(ddp, optimizer, exchange={"kind": "topk", "density": 0.1})

    assert not ddp._forward_pre_hooks and not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("how", [{}, {"sync": {"kind": "diloco", "period": 2}}], ids=["dense", "diloco"])
@pytest.mark.usefixtures("alone_in_a_group")
def test_sparse_gradients_that_are_not_exchanged_train_as_dense_ones(how: dict[str, Any]):
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(8, 4, sparse=sparse), nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        attach(ddp, optimizer, **how)
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.arange(step, step + 4)).square().mean().backward()
            optimizer.step()
        found.append(ddp.module[0].weight)

    assert torch.equal(*found)
