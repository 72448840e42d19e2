"""A job's progress on the terminal, while it runs and at its end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from api import display
from api.cli import figures, main, report
from api.cli.demo import demo_job, introduction
from api.cli.progress import Progress, level_name, where_it_is
from api.client import Client
from search.config import BoConfig, Budget
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.records import TrialFailed
from service.wire.trials import AttemptView, StageView
from tests.api.conftest import Reporting


def told(progress: Progress, client: Client, job_id: str) -> str:
    return "\n".join(progress.lines(client.job(job_id).view))


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.54649, "0.5465"), (0.97, "0.9700"), (2.3026, "2.3026"), (0.0, "0.0000"), (-1.5, "-1.5000"),
     (3.2e-5, "3.2e-05"), (12.3456, "12.35"), (12345.678, "12346"), (4.5e9, "4.5e+09"), (None, "-")],
)  # fmt: skip
def test_a_metric_of_any_size_keeps_four_digits(value: float | None, written: str) -> None:
    assert figures.loss(value) == written


@pytest.mark.parametrize(
    ("fraction", "written"), [(0.0093, "0.93%"), (0.0996, "10%"), (0.999, "100%"), (1.025, "102%"), (None, "-")]
)
def test_a_share_is_written_without_an_exponent(fraction: float | None, written: str) -> None:
    assert figures.share(fraction) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(2.57, "2.6 s"), (599.9, "599.9 s"), (600.0, "10 min"), (3599.7, "1 h"), (11_520.0, "3 h 12 min"),
     (604_800.0, "7 d"), (1_209_600.0 + 5 * 3600, "14 d 5 h")],
)  # fmt: skip
def test_a_long_duration_is_written_in_days_hours_and_minutes(seconds: float, written: str) -> None:
    assert display.duration(seconds) == written


def test_who_begins_to_watch_gets_a_line_for_each_trial_and_then_all_that_is_new(
    client: Client, reporting: Reporting
) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    progress = Progress(client, reporting.job_id, with_history=False)

    begun = told(progress, client, reporting.job_id).splitlines()
    reporting.stage("tuned", 1, rate=1.0, density=0.01)
    then = told(progress, client, reporting.job_id)

    assert [line for line in begun if line.startswith("tuned: ")] == begun[-1:]
    assert begun[-1].startswith("tuned: 100 steps, 5.0 s, last validation loss 1.0157; job ")
    assert "stage 1 takes" in then and "stage 1 committed" in then and "stage 0" not in then


def test_who_watches_from_the_queue_on_misses_no_news(client: Client, store: Store, job: JobSpec) -> None:
    job_id = store.add_job(job)[0].id
    progress = Progress(client, job_id, with_history=False)
    waiting = told(progress, client, job_id)

    reporting = Reporting(store, job, job_id)
    starting = told(progress, client, job_id)
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    first = told(progress, client, job_id)
    reporting.stage("tuned", 1, rate=1.0, density=0.01)
    then = told(progress, client, job_id)

    assert "is queued" in waiting and "is starting" in starting
    assert "tuned: training on cpu over gloo" in first and "probe lr 2, density 1%" in first
    assert "stage 0 takes" in first and "stage 0 committed" in first
    assert "stage 1 takes" in then and "stage 0" not in then


def test_who_begins_to_watch_a_job_that_waits_to_go_on_is_told_no_history(client: Client, reporting: Reporting) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    reporting.store.attempts.lose(reporting.job_id, reporting.number, reason="a worker ran out of memory")
    assert client.job(reporting.job_id).view.attempt == 1
    progress = Progress(client, reporting.job_id, with_history=False)
    waiting = told(progress, client, reporting.job_id)

    Reporting(reporting.store, reporting.spec, reporting.job_id).start("tuned")
    again = told(progress, client, reporting.job_id)

    assert "is queued" in waiting and "stage 0" not in waiting + again


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.04, "0.04 s"), (0.25, "0.25 s"), (40.0, "40 s"), (599.5, "599.5 s"), (600.0, "10 min"), (660.5, "11 min 0.5 s"),
     (5400.0, "1 h 30 min"), (86_461.0, "1 d 1 min 1 s")],
)  # fmt: skip
def test_a_budget_is_shown_as_it_was_given(client: Client, job: JobSpec, seconds: float, written: str) -> None:
    made = client.submit(job.model_copy(update={"budget": Budget(seconds=seconds)}))

    assert any(f"workers, {written} a trial; " in line for line in where_it_is(made.view, made.attempts()))


def test_a_job_is_said_to_have_taken_what_it_held_workers_and_to_start_since_its_last_attempt(
    client: Client, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    view = client.job(reporting.job_id).view.model_copy(update={"seconds_held": 30.0})
    began = datetime(2026, 1, 1, tzinfo=UTC)
    later, second_s = began + timedelta(days=1), timedelta(seconds=1)
    first = AttemptView(number=1, began_at=began, ended_at=began + 20 * second_s, outcome="paused", reason="")
    second = AttemptView(number=2, began_at=later, ended_at=later + 10 * second_s, outcome="succeeded", reason="")
    extended = view.model_copy(update={"state": JobState.STARTING, "finished_at": None, "seconds_held": None})

    ended = list(where_it_is(view, (first, second)))[1]
    starting = list(where_it_is(extended, (first, second.model_copy(update={"ended_at": None}))))[1]

    assert ended.startswith("succeeded after 30 s")
    assert starting.startswith(f"starting since {figures.moment(later)}")


def test_a_long_job_tells_where_it_is_once_in_a_hundredth_of_its_budget(
    client: Client, store: Store, job: JobSpec
) -> None:
    reporting = Reporting(store, job.model_copy(update={"budget": Budget(seconds=1000.0)}))
    progress = Progress(client, reporting.job_id)
    reporting.start("tuned")
    for stage in range(10):  # of five training seconds each
        reporting.stage("tuned", stage, rate=2.0, density=0.01)
        lines = told(progress, client, reporting.job_id).splitlines()
        assert sum("last validation loss" in line for line in lines) == (stage % 2 == 0)

    assert "; job " in progress.summary and progress.summary.endswith(" left")


def test_the_list_says_how_far_a_job_is(
    client: Client, key: str, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    done = CliRunner().invoke(main.app, ["list", "--url", client.url, "--key", key])

    far = display.how_far(client.jobs(progress=True).jobs[0])
    assert "%, " in far and far.endswith(" left") and far in done.stdout


def test_a_trial_of_a_job_that_is_over_does_not_train_for_ever(
    client: Client, store: Store, reporting: Reporting
) -> None:
    def shown() -> str:
        out = Console(width=200)
        with out.capture() as captured:
            out.print(report.trials_table(report.result(client, client.job(reporting.job_id).view)))
        return captured.get()

    def states() -> list[str]:
        view = client.job(reporting.job_id).view
        return [row[1] for row in display._rows(view, client.trials(reporting.job_id))]

    reporting.start("tuned")
    assert "waiting" in shown() and "not finished" not in shown()
    assert states() == ["training", "waiting"]

    reporting.finish("failed", "why")
    assert states() == ["waiting", "waiting"] and shown().count("waiting") == 2
    store.cancel(reporting.job_id)

    assert shown().count("not finished") == 2 and "waiting" not in shown()
    assert states() == ["not finished"] * 2


def test_nothing_is_told_twice(client: Client, reporting: Reporting) -> None:
    progress = Progress(client, reporting.job_id)
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    first, second = (told(progress, client, reporting.job_id) for _ in range(2))

    assert first and not second
    assert "steps" in progress.summary and "last validation loss" in progress.summary


def test_a_look_fetches_no_stage_again_that_was_told_to_its_end(
    client: Client, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, fetch = Progress(client, reporting.job_id), client.stages
    fetched: list[tuple[int, ...]] = []

    def noted(*args: Any, **chosen: Any) -> tuple[StageView, ...]:
        found = fetch(*args, **chosen)
        fetched.append(tuple(stage.stage for stage in found))
        return found

    monkeypatch.setattr(client, "stages", noted)
    reporting.start("tuned")
    for stage in range(3):
        reporting.stage("tuned", stage, rate=2.0, density=0.01)
    told(progress, client, reporting.job_id)
    told(progress, client, reporting.job_id)
    reporting.stage("tuned", 3, rate=2.0, density=0.01)
    lines = told(progress, client, reporting.job_id)

    assert fetched == [(0, 1, 2), (2, 3)]
    assert "stage 3 takes" in lines and "stage 3 committed" in lines and "stage 2" not in lines


def test_what_a_new_attempt_decides_otherwise_is_told(client: Client, reporting: Reporting) -> None:
    progress = Progress(client, reporting.job_id)
    reporting.start("tuned")
    for stage in range(3):
        reporting.stage("tuned", stage, rate=2.0, density=0.01)
    told(progress, client, reporting.job_id)
    reporting.store.attempts.lose(reporting.job_id, reporting.number, reason="a worker ran out of memory")

    again = Reporting(reporting.store, reporting.spec, reporting.job_id)
    again.start("tuned")
    again.stage("tuned", 0, rate=3.0, density=0.01, reason="its vertex")
    lines = told(progress, client, reporting.job_id)

    assert "stage 0 takes lr 3, density 1%\n    its vertex" in lines


def test_a_stage_tells_its_probes_its_choice_and_its_reason(client: Client, reporting: Reporting) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)

    lines = told(Progress(client, reporting.job_id), client, reporting.job_id)

    assert "probe lr 2, density 1%, loss 0.9000, forecast 0.4500 ± 0.02" in lines
    assert "probe lr 16, density 1%, loss - (diverged)" in lines
    assert "stage 0 takes lr 2, density 1%\n    the search's minimum, 98% sure to be better" in lines
    assert "stage 0 committed 100 steps at density 1%; so far sent 400.0 kB" in lines


@pytest.mark.parametrize(
    ("exchange", "name"), [({"kind": "powersgd", "rank": 2}, "rank"), ({"kind": "topk", "density": 0.1}, "density")]
)
def test_a_samples_level_is_called_as_its_own_exchange_calls_it(
    client: Client, store: Store, job: JobSpec, exchange: dict[str, Any], name: str
) -> None:
    other = {"kind": "threshold", "density": 0.02}
    sweep = {"params": {"exchange": {"choice": [exchange, other]}}, "sweep": {"samples": 2}}
    reporting = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep))
    view, trials = client.job(reporting.job_id).view, client.trials(reporting.job_id)
    own = next(trial for trial in trials if trial.sample and trial.sample.values == {"exchange": exchange})

    assert (level_name(view.spec, own), level_name(view.spec, trials[0])) == (name, "density")


def test_a_sample_that_failed_tells_why(client: Client, store: Store, job: JobSpec) -> None:
    sweep = {"params": {"workload.batch_size": {"integer": [16, 64]}}, "sweep": {"samples": 2}}
    reporting = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep))
    reporting.start("sample-0")
    reporting.post(TrialFailed(trial_id=reporting.trial("sample-0"), reason="no such width"))

    lines = told(Progress(client, reporting.job_id), client, reporting.job_id).splitlines()

    [end] = [at for at, line in enumerate(lines) if line.startswith("sample-0: failed after 0 steps")]
    assert lines[end + 1] == "    no such width"


def test_the_ranking_of_a_sweep_names_trials_with_their_seeds(client: Client, store: Store, job: JobSpec) -> None:
    sweep = {"params": {"workload.batch_size": {"integer": [16, 64]}}, "sweep": {"samples": 2}, "seeds": [0, 1]}
    job_id = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep)).job_id
    found, out = report.result(client, client.job(job_id).view), Console(width=200)
    ranking, *others = report.tables(found)
    with out.capture() as captured:
        out.print(ranking)
    with out.capture() as behind:
        out.print(*others)

    assert all(captured.get().count(name) == 1 for name in ("tuned seed 0", "tuned seed 1"))
    assert "Baseline over seeds" in behind.get()  # samples have one seed


def test_the_end_tells_what_was_saved(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    lines = told(Progress(client, reporting.job_id), client, reporting.job_id)

    assert "is succeeded" in lines
    assert "tuned: completed" in lines and "sent 900.0 kB, saved 29.1 MB (97%)" in lines
    assert "dense: completed" in lines and "sent 30.0 MB\n" in lines + "\n"


def test_a_failed_job_tells_why(client: Client, reporting: Reporting) -> None:
    reporting.store.attempts.lose(reporting.job_id, reporting.number, reason="a worker ran out of memory")

    lines = told(Progress(client, reporting.job_id), client, reporting.job_id)

    assert "a worker ran out of memory" in lines


def test_of_samples_only_the_best_ones_schedule_is_asked_for_unless_all_are(
    client: Client, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = {"params": {"workload.batch_size": {"integer": [16, 64]}}, "sweep": {"samples": 4}}
    reporting = Reporting(store, JobSpec.model_validate(job.model_dump() | sweep))
    for arm in ("tuned", "dense", *(f"sample-{number}" for number in range(4))):
        reporting.start(arm)
        reporting.stage(arm, 0, rate=2.0, density=0.01)
    reporting.finish_trial("sample-2", rates=[2.0], density=0.01, loss=0.1)
    view, asked, ask = client.job(reporting.job_id).view, list[str](), client.schedule
    monkeypatch.setattr(client, "schedule", lambda job_id, *, arm, seed: (asked.append(arm), ask(job_id, arm=arm))[1])

    found = report.result(client, view)
    everything = report.result(client, view, with_all_schedules=True)

    shown = ["tuned", "dense", "sample-2"]
    assert [each.arm for each in found.schedules] == shown
    assert asked == [*shown, *(trial.arm for trial in found.trials)] and len(everything.schedules) == 6


def test_the_summary_for_scripts_has_the_controllers_arm_on_top(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    summary = report.summary(report.result(client, client.job(reporting.job_id).view))

    assert summary["controller"] == "bo" and set(summary["arms"]) == {"tuned", "dense"}
    assert [entry["learning_rate"] for entry in summary["schedule"]] == [2.0, 1.0]
    assert {"step", "learning_rate", "density", "threshold", "reason"} <= set(summary["schedule"][0])
    assert summary["bytes_sent"] == 900_000 and summary["bytes_dense"] == 30_000_000
    assert summary["validation"] == {"loss": 0.31, "accuracy": 0.97}
    crossing = summary["arms"]["dense"]["crossing"]
    assert crossing["seconds"] < crossing["other_seconds"]


def test_the_printed_report_names_every_arm_and_the_link(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    job = client.job(reporting.job_id).view
    console = Console(width=160)

    found = report.result(client, job)
    with console.capture() as capture:
        console.print(*report.tables(found))
    printed = capture.get()

    assert "emulated 100 Mbit link" in printed
    assert "33.3x" in printed and "900.0 kB" in printed and "0.9700" in printed
    assert any("tuned reached the loss at which dense ended" in line for line in report.crossing_lines(found))


@pytest.mark.parametrize("seconds", [5.0, 40.0])
def test_the_demonstration_compares_a_searching_arm_with_a_dense_one(seconds: float) -> None:
    spec = demo_job(seconds)
    tuned, dense = spec.trials()

    assert isinstance(tuned.controller, BoConfig) and tuned.replica.exchange.kind == "threshold"
    assert dense.controller.kind == "fixed" and dense.replica.exchange.kind == "none"
    assert tuned.budget == dense.budget and tuned.budget.seconds == seconds
    assert (
        f"{seconds:g} s of training per arm; the arms run side by side where there are 4 cores" in introduction(spec)[0]
    )
