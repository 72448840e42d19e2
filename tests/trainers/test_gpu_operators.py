"""The operators of the exchange give the same results on a GPU as on a CPU."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from trainers.exchange.kernels.largest import largest
from trainers.exchange.kernels.lowrank import orthogonalize_, project, rebuild, take_out
from trainers.exchange.quantizer import Quantizer, Segments
from trainers.methods.exchange.adacomp import exchange as adacomp
from trainers.methods.exchange.onebit.exchange import OneBit
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.qsgd.exchange import Qsgd
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.signsgd.exchange import MajoritySign, ScaledSign
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.terngrad.exchange import TernGrad
from trainers.methods.exchange.terngrad.spec import TernGradConfig
from trainers.spec.quantized import QuantizedBase
from trainers.traffic.sizes import CodedLayout

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="NO GPU ON THIS MACHINE: the operators' CUDA paths were not tested"
)
SEGMENTS = ((0, 300), (300, 301), (301, 100_000))
GPU = torch.device("cuda")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("config", "build"),
    [
        (SignSgdConfig(feedback=False), MajoritySign),
        (SignSgdConfig(), ScaledSign),
        (OneBitConfig(), OneBit),
        (TernGradConfig(), partial(TernGrad, clip=2.5)),
        (QsgdConfig(), partial(Qsgd, levels=127, bucket=128, norm="l2")),
    ],
    ids=lambda each: getattr(each, "kind", None),
)
def test_a_quantizer_sends_the_same_from_a_gpu(
    config: QuantizedBase, build: Callable[[Segments, CodedLayout], Quantizer]
):
    quantizer = build(SEGMENTS, config.layout(100_000, len(SEGMENTS)))
    decoded = []

    for device in (torch.device("cpu"), GPU):
        values = normal(100_000).to(device)
        payload, out = torch.zeros(quantizer.num_bytes, dtype=torch.uint8, device=device), torch.zeros_like(values)
        quantizer.encode(values, payload, torch.Generator().manual_seed(0))
        quantizer.add_decoded(payload, out)
        decoded.append(out.cpu())

    # Scales are sums in another order, so an entry in many may be rounded to another level.
    is_close = torch.isclose(*decoded, rtol=1e-4)
    assert is_close.float().mean() > 0.999


def test_selectors_find_the_same_on_a_gpu():
    values, gradient = normal(200_000), normal(200_001)[1:]

    found = [
        [
            [each for each in indices.tolist() if each < len(values)]
            for indices in (
                largest(own, 1000),
                adacomp.select(own, gradient.to(own.device), bin_size=50, room=9000)[0].indices,
            )
        ]
        for own in (values, values.to(GPU))
    ]

    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [(300, 500), (500, 300)])
def test_the_low_rank_passes_do_the_same_on_a_gpu(shape: tuple[int, int]):
    gradient, residual, q = normal(*shape), 3 * normal(*shape), normal(4, 300)
    means = []

    for device in (torch.device("cpu"), GPU):
        left, mean = torch.empty(shape, device=device), torch.empty(shape, device=device)
        p, own_q = torch.empty(4, 500, device=device), q.clone().to(device)
        project(gradient.to(device), residual.to(device), left, own_q, p)
        orthogonalize_(p)
        torch.testing.assert_close(p @ p.T, torch.eye(4, device=device), rtol=0, atol=1e-5)
        take_out(left, p, own_q)
        rebuild(p, own_q, mean)
        torch.testing.assert_close(left + mean, (gradient + residual).to(device), rtol=1e-4, atol=1e-4)
        means.append(mean.cpu())

    torch.testing.assert_close(means[0], means[1], rtol=1e-4, atol=1e-4)
