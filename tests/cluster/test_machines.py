"""What a run on several machines asks of each of them, and whom it names where one does not do."""

import pytest

from service.cluster import group
from service.cluster.group import RankActor, require_same_versions, versions
from service.job.spec import JobSpec
from trainers.training.call_results import Outcome
from trainers.workload import WorkloadError

HERE = {"Python": "3.11", "ray": "2.60.0", "torch": "2.13.0", "wiretune": "0.1.0"}


def test_machines_of_the_same_versions_train_together():
    require_same_versions({"a": HERE, "b": dict(HERE)}, HERE)


def test_a_machine_of_another_version_is_named_with_both_versions():
    with pytest.raises(WorkloadError, match=r"machine b has ray 2\.59\.0, and 2\.60\.0 here; torch 2\.12\.1, and"):
        require_same_versions({"a": HERE, "b": HERE | {"torch": "2.12.1", "ray": "2.59.0"}}, HERE)


def test_the_build_of_a_version_for_a_gpu_is_the_same_version():
    assert set(versions()) == set(HERE)
    assert "+" not in "".join(versions().values())


def test_a_process_keeps_the_versions_that_it_began_with(monkeypatch: pytest.MonkeyPatch):
    before = versions()

    monkeypatch.setattr(group, "version", lambda _: "99.0")  # what `pip install` leaves on the disk

    assert versions() == before


@pytest.mark.parametrize(
    ("kind", "num_nodes", "is_named"),
    [("refused", 2, True), ("error", 2, True), ("answer", 2, False), ("refused", 1, False)],
)
def test_what_a_machine_lacks_is_told_with_its_name_and_address_where_there_are_several(
    kind, num_nodes, is_named, monkeypatch
):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}] * num_nodes + [{"Alive": False}])
    actor = object.__new__(RankActor)
    actor.address = "10.0.0.3"

    content = actor._placed(Outcome(kind, "this machine lacks the data `x`")).content

    assert content.endswith("this machine lacks the data `x`")
    assert ("10.0.0.3" in content) == is_named


def test_a_run_among_fewer_workers_is_the_same_run():
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": {"count": 4, "min": 2}}
    (spec,) = JobSpec.model_validate(body).trials()

    fewer = spec.among(3)

    assert (fewer.workers.count, fewer.among(4)) == (3, spec)
