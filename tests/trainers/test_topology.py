import pytest
import torch
from torch import distributed as dist
from torch._subclasses import FakeTensorMode

from trainers.exchange.connection import place_of
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.topology import Topology


def test_neighbouring_ranks_fill_nodes_of_a_stated_size():
    assert Topology.stated(6, 3).nodes == ((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize("per_node", [1, "auto"])
def test_each_rank_is_a_node_until_others_are_stated_or_found(per_node: int | str):
    assert Topology.stated(3, per_node).nodes == ((0,), (1,), (2,))


@pytest.mark.parametrize("per_node", [0, 2, 4])
def test_a_size_that_leaves_ranks_over_is_refused(per_node: int):
    with pytest.raises(ValueError, match=f"must divide the 3 workers, got {per_node}"):
        Topology.stated(3, per_node)


def test_ranks_on_equal_hosts_share_a_node_wherever_they_are():
    topology = Topology.by_host(["b", "a", "b", "b", "c"])

    assert topology.nodes == ((0, 2, 3), (1,), (4,))
    assert topology.leaders == (0, 1, 4)
    assert [topology.node_of(rank) for rank in (3, 1)] == [(0, 2, 3), (1,)]
    assert topology.share == 3 / 5


@pytest.mark.parametrize("nodes", [[[0, 1], [1, 2]], [[0, 1], [3]], [[1], [2]]])
def test_given_nodes_hold_every_rank_once(nodes: list[list[int]]):
    with pytest.raises(ValueError, match="every rank once, got"):
        Topology.of(nodes)


@pytest.mark.parametrize("model", ["cuda:0", "cuda:1"])
def test_nccl_gets_what_lies_in_host_memory_on_the_gpu_of_the_model(monkeypatch: pytest.MonkeyPatch, model: str):
    sent = list[str]()
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, **_: sent.append(str(tensor.device)))
    links = NodeLinks(Topology.stated(2, 1), 0, Unpaced(), device=torch.device(model))

    with FakeTensorMode():
        links.tell(torch.ones(2))

    assert sent == [model]


@pytest.mark.parametrize(
    ("device_type", "config", "place"),
    [
        ("cpu", "cpu:gloo,cuda:gloo", "cpu"),
        ("cuda", "cpu:gloo,cuda:gloo", "cpu"),
        ("cuda", "cuda:nccl", "cuda"),
        ("cpu", "cuda:nccl", "cuda"),
        ("cuda", "cpu:gloo,cuda:nccl", "cuda"),
        ("cpu", "cpu:gloo,cuda:nccl", "cpu"),
        ("cuda", "cpu:gloo", "cpu"),
    ],
)
def test_a_tensor_is_copied_only_to_where_a_backend_reaches_it(device_type: str, config: str, place: str):
    assert place_of(device_type, config) == place


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_two_backends_send_what_lies_on_a_gpu_and_what_lies_in_host_memory_from_there(
    monkeypatch: pytest.MonkeyPatch, device: str
):
    sent = list[str]()
    monkeypatch.setattr(dist, "get_backend", lambda group: "cpu:gloo,cuda:nccl")  # as torch names such a group
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, **_: sent.append(str(tensor.device)))
    links = NodeLinks(Topology.stated(2, 1), 0, Unpaced())

    with FakeTensorMode():
        links.tell(torch.ones(2, device=device))

    assert sent == [device]
