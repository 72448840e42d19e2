"""The outcome of an attempt follows from its trials' outcomes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from ray.exceptions import RayActorError, RayTaskError

from service.cluster import entrypoint, reporter, tune_trial
from service.cluster.attempt import Hopeless, LostTouch, NoPlace, is_wanted
from service.cluster.checkpoints import NoRoom
from service.cluster.entrypoint import bundles_of, failure_of, outcome_of, run
from service.cluster.group import death_of
from service.cluster.reporter import BRIEF_S, Door
from service.cluster.shared_folder import UnlikeMachine
from service.job.spec import JobSpec
from service.wire.records import AttemptBrief, AttemptFinished, Control, ResumePoint, Sample, SampleDrawn, TrialFailed
from trainers.training.call_results import WorkerFailed, WorkerLost
from trainers.workload import NoData, WorkloadError

SILENCE_S = 600.0


def _brief(*, finished: bool, control: Control = Control.RUN) -> AttemptBrief:
    spec = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}})
    return AttemptBrief(
        job_id="job",
        number=2,
        spec=spec,
        storage_url="file:///nowhere",
        lease_s=15,
        renew_s=5,
        max_silence_s=SILENCE_S,
        control=control,
        trials=(ResumePoint(trial_id="job.tuned.0", finished=finished, resume=None),),
    )


@pytest.mark.parametrize(
    ("trials", "outcome"),
    [
        (["completed", "completed"], "succeeded"),
        (["completed", "diverged"], "succeeded"),
        (["completed", "cancel"], "cancelled"),
        (["completed", "pause", "pause"], "paused"),
        (["completed", "stop"], "succeeded"),
        ([], "succeeded"),
    ],
)
def test_an_attempts_outcome_is_that_of_its_trials(trials: list[str], outcome: str) -> None:
    assert outcome_of(trials).outcome == outcome


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Hopeless("no module `mine`"), False),
        (OSError("disk full"), True),
        (NoPlace("no room for worker 1"), True),
        (LostTouch("a trial lost touch with the API: told to fenced"), True),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, retry: bool) -> None:
    name = f"{type(error).__module__}.{type(error).__name__}"
    as_ray_raises_it = RayTaskError("train", f"Traceback ...\n{name}: {error!s}", error)

    finished = failure_of(as_ray_raises_it.as_instanceof_cause())

    assert (finished.outcome, finished.retry) == ("failed", retry)
    assert finished.reason == (str(error) if name.startswith("service.") else f"{name}: {error}")


def test_workers_do_not_import_from_the_folder_in_which_a_user_started_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []

    def init(**_: object) -> None:  # Ray puts the driver's folder before all others on the workers' path
        folders.append(Path.cwd())
        raise ConnectionError

    monkeypatch.setattr(entrypoint.ray, "init", init)

    with pytest.raises(ConnectionError):
        run(_brief(finished=False))
    assert tmp_path not in folders and len(folders) == 1


def test_an_attempt_with_nothing_left_to_train_succeeds_without_ray() -> None:
    assert run(_brief(finished=True)).outcome == "succeeded"


@pytest.mark.parametrize(("control", "outcome"), [("cancel", "cancelled"), ("pause", "paused"), ("stop", "succeeded")])
def test_an_attempt_that_is_to_end_before_it_starts_trains_nothing(control: str, outcome: str) -> None:
    assert run(_brief(finished=False, control=Control(control))).outcome == outcome


@pytest.mark.parametrize("control", list(Control))
@pytest.mark.parametrize("resume", [None, {"checkpoint": "file:///somewhere"}])
def test_a_stopped_job_brings_to_its_end_what_has_begun_and_nothing_else(
    control: Control, resume: dict[str, Any] | None
) -> None:
    point = ResumePoint(trial_id="job.tuned.0", finished=False, resume=resume)

    expected = control is Control.RUN or (control is Control.STOP and resume is not None)
    assert is_wanted(_brief(finished=False, control=control), point) == expected
    assert not is_wanted(_brief(finished=True, control=control), point.model_copy(update={"finished": True}))


@pytest.mark.parametrize("resume", [None, {"checkpoint": "file:///somewhere"}])
def test_a_trial_that_was_stopped_alone_is_brought_to_its_end_if_it_has_begun(resume: dict[str, Any] | None) -> None:
    stopped = ResumePoint(trial_id="job.tuned.0", finished=False, resume=resume, stopped=True)
    other = ResumePoint(trial_id="job.dense.0", finished=False, resume=resume)
    brief = _brief(finished=False)

    assert is_wanted(brief, stopped) == (resume is not None) and is_wanted(brief, other)


def test_a_trial_that_was_stopped_alone_before_it_begins_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = _brief(finished=False)
    brief = brief.model_copy(update={"trials": (brief.trials[0].model_copy(update={"stopped": True}),)})

    told, outcome = _run(brief, brief.trials[0].trial_id, monkeypatch, lambda *_, **__: pytest.fail("it began"))

    assert (told, outcome, outcome_of([outcome]).outcome) == ([], Control.STOP, "succeeded")


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with its job"])
def test_a_stopped_trial_that_goes_on_from_a_checkpoint_is_told_before_it_trains(
    is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief, told = _brief(finished=False, control=Control.RUN if is_alone else Control.STOP), list[Control]()
    point = brief.trials[0].model_copy(update={"stopped": is_alone, "resume": {"checkpoint": "file:///somewhere"}})
    brief = brief.model_copy(update={"trials": (point,)})
    monkeypatch.setattr(tune_trial, "_outcome", lambda *_: "completed")
    monkeypatch.setattr(
        tune_trial.Door, "from_environment", lambda: SimpleNamespace(brief=lambda **_: brief, close=lambda: None)
    )

    def start(*_: Any, asked: Control, **__: Any) -> SimpleNamespace:
        told.append(asked)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(tune_trial, "Reporter", start)

    assert (tune_trial._run(point.trial_id, max_silence_s=SILENCE_S), told) == ("completed", [Control.STOP])


def test_a_trials_bundles_have_all_that_their_workers_ask_for() -> None:
    workers = {"count": 4, "per_node": 2, "cpus": 3, "gpus": 1, "memory_gb": 1.5, "accelerator": "A100"}
    job = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}}

    bundle = {"CPU": 6.0, "GPU": 2.0, "memory": 3_000_000_000, "accelerator_type:A100": 0.002}
    assert bundles_of(JobSpec.model_validate(job | {"workers": workers}), 4) == [{}, bundle, bundle]
    assert bundles_of(JobSpec.model_validate(job), 1) == [{}, {"CPU": 1.0}]


def test_a_workers_death_is_told_in_one_line_without_guesses_at_its_cause() -> None:
    death = RayActorError(
        error_msg="The actor died.\n\tpid: 7\nIts worker has died: end of file. Some common causes include: (1) ..."
    )

    assert death_of(death) == "Its worker has died: end of file."


class Api:
    """Stands where the API and a reporter stand for a sample that draws; a rival has what is drawn in `lost` draws."""

    def __init__(self, brief: AttemptBrief, *, lost: int = 0) -> None:
        self.told, self.sent, self._lost = brief, list[Any](), lost

    def brief(self, **_: float) -> AttemptBrief:
        return self.told

    def flush(self, drawn: Any) -> None:
        self.sent.append(drawn)
        has_it = 1 if len(self.sent) > self._lost else 2
        points = list(self.told.trials)
        sample = Sample(number=points[has_it].sample.number, values=drawn.values, drawn_by=drawn.drawn_by)  # type: ignore[union-attr]
        points[has_it] = points[has_it].model_copy(update={"sample": sample})
        self.told = self.told.model_copy(update={"trials": tuple(points)})


def _drawing() -> AttemptBrief:
    """The brief of a job with fewer workers than it asks for, and two samples that are not drawn yet."""
    spec = JobSpec.model_validate(
        {
            "workload": {"kind": "digits-mlp"},
            "budget": {"steps": 10},
            "workers": {"count": 4, "min": 2},
            "params": {"optimizer.weight_decay": {"uniform": [0.0, 0.1]}},
            "sweep": {"samples": 2, "sampler": "bo"},
        }
    )
    points = [ResumePoint(trial_id="job.tuned.0", finished=False, resume=None)]
    for number in range(2):
        sample = Sample(number=number, values=None, drawn_by=None)
        points.append(ResumePoint(trial_id=f"job.sample-{number}.0", finished=False, resume=None, sample=sample))
    update = {"spec": spec, "trials": tuple(points), "num_workers": 2}
    return _brief(finished=False).model_copy(update=update)


def _run(brief: AttemptBrief, trial_id: str, monkeypatch: pytest.MonkeyPatch, start: Any) -> tuple[list[Any], str]:
    """Run a trial whose workers `start`; return what it tells the API, and how it ended."""
    told = list[Any]()
    monkeypatch.setattr(tune_trial.Door, "from_environment", lambda: SimpleNamespace(brief=lambda **_: brief))
    reporter = SimpleNamespace(close=lambda: None, flush=told.append)
    monkeypatch.setattr(tune_trial, "Reporter", lambda *_, **__: reporter)
    monkeypatch.setattr(tune_trial, "RayGroup", start)
    return told, tune_trial._run(trial_id, max_silence_s=SILENCE_S)


def _beginning(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[SimpleNamespace], httpx2.Response]
) -> SimpleNamespace:
    """Let a trial ask an API that `answer`s for its brief, and train nothing. Returns the clock, which waits turn."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=lambda s: setattr(clock, "now", clock.now + s))
    door = Door(api_url="http://api", job_id="job", attempt=2, token="t")
    door._http = httpx2.Client(base_url="http://api", transport=httpx2.MockTransport(lambda _: answer(clock)))
    monkeypatch.setattr(reporter, "time", clock)
    monkeypatch.setattr(tune_trial.Door, "from_environment", lambda: door)
    monkeypatch.setattr(tune_trial, "Reporter", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(tune_trial, "_outcome", lambda *_: "completed")
    return clock


def _brief_after(away_s: float) -> Callable[[SimpleNamespace], httpx2.Response]:
    def answer(clock: SimpleNamespace) -> httpx2.Response:
        if clock.now < away_s:
            raise httpx2.ConnectError("nobody listens")
        return httpx2.Response(200, text=_brief(finished=False).model_dump_json())

    return answer


def test_a_trial_that_begins_while_the_api_is_away_waits_for_it_as_long_as_those_that_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _beginning(monkeypatch, _brief_after(BRIEF_S + 1))

    assert tune_trial._run("job.tuned.0", max_silence_s=SILENCE_S) == "completed"


def test_a_driver_that_begins_while_the_api_is_away_waits_for_it_as_long_as_those_that_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _beginning(monkeypatch, _brief_after(SILENCE_S - 1))
    closed = SimpleNamespace(close=lambda: None, flush=lambda _: None)
    for part in ("LeaseKeeper", "Reporter"):
        monkeypatch.setattr(entrypoint, part, lambda *_, **__: closed)
    monkeypatch.setattr(entrypoint, "configure_process", lambda _: None)
    monkeypatch.setattr(entrypoint, "run", lambda _: AttemptFinished(outcome="succeeded"))
    monkeypatch.setenv("WIRETUNE_MAX_SILENCE_S", str(SILENCE_S))

    assert entrypoint.main() == 0


def test_a_trial_that_cannot_hear_the_api_ends_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    _beginning(monkeypatch, _brief_after(SILENCE_S + 10))

    with pytest.raises(LostTouch, match="a trial lost touch with the API: the API has not answered for"):
        tune_trial._run("job.tuned.0", max_silence_s=SILENCE_S)


def test_a_brief_that_this_release_cannot_read_ends_the_attempt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = _brief(finished=False).model_dump(mode="json")
    later = brief | {"spec": brief["spec"] | {"colour": "red"}}
    clock = _beginning(monkeypatch, lambda _: httpx2.Response(200, json=later))

    with pytest.raises(LostTouch, match=r"this release cannot read the brief: `spec\.colour`"):
        tune_trial._run("job.tuned.0", max_silence_s=SILENCE_S)

    assert clock.now == 0


def test_a_sample_that_is_drawn_in_an_attempt_with_fewer_workers_trains_with_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brief = _drawing()
    api, counts = Api(brief), list[int]()
    monkeypatch.setattr(tune_trial.Door, "from_environment", lambda: api)
    monkeypatch.setattr(tune_trial, "Reporter", lambda *_, **__: SimpleNamespace(close=lambda: None, flush=api.flush))

    def start(_: Any, workers: Any, **__: Any) -> None:
        counts.append(workers.count)
        raise WorkerFailed(0, "full disk", is_passing=True)

    monkeypatch.setattr(tune_trial, "RayGroup", start)
    with pytest.raises(WorkerFailed):
        tune_trial._run("job.sample-0.0", max_silence_s=SILENCE_S)

    assert counts == [2]


def test_samples_that_draw_the_same_at_once_come_to_different_values() -> None:
    brief = _drawing()
    api = Api(brief, lost=1)

    _, spec = tune_trial._learned(api, brief, brief.trials[1], api)  # type: ignore[arg-type]

    first, second = api.sent
    assert first.only_if_new and second.only_if_new and first.values != second.values
    assert spec.replica.optimizer.weight_decay == second.values["optimizer.weight_decay"]  # type: ignore[union-attr]


def test_a_sample_whose_values_are_always_taken_keeps_some_in_the_end() -> None:
    brief = _drawing()
    api = Api(brief, lost=tune_trial.MAX_DRAWS - 1)

    tune_trial._learned(api, brief, brief.trials[1], api)  # type: ignore[arg-type]

    assert [each.only_if_new for each in api.sent] == [*[True] * (tune_trial.MAX_DRAWS - 1), False]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WorkloadError("`width` must be a multiple of 4"), "`width` must be a multiple of 4"),
        (WorkerFailed(0, "Traceback ...\nOutOfMemoryError: 90 GiB"), "a worker failed: OutOfMemoryError: 90 GiB; `wir"),
    ],
)
def test_an_error_that_it_would_meet_again_ends_a_sample_alone_and_the_job_of_an_arm(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = Api(_drawing())
    brief.flush(SampleDrawn(trial_id="job.sample-0.0", values={"optimizer.weight_decay": 0.1}, drawn_by="sobol"))

    def start(*_: Any, **__: Any) -> None:
        raise error

    told, outcome = _run(brief.told, "job.sample-0.0", monkeypatch, start)
    assert outcome == "failed"
    assert [(type(each), each.trial_id, each.reason[: len(reason)]) for each in told] == [
        (TrialFailed, "job.sample-0.0", reason)
    ]
    with pytest.raises(Hopeless) as raised:
        _run(brief.told, "job.tuned.0", monkeypatch, start)
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (WorkerFailed(0, "No space left on device", is_passing=True), WorkerFailed),
        (WorkerLost([0], "it died"), WorkerLost),
        (NoPlace("no room for worker 1"), NoPlace),
        (NoRoom("the disk is full"), Hopeless),
        (UnlikeMachine("machine b has torch 2.9"), NoPlace),
        (NoData("machine b lacks the data `x`"), Hopeless),
    ],
)
def test_what_is_no_fault_of_a_sample_ends_its_attempt(
    error: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = Api(_drawing())
    brief.flush(SampleDrawn(trial_id="job.sample-0.0", values={"optimizer.weight_decay": 0.1}, drawn_by="sobol"))

    def start(*_: Any, **__: Any) -> None:
        raise error

    with pytest.raises(raised):
        _run(brief.told, "job.sample-0.0", monkeypatch, start)


def test_a_sample_whose_values_no_trial_can_have_fails_by_name_and_the_next_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}, "sweep": {"samples": 2}}
    spec = JobSpec.model_validate(content | {"params": {"accumulate": {"uniform": [1, 8]}}})
    points = tuple(
        ResumePoint(trial_id=arm, finished=False, resume=None, sample=sample)
        for arm, sample in (
            ("tuned", None),
            ("sample-0", Sample(number=0, values={"accumulate": 3.5}, drawn_by="sobol")),
            ("sample-1", Sample(number=1, values={"accumulate": 4}, drawn_by="sobol")),
        )
    )
    brief = _brief(finished=False).model_copy(update={"spec": spec, "trials": points})

    [failed], outcome = _run(brief, "sample-0", monkeypatch, lambda *_, **__: pytest.fail("a worker was started"))

    assert outcome == "failed"
    assert failed.reason.startswith("a sample cannot have the values {'accumulate': 3.5}: `accumulate` should be a")
    assert tune_trial._find(brief, "sample-1")[1].replica.accumulate == 4


@pytest.mark.parametrize("resume", [None, {"checkpoint": "file:///somewhere"}], ids=["first", "later"])
def test_a_machine_without_the_storage_ends_an_attempt_and_no_job(
    resume: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = _brief(finished=False).model_copy(update={"storage_mark": "file:///nowhere/.storage-1"})
    point = brief.trials[0].model_copy(update={"resume": resume})
    brief = brief.model_copy(update={"trials": (point,)})
    monkeypatch.setattr(tune_trial.Door, "from_environment", lambda: SimpleNamespace(brief=lambda **_: brief))
    monkeypatch.setattr(tune_trial, "Reporter", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(tune_trial.shared_folder, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(tune_trial, "RayGroup", lambda *_, **__: pytest.fail("a worker was started"))

    with pytest.raises(NoPlace, match="does not see the same file:///nowhere as the service"):
        tune_trial._run(point.trial_id, max_silence_s=SILENCE_S)


def test_a_trial_of_a_later_attempt_first_removes_what_earlier_ones_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brief = _brief(finished=False).model_copy(update={"storage_url": f"file://{tmp_path}/job/attempt-2"})
    stray = tmp_path / "job" / "attempt-1" / brief.trials[0].trial_id / "000003-step-40"
    stray.mkdir(parents=True)
    (stray / "rank-0.safetensors").touch()
    monkeypatch.setattr(tune_trial.Door, "from_environment", lambda: SimpleNamespace(brief=lambda **_: brief))
    monkeypatch.setattr(tune_trial, "Reporter", lambda *_, **__: SimpleNamespace(close=lambda: None))

    def start(*_: Any, **__: Any) -> None:
        assert not stray.exists()
        raise WorkloadError("it has started")

    monkeypatch.setattr(tune_trial, "RayGroup", start)
    with pytest.raises(Hopeless, match="it has started"):
        tune_trial._run(brief.trials[0].trial_id, max_silence_s=SILENCE_S)


def test_a_driver_loads_neither_torch_nor_the_search():
    code = "import sys, service.cluster.entrypoint; print(sorted({'torch', 'botorch', 'sklearn'} & set(sys.modules)))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert loaded.stdout.strip() == "[]"


def test_what_trains_loads_no_library_that_its_workload_does_not_need():
    code = """
import sys, trainers.training.rank
from trainers.spec.workloads import DigitsMlp
from trainers.workloads import registry
registry.build(DigitsMlp())
print(sorted({'sklearn', 'pandas', 'botorch'} & set(sys.modules)))
"""

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert loaded.stdout.strip() == "[]"
