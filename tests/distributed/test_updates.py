"""Laws of exchanges that return the step direction, on three ranks whose gradients differ."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from exchange_harness import SHAPES, D
from scenarios import Reports
from torch import Tensor
from torch.nn import Parameter
from update_scenarios import FREEZE_STEPS, IDLE, KINDS, NUM_STEPS, TRAINED, given

from trainers.exchange.factors import starting_factor
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dion.spec import DionConfig, rank_at
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig
from trainers.traffic import collectives
from trainers.traffic.sizes import as_matrix

ON_THREE_RANKS = ["updates"]
NUM_RANKS = 3
Ranks = list[dict[str, Any]]
GRADIENTS = torch.stack([torch.stack([given(rank, step) for rank in range(3)]) for step in range(NUM_STEPS)]).double()


@pytest.fixture(scope="module")
def ranks(three_ranks: Reports) -> Ranks:
    return three_ranks["updates"]


def directions(ranks: Ranks, kind: str) -> Tensor:
    """Return what the first rank stepped by `(steps, D)`."""
    return torch.tensor([step["direction"] for step in ranks[0][kind]["steps"]], dtype=torch.float64)


def states(ranks: Ranks, kind: str, name: str) -> Tensor:
    """Return what each step left in each rank's state as `name` `(steps, ranks, ...)`."""
    of_each = [[step["state"][name] for step in rank[kind]["steps"]] for rank in ranks]
    return torch.tensor(of_each, dtype=torch.float64).transpose(0, 1)


def before(states: Tensor) -> Tensor:
    """Return what was there before each step, of what was left after it; at first, zeros."""
    return torch.cat([torch.zeros_like(states[:1]), states[:-1]])


def adam(gradients: Tensor, betas: tuple[float, float]) -> Tensor:
    """Return the directions `(steps, d)` of `torch.optim.Adam` for mean gradients `(steps, d)`."""
    parameter, found = Parameter(torch.zeros_like(gradients[0])), []
    optimizer = torch.optim.Adam([parameter], lr=1.0, betas=betas)
    for gradient in gradients:
        with torch.no_grad():
            parameter.zero_()  # so that it becomes the direction itself, to the bit
        parameter.grad = gradient
        optimizer.step()
        found.append(-parameter.detach())
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_step_by_equal_bits(ranks: Ranks, kind: str):
    assert all(
        rank[kind]["steps"][step]["direction"] == ranks[0][kind]["steps"][step]["direction"]
        for rank in ranks
        for step in range(NUM_STEPS)
    )


@pytest.mark.parametrize("kind", TRAINED)
def test_replicas_learn_and_go_on_from_a_snapshot_bit_for_bit(ranks: Ranks, kind: str):
    seen = [rank["replicas"][kind] for rank in ranks]

    assert all(each["ends"] == [seen[0]["ends"][0]] * 2 for each in seen)
    assert seen[0]["last"] < 0.9 * seen[0]["first"]


@pytest.mark.parametrize("kind", ["demo", "demo, dense", "dion"])
def test_every_step_sends_what_is_predicted(ranks: Ranks, kind: str):
    for rank in ranks:
        assert [step["bytes"] for step in rank[kind]["steps"]] == [rank[kind]["predicted"]] * NUM_STEPS


def test_what_leaves_the_momenta_is_what_all_step_by(ranks: Ranks):
    config, left = KINDS["demo"], states(ranks, "demo", "residual")
    assert isinstance(config, DemoConfig)

    sent = (config.decay * before(left) + GRADIENTS - left).sum(dim=1)

    is_clear = sent.abs() > 1e-5 * sent.abs().max()
    assert torch.equal(directions(ranks, "demo")[is_clear], sent.sign()[is_clear])
    assert is_clear.double().mean() > 0.9
    assert (left.norm(dim=-1) < (config.decay * before(left) + GRADIENTS).norm(dim=-1)).all()


def test_with_all_coefficients_and_no_momentum_demo_steps_by_signs_of_the_mean_gradient(ranks: Ranks):
    mean = GRADIENTS.mean(dim=1)
    is_clear = mean.abs() > 2e-3 * mean.abs().max()  # coefficients are rounded to float16

    assert torch.equal(directions(ranks, "demo, dense")[is_clear], mean.sign()[is_clear])
    assert is_clear.double().mean() > 0.9


def test_dion_follows_the_definition_with_one_momentum_of_all_workers(ranks: Ranks):
    config, momenta, start = KINDS["dion"], states(ranks, "dion", "momentum").mean(dim=1), 0
    assert isinstance(config, DionConfig)
    found = directions(ranks, "dion")
    for shape in SHAPES:
        span = slice(start, start := start + math.prod(shape))
        if not config.highest_rank(shape):
            continue
        momentum, (rows, columns) = torch.zeros(as_matrix(shape), dtype=torch.float64), as_matrix(shape)
        rank = rank_at(shape, config.rank_fraction)
        q = starting_factor(min(shape[0], columns), rank, seed=span.start).double().t()
        for step in range(NUM_STEPS):
            momentum += GRADIENTS[step].mean(dim=0)[span].view(rows, columns)
            tall = momentum if rows >= columns else momentum.t()
            p = torch.linalg.qr(tall @ q).Q
            r = tall.t() @ p
            q = r / r.norm(dim=0)
            tall -= (1 - config.momentum) * p @ r.t()
            step_by = 0.2 * math.sqrt(max(rows, columns)) * p @ q.t()
            expected = step_by if rows >= columns else step_by.t()
            scale = momentum.abs().max()
            torch.testing.assert_close(momenta[step][span].view(rows, columns), momentum, atol=1e-5 * scale, rtol=0)
            torch.testing.assert_close(found[step][span].view(rows, columns), expected, atol=1e-4, rtol=0)


def test_dions_other_layers_step_as_adam_does(ranks: Ranks):
    config, vector = KINDS["dion"], slice(20 * 20 + 40 * 30, 20 * 20 + 40 * 30 + 30)
    assert isinstance(config, DionConfig)
    assert not config.highest_rank((30,))

    expected = adam(GRADIENTS.mean(dim=1)[:, vector], config.betas)

    torch.testing.assert_close(directions(ranks, "dion")[:, vector], expected, atol=1e-5, rtol=0)


def test_onebit_adam_is_dense_adam_until_it_freezes(ranks: Ranks):
    config = KINDS["onebit_adam"]
    assert isinstance(config, OneBitAdamConfig)

    expected = adam(GRADIENTS.mean(dim=1)[:FREEZE_STEPS], config.betas)

    torch.testing.assert_close(directions(ranks, "onebit_adam")[:FREEZE_STEPS], expected, atol=1e-5, rtol=0)


def test_a_frozen_variance_never_changes(ranks: Ranks):
    frozen = states(ranks, "onebit_adam", "second")[FREEZE_STEPS - 1 :]

    assert torch.equal(frozen, frozen[:1, :1].expand_as(frozen))
    assert frozen.any()


def test_signs_of_momenta_lose_nothing_on_either_side(ranks: Ranks):
    config = KINDS["onebit_adam"]
    assert isinstance(config, OneBitAdamConfig)
    decay, decay_of_squares = config.betas
    momenta, variance = (states(ranks, "onebit_adam", name)[:, 0] for name in ("first", "second"))
    root = (variance[-1] / (1 - decay_of_squares**FREEZE_STEPS)).sqrt() + 1e-8
    busy = variance[-1] > 0

    # In units of the root, from the step in which it froze, where Adam's own bound holds for a gradient.
    most = 1 / math.sqrt(1 - decay_of_squares)
    mean = (GRADIENTS[FREEZE_STEPS:] / root).clamp(-most, most).mean(dim=1)
    ours = decay * momenta[FREEZE_STEPS - 1 : -1] + (1 - decay) * mean
    kept = torch.tensor([rank["onebit_adam"]["steps"][-1]["kept"] for rank in ranks], dtype=torch.float64).mean(dim=0)

    sent = momenta[FREEZE_STEPS:].sum(dim=0)
    torch.testing.assert_close((sent + kept)[busy], ours.sum(dim=0)[busy], atol=1e-4, rtol=0)
    assert kept.abs().max() > 0.1


def test_what_never_had_a_gradient_stays_where_it_is(ranks: Ranks):
    found = directions(ranks, "onebit_adam")

    assert not found[:, IDLE].any()
    assert found.count_nonzero() == NUM_STEPS * (D - (IDLE.stop - IDLE.start))


def test_onebit_adam_sends_gradients_densely_and_then_signs_as_predicted(ranks: Ranks):
    dense = sum(collectives.all_reduce(4 * math.prod(shape), NUM_RANKS).bytes for shape in SHAPES)
    for rank in ranks:
        sent = [step["bytes"] for step in rank["onebit_adam"]["steps"]]
        np.testing.assert_allclose(sent[:FREEZE_STEPS], dense, atol=16)
        assert sent[FREEZE_STEPS:] == [rank["onebit_adam"]["predicted"]] * (NUM_STEPS - FREEZE_STEPS)
