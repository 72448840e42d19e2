"""The cost of each competing exchange, and the absences of workers, are on the bill in every view."""

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from service.wire.records import Bill, Billed, OptionBill
from tests.api.conftest import Reporting

BY_OPTION = {
    "powersgd 4": OptionBill(steps=25, steps_search=25, bytes_sent=500_000, seconds=1.5),
    "threshold 0.01": OptionBill(steps=900, steps_search=150, bytes_sent=7_000_000, seconds=12.0),
}


@pytest.fixture
def billed(reporting: Reporting) -> str:
    """A job whose trial is under way; returns its id."""
    reporting.start("tuned")
    bill = Bill(bytes_sent=8_000_000, steps=750, by_option=BY_OPTION, absences={1: 3, 2: 1})
    reporting.post(Billed(trial_id=reporting.trial("tuned"), bill=bill))
    return reporting.job_id


def test_the_report_has_each_options_share_of_the_bill(http: TestClient, billed: str) -> None:
    [trial, *_] = http.get(f"/v1/jobs/{billed}/report").json()["trials"]

    assert {name: OptionBill.model_validate(took) for name, took in trial["bill"]["by_option"].items()} == BY_OPTION


def test_show_prints_what_each_option_took_the_most_used_first(
    live_url: str, key: str, billed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)
    shown = CliRunner().invoke(main.app, ["show", billed])

    assert shown.exit_code == 0, shown.stderr
    assert "worker 1: 3, worker 2: 1" in " ".join(shown.stdout.split())
    lines = shown.stdout.split("Bill by option")[1].splitlines()
    rows = [line.split() for line in lines if "tuned" in line]
    assert [row[1:] for row in rows] == [
        ["threshold", "0.01", "900", "150", "7.0", "MB", "12.0", "s"],
        ["powersgd", "4", "25", "25", "500.0", "kB", "1.5", "s"],
    ]
