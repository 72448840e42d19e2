import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.threshold import sampled_threshold
from trainers.exchange.kernels.sparse import scatter_add, select
from trainers.exchange.memory import Residual

FLOATS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=200)


@settings(deadline=None, max_examples=50)
@given(values=FLOATS, threshold=st.floats(0, 10, width=32))
def test_select_finds_exactly_the_entries_that_reach_the_threshold(values: list[float], threshold: float):
    vector = torch.tensor(values)

    hits = select(vector, threshold)

    assert hits.tolist() == [index for index, value in enumerate(values) if abs(value) >= threshold]


@settings(deadline=None, max_examples=50)
@given(values=FLOATS, threshold=st.floats(0, 10, width=32))
def test_sent_and_kept_add_up_to_the_corrected_gradient(values: list[float], threshold: float):
    corrected = torch.tensor(values)
    residual, sent = Residual(corrected), torch.zeros_like(corrected)

    hits = select(corrected, threshold)
    scatter_add(sent, hits, corrected[hits])
    residual.keep_unsent(corrected, hits)

    assert torch.equal(sent + residual.values, corrected)
    assert torch.all(residual.values.abs() < threshold) or threshold == 0


def test_scatter_add_accumulates():
    out = torch.ones(4)

    scatter_add(out, torch.tensor([1, 3], dtype=torch.int32), torch.tensor([2.0, 5.0]))

    assert out.tolist() == [1.0, 3.0, 1.0, 6.0]


@pytest.mark.parametrize("num_elements", [1000, 300_000, 1_000_000])
@pytest.mark.parametrize("density", [0.003, 0.1, 1.0])
def test_sampled_threshold_lets_the_planned_share_pass(num_elements: int, density: float):
    values = torch.randn(num_elements, generator=torch.Generator().manual_seed(0))

    share = len(select(values, sampled_threshold(values, density))) / num_elements

    assert share == pytest.approx(density, rel=0.15)


def test_sampled_threshold_sees_all_columns_of_a_layer():
    values = torch.zeros(4096, 128)
    values[:, 1::2] = torch.rand(4096, 64, generator=torch.Generator().manual_seed(0))

    share = len(select(values.flatten(), sampled_threshold(values.flatten(), 0.1))) / values.numel()

    assert share == pytest.approx(0.1, rel=0.1)


def test_gradients_are_views_into_the_buffer():
    parameters = [Parameter(torch.randn(3, 2)), Parameter(torch.randn(4))]
    buffer = GradientBuffer(parameters)

    (parameters[0].sum() + 2 * parameters[1].sum()).backward()

    assert buffer.gradient.tolist() == [1.0] * 6 + [2.0] * 4


@pytest.mark.parametrize(("max_norm", "norm"), [(1.0, 1.0), (100.0, 5.0)])
def test_clip_bounds_the_norm_and_nothing_else(max_norm: float, norm: float):
    buffer = GradientBuffer([Parameter(torch.zeros(2))])
    buffer.gradient.copy_(torch.tensor([3.0, 4.0]))

    buffer.clip(max_norm)

    torch.testing.assert_close(buffer.gradient, torch.tensor([0.6, 0.8]) * norm)
