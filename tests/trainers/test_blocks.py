"""JointSpar: blocks that are not drawn are not computed, and on average all are trained as in full training."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainers.exchange.buffer import GradientBuffer
from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.blocks.blocks import build
from trainers.methods.blocks.jointspar import chances
from trainers.methods.blocks.jointspar.jointspar import JointSpar
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.blocks.spec import BlocksConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import LarsConfig, OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import StdlibLm
from trainers.traffic import collectives, cost
from trainers.traffic.division import divide
from trainers.traffic.shapes import parameter_shapes
from trainers.training.checkpoint import commit_manifest
from trainers.training.replica import Replica
from trainers.workload import Workload

Make = Callable[..., ReplicaConfig]
OPTIMIZERS: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(learning_rate=0.05, weight_decay=0.01),
    "lars": LarsConfig(learning_rate=5.0, weight_decay=0.01),
}
#: Inputs and outputs of the layers of `digits-mlp`, each of which is a block.
LAYERS = ((64, 512), (512, 512), (512, 10))
BATCH = 16
LEAST = 0.05


def replica(make_config: Make, **changes: Any) -> Replica:
    return Replica(make_config(**changes), 0, 1, device="cpu")


def drawing(made: Replica) -> JointSpar:
    assert isinstance(made.parts.blocks, JointSpar)
    return made.parts.blocks


# -- blocks ----------------------------------------------------------------------------------------------


def test_a_block_is_a_weight_with_the_biases_and_scales_behind_it():
    shapes = [(16, 1, 3, 3), (16,), (16,), (10, 16), (10,)]

    assert divide(shapes) == (range(3), range(3, 5))
    assert divide([(4,), *shapes]) == (range(4), range(4, 6))
    assert divide([(4,), (5,)]) == (range(2),)


def test_every_parameter_is_in_one_block():
    shapes = parameter_shapes(StdlibLm()) or ()

    assert [index for block in divide(shapes) for index in block] == list(range(len(shapes)))


# -- chances ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_projection_keeps_sum_and_bounds_and_is_the_nearest(seed: int):
    rng = np.random.default_rng(seed)
    weights, total = rng.normal(0, 3, size=12), rng.uniform(12 * LEAST, 12)

    found = chances.projected(weights, total, least=LEAST)

    assert found.sum() == pytest.approx(total, rel=1e-12)
    assert found.min() >= LEAST * (1 - 1e-12) and found.max() <= 1.0
    # The nearest in Kullback-Leibler divergence is in proportion to the weights but where a bound holds.
    shifts = np.log(found) - weights
    inside = (found > LEAST * (1 + 1e-9)) & (found < 1 - 1e-9)
    assert np.ptp(shifts[inside]) < 1e-9 if inside.any() else True
    assert all(shifts[found <= LEAST * (1 + 1e-9)] >= shifts[inside].max(initial=-np.inf) - 1e-9)
    assert all(shifts[found >= 1 - 1e-9] <= shifts[inside].min(initial=np.inf) + 1e-9)


def test_chances_come_to_where_the_variance_is_least():
    norms, total = np.geomspace(0.1, 1.0, 10), 5.0
    found = np.full(10, 0.5)
    for step in range(1500):
        seen = norms * chances.drawn(found, (0, step))
        weights = chances.adapted(found, seen, largest=1.0, step_size=0.01)
        found = chances.projected(weights, total, least=LEAST)

    def variance(at: np.ndarray) -> float:
        return float((norms**2 / at).sum())

    least = variance(chances.projected(np.log(norms), total, least=LEAST))
    assert variance(found) < 1.02 * least < 0.7 * variance(np.full(10, 0.5))


def test_without_a_gradient_chances_stay():
    assert np.exp(chances.adapted(np.full(3, 0.5), np.zeros(3), largest=0.0, step_size=0.01)) == pytest.approx(0.5)


@pytest.mark.parametrize("given", [[0.1, 0.05, 0.3], [1.0, 0.2, 0.5]])
def test_blocks_are_drawn_as_often_as_their_inclusion_says_and_never_none(given: list[float]):
    draws = np.array([chances.drawn(np.array(given), (7, step)) for step in range(4000)])

    assert draws.any(axis=1).all()
    np.testing.assert_allclose(draws.mean(axis=0), chances.inclusion(np.array(given)), atol=0.03)


# -- updates ---------------------------------------------------------------------------------------------


class Tiny(Workload):
    """Three blocks, the loss of one fixed batch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(8, 3, generator=generator)

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(self.inputs) - 1).square().mean()


def updates(config: OptimizerConfig, blocks: BlocksConfig, num_steps: int) -> torch.Tensor:
    """Return what each of `num_steps` steps from the same weights would add to them, `(num_steps, d)`."""
    workload = Tiny()
    model = workload.model()
    optimizer = optimizers.build(config, workload, model, apart=True)
    parameters = list(optimizer.parameters.values())
    buffer = GradientBuffer.behind(parameters, NoneConfig())
    replica_config = ReplicaConfig(
        workload={"factory": "tests:Tiny"},  # type: ignore[arg-type]
        optimizer=config,
        exchange=NoneConfig(),
        blocks=blocks,
    )
    drawing = build(replica_config, model, buffer)
    if isinstance(drawing, JointSpar):
        drawing.learn([1.0, 0.1, 0.5])  # chances that differ
    start = nn.utils.parameters_to_vector(parameters).detach().clone()
    moves = []
    for step in range(num_steps):
        optimizer.set_learning_rate(config.learning_rate, 0, drawing.draw(step))
        buffer.clear()
        buffer.expect()
        workload.loss(model, None).backward()
        buffer.finish()
        optimizer.step(1.0)
        moves.append(nn.utils.parameters_to_vector(parameters).detach() - start)
        nn.utils.vector_to_parameters(start.clone(), parameters)
    return torch.stack(moves)


@pytest.mark.parametrize(
    "config", [SgdConfig(momentum=0.0, weight_decay=0.1), LarsConfig(momentum=0.0, weight_decay=0.1)]
)
def test_the_mean_update_is_that_of_all_blocks(config: OptimizerConfig):
    blocks = JointSparConfig(share=0.5, adaptation=0.05)

    moves = updates(config, blocks, 800).double()

    [plain] = updates(config, AllBlocksConfig(), 1).double()
    error = moves.std(dim=0) / math.sqrt(len(moves))
    assert ((moves.mean(dim=0) - plain).abs() <= 4.5 * error + 1e-7).all()
    assert (moves.std(dim=0) > 0.3 * plain.abs()).all()  # it is no plain training


@pytest.mark.parametrize("config", [SgdConfig(momentum=0.5), LarsConfig(momentum=0.5)])
def test_while_chances_stay_a_gradient_leads_to_as_much_with_momentum_as_where_all_blocks_are_trained(
    config: OptimizerConfig,
):
    moves = updates(config, JointSparConfig(share=0.5, adaptation=0.05), 4040)[40:].double()

    plain = updates(config, AllBlocksConfig(), 40)[-1].double()  # of one gradient in every step, as are the others
    runs = moves.view(100, 40, -1).mean(dim=1)  # long enough that runs hardly depend on each other
    error = runs.std(dim=0) / math.sqrt(len(runs))
    assert ((runs.mean(dim=0) - plain).abs() <= 4.5 * error + 1e-7).all()
    assert (error < 0.05 * plain.abs()).all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_with_a_share_of_1_every_bit_is_that_of_plain_training(make_config: Make, kind: str):
    kinds = (AllBlocksConfig(), JointSparConfig(share=1.0))
    plain, drawn = (replica(make_config, optimizer=OPTIMIZERS[kind], blocks=blocks) for blocks in kinds)
    segment = Segment(num_steps=25, learning_rate=OPTIMIZERS[kind].learning_rate)

    assert drawn.run(segment).losses == plain.run(segment).losses
    assert all(map(torch.equal, drawn.model.parameters(), plain.model.parameters()))


def test_a_step_computes_and_changes_what_it_draws_and_nothing_else(make_config: Make):
    made = replica(make_config, blocks=JointSparConfig())
    seen = set()
    for _ in range(6):
        before = copies(made)
        with FlopCounterMode(display=False) as counter:
            made.run(Segment(num_steps=1, learning_rate=0.05))
        drawn, after = tuple(sorted(set(drawing(made).drawn.values()))), copies(made)
        seen.add(drawn)
        for index, (name, parameter) in enumerate(made.model.named_parameters()):
            is_drawn = index // 2 in drawn  # a weight and its bias
            assert (parameter.grad is not None) is is_drawn
            for each in (name, f"{name}.momentum_buffer"):
                assert torch.equal(after[each], before[each]) is not is_drawn
        assert counter.get_total_flops() == flops(drawn)
    assert len(seen) > 2


def copies(made: Replica) -> dict[str, torch.Tensor]:
    """Return copies of the parameters and of their momenta, by name."""
    live = dict(made.model.named_parameters()) | made.parts.optimizer.tensors()
    return {name: tensor.detach().clone() for name, tensor in live.items()}


def flops(drawn: tuple[int, ...]) -> int:
    """Return what a step of `digits-mlp` takes: forward, weights' gradients, and inputs' down to the lowest drawn."""
    per_layer = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    return sum(per_layer) + sum(per_layer[block] for block in drawn) + sum(per_layer[min(drawn) + 1 :])


def test_it_learns(make_config: Make):
    made = replica(make_config, optimizer=OPTIMIZERS["sgd"], blocks=JointSparConfig())
    before = made.evaluate().loss

    result = made.run(Segment(num_steps=150, learning_rate=0.05))

    assert made.evaluate().loss < before / 3
    assert result.density is not None and 0.3 < result.density < 0.8
    now = drawing(made).tensors()["chances"]
    assert now.sum() == pytest.approx(1.5) and now.std() > 0.01


def test_the_gradients_scale_is_that_of_all_blocks_whatever_is_drawn(make_config: Make):
    kinds = (AllBlocksConfig(), JointSparConfig(share=0.4))
    plain, drawn = (replica(make_config, blocks=blocks) for blocks in kinds)
    segment = Segment(num_steps=40, learning_rate=1e-8)

    scales = np.array([made.run(segment).gradient_scales for made in (drawn, plain)])

    ratios = scales[0, 10:] / scales[1, 10:]  # by then each has been drawn
    assert ratios.min() > 0.5 and ratios.max() < 2.0


def test_a_replica_rewound_or_restored_draws_and_trains_on_bit_for_bit(make_config: Make, tmp_path: Path):
    blocks, lars = JointSparConfig(share=(0.3, 0.9)), OPTIMIZERS["lars"]
    first, second = (replica(make_config, optimizer=lars, blocks=blocks, accumulate=2) for _ in range(2))
    first.run(Segment(num_steps=10, learning_rate=5.0, share=0.3))
    first.snapshot("stage")
    commit_manifest(str(tmp_path), first.save(str(tmp_path)))
    segment = Segment(num_steps=10, learning_rate=5.0, share=0.9)
    results = [first.run(segment)]
    first.restore("stage")
    results.append(first.run(segment))
    second.load(str(tmp_path))
    results.append(second.run(segment))

    assert [(each.losses, each.density) for each in results] == [(results[0].losses, results[0].density)] * 3
    assert all(map(torch.equal, first.model.parameters(), second.model.parameters()))
    assert torch.equal(drawing(first).tensors()["chances"], drawing(second).tensors()["chances"])


def test_a_loss_that_depends_on_no_drawn_block_is_no_error(make_config: Make):
    made = replica(make_config, blocks=JointSparConfig())
    plain = made.workload.loss
    made.workload.loss = lambda model, batch: plain(model, batch).detach()  # type: ignore[method-assign]

    assert not made.run(Segment(num_steps=3, learning_rate=0.05)).diverged


# -- cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shapes", "share"), [(((30, 20), (20,), (40, 30), (9, 9)), 0.4), (((50, 50),) * 12, 0.25)])
def test_steps_send_on_average_what_was_foreseen(shapes: tuple[tuple[int, ...], ...], share: float):
    blocks = divide(shapes)
    sent = []
    for step in range(3000):
        is_drawn = chances.drawn(np.full(len(blocks), share), (3, step))
        drawn = [shapes[index] for block, found in zip(blocks, is_drawn, strict=True) if found for index in block]
        sent.append(cost.step_traffic([(len(blocks),), *drawn], num_workers=4, exchange=NoneConfig()).bytes)

    foreseen = cost.drawn_step(shapes, num_workers=4, exchange=NoneConfig(), share=share)

    assert foreseen.bytes == pytest.approx(np.mean(sent), rel=0.03)
    assert foreseen.bytes < cost.step_traffic(shapes, num_workers=4, exchange=NoneConfig()).bytes


def test_of_all_blocks_the_cost_is_that_of_dense_training_and_a_norm_for_each():
    shapes = ((30, 20), (20,), (40, 30))

    foreseen = cost.drawn_step(shapes, num_workers=2, exchange=NoneConfig(), share=1.0)
    dense = collectives.dense_step(1820, 2)

    assert foreseen == collectives.Traffic(dense.bytes + 4 * 2, dense.rounds)
