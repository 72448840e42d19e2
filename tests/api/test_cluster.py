"""Callers who ask for the cluster see its nodes, and only their own project's jobs on them."""

import pytest

from service.control.access.rules import LOCAL, Principal
from service.control.ray_cluster.occupancy import Occupancy
from service.control.ray_cluster.ray_jobs import Workers
from service.errors import Unavailable
from service.wire.access import Role
from tests.support.fake_ray import FakeRay


@pytest.fixture
def ray():
    return FakeRay(cpus=8)


@pytest.fixture
def clock():
    return iter(range(0, 1000, 10)).__next__


def place(ray, store, job, project):
    by = Principal(name="anna", role=Role.SUBMITTER, project=project)
    job_id = store.add_job(job, by=by)[0].id
    ray.placed += (Workers(job_id, "n1", 3),)
    return job_id


def test_a_node_tells_whose_workers_it_runs_and_what_they_take(store, job, ray, clock):
    job_id = place(ray, store, job, "red")

    view = Occupancy(store, lambda: ray, clock=clock).view(by=LOCAL)

    (node,) = view.nodes
    assert (view.reachable, view.ray_version) == (True, "2.60.0")
    assert (node.cpus, node.memory_gb, node.accelerator) == (8, 16.0, "T4")
    assert [(each.job, each.name, each.workers, each.cpus) for each in node.placements] == [(job_id, job.name, 3, 3.0)]


def test_jobs_of_other_projects_are_counted_and_not_named(store, job, ray, clock):
    place(ray, store, job, "blue")
    own = place(ray, store, job, "red")
    ray.placed += (Workers("job-of-another-service", "n1", 1),)

    viewer = Principal(name="bert", role=Role.VIEWER, project="red")
    (node,) = Occupancy(store, lambda: ray, clock=clock).view(by=viewer).nodes

    assert [(each.job, each.workers) for each in node.placements] == [(None, 3), (own, 3), (None, 1)]
    assert [each.name for each in node.placements] == [None, job.name, None]


def test_a_cluster_that_does_not_answer_is_told_with_its_reason(store, ray, clock):
    def refuse():
        raise Unavailable("Ray at http://ray:8265 does not answer: timed out")

    away, none = (Occupancy(store, each, clock=clock).view(by=LOCAL) for each in (refuse, lambda: None))

    assert not away.reachable and "timed out" in away.reason
    assert not none.reachable and "next job starts it" in none.reason and none.nodes == ()


def test_ray_is_asked_once_for_all_who_look_at_the_same_time(store, ray):
    occupancy = Occupancy(store, lambda: ray, clock=lambda: 5.0)

    for _ in range(5):
        occupancy.view(by=LOCAL)

    assert ray.num_looks == 1
