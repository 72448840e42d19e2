"""Numbers that a workload returns with its loss: one a step, averaged as the loss is, under checked names."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numbered_models import NAMES

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment, SegmentResult
from trainers.spec.workloads import OwnWorkload
from trainers.training.replica import Replica
from trainers.training.segment_results import in_a_row, merge, with_average
from trainers.workload import WorkloadError

SEGMENT = Segment(num_steps=4, learning_rate=0.05)


def replica(factory: str, *, accumulate: int = 1, **params: Any) -> Replica:
    workload = OwnWorkload(factory=factory, params=params, path=str(Path(__file__).parent))
    config = ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig(), accumulate=accumulate)
    return Replica(config, 0, 1, device="cpu")


def result(losses: tuple[float, ...], own: dict[str, tuple[float, ...]], *, first_step: int = 0, **fields: Any):
    return SegmentResult(
        first_step=first_step,
        losses=losses,
        step_seconds=(0.1,) * len(losses),
        bytes_sent=({"gradient": 8},),
        bytes_within=({},),
        bytes_dense=8,
        own=own,
        **fields,
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_own_numbers_are_averaged_over_micro_batches_as_the_loss_is(accumulate: int):
    found = replica("numbered_models:Numbered", accumulate=accumulate).run(SEGMENT)

    assert found.own["twice"] == pytest.approx([2 * loss for loss in found.losses], rel=1e-6)
    assert all(map(math.isnan, found.own["never"])) and len(found.own["never"]) == 4


def test_own_numbers_change_neither_training_nor_what_is_sent():
    plain, numbered = (replica(each) for each in ("own_models:Regression", "numbered_models:Numbered"))

    results = [each.run(SEGMENT) for each in (plain, numbered)]

    assert results[0].losses == results[1].losses
    assert results[0].bytes_sent == results[1].bytes_sent
    assert results[0].own == {}
    assert plain.evaluate().loss == numbered.evaluate().loss


def test_own_numbers_repeat_after_a_rewind():
    ours = replica("numbered_models:Numbered")
    ours.snapshot("start")
    expected = ours.run(SEGMENT).own["twice"]

    ours.restore("start")

    assert ours.run(SEGMENT).own["twice"] == expected


def test_numbers_whose_names_change_are_refused():
    with pytest.raises(WorkloadError, match=r"same numbers in every step: \['early'\] at first, now \['late'\]"):
        replica("numbered_models:Changing").run(SEGMENT)


@pytest.mark.parametrize("fault", NAMES)
def test_numbers_that_no_series_can_hold_are_refused(fault: str):
    messages = {"seventeen": "at most 16", "vector": r"`aux`.*got shape \(2,\)", "text": "`aux`.*must be a number"}

    with pytest.raises(WorkloadError, match=messages.get(fault, "needs a name of a-z")):
        replica("numbered_models:Misnamed", fault=fault).run(SEGMENT)


def test_workers_that_return_different_numbers_are_refused():
    with pytest.raises(WorkloadError, match=r"same numbers on all workers: one returned \['a'\], another \['b'\]"):
        merge([result((1.0,), {"a": (1.0,)}), result((1.0,), {"b": (1.0,)})])


def test_numbers_of_a_rank_that_averages_leave_out_do_not_count():
    ranks = [result((1.0,), {"a": (4.0,)}), result((math.nan,), {"a": (math.nan,)})]

    assert merge(ranks, leaves_out=True).own == {"a": (4.0,)}


def test_rounds_in_a_row_keep_a_number_for_every_step_that_stays():
    rounds = [result((1.0, 2.0), {"a": (1.0, 2.0)}), result((3.0, 4.0), {"a": (3.0, 4.0)}, first_step=2)]
    met = result((), {}, first_step=3, diverged=True)

    joined = in_a_row([rounds[0], with_average(rounds[1], met)])

    assert joined.own == {"a": (1.0, 2.0, 3.0)}
    assert joined.losses == (1.0, 2.0, 3.0)


def test_the_memory_of_a_segment_is_that_of_the_rank_and_round_that_needed_most():
    ranks = [result((1.0,), {}, memory_bytes=size) for size in (3, 5)]

    assert merge(ranks).memory_bytes == 5
    assert in_a_row([merge(ranks), merge(ranks[:1] * 2)]).memory_bytes == 5


#: Prints the peak memory of two segments, between which 256 MiB are allocated and freed at once.
MEASURES = """
import torch
from test_own_numbers import SEGMENT, replica
ours = replica("own_models:Regression")
print(ours.run(SEGMENT).memory_bytes)
torch.ones(2**26).sum()
print(ours.run(SEGMENT).memory_bytes)
"""


def test_a_ranks_peak_memory_holds_what_was_freed_again():
    # In a process of its own: the peak of this one may be another test's.
    done = subprocess.run(
        [sys.executable, "-c", MEASURES],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    before, after = map(int, done.stdout.split())

    assert before > 2**20
    assert after >= before + 2**26
