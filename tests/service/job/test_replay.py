"""Replays: the facts that a schedule must state, and the report on different weights."""

import pytest

from search.schedule_file import Entry, Provenance, RecordedSchedule
from service.job.parts import Arm
from service.job.replay import NOT_OF_TRAINING, differences, replayed
from service.job.spec import JobSpec
from trainers.methods.replica_config import ReplicaConfig

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"seconds": 40}, "optimizer": {"kind": "sgd"}}
SWEPT = JOB | {"params": {"accumulate": {"integer": [1, 8]}}, "sweep": {"samples": 2}}
VERSIONS = {"wiretune": "0.1.0", "torch": "2.13.0"}


def _recorded(**provenance):
    given = {"job_id": "j", "job": JOB, "arm": "tuned", "seed": 4, "versions": VERSIONS, "weights": "a" * 64}
    entries = (Entry(step=0, num_steps=7, learning_rate=0.1),)
    return RecordedSchedule(
        optimizer="sgd", num_steps=7, entries=entries, provenance=Provenance(**(given | provenance))
    )


def test_a_replay_takes_the_steps_the_seed_and_the_values_of_the_schedule():
    [trial] = replayed(_recorded()).trials()

    assert trial.budget.steps == 7 and trial.budget.seconds is None
    assert trial.replica.seed == 4
    assert trial.controller.schedule.learning_rate_at(0) == 0.1


def test_a_replay_trains_all_steps_whatever_ended_the_run():
    job = JOB | {"objective": {"every": 7, "patience": 2, "min_delta": 0.1, "target": 0.5}}
    [trial] = replayed(_recorded(job=job)).trials()

    assert trial.objective.model_dump(exclude_defaults=True) == {"every": 7}


def test_a_replay_has_the_parts_of_the_schedules_arm():
    arm = {"name": "sparse", "exchange": {"kind": "topk", "density": [0.01, 0.1]}}
    [trial] = replayed(_recorded(job=JOB | {"arms": [{"name": "tuned"}, arm]}, arm="sparse")).trials()

    assert (trial.replica.exchange.kind, trial.replica.exchange.level) == ("topk", 0.1)


def test_a_replay_takes_every_field_of_the_job_that_a_rank_reads():
    of_ranks = ReplicaConfig.model_fields.keys() & JobSpec.model_fields.keys()
    job = JOB | {
        "workers": {"count": 4, "per_node": 2},
        "partition": {"kind": "dirichlet", "alpha": 0.5},
        "activations": {"kind": "dropit", "gamma": 0.5},
        "link": {"mode": "emulate", "mbps": 50, "latency_ms": 2},
        "accumulate": 2,
        "clip": 1.5,
        "precision": "bf16",
    }
    before = JobSpec.model_validate(job).trial(Arm(name="tuned"), 4)

    after = replayed(_recorded(job=job)).trial(Arm(name="tuned"), 4)

    assert JobSpec.model_fields.keys() >= NOT_OF_TRAINING and not of_ranks & NOT_OF_TRAINING
    assert (after.replica, after.workers) == (before.replica.model_copy(update={"average": False}), before.workers)


@pytest.mark.parametrize(("averaged", "export"), [(False, "last"), (True, "average")])
def test_a_replay_exports_an_average_where_its_run_did(averaged: bool, export: str):
    assert replayed(_recorded(averaged=averaged)).checkpoint.export == export


def test_an_arm_that_sets_a_part_of_a_rank_is_followed_there():
    parts = Arm.model_fields.keys() & ReplicaConfig.model_fields.keys()
    given = JobSpec.model_validate(
        JOB
        | {
            "exchange": {"kind": "topk", "density": 0.1},
            "sync": {"kind": "every_step"},
            "activations": {"kind": "dropit", "gamma": 0.5},
        }
    )
    arm = Arm.model_validate({"name": "a", "exchange": {"kind": "none"}, "activations": {"kind": "keep"}})

    replica = given.trial(arm, 0).replica

    assert {name: getattr(replica, name) for name in parts} == {
        name: getattr(arm, name) or getattr(given, name) for name in parts
    }


def test_a_replay_begins_with_the_first_value_of_a_momentum_that_is_one_of_two_betas():
    job = JOB | {"optimizer": {"kind": "adamw", "betas": [[0.8, 0.98], 0.99]}}
    entries = (Entry(step=0, num_steps=7, learning_rate=0.1, values={"momentum": 0.9}),)
    recorded = _recorded(job=job).model_copy(update={"optimizer": "adamw", "entries": entries})

    [trial] = replayed(recorded).trials()

    assert trial.replica.optimizer.betas == (0.9, 0.99)


def test_a_replay_counts_epochs_and_statistics_in_the_batches_that_the_run_did():
    job = JOB | {"workload": {"kind": "digits-mlp", "batch_size": [16, 128]}}
    entries = (Entry(step=0, num_steps=7, learning_rate=0.1, values={"batch_size": 24}),)

    [trial] = replayed(_recorded(job=job).model_copy(update={"entries": entries})).trials()

    assert trial.replica.workload.batch_size == 128  # as of a pair: trainers.workloads.registry
    assert trial.controller.schedule.batch_size_at(0) == 24


def test_a_replay_of_a_sample_has_the_values_that_it_set():
    job = JOB | {"params": {"accumulate": {"integer": [1, 8]}, "workload.batch_size": {"choice": [16, 32]}}}
    sample = {"accumulate": 3, "workload.batch_size": 16}

    [trial] = replayed(_recorded(job=job, arm="sample-3", sample=sample)).trials()

    assert (trial.replica.accumulate, trial.replica.workload.batch_size, trial.arm) == (3, 16, "sample-3")


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        ({"arm": "gone"}, "`provenance.arm` must be one of tuned, the job's trials, got 'gone'"),
        ({"job": SWEPT, "arm": "sample-0"}, r"`provenance.sample` is missing.*`sample-0`.*export it again"),
        ({"job": SWEPT, "arm": "sample-2"}, "must be one of tuned, sample-0, sample-1, the job's trials"),
        (
            {"job": SWEPT, "arm": "sample-0", "sample": {"budget.steps": 1}},
            "`provenance.sample` must set accumulate, the job's `params`, got budget.steps",
        ),
        ({"job": JOB | {"lanes": {"count": 2, "after": "batch"}}}, "workers joined in the middle of that run"),
    ],
)
def test_a_run_that_cannot_be_repeated_by_steps_is_refused(provenance, message):
    with pytest.raises(ValueError, match=message):
        replayed(_recorded(**provenance))


def test_a_schedule_of_an_earlier_release_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"`provenance` is missing.*export it again"):
        replayed(_recorded().model_copy(update={"provenance": None}))


def test_weights_that_differ_are_explained_by_releases_and_data():
    before = _recorded(fingerprint="x").provenance
    now = before.model_copy(update={"weights": "b" * 64, "versions": VERSIONS | {"torch": "2.14.0"}})

    assert differences(before, now) == "replayed: the weights differ (torch was 2.13.0 and is 2.14.0)"
    assert "the first weights, or the data" in differences(before, now.model_copy(update={"fingerprint": "y"}))
    assert "bit for bit" in differences(before, before)


def test_a_run_of_an_arm_that_an_earlier_release_let_be_called_best_is_replayed():
    [trial] = replayed(_recorded(job=JOB | {"arms": [{"name": "best"}]}, arm="best")).trials()

    assert (trial.arm, trial.replica.seed) == ("best", 4)
