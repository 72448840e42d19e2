"""The flat buffer behind all gradients, and when its buckets are full."""

import pytest
import torch
from torch.nn import Parameter

from trainers.config import NoneConfig
from trainers.exchange.buffer import GradientBuffer


def test_gradients_are_views_into_the_buffer():
    parameters = [Parameter(torch.randn(3, 2)), Parameter(torch.randn(4))]
    buffer = GradientBuffer.behind(parameters, NoneConfig())

    (parameters[0].sum() + 2 * parameters[1].sum()).backward()

    assert buffer.gradient.tolist() == [1.0] * 6 + [2.0] * 4


@pytest.mark.parametrize(("max_norm", "norm"), [(1.0, 1.0), (100.0, 5.0)])
def test_clip_bounds_the_norm_and_nothing_else(max_norm: float, norm: float):
    buffer = GradientBuffer.behind([Parameter(torch.zeros(2))], NoneConfig())
    buffer.gradient.copy_(torch.tensor([3.0, 4.0]))

    buffer.clip(max_norm)

    torch.testing.assert_close(buffer.gradient, torch.tensor([0.6, 0.8]) * norm)
