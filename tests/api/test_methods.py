"""The list of methods is the same over HTTP, in the client and on the command line."""

import json
import time

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from api.client import Client
from service.catalog import methods

run_cli = CliRunner()


def test_service_client_and_command_line_list_the_same(live_url: str, key: str) -> None:
    with Client(live_url, key) as client:
        asked = client.methods("topk", workload="diamonds-mlp", workers=8)
    printed = run_cli.invoke(main.app, ["methods", "topk", "--workload", "diamonds-mlp", "--workers", "8", "--json"])

    assert asked == methods.methods("topk", workload="diamonds-mlp", workers=8)
    assert json.loads(printed.stdout) == asked.model_dump(mode="json")


def test_all_methods_are_one_document(http: TestClient) -> None:
    answer = http.get("/v1/methods", params={"shapes": "512x64,512", "workers": 3})

    assert answer.status_code == 200
    assert answer.json() == methods.methods(shapes="512x64,512", workers=3).model_dump(mode="json")


@pytest.mark.parametrize(
    ("params", "status", "said"),
    [
        ({"name": "topkk"}, 404, "do you mean `topk`"),
        ({"workload": "digits"}, 404, "do you mean `digits-mlp`"),
        ({"shapes": "3x"}, 422, "/shapes"),
        ({"shapes": "x".join(["9"] * 4000), "workers": "1024"}, 422, "/shapes"),
        ({"shapes": "999999999x2"}, 422, "/shapes"),
        ({"shapes": ",".join(["1"] * 1001)}, 422, "at most 1000"),
        ({"workers": "0"}, 422, "/workers"),
    ],
)
def test_what_is_not_there_is_refused(http: TestClient, params: dict[str, str], status: int, said: str) -> None:
    answer = http.get("/v1/methods", params=params)

    assert answer.status_code == status
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("shapes", [",".join(["1"] * 1000), ",".join(["999999999"] * 8)])
@pytest.mark.parametrize("workers", [1, 1024])
def test_the_traffic_of_the_largest_models_is_told_at_once(http: TestClient, shapes: str, workers: int) -> None:
    methods.methods()  # what is made once a process
    started = time.process_time()

    answer = http.get("/v1/methods", params={"shapes": shapes, "workers": workers})

    assert answer.status_code == 200
    assert time.process_time() - started < 2.5  # the goal is 0.3, and 0.35 is usual; collections of garbage count, too


def test_the_list_wants_a_key(anonymous: TestClient) -> None:
    assert anonymous.get("/v1/methods").status_code == 401


def test_people_get_a_table_and_of_one_method_all_there_is() -> None:
    table, one = (run_cli.invoke(main.app, ["methods", *name]).stdout for name in ([], ["jointspar"]))

    assert all(each.name in table for each in methods.methods().methods)
    assert "Liu, Mozafari: Communication-efficient" in one and "blocks.share: a number in (0, 1] or a pair" in one
    assert "refuses exchange topk" in one and "goes with optimizer: sgd, lars" in one


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cser", "goes with optimizer: sgd (momentum: 0)"),
        ("sgd", "cser (optimizer.momentum: 0)"),
        ("calibrated", "goes with exchange: threshold (hold: run)"),
        ("ef21", "dgc (momentum_correction: null)"),
    ],
)
def test_people_are_told_the_knobs_by_which_a_kind_goes_with_a_method(name: str, line: str) -> None:
    assert line in run_cli.invoke(main.app, ["methods", name]).stdout


@pytest.mark.parametrize("given", [["topkk"], ["--workload", "x"], ["--shapes", "3x"]])
def test_a_wrong_word_on_the_command_line_is_refused(given: list[str]) -> None:
    assert run_cli.invoke(main.app, ["methods", *given]).exit_code == 2
