"""`wiretune export --to`: a tracker's own files hold the service's data, each point once."""

import importlib
import json
import math
import struct
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tensorboardX.proto.event_pb2 import Event
from typer.testing import CliRunner

from api.cli import main
from api.client import Client
from api.exporters import trackers
from api.exporters.trackers import Point, Points, Run, Subject, export, read_points, totals
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.records import Bill, MetricPoints, StageClosed
from service.wire.trials import SeriesExtent
from tests.api.conftest import Reporting
from tests.support.patience import PATIENCE_S

Read = tuple[dict[str, list[tuple[int, float]]], dict[str, float], Mapping[str, Any]]  # series, totals, parameters


@pytest.fixture
def finished(client: Client, key: str, reporting: Reporting, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished job, with a value that diverged, on the service that the command line talks to."""
    monkeypatch.setenv("WIRETUNE_URL", client.url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)
    reporting.start("tuned")
    reporting.post(points(reporting, {0: None, 1: 0.25}, name="gradient_norm"))
    reporting.run_to_the_end()
    return reporting.job_id


def points(reporting: Reporting, values: dict[int, float | None], *, name: str = "loss") -> Any:
    given = {"steps": tuple(values), "seconds": tuple(0.1 * step for step in values), "values": tuple(values.values())}
    return MetricPoints(trial_id=reporting.trial("tuned"), name=name, **given)


def test_tensorboard_reads_back_what_the_service_holds(finished: str, client: Client, tmp_path: Path) -> None:
    told = exported(finished, "tensorboard", tmp_path)

    assert told[0] == f"wrote {tmp_path / finished / 'tuned-seed-0'}: 212 points of arm tuned, seed 0"
    (file,) = (tmp_path / finished / "tuned-seed-0").glob("events.out.tfevents.*")
    assert b"completed" in file.read_bytes()
    assert {"validation_loss", "final/validation_loss", "bill/bytes_sent"} <= results_in_the_table(file)
    assert_same(client, finished, lambda name: read_event_files(tmp_path / finished / name), digits=24)


def test_to_export_again_leaves_each_point_once(finished: str, client: Client, tmp_path: Path) -> None:
    for _ in range(2):
        exported(finished, "tensorboard", tmp_path, "--arm", "dense")

    series, _, _ = read_event_files(tmp_path / finished / "dense-seed-0")
    assert [step for step, _ in series["loss"]] == list(range(200))
    assert not (tmp_path / finished / "tuned-seed-0").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--follow"], "--follow is for a tracker; name it with --to"),
        (["--to", "tensorboard", "--what", "all"], "leave out --what all"),
        (["--to", "tensorboard", "--which", "best"], "--which is for weights"),
        (["--to", "tensorboard", "--out", "-"], "--to writes a folder"),
        (["--to", "mlflow"], "mlflow is not installed"),
    ],
)
def test_what_cannot_be_exported_is_said(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("api.cli.exports.import_module", missing)

    done = CliRunner().invoke(main.app, ["export", "job-1", "--out", str(tmp_path), *options])

    assert done.exit_code == 2 and said in done.stderr


class Recorder:
    """A run that keeps what it is given; with each addition the job goes on by an act of `acts`."""

    def __init__(self, acts: Iterator[Callable[[], None]], subject: Subject) -> None:
        self.place, self.acts, self.is_open = subject.name, acts, True
        self.points: dict[str, list[Point]] = defaultdict(list)
        self.totals: Mapping[str, float] = {}

    def add(self, new: Points) -> None:
        for name, series in new.items():
            self.points[name] += series
        next(self.acts, lambda: None)()

    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        self.totals, self.outcome = totals, outcome

    def close(self, *, is_broken_off: bool = False) -> None:
        self.is_open, self.is_broken_off = False, is_broken_off


def test_a_followed_job_is_written_point_by_point_and_steps_that_it_took_back_are_not(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "POLL_S", 0.0)
    monkeypatch.setattr(trackers, "_MAX_PAUSE_S", 0.0)
    begun: list[Recorder] = []

    def take_back() -> None:
        bill = Bill(bytes_sent=400_000, seconds_training=5.0, steps=100)
        closed = StageClosed(
            trial_id=reporting.trial("tuned"), stage=1, step=100, num_steps=0, density=None, threshold=None,
            bill=bill, resume={},
        )  # fmt: skip
        reporting.post(closed, points(reporting, {100: 9.0, 101: 8.0, 102: 7.0}))

    def end() -> None:
        reporting.finish_trial("tuned", rates=[2.0], density=0.01, loss=0.31)
        reporting.finish()

    acts = iter(
        [
            lambda: reporting.stage("tuned", 1, rate=1.0, density=0.01),
            take_back,
            lambda: reporting.post(points(reporting, {103: 6.0})),
            end,
        ]
    )

    def begin(subject: Subject) -> Recorder:
        begun.append(Recorder(acts, subject))
        return begun[-1]

    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    (told,) = export(client, reporting.job_id, begin, arm="tuned", follow=True)

    held = read_points(client, reporting.job_id)["tuned", 0]
    assert [point.value for point in held["loss"][-4:]] == [9.0, 8.0, 7.0, 6.0]
    assert [len(each.points["loss"]) for each in begun] == [200, 104]
    assert begun[-1].points == held
    assert (begun[-1].totals, begun[-1].outcome) == (totals(client.report(reporting.job_id).trials[0]), "completed")
    assert told == ("tuned-seed-0", f"{sum(map(len, held.values()))} points of arm tuned, seed 0")
    assert not any(each.is_open for each in begun)


def test_a_followed_job_is_asked_only_for_points_beyond_the_written_ones(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "POLL_S", 0.0)
    monkeypatch.setattr(trackers, "_MAX_PAUSE_S", 0.0)
    asked: list[tuple[str, int | None]] = []
    save = client.save_metrics

    def save_metrics(*given: Any, first_step: int | None, arm: str, **more: Any) -> None:
        asked.append((arm, first_step))
        save(*given, first_step=first_step, arm=arm, **more)

    def end() -> None:
        reporting.finish_trial("tuned", rates=[2.0], density=0.01, loss=0.31)
        reporting.finish()

    monkeypatch.setattr(client, "save_metrics", save_metrics)
    acts = iter([lambda: reporting.stage("tuned", 1, rate=1.0, density=0.01), end])
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    list(export(client, reporting.job_id, lambda subject: Recorder(acts, subject), follow=True))

    assert asked == [("tuned", None), ("tuned", 80)]  # the last evaluation was in step 80


def test_points_of_a_service_of_release_0_1_0_are_followed_to_the_same_end(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch, like_0_1_0: None
) -> None:
    monkeypatch.setattr(trackers, "POLL_S", 0.0)
    monkeypatch.setattr(trackers, "_MAX_PAUSE_S", 0.0)
    begun: list[Recorder] = []

    def end() -> None:
        reporting.finish_trial("tuned", rates=[2.0], density=0.01, loss=0.31)
        reporting.finish()

    acts = iter([lambda: reporting.stage("tuned", 1, rate=1.0, density=0.01), end])
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    def begin(subject: Subject) -> Recorder:
        begun.append(Recorder(acts, subject))
        return begun[-1]

    list(export(client, reporting.job_id, begin, follow=True))

    assert begun[0].points == read_points(client, reporting.job_id)["tuned", 0]
    assert len(begun[0].points["loss"]) == 200 and begun[0].outcome == "completed"


BEFORE = {"loss": [Point(step, 1.0 * step, 2.0) for step in range(10)]}
AGAIN = [*BEFORE["loss"][:5], *(Point(step, 1.0 * step + 30, 2.5) for step in range(5, 14))]


@pytest.mark.parametrize(
    "after",
    [
        {"loss": AGAIN[:8]},
        {"loss": AGAIN[:10]},
        {"loss": AGAIN},
        {"loss": [*AGAIN[:8], BEFORE["loss"][9], *AGAIN[10:]]},  # the last written one is there, and one is missing
        {"memory_bytes": BEFORE["loss"]},
        {},
    ],
)
def test_steps_that_were_taken_back_are_found_even_once_a_trial_is_beyond_them(after: dict[str, list[Point]]) -> None:
    service = BEFORE
    begun: list[Recorder] = []

    def begin() -> Recorder:
        begun.append(Recorder(iter([]), MagicMock()))
        return begun[-1]

    def points_from(first: int) -> Points:
        return {name: [point for point in series if point.step >= first] for name, series in service.items()}

    run = Run(begin, points_from)
    for service in (BEFORE, after):
        run.update(extent(name, series) for name, series in service.items())

    assert begun[-1].points == after and len(begun) == 2


def extent(name: str, series: list[Point]) -> SeriesExtent:
    last = series[-1]
    of = {"num_points": len(series), "last_step": last.step, "last_value": last.value}
    return SeriesExtent(trial_id="t", arm="tuned", seed=0, name=name, **of)


@pytest.mark.parametrize(("end", "outcome"), [(None, "unfinished"), ("cancelled",) * 2, ("succeeded", "not finished")])
def test_the_run_of_a_trial_that_has_not_finished_says_how_its_job_ended(
    client: Client, reporting: Reporting, end: str | None, outcome: str
) -> None:
    recorders: list[Recorder] = []

    def begin(subject: Subject) -> Recorder:
        recorders.append(Recorder(iter([]), subject))
        return recorders[-1]

    reporting.start("tuned")
    if end == "cancelled":
        client.cancel(reporting.job_id)
    if end is not None:  # one that was stopped has succeeded
        reporting.finish(end)
    list(export(client, reporting.job_id, begin))

    assert {each.outcome for each in recorders} == {outcome}


@pytest.mark.parametrize(
    ("outcome", "is_broken_off", "status"),
    [
        ("completed", False, "FINISHED"),
        ("diverged", False, "FAILED"),
        ("failed", False, "FAILED"),
        ("cancelled", False, "KILLED"),
        ("not finished", False, "KILLED"),
        ("other", False, None),
        (None, False, None),  # the export failed: the trial goes on
        (None, True, "KILLED"),
    ],
)
def test_an_mlflow_run_ends_as_its_trial_did(
    client: Client,
    reporting: Reporting,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str | None,
    is_broken_off: bool,
    status: str | None,
) -> None:
    mlflow, own = MagicMock(), "api.exporters.mlflow"
    mlflow.MlflowException = ValueError  # a name that is only caught
    for name in ("mlflow", "mlflow.entities", "mlflow.exceptions", "mlflow.tracking", own):
        monkeypatch.setitem(sys.modules, name, mlflow)
    del sys.modules[own]  # which comes back as it was

    run = importlib.import_module(own).into(tmp_path)(Subject(client.job(reporting.job_id).view, "tuned", 0))
    if outcome is not None:
        run.finish({}, outcome)
    run.close(is_broken_off=is_broken_off)

    ended = [asked.args[1] for asked in mlflow.MlflowClient.return_value.set_terminated.call_args_list]
    assert ended == [status] * (status is not None)


def test_a_wandb_run_keeps_its_id_and_follows_the_environment(
    client: Client, reporting: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, own = MagicMock(Error=ValueError), "api.exporters.wandb"
    for name in ("wandb", own):
        monkeypatch.setitem(sys.modules, name, wandb)
    del sys.modules[own]  # which comes back as it was
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    begin, view = importlib.import_module(own).into(tmp_path), client.job(reporting.job_id).view

    for arm in ("tuned", "dense"):
        begin(Subject(view, arm, 0))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    begin(Subject(view, "tuned", 0))

    tuned, dense, again = (asked.kwargs for asked in wandb.init.call_args_list)
    assert (tuned["mode"], tuned["project"]) == ("offline", "wiretune")
    assert (again["mode"], again["project"]) == ("online", "mine")
    assert tuned["id"] == again["id"] != dense["id"] and len(tuned["id"]) <= 64  # as W&B allows


def test_the_runs_of_a_followed_job_that_waits_begin_with_it(
    client: Client, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = client.job(store.add_job(job)[0].id).view
    started_at = waiting.created_at + timedelta(hours=3)
    over = waiting.model_copy(update={"started_at": started_at, "state": JobState.SUCCEEDED})
    monkeypatch.setattr(client, "watch", lambda *_, **__: iter([waiting, over]))
    monkeypatch.setattr(trackers, "_MAX_PAUSE_S", 0.0)
    begun: list[Subject] = []

    def begin(subject: Subject) -> Recorder:
        begun.append(subject)
        return Recorder(iter([]), subject)

    list(export(client, waiting.id, begin, follow=True))

    assert {each.time_at(1.0) for each in begun} == {started_at.timestamp() + 1.0}


def test_a_samples_run_says_the_values_drawn_for_it_and_begins_once_it_is_drawn(
    client: Client, store: Store, job: JobSpec
) -> None:
    params = {"workload.batch_size": {"choice": [16, 64]}}
    swept = job.model_dump(mode="json") | {"params": params, "sweep": {"samples": 9, "sampler": "bo"}}
    job_id = store.add_job(JobSpec.model_validate(swept))[0].id
    begun: list[Subject] = []

    def begin(subject: Subject) -> Recorder:
        begun.append(subject)
        return Recorder(iter([]), subject)

    told = list(export(client, job_id, begin))

    held = {trial.arm: trial.sample.values for trial in client.trials(job_id) if trial.sample and trial.sample.values}
    assert 0 < len(held) < 9 and len(told) == 2 + len(held)
    said = {each.arm: {"workload.batch_size": each.parameters["workload"]["batch_size"]} for each in begun}
    own = {"workload.batch_size": 32}
    assert said == {"tuned": own, "dense": own} | held


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_export_that_ends_early_closes_its_runs_and_says_whether_its_user_broke_it_off(
    client: Client, reporting: Reporting, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    recorder = Recorder(iter([fail]), Subject(client.job(reporting.job_id).view, "tuned", 0))
    with pytest.raises(error):
        list(export(client, reporting.job_id, lambda subject: recorder, follow=True))

    assert (recorder.is_open, recorder.is_broken_off) == (False, error is KeyboardInterrupt)


class Refusing(Recorder):
    """A run of a tracker that refuses every second write."""

    num_asked = 0

    @trackers.told_as("MLflow", LookupError)
    def refuse(self) -> None:
        Refusing.num_asked += 1
        if Refusing.num_asked % 2:
            raise LookupError("no API at https://me:secret@host/api\nand more")

    def __init__(self, subject: Subject) -> None:
        self.refuse()
        super().__init__(iter([]), subject)

    def add(self, new: Points) -> None:
        self.refuse()
        super().add(new)

    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        self.refuse()
        super().finish(totals, outcome)

    def close(self, *, is_broken_off: bool = False) -> None:
        self.refuse()
        super().close(is_broken_off=is_broken_off)


def test_an_export_survives_a_tracker_that_is_away(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_FIRST_AGAIN_S", 0.0)
    monkeypatch.setattr(trackers, "_MAX_PAUSE_S", 0.0)
    begun: list[Refusing] = []
    noted: list[trackers.TrackerError] = []

    def begin(subject: Subject) -> Refusing:
        begun.append(Refusing(subject))
        return begun[-1]

    reporting.run_to_the_end()
    told = list(export(client, reporting.job_id, begin, follow=True, patience_s=PATIENCE_S, note_failure=noted.append))

    held = read_points(client, reporting.job_id)
    assert len(told) == 2 and {each.place: each.points for each in begun} == {
        f"{arm}-seed-{seed}": points for (arm, seed), points in held.items()
    }
    assert {each.outcome for each in begun} == {"completed"} and not any(each.is_open for each in begun)
    assert {str(each) for each in noted} == {"MLflow did not take the points: no API at https://host/api"}


@pytest.mark.parametrize("options", [[], ["--follow", "--patience", "0"]])
def test_a_trackers_own_error_is_a_sentence(finished: str, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setattr(Refusing, "num_asked", 0)
    monkeypatch.setattr("api.cli.exports.import_module", lambda _: MagicMock(into=lambda _: Refusing))

    done = CliRunner().invoke(main.app, ["export", finished, "--to", "mlflow", *options])

    assert (done.exit_code, done.stderr) == (1, "MLflow did not take the points: no API at https://host/api\n")


@pytest.mark.long  # `make test-long` installs these packages
def test_tensorboards_own_reader_agrees(finished: str, client: Client, tmp_path: Path) -> None:
    reading = needed("tensorboard.backend.event_processing.event_accumulator")
    exported(finished, "tensorboard", tmp_path)

    def read(name: str) -> Read:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reading.EventAccumulator(str(tmp_path / finished / name), {"scalars": 0, "tensors": 0})
            found.Reload()
            series = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
            (text,) = found.Tensors("totals/text_summary")
        _, _, parameters = read_event_files(tmp_path / finished / name)
        exact = json.loads(text.tensor_proto.string_val[0])
        return {tag: found for tag, found in series.items() if tag not in exact}, exact, parameters

    assert_same(client, finished, read, digits=24)


@pytest.mark.long  # `make test-long` installs these packages
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_back_what_the_service_holds(finished: str, client: Client, tmp_path: Path) -> None:
    mlflow = needed("mlflow.tracking")
    for _ in range(2):  # the second replaces the first
        exported(finished, "mlflow", tmp_path)
    tracking = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = tracking.get_experiment_by_name("digits over a slow link")
    found = {run.info.run_name: run for run in tracking.search_runs([experiment.experiment_id])}

    def read(name: str) -> Read:
        run = found.pop(name)
        assert run.info.status == "FINISHED"
        series = {
            each: [(point.step, point.value) for point in tracking.get_metric_history(run.info.run_id, each)]
            for each in run.data.metrics
        }
        exact = {each: series.pop(each)[0][1] for each in [*series] if each.startswith(("bill/", "final/"))}
        return series, exact, run.data.params

    assert_same(client, finished, read, digits=53)
    assert not found


@pytest.mark.long  # `make test-long` installs these packages
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_back_what_the_service_holds(finished: str, client: Client, tmp_path: Path) -> None:
    proto = needed("wandb.proto.wandb_internal_pb2")
    for _ in range(2):  # the second replaces the first
        exported(finished, "wandb", tmp_path)

    def read(name: str) -> Read:
        (file,) = (tmp_path / finished / name).glob("wandb/offline-run-*/*.wandb")
        series: dict[str, list[tuple[int, float]]] = defaultdict(list)
        exact: dict[str, float] = {}
        parameters: dict[str, Any] = {}
        for content in log_records(file.read_bytes()):
            record = proto.Record.FromString(content)
            items = {
                "".join(item.nested_key) or item.key: json.loads(item.value_json)
                for part in (record.history.item, record.summary.update)
                for item in part
            }
            parameters |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("summary"):
                exact |= {each: value for each, value in items.items() if each.startswith(("bill/", "final/"))}
            for each in items.keys() - {"step", "seconds"} if record.HasField("history") else ():
                if not each.startswith("_"):
                    series[each].append((items["step"], float(items[each])))
        return series, exact, trackers.flat(parameters)

    assert_same(client, finished, read, digits=53)


def exported(job_id: str, tracker: str, folder: Path, *options: str) -> list[str]:
    """Run the command; return the lines that it printed."""
    done = CliRunner().invoke(main.app, ["export", job_id, "--to", tracker, "--out", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def assert_same(client: Client, job_id: str, read: Callable[[str], Read], *, digits: int) -> None:
    """Assert that what is read back are the service's points, to so many binary digits, and its bill exactly."""
    report = client.report(job_id)
    for (arm, seed), held in read_points(client, job_id).items():
        series, exact, parameters = read(f"{arm}-seed-{seed}")
        assert series.keys() == held.keys()
        for name, kept in held.items():
            assert [step for step, _ in series[name]] == [point.step for point in kept]
            expected = [math.nan if point.value is None else point.value for point in kept]
            assert [value for _, value in series[name]] == pytest.approx(expected, rel=2.0**-digits, abs=0, nan_ok=True)
        (trial,) = (each for each in report.trials if (each.arm, each.seed) == (arm, seed))
        assert exact == totals(trial) and exact["bill/bytes_sent"] == trial.bill.bytes_sent
        assert exact["bill/steps"] == trial.bill.steps and exact["final/validation_loss"] == trial.validation_loss
        assert (parameters["arm"], parameters["exchange/kind"]) == (arm, "none" if arm == "dense" else "threshold")


def events_of(file: Path) -> Iterator[Event]:
    """Yield the events of a file: records of a length, a checksum, a protobuf message and a checksum."""
    content, place = file.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += length + 16


def read_event_files(folder: Path) -> Read:
    """Read a run's event files."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    exact: dict[str, float] = {}
    parameters: dict[str, Any] = {}
    (file,) = folder.glob("events.out.tfevents.*")
    for event in events_of(file):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                series[value.tag].append((event.step, value.simple_value))
            elif value.tag == "totals/text_summary":
                exact = json.loads(value.tensor.string_val[0])
            elif value.tag == "_hparams_/session_start_info":
                parameters = hyperparameters(value.metadata.plugin_data.content)
    final = {name: found for name, found in series.items() if name in exact}
    assert {name: found[0][1] for name, found in final.items()} == pytest.approx(exact, rel=2.0**-24)
    return {name: found for name, found in series.items() if name not in exact}, exact, parameters


def results_in_the_table(file: Path) -> set[str]:
    """Return the scalars that an event file names as results of its hyperparameters."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    found = (
        HParamsPluginData.FromString(value.metadata.plugin_data.content).experiment.metric_infos
        for event in events_of(file)
        for value in event.summary.value
        if value.tag == "_hparams_/experiment"
    )
    return {each.name.tag for infos in found for each in infos}


def hyperparameters(content: bytes) -> dict[str, Any]:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    found = HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}


def log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log, whose blocks of 32 kB hold them whole or in parts."""
    place, record = 7, b""  # behind the file's own header
    while place < len(content):
        if (left := -place % 32768) and left < 7:  # too little for a header: the block is filled up
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error}: pip install '.[export]'")
