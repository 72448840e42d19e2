"""The flat buffer behind all gradients, and when its buckets are complete."""

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.workload import WorkloadError


@pytest.mark.parametrize("overlap", [True, False])
def test_the_gradients_of_a_backward_are_views_into_the_buffer(overlap: bool):
    used, idle = Parameter(torch.randn(3, 2)), Parameter(torch.randn(4))
    embedding = nn.Embedding(2, 2, sparse=True)
    buffer = GradientBuffer.behind([used, idle, embedding.weight], NoneConfig(overlap=overlap))

    for factor in (1, 2):
        buffer.gradient.fill_(7.0)  # what the exchange has left
        buffer.clear()
        (factor * used.sum()).backward()
        buffer.expect()
        (factor * used.sum() + embedding(torch.tensor([1, 1])).sum()).backward()
        buffer.finish()

        assert buffer.wait_for_all().tolist() == [2.0 * factor] * 6 + [0.0] * 4 + [0.0] * 2 + [2.0] * 2
        for parameter, start in ((used, 0), (idle, 6), (embedding.weight, 10)):
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == buffer.gradient[start:].data_ptr()


@pytest.mark.parametrize(("max_norm", "norm"), [(1.0, 1.0), (100.0, 5.0)])
def test_clip_bounds_the_norm_and_nothing_else(max_norm: float, norm: float):
    buffer = GradientBuffer.behind([Parameter(torch.zeros(2))], NoneConfig())
    buffer.gradient.copy_(torch.tensor([3.0, 4.0]))

    buffer.clip(max_norm)

    torch.testing.assert_close(buffer.gradient, torch.tensor([0.6, 0.8]) * norm)


def test_clip_passes_a_lost_entry_on_to_all():
    buffer = GradientBuffer.behind([Parameter(torch.zeros(2))], NoneConfig())
    buffer.gradient.copy_(torch.tensor([torch.nan, 1.0]))

    buffer.clip(1.0)

    assert buffer.gradient.isnan().all()


def test_rows_that_are_looked_up_several_times_have_the_bits_of_a_dense_gradient():
    embedding, draw = nn.Embedding(7, 3, sparse=True), torch.Generator().manual_seed(0)
    buffer = GradientBuffer.behind([embedding.weight], NoneConfig(overlap=False))
    rows, weights = torch.randint(7, (40,), generator=draw), torch.randn(40, 3, generator=draw)
    [expected] = torch.autograd.grad((embedding(rows) * weights).sum(), embedding.weight)

    buffer.gradient.fill_(7.0)
    buffer.clear()
    buffer.expect()
    (embedding(rows) * weights).sum().backward()
    buffer.finish()

    assert expected.is_sparse and not expected.is_coalesced()
    assert torch.equal(buffer.wait_for_all(), expected.to_dense().flatten())


def test_a_gradient_that_arrives_twice_completes_no_bucket_in_place_of_another():
    buffer = GradientBuffer.behind([Parameter(torch.randn(3)), Parameter(torch.randn(4))], NoneConfig())
    first, _ = buffer.layers
    buffer.expect()
    buffer.arrive(first)

    with pytest.raises(WorkloadError, match="twice"):
        buffer.arrive(first)
