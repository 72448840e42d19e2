"""At 80 columns no text is cut off, no word is split, and each reason has lines of its own."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from api.cli import main
from api.cli.sheet import Sheet
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from tests.api.conftest import Reporting

run_cli = CliRunner()
REASON = "a worker ran out of memory while it took an average of the parameters of all workers (exit code 137)"
NAME = "a rather long name that somebody gave to a job of digits over a slow link"


@pytest.fixture
def at(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WIRETUNE_URL": live_url, "WIRETUNE_API_KEY": key, "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def finished(at: None, store: Store, job: JobSpec) -> Reporting:
    reporting = Reporting(store, job.model_copy(update={"name": NAME, "seeds": (0, 1)}))
    reporting.run_to_the_end()
    return reporting


def lines_of(*command: str) -> list[str]:
    done = run_cli.invoke(main.app, command)
    assert done.exit_code in (0, 1), done.output
    assert "…" not in done.output
    return done.output.splitlines()


def test_no_line_is_wider_than_the_screen(finished: Reporting) -> None:
    for command in ("list", *(f"{verb} {finished.job_id}" for verb in ("show", "watch", "explain"))):
        lines = lines_of(*command.split())

        assert max(map(len, lines)) <= 80, command
        assert len(lines) > 3


def test_ids_and_names_are_listed_whole(finished: Reporting) -> None:
    lines = lines_of("list")

    assert finished.job_id in lines[1]
    assert " ".join(" ".join(line[lines[0].index("name") :] for line in lines[1:]).split()) == NAME


def test_a_reason_is_told_between_words_on_lines_of_its_own(at: None, reporting: Reporting) -> None:
    while reporting.store.job(reporting.job_id).state is not JobState.FAILED:
        view = reporting.store.attempts.lose(
            reporting.job_id, reporting.store.job(reporting.job_id).attempt, reason=REASON
        )
        if view.state is JobState.QUEUED:
            reporting.store.attempts.begin(reporting.job_id)

    shown = lines_of("show", reporting.job_id)

    start = next(number for number, line in enumerate(shown) if "ran out of memory" in line)
    assert " ".join(line.strip() for line in shown[start : start + 2]) == REASON
    assert all(line.startswith("    ") for line in shown[start : start + 2])


def test_a_sheet_that_does_not_fit_is_a_list_with_every_cell() -> None:
    columns = [f"column {number}" for number in range(12)]
    sheet = Sheet(*columns, title="wide", left=("column 0",))
    sheet.add_row("first", *[f"cell {number}" for number in range(1, 12)], note="why")
    console = Console(width=80)

    with console.capture() as captured:
        console.print(sheet)

    lines = captured.get().splitlines()
    assert lines[:3] == ["wide", "first", "  column 1   cell 1"] and "    why" in lines
    assert [line.split() for line in lines[2:13]] == [["column", f"{n}", "cell", f"{n}"] for n in range(1, 12)]


def test_a_pipe_gets_each_sentence_on_one_line(finished: Reporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")

    assert f"{finished.job_id}  {NAME}" in lines_of("show", finished.job_id)
