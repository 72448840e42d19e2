"""Conclusions from the outcomes of several ranks."""

import errno
import gzip
import json
import pickle
from email.message import Message
from types import SimpleNamespace
from typing import Any
from urllib.error import ContentTooShortError, HTTPError

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training import rank
from trainers.training.call_results import BLAME_S, Built, Outcome, WorkerFailed, WorkerLost, judge, patience_s
from trainers.workload import NoData, WorkloadError

ANSWER, PEER_LOST = Outcome("answer", "fine"), Outcome("peer_lost", "connection reset")
ERROR, DEATH, SILENCE = (
    Outcome("error", "Traceback ..."),
    Outcome("death", "exit code -9"),
    Outcome("silence", "no word"),
)
APART = (
    "the workers have lost touch with each other: connection reset (if one of them may need longer than "
    "`workers.timeout_s` for a step, raise that)"
)


def test_answers_come_in_the_order_of_the_ranks():
    assert judge({2: Outcome("answer", "c"), 0: Outcome("answer", "a"), 1: Outcome("answer", "b")}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("outcomes", "ranks", "message"),
    [
        ([ANSWER, DEATH], (1,), "worker 1 is lost: exit code -9"),
        ([PEER_LOST, DEATH, PEER_LOST], (1,), "worker 1 is lost: exit code -9"),
        ([ERROR, PEER_LOST, DEATH], (2,), "worker 2 is lost: exit code -9"),
        ([PEER_LOST, SILENCE], (1,), "worker 1 is lost: no word"),
        ([SILENCE, DEATH, PEER_LOST], (1, 0), "workers 1, 0 are lost: exit code -9"),
        ([PEER_LOST, PEER_LOST], (), APART),
        ([ANSWER, PEER_LOST], (), APART),
    ],
)
def test_the_lost_ranks_are_named(outcomes: list[Outcome], ranks: tuple[int, ...], message: str):
    with pytest.raises(WorkerLost) as lost:
        judge(dict(enumerate(outcomes)))

    assert (lost.value.ranks, str(lost.value)) == (ranks, message)


@pytest.mark.parametrize("kind", ["error", "machine_error"])
def test_an_error_of_the_machine_may_pass_and_one_of_the_code_will_not(kind: Any):
    with pytest.raises(WorkerFailed) as failed:
        judge({0: PEER_LOST, 1: Outcome(kind, "Traceback ...")})

    assert (failed.value.rank, failed.value.is_passing) == (1, kind == "machine_error")


def _raised_from(cause: Exception) -> Exception:
    error = OSError("max retries exceeded")
    error.__context__ = cause
    return error


def _answered(status: int) -> HTTPError:
    return HTTPError("https://x.org", status, "told so", Message(), None)


def _answered_by_requests(status: int) -> OSError:
    error = OSError(f"{status} for url: https://x.org")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (TimeoutError(), True),
        (ConnectionError(), True),
        (_raised_from(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")), True),
        (OSError("Caught OSError in DataLoader worker process 0.\nOSError: [Errno 5] Input/output error"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (gzip.BadGzipFile("Not a gzipped file (b'no')"), False),
        (_raised_from(IndexError("image file is truncated")), False),
        (_answered(429), True),
        (_answered(503), True),
        (_raised_from(_answered(503)), True),
        (_answered(404), False),
        (_answered_by_requests(502), True),
        (_answered_by_requests(403), False),
        (ContentTooShortError("got 1 of 2 bytes", ("file", Message())), True),
    ],
    ids=repr,
)
def test_what_the_system_says_may_pass_and_a_damaged_file_will_not(error: Exception, may_pass: bool):
    assert rank._may_pass(error) is may_pass


def test_a_refused_workload_explains_everything_but_a_death():
    refused = Outcome("refused", "`loss` must return a scalar")

    with pytest.raises(WorkloadError, match="must return a scalar"):
        judge({0: ERROR, 1: refused, 2: SILENCE})
    with pytest.raises(WorkerLost):
        judge({0: refused, 1: DEATH})


def test_missing_data_explain_a_refused_workload_and_not_the_other_way_round():
    no_data, refused = Outcome("no_data", "no `flights.csv`"), Outcome("refused", "`loss` must return a scalar")

    with pytest.raises(NoData, match=r"no `flights\.csv`"):
        judge({0: ERROR, 1: refused, 2: no_data})
    with pytest.raises(WorkloadError, match="must return a scalar") as unfit:
        judge({0: ERROR, 1: refused})
    assert not isinstance(unfit.value, NoData)


@pytest.mark.parametrize(("error", "kind"), [(NoData("no file"), "no_data"), (WorkloadError("no scalar"), "refused")])
def test_a_rank_tells_missing_data_from_a_workload_that_cannot_be_trained(
    error: WorkloadError, kind: Any, monkeypatch: pytest.MonkeyPatch
):
    def build(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(rank, "Replica", build)
    config: Any = None

    assert rank.Rank(config, 0, 1, device="cpu", backend="gloo").answer("build", ()) == Outcome(kind, str(error))


def test_what_a_rank_has_built_is_answered_as_json_and_read_as_one_record():
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())

    answer = rank.Rank(config, 0, 1, device="cpu", backend="gloo").answer("build", ()).content

    built = Built(**json.loads(json.dumps(answer)))
    assert type(answer) is dict and built.metrics == {"accuracy": "max"}
    assert built.fingerprint and built.likeness and built.matrices and not built.has_batch_norm


def test_a_loss_keeps_the_answers_that_did_come():
    with pytest.raises(WorkerLost) as lost:
        judge({0: ANSWER, 1: DEATH, 2: ANSWER})

    assert lost.value.answers == ("fine", "fine")


@pytest.mark.parametrize("others", [ANSWER, PEER_LOST, SILENCE, ERROR])
def test_an_error_of_a_ranks_own_is_a_failure(others: Outcome):
    with pytest.raises(WorkerFailed, match=r"worker 0 failed: Traceback"):
        judge({0: ERROR, 1: others})


@pytest.mark.parametrize(
    ("outcomes", "seconds"),
    [([], None), ([ANSWER], None), ([DEATH], 60.0), ([PEER_LOST], BLAME_S), ([ERROR], BLAME_S), ([DEATH, ERROR], 60.0)],
)
def test_survivors_get_the_time_of_a_collective_and_suspects_less(outcomes: list[Outcome], seconds: float | None):
    assert patience_s(outcomes, collective_timeout_s=60.0) == seconds


def test_no_suspect_gets_more_than_the_time_of_a_collective():
    assert patience_s([PEER_LOST], collective_timeout_s=2.0) == 2.0


@pytest.mark.parametrize("error", [WorkerLost((1,), "exit code -9", ["fine"]), WorkerFailed(1, "Traceback ...")])
def test_errors_cross_process_borders_whole(error: WorkerLost | WorkerFailed):
    copy = pickle.loads(pickle.dumps(error))

    assert (str(copy), vars(copy)) == (str(error), vars(error))
