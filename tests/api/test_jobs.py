"""A job as a handle, blocking and async: its views, and figures equal to the store's."""

import asyncio
import builtins
import inspect
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from api import client as client_module, display
from api.async_client import AsyncClient
from api.client import Client
from api.failures import ApiError
from api.jobs import AsyncJob, Job
from search.schedule import Schedule
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.jobs import JobOrder
from service.wire.queue import QueuePlace, WaitKind
from service.wire.records import ScheduleEntry
from tests.api.conftest import Reporting
from tests.support.patience import PATIENCE_S
from tests.support.reported import finished as trial_finished


@pytest.fixture
def finished(client: Client, reporting: Reporting) -> Job:
    reporting.run_to_the_end()
    return client.job(reporting.job_id)


def test_a_line_says_where_a_job_is(client: Client, reporting: Reporting) -> None:
    job = client.job(reporting.job_id)
    assert repr(job) == f"<Job 'digits over a slow link' starting, {job.id}>"

    reporting.run_to_the_end()

    assert repr(job.refresh()) == f"<Job 'digits over a slow link' succeeded, step 200, loss 0.31, {job.id}>"


def test_a_verb_brings_the_handle_up_to_date_and_a_clone_has_its_own(client: Client, job: JobSpec) -> None:
    made = client.submit(job)

    assert made.pause(version=made.view.version) is made
    assert (made.state, made.reason) == (JobState.PAUSED, "paused by test")
    assert made.resume(workers=1).spec.workers.count == 1
    assert made.clone({"name": "again"}).name == "again"
    assert [each.name for each in client.jobs().jobs] == ["again", made.name]


def test_a_frame_has_every_point(client: Client, reporting: Reporting, store: Store) -> None:
    finished = client.job(reporting.job_id)
    assert len(finished.frame("loss")) == 0
    reporting.run_to_the_end()

    frame = finished.frame("loss")

    assert list(frame.columns) == ["arm", "seed", "step", "seconds", "loss"]
    for arm, points in frame.groupby("arm", sort=False):
        (series,) = store.series(finished.id, "loss", trial_id=f"{finished.id}.{arm}.0", max_points=10_000)
        assert tuple(points["step"]) == series.steps
        assert tuple(points["seconds"]) == series.seconds
        assert tuple(points["loss"]) == series.values
    of_all = finished.frame(arm="dense")
    assert set(of_all["arm"]) == {"dense"}
    assert dict(of_all["name"].value_counts()) == {"loss": 200, "validation_loss": 10}


def test_the_frame_of_a_metric_downloads_no_other(finished: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[bytes] = []
    of_points = display.frame
    monkeypatch.setattr(display, "frame", lambda points, name: tables.append(points) or of_points(points, name))

    assert len(finished.frame("validation_loss")) == 20

    assert tables[0].count(b",validation_loss,") == len(tables[0].splitlines()) - 1 == 20


def test_a_service_of_release_0_1_0_gives_the_same_frames(
    finished: Job, live_url: str, key: str, request: pytest.FixtureRequest
) -> None:
    frame = finished.frame("validation_loss", arm="dense")
    request.getfixturevalue("like_0_1_0")

    async def asked() -> Any:
        async with AsyncClient(live_url, key) as client:
            return await (await client.job(finished.id)).frame("validation_loss", arm="dense")

    assert len(frame) == 10
    assert frame.equals(finished.frame("validation_loss", arm="dense")) and frame.equals(asyncio.run(asked()))
    with pytest.raises(ValueError, match="`name` must be one of loss, validation_loss, got 'f1'"):
        finished.frame("f1")


def test_a_frame_has_the_names_of_arms_as_they_were_given() -> None:
    rows = [f"j,{arm},0,loss,0,0.5,{value}" for arm, value in {"01": "1.0", "1": "", "null": "2.0"}.items()]
    points = "\n".join(["job,arm,seed,name,step,seconds,value", *rows]).encode()

    assert list(display.frame(points, "loss")["arm"]) == ["01", "1", "null"]


def test_a_watched_sweep_shows_what_trains_and_counts_the_rest(client: Client, store: Store, job: JobSpec) -> None:
    sweep = {"params": {"workload.batch_size": {"integer": [16, 64]}}, "sweep": {"samples": 20}}
    reporting = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep))
    for number in range(6):
        reporting.start(f"sample-{number}")
    for number in range(5):
        reporting.finish_trial(f"sample-{number}", rates=[2.0], density=0.01, loss=0.1 + number)

    view, trials = client.job(reporting.job_id).view, client.trials(reporting.job_id)
    rows = list(display._rows(view, trials))

    assert [row[:2] for row in rows] == [
        ("sample-5", "training"),
        ("16 trials", "waiting"),
        ("5 trials", "finished"),
    ]
    assert rows[-1][5] == "best 0.1"
    over = view.model_copy(update={"state": JobState.SUCCEEDED})
    assert len(list(display._rows(over, trials))) == 22


def test_a_watched_job_that_waits_says_why(client: Client, job: JobSpec) -> None:
    place = QueuePlace(place=2, of=3, kind=WaitKind.ROOM, workers=2, sentence="there is no room for 2 workers")
    waiting = client.submit(job).view.model_copy(update={"queue": place})

    title = display.table(waiting, (), "0%").title

    assert str(title) == f"{waiting.name} ({waiting.id}) is queued, 0%: there is no room for 2 workers"


def test_a_figure_has_a_line_for_each_trial(finished: Job) -> None:
    over_time, over_steps = finished.plot("loss"), finished.plot("loss", x="step")

    assert [line.name for line in over_time.data] == ["tuned", "dense"]
    assert (over_time.data[0].x[-1], over_steps.data[0].x[-1]) == (0.05 * 199, 199)
    assert len(over_time.data[0].y) == 200
    assert [each.layout.xaxis.title.text for each in (over_time, over_steps)] == ["training seconds", "step"]
    assert over_time.layout.yaxis.title.text == "loss"


def test_what_there_is_not_is_answered_with_what_there_is(finished: Job) -> None:
    with pytest.raises(ValueError, match=r"`name` must be one of .*, loss, .*, validation_loss, got 'f1'"):
        finished.frame("f1")
    with pytest.raises(ApiError, match="no trial of arm"):
        finished.frame("loss", arm="other")
    with pytest.raises(ValueError, match="`x` must be seconds or step, got 'bytes'"):
        finished.plot("loss", x="bytes")  # type: ignore[call-overload]


def test_a_schedule_is_the_librarys(finished: Job) -> None:
    schedule = finished.schedule(arm="tuned")

    assert isinstance(schedule, Schedule)
    assert [schedule.learning_rate_at(step) for step in (0, 100)] == [2.0, 1.0]


@pytest.mark.parametrize("running", [True, False])
def test_a_schedule_has_the_warm_up_of_the_optimizer_that_trained(
    client: Client, store: Store, job: JobSpec, running: bool
) -> None:
    own = {"kind": "adamw", "warmup_steps": 40}
    several = {"kind": "auto", "options": [{"kind": "sgd", "warmup_steps": 10}, own]}
    spec = job.model_dump(mode="json") | {"optimizer": own if running else several}
    reporting = Reporting(store, JobSpec.model_validate(spec))
    reporting.start("dense")
    reporting.stage("dense", 0, rate=0.1, density=None)
    if not running:
        entry = ScheduleEntry(step=0, num_steps=100, learning_rate=0.1, values={"optimizer": "adamw"})
        reporting.post(trial_finished(reporting.trial("dense"), schedule=(entry,)))

    schedule = client.job(reporting.job_id).schedule(arm="dense")

    assert (schedule.optimizer, schedule.warmup_steps) == ("adamw", 40)
    assert schedule.learning_rate_at(0) == pytest.approx(0.1 / 40)


def test_a_download_is_whole_or_not_there(finished: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert finished.download("weights", arm="dense").read_text() == "weights of dense"
    assert Schedule.from_json(finished.download("schedule", tmp_path / "s.json").read_text()) == finished.schedule()
    with pytest.raises(ApiError, match="no trial of arm"):
        finished.download("metrics", arm="other")
    with pytest.raises(ValueError, match="`what` must be one of schedule, metrics, weights, report, got 'loss'"):
        finished.download("loss")  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} >= {"weights.safetensors", "s.json"}
    assert not list(tmp_path.glob("metrics*"))


def test_a_download_into_a_folder_gets_its_usual_name_there(finished: Job, store: Store, tmp_path: Path) -> None:
    store.storage.write(store.storage.file_url(finished.id, "1/a/manifest.json"), b"{}")

    assert finished.download("weights", tmp_path, arm="dense") == tmp_path / "weights.safetensors"
    assert finished.download_file("1/a/manifest.json", str(tmp_path)) == tmp_path / "manifest.json"
    assert {path.name for path in tmp_path.iterdir()} >= {"weights.safetensors", "manifest.json"}


def test_a_download_to_where_no_file_can_be_is_refused_before_its_first_byte(
    finished: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "save", lambda *_: pytest.fail("it was fetched"))
    (tmp_path / "weights.safetensors").mkdir()

    with pytest.raises(IsADirectoryError, match=r"it is a folder: '.*/weights\.safetensors'"):
        finished.download("weights", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such folder: '.*/missing'"):
        finished.download("weights", tmp_path / "missing" / "w.safetensors")


def test_watching_ends_with_a_table_of_the_trials(finished: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert finished.watch(timeout_s=PATIENCE_S).state is JobState.SUCCEEDED

    shown = capsys.readouterr().out
    assert f"({finished.id}) is succeeded" in shown
    assert all(words in shown for words in ("tuned", "dense", "completed", "0.31", "900.0 kB"))


def test_of_a_watched_job_that_waits_the_trials_are_asked_for_once(
    client: Client, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked, send = client.submit(job), list[str](), client.send
    over = made.view.model_copy(update={"state": JobState.CANCELLED, "version": made.view.version + 1})
    monkeypatch.setattr(client, "watch", lambda *_, **__: iter([made.view] * 3 + [over]))
    monkeypatch.setattr(client, "send", lambda call, **options: asked.append(call.path) or send(call, **options))

    made.watch()

    assert asked == [f"/v1/jobs/{made.id}/trials", "/v1/jobs"] * 2


def test_a_notebook_is_shown_one_output_that_changes(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = _notebook(monkeypatch)
    job = client.job(reporting.job_id)

    reporting.run_to_the_end()
    job.watch(timeout_s=PATIENCE_S)

    assert shown[0] == "" and shown[-1] == job._repr_html_()
    assert "<td>tuned</td><td>completed</td><td>200</td>" in shown[-1]


def test_a_name_is_text_in_a_notebook(store: Store, job: JobSpec) -> None:
    view, _ = store.add_job(job.model_copy(update={"name": "<script>"}))

    assert "&lt;script&gt;" in display.html(view, ()) and "<script>" not in display.html(view, ())


def test_a_name_with_brackets_is_text_in_a_terminal(store: Store, job: JobSpec) -> None:
    view, _ = store.add_job(job.model_copy(update={"name": "of [batch] [/x]"}))
    shown = io.StringIO()

    Console(file=shown, width=160).print(display.table(view.model_copy(update={"reason": "[bold]"}), ()))

    assert "of [batch] [/x] (" in shown.getvalue() and "[bold]" in shown.getvalue()


def test_every_job_comes_page_by_page(client: Client, job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGE", 2)
    made = [client.submit(job).id for _ in range(5)]
    client.cancel(made[0])

    assert [each.id for each in client.iter_jobs()] == made[::-1]
    assert [each.id for each in client.iter_jobs(state=JobState.CANCELLED)] == made[:1]


def test_a_handle_is_edited_found_again_and_deleted(client: Client, job: JobSpec) -> None:
    made, other = client.submit(job), client.submit(job.model_copy(update={"name": "other"}))
    made.cancel()

    made.edit(labels={"team": "red", "draft": "yes"}, notes="for the paper")
    made.edit(labels={"draft": None}, archived=True, version=made.view.version)

    assert (made.view.labels, made.view.notes, made.view.archived) == ({"team": "red"}, "for the paper", True)
    assert [each.id for each in client.iter_jobs()] == [other.id]
    assert [each.id for each in client.iter_jobs(archived=True, labels={"team": "red"}, text="paper")] == [made.id]
    by_name = client.jobs(
        archived=None, order_by=JobOrder.NAME, state=[JobState.QUEUED, JobState.CANCELLED], count=True
    )
    assert ([each.id for each in by_name.jobs], by_name.total) == ([made.id, other.id], 2)
    assert client.jobs(created_before=other.view.created_at, archived=None).jobs[0].id == made.id
    assert client.find(made.id[-10:]) == made.id
    made.delete(version=made.view.version)
    with pytest.raises(ApiError, match="there is no job"):
        made.refresh()


def test_help_shows_the_parameters_of_a_call(store: Store, job: JobSpec) -> None:
    client = Client("http://127.0.0.1", "wt_any")
    handle = Job(client, store.add_job(job)[0])

    parameters = [list(inspect.signature(each).parameters) for each in (client.trials, client.methods, handle.trials)]

    assert parameters == [["job_id"], ["name", "workload", "shapes", "workers"], []]
    assert inspect.getdoc(client.trials) == "Return the job's trials, in its order."


@pytest.mark.parametrize(("blocking", "awaited"), [(Client, AsyncClient), (Job, AsyncJob)])
def test_both_clients_have_the_same_methods_with_the_same_parameters_and_words(blocking: type, awaited: type) -> None:
    twins = [
        {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}
        for kind in (blocking, awaited)
    ]

    assert twins[0].keys() == twins[1].keys()
    for name, method in twins[0].items():
        twin = twins[1][name]
        assert list(inspect.signature(twin).parameters.values()) == list(inspect.signature(method).parameters.values())
        assert inspect.getdoc(twin) in (inspect.getdoc(method), f"As `{blocking.__name__}.{name}`."), name


def test_a_job_tells_its_attempts(client: Client, reporting: Reporting) -> None:
    assert client.job(reporting.job_id).attempts() == client.attempts(reporting.job_id) != ()


def test_awaited_it_does_the_same(live_url: str, key: str, finished: Job, job: JobSpec, tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncClient(live_url, key) as client:
            made = await client.submit(job)
            assert (await (await made.pause()).resume()).state is JobState.QUEUED
            assert (await made.clone({"name": "again"})).name == "again"
            assert (await made.cancel()).state is JobState.CANCELLED
            assert (await made.edit(labels={"team": "red"})).view.labels == {"team": "red"}
            assert [each.id async for each in client.iter_jobs(labels={"team": "red"})] == [made.id]
            other = await made.clone({"labels": None})
            await (await other.cancel()).delete()
            assert [each.id async for each in client.iter_jobs(state=JobState.CANCELLED)] == [made.id]
            same = await client.job(finished.id)
            assert repr(await same.wait(timeout_s=PATIENCE_S)) == repr(finished.refresh())
            assert (await same.watch()).state is JobState.SUCCEEDED
            assert await same.trials() == finished.trials()
            assert await same.report() == finished.report()
            assert (await same.frame("loss")).equals(finished.frame("loss"))
            assert await same.plot("loss") == finished.plot("loss")
            assert await same.schedule() == finished.schedule()
            assert (await same.download("weights", tmp_path / "w")).read_text() == "weights of tuned"
            with pytest.raises(ApiError, match="succeeded"):
                await same.pause()

    asyncio.run(use())


def _notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have this process look like a notebook's kernel; return what it is shown."""
    shown: list[str] = []
    output = SimpleNamespace(update=shown.append)
    module: Any = ModuleType("IPython.display")
    module.HTML, module.display = str, lambda content, display_id: shown.append(content) or output
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: kernel, raising=False)
    return shown
