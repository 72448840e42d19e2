"""What gradients pass between backward and an exchange."""

import pytest
import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.gradients import Pooled, Watched
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.topology import Topology
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.traffic.buckets import Bucket


@pytest.fixture
def buffer() -> GradientBuffer:
    """Return a buffer of four buckets."""
    made = GradientBuffer([(2, 3)] * 4, NoneConfig(bucket_mib=1e-5), torch.device("cpu"))
    assert len(made.buckets) == 4
    return made


def fill(buffer: GradientBuffer, value: float) -> None:
    buffer.expect()
    buffer.gradient.fill_(value)
    buffer.finish()


def test_each_bucket_is_seen_once_a_step_whoever_waits_for_it(buffer: GradientBuffer):
    seen = list[tuple[int, float]]()

    def see(bucket: Bucket, gradient: Tensor) -> None:
        seen.append((bucket.index, float(gradient[0])))

    watched = Watched(buffer, see)
    for value in (1.0, 2.0):
        fill(buffer, value)
        watched.wait(buffer.buckets[1])
        watched.wait_for_all()
        watched.wait_for_all()

    assert seen == [(index, value) for value in (1.0, 2.0) for index in (1, 0, 2, 3)]


def test_a_view_sees_what_the_one_below_has_made_of_a_bucket_and_the_buffer_itself_stays_plain(
    buffer: GradientBuffer, monkeypatch: pytest.MonkeyPatch
):
    links, seen = NodeLinks(Topology.of(((0, 1), (2,))), 0, Unpaced()), list[float]()
    monkeypatch.setattr(links.within, "reduce_sum", lambda gradient, to, parts: gradient.add_(10.0))
    watched = Watched(Pooled(buffer, links), lambda bucket, gradient: seen.append(float(gradient[0])))
    fill(buffer, 3.0)

    plain = buffer.wait_for_all().clone()
    pooled = watched.wait_for_all()

    assert plain.tolist() == [3.0] * 24
    assert pooled.tolist() == [12.0] * 24  # two nodes of three ranks: 2/3 x 3, and what the others add
    assert seen == [12.0] * 4
