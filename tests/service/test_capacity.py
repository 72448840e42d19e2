"""A job is refused exactly if it can never be placed."""

import pytest
from hypothesis import given, strategies as st

from service.control.queue.capacity import Node, Shape, Size, conflicts, left_beside, num_placeable
from service.control.queue.plan import sized
from service.job.parts import Lanes
from service.job.spec import JobSpec

TWO_CORES = [Node(cpus=2)]
GPU_PAIR = [Node(cpus=8, gpus=2), Node(cpus=8)]


def spec(*, arms=1, **workers):
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": workers}
    return JobSpec.model_validate(body | {"arms": [{"name": f"arm{number}"} for number in range(arms)]})


def size_of(shape, nodes):
    return sized(shape, nodes, {}, owner="anna", project="red")[0]


@pytest.mark.parametrize(
    ("workers", "nodes", "pointer", "value", "allowed"),
    [
        ({"count": 3}, TWO_CORES, "/workers/count", 3, "1 to 2"),
        ({"count": 1, "cpus": 3}, TWO_CORES, "/workers/cpus", 3, "0 to 2"),
        ({"count": 1, "gpus": 1}, TWO_CORES, "/workers/gpus", 1, "0 to 0"),
        ({"count": 3, "gpus": 1}, GPU_PAIR, "/workers/gpus", 1, "1 to 2"),
        ({"count": 3, "gpus": 0.6}, GPU_PAIR, "/workers/gpus", 0.6, "1 to 2"),  # nor does its share span GPUs
        ({"count": 4, "gpus": 0.4, "per_node": 2}, [Node(cpus=8, gpus=1)], "/workers/gpus", 0.4, "1 to 2"),
        ({"count": 3, "cpus": 5}, GPU_PAIR, "/workers/count", 3, "1 to 2"),  # a worker does not span nodes
        ({"count": 6, "per_node": 2}, [Node(cpus=3)] * 2, "/workers/count", 6, "1 to 4"),  # nor do those of one
        ({"count": 4, "per_node": 4}, [Node(cpus=2)] * 2, "/workers/cpus", 1, "0 to 0.5"),
    ],
)
def test_a_misfit_names_the_field_the_value_and_what_is_allowed(workers, nodes, pointer, value, allowed):
    (problem,) = conflicts(Shape.of(spec(**workers)), nodes)

    assert (problem.pointer, problem.value) == (pointer, value)
    assert f"allowed: {allowed}" in problem.message


@pytest.mark.parametrize(
    ("workers", "nodes"),
    [
        ({"count": 2}, TWO_CORES),
        ({"count": 2, "gpus": 1}, GPU_PAIR),
        ({"count": 8, "gpus": 0.25}, GPU_PAIR),
        ({"count": 6, "gpus": 0.33}, GPU_PAIR),
        ({"count": 4, "gpus": 0.5, "per_node": 4}, GPU_PAIR),
        ({"count": 2, "gpus": 0.25}, [Node(cpus=8, gpus=0.5)]),
        ({"count": 4, "per_node": 2}, [Node(cpus=3)] * 2),
        ({"count": 4, "per_node": "auto"}, [Node(cpus=1), Node(cpus=3)]),
    ],
)
def test_what_can_be_placed_is_no_misfit(workers, nodes):
    assert conflicts(Shape.of(spec(**workers)), nodes) == []


@pytest.mark.parametrize("workers", [{"cpus": 1e-310}, {"gpus": 1e-310}], ids=["cpus", "gpus"])
def test_a_worker_that_asks_for_next_to_nothing_is_counted_all_the_same(workers):
    shape = Shape.of(spec(count=2, **workers))

    assert conflicts(shape, GPU_PAIR) == []
    assert size_of(shape, GPU_PAIR).workers == 2


@given(
    running=st.lists(st.integers(1, 10).map(lambda tenths: tenths / 10), max_size=6),
    share=st.integers(1, 10).map(lambda tenths: tenths / 10),
)
def test_a_worker_has_room_beside_others_only_where_one_gpu_has_its_share(running, share):
    nodes, free = [Node(cpus=64, gpus=3)], [1.0] * 3
    placed = []
    for each in sorted(running, reverse=True):
        fitting = [left for left in free if left > each - 1e-6]
        if fitting:
            free[free.index(min(fitting))] -= each
            placed.append(Size(cpus=1, gpus=each, workers=1))

    left = left_beside(placed, nodes)

    assert num_placeable(Shape.of(spec(count=1, gpus=share)), left) == sum(int(each / share + 1e-6) for each in free)
    assert left[0].gpus == pytest.approx(sum(free))


def test_a_job_that_goes_on_with_fewer_workers_fits_as_long_as_those_do():
    shape = Shape.of(spec(count=6, min=2, per_node=2))

    assert conflicts(shape, [Node(cpus=3)]) == []
    assert [size_of(shape, [Node(cpus=cpus)] * 2).workers for cpus in (1.5, 2, 3, 5)] == [6, 4, 4, 6]
    (problem,) = conflicts(shape, [Node(cpus=1)] * 6)
    assert "each of 2 workers that share a node asks" in problem.message


def test_a_job_needs_room_for_all_its_lanes():
    two_lanes = Shape.of(spec(count=2).model_copy(update={"lanes": Lanes(count=2)}))

    (problem,) = conflicts(two_lanes, [Node(cpus=3)])
    assert "4 workers in 2 lanes" in problem.message
    assert conflicts(two_lanes, [Node(cpus=4)]) == []
    assert size_of(two_lanes, [Node(cpus=4)]).cpus == 4


def test_trials_count_together_only_where_all_run_side_by_side():
    two_arms = Shape.of(spec(count=2, arms=2))

    assert size_of(two_arms, [Node(cpus=4)]).cpus == 4
    assert size_of(two_arms, [Node(cpus=3)]).cpus == 2


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_stored_job_has_the_shape_of_the_job(lanes):
    job = spec(count=4, per_node=2, gpus=0.5, cpus=0.5, arms=3).model_copy(update={"lanes": Lanes(count=lanes)})

    assert Shape.of_json(job.model_dump(mode="json")) == Shape.of(job)


@pytest.mark.parametrize(
    ("choice", "least"),
    [
        ({}, 2),
        ({"sync": {"kind": "diloco", "period": 4}}, 4),
        ({"params": {"sync": {"choice": [{"kind": "every_step"}, {"kind": "diloco", "period": 4}]}}}, 4),
    ],
)
def test_an_attempt_of_workers_with_parameters_of_their_own_needs_all_of_them(choice, least):
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 9}, "workers": {"count": 4, "min": 2}, **choice}

    assert Shape.of(JobSpec.model_validate(body)).least == Shape.of_json(body).least == least


def test_a_job_of_an_earlier_release_has_the_shape_of_the_defaults():
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}}

    assert Shape.of_json(body) == Shape.of(JobSpec.model_validate(body))


def test_memory_beyond_every_nodes_is_refused_by_its_field():
    (problem,) = conflicts(Shape.of(spec(count=1, memory_gb=40)), [Node(cpus=64, memory_gb=32)])

    assert (problem.pointer, problem.value) == ("/workers/memory_gb", 40)
    assert "40 GB of memory; allowed: 0 to 32" in problem.message


def test_a_node_holds_as_many_workers_as_its_memory_does():
    node = Node(cpus=8, memory_gb=64)

    (problem,) = conflicts(Shape.of(spec(count=8, memory_gb=20)), [node])
    assert problem.pointer == "/workers/memory_gb" and "allowed: 1 to 3" in problem.message
    assert conflicts(Shape.of(spec(count=3, memory_gb=20)), [node]) == []
    assert conflicts(Shape.of(spec(count=8, memory_gb=20)), [Node(cpus=8)]) == []  # it does not say how much it has
    pairs = Shape.of(spec(count=8, memory_gb=10, per_node=4))
    assert num_placeable(pairs, [node] * 2) == 8 and num_placeable(pairs, [Node(cpus=8, memory_gb=39)] * 2) == 0


def test_only_nodes_of_the_accelerator_count():
    nodes = [
        Node(cpus=8, gpus=8, accelerator="T4"),
        Node(cpus=8, gpus=2, accelerator="A100"),
        Node(cpus=8, accelerator=""),
    ]
    wanted = {"gpus": 1, "accelerator": "A100"}

    assert conflicts(Shape.of(spec(count=2, **wanted)), nodes) == []
    (many,) = conflicts(Shape.of(spec(count=3, **wanted)), nodes)
    assert (many.pointer, many.value) == ("/workers/gpus", 1)
    (none,) = conflicts(Shape.of(spec(count=1, gpus=1, accelerator="H200")), nodes)
    assert (none.pointer, none.value) == ("/workers/accelerator", "H200")
    assert "the cluster has `A100`, `T4`" in none.message
    assert conflicts(Shape.of(spec(count=1, gpus=1, accelerator="H200")), [Node(cpus=1, gpus=1)]) == []  # of any kind


def test_running_workers_take_their_memory_and_nodes_of_their_accelerator():
    nodes = [
        Node(cpus=4, gpus=4, memory_gb=32, accelerator="T4"),
        Node(cpus=4, gpus=4, memory_gb=32, accelerator="A100"),
    ]
    running = Shape.of(spec(count=3, gpus=1, memory_gb=10, accelerator="A100"))

    left = left_beside([running.one], nodes)

    assert left == [nodes[0], Node(cpus=1, gpus=1, memory_gb=2, accelerator="A100")]
    assert num_placeable(running, left) == 0
    assert running.sized(Size(3.0, 3.0, 3)) == running.one


def test_a_room_has_memory_for_what_fits():
    asks, room = Shape.of(spec(count=2, memory_gb=20)).one, Size(cpus=8, memory_gb=64)

    assert asks.fits(room) and not (asks * 2).fits(room) and not asks.fits(room - asks)
    assert room - asks == Size(6.0, 0.0, -2, 24.0)
