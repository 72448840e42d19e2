"""A newcomer's first commands (`init`, `check`, `doctor`, `compare`, `list`), and their advice on errors."""

import csv
import json
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from api.cli import check_command, doctor, init_command, main, rehearsal
from api.cli.doctor import Found, Service
from api.cli.panels import PANELS
from api.client import Client
from api.local_service import Announced, LocalServerError, running_server
from service.control.access.rules import Principal
from service.control.store import Store
from service.job.advice import advice
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.access import Role
from service.wire.jobs import JobEdit
from tests.api.conftest import Reporting

run_cli = CliRunner()
OWN_MODEL = Path(__file__).parents[3] / "examples" / "own_model"


def test_a_first_job_is_valid_and_wise_with_or_without_its_defaults() -> None:
    text = run_cli.invoke(main.app, ["init", "--out", "-"]).stdout
    spelled_out = "\n".join(line.replace("  #", "  ", 1) if "  #" in line and "# " not in line else line
                            for line in text.splitlines())  # fmt: skip

    first, second = (JobSpec.model_validate(YAML(typ="safe").load(each)) for each in (text, spelled_out))

    assert first == second and spelled_out != text
    assert advice(first) == ()
    assert max(map(len, text.splitlines())) <= 80


def test_a_first_job_of_a_factory_has_its_parameters_and_replaces_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [
        {"name": "width", "is_required": True, "default": None, "is_json": True, "annotation": ""},
        {"name": "depth", "is_required": False, "default": 2, "is_json": True, "annotation": "int"},
        {"name": "act", "is_required": False, "default": None, "is_json": False, "annotation": ""},
    ]
    monkeypatch.setattr(init_command, "answers", lambda order, timeout_s: {order["factory"]["factory"]: told})
    monkeypatch.chdir(tmp_path)

    written = run_cli.invoke(main.app, ["init", "--factory", "mine:build"])
    again = run_cli.invoke(main.app, ["init", "--factory", "mine:build"])

    assert written.exit_code == 0, written.stderr
    spec = JobSpec.model_validate(YAML(typ="safe").load((tmp_path / "job.yaml").read_text()))
    assert spec.workload.model_dump()["params"] == {"width": None, "depth": 2}
    assert again.exit_code == 2 and "is there already" in again.stderr


def every_command() -> list[str]:
    """Return the names of all commands, each of which there is."""
    group: Any = get_command(main.app)
    names = group.list_commands(Context(group))
    assert all(group.get_command(Context(group), name) is not None for name in names)
    return list(names)


def test_a_command_that_asks_a_service_needs_nothing_that_only_the_service_runs_on() -> None:
    program = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from api.cli.main import app
app(["list", "--url", "http://127.0.0.1:9", "--key", "wt_any"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 3 and "no Wiretune service answers" in done.stderr, done.stderr


def test_help_lists_every_command_under_one_heading_and_a_newcomers_first() -> None:
    commands = every_command()
    shown = run_cli.invoke(main.app, ["--help"]).stdout

    assert commands == [name for names in PANELS.values() for name in names]
    places = [shown.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert shown.index("demo") < shown.index("init") < shown.index("submit") < shown.index("clean")


def test_every_argument_and_option_says_what_it_is() -> None:
    def parameters(command: Any, name: str) -> Iterator[tuple[str, str | None]]:
        yield from ((f"{name} {each.name}", each.help) for each in command.params)
        for inner, each in getattr(command, "commands", {}).items():
            yield from parameters(each, f"{name} {inner}")

    group: Any = get_command(main.app)
    named = [(name, group.get_command(Context(group), name)) for name in every_command()]

    assert [name for command, each in named for name, said in parameters(each, command) if not said] == []


def test_a_workload_is_tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OWN_MODEL)

    done = run_cli.invoke(main.app, ["check", "job.yaml", "--json"])

    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["trainable"] and set(found["arms"]) == {"tuned", "dense"}
    assert found["arms"]["tuned"]["num_training"] == 456


def test_of_a_sweep_the_arms_alone_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1000}, "arms": [{"name": "a"}, {"name": "b"}]}
    params = {"workload.batch_size": {"choice": [16, 32]}}
    (tmp_path / "job.json").write_text(json.dumps(job | {"params": params, "seeds": [0, 1]}))
    monkeypatch.chdir(tmp_path)
    orders: list[Any] = []

    def refuse(order: Any, *, timeout_s: float) -> None:
        orders.append(order)
        raise rehearsal.CannotTrain("enough is known")

    monkeypatch.setattr(check_command, "answers", refuse)
    run_cli.invoke(main.app, ["check", "job.json"])

    assert [list(order["arms"]) for order in orders] == [["a", "b"]]


def test_arms_that_search_their_rate_are_tried_at_a_low_one_too_and_the_remark_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"kind": "bo", "min_learning_rate": 0.01, "max_learning_rate": 1.0}
    arms = {"searched": {"kind": "local"}, "stated": stated, "fixed": {"kind": "fixed"}}
    job = {
        "workload": {"kind": "digits-mlp"},
        "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        "arms": [{"name": name, "controller": controller} for name, controller in arms.items()],
        "objective": {"metric": "accuracy"},
        "budget": {"steps": 1000},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.chdir(tmp_path)
    orders: list[Any] = []
    numbers = dict.fromkeys(("num_parameters", "num_trained", "num_training", "num_validation", "num_test"), 9)
    times = dict.fromkeys(("seconds_loading", "seconds_step", "seconds_evaluation", "bytes_kept", "bytes_peak"), 1)
    found = numbers | times | {"batch": "9", "losses": [1.0], "validation": {"loss": 1.0}, "remarks": ["was lower"]}

    def answer(order: Any, *, timeout_s: float) -> Any:
        orders.append(order)
        return {"searched": found, "fixed": found | {"remarks": []}}

    monkeypatch.setattr(check_command, "answers", answer)
    shown = run_cli.invoke(main.app, ["check", "job.json"]).stdout

    assert orders[0]["lowest_rates"] == {"searched": pytest.approx(1e-4), "stated": 0.01}
    assert orders[0]["metric"] == "accuracy"
    assert "searched: was lower" in shown and "fixed: " not in shown


def test_a_workload_that_hangs_is_ended_and_where_it_hung_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import signal\nsignal.pause()\n")
    (tmp_path / "job.yaml").write_text("workload: {factory: 'slow:build'}\nbudget: {steps: 1000}\n")
    monkeypatch.chdir(tmp_path)

    done = run_cli.invoke(main.app, ["check", "job.yaml", "--timeout", "1"])

    assert done.exit_code == 2
    assert "time was up after 1 s, while " in done.stderr


def test_jobs_are_compared_by_what_differs_and_by_the_loss_that_half_of_them_reached(
    at: None, store: Store, job: JobSpec
) -> None:
    clips = {"one": 1.0, "two": None}
    pair = [Reporting(store, job.model_copy(update={"name": name, "clip": clip})) for name, clip in clips.items()]
    for each in pair:
        each.run_to_the_end()

    shown = run_cli.invoke(main.app, ["compare", "one", "two"]).stdout
    found = json.loads(run_cli.invoke(main.app, ["compare", "one", "two", "--json"]).stdout)
    refused = run_cli.invoke(main.app, ["compare", "one", pair[0].job_id])

    differing = {each["pointer"]: each["values"] for each in found["differences"]}
    assert differing == {"/name": ["one", "two"], "/clip": [1.0, None]}
    assert found["target_loss"] == pytest.approx(0.3852, abs=1e-4)
    assert [each["seconds_to_target"] for each in found["trials"]] == [9.0, 18.0] * 2
    assert "/clip" in shown and "to the median end, 0.3852" in shown
    assert refused.exit_code == 2 and "different jobs" in refused.stderr


@pytest.mark.parametrize("order", ["result", "loss"])
def test_the_best_job_is_listed_first_however_old_it_is(
    at: None, store: Store, job: JobSpec, reporting: Reporting, order: str
) -> None:
    reporting.run_to_the_end()
    store.add_job(job)

    newest = run_cli.invoke(main.app, ["list", "--ids", "--limit", "1"]).stdout.split()
    best = run_cli.invoke(main.app, ["list", "--ids", "--limit", "1", "--sort", order]).stdout.split()

    assert best == [reporting.job_id] != newest


def test_a_list_tells_a_best_loss_so_far_from_a_result(at: None, store: Store, reporting: Reporting) -> None:
    def shown() -> str:
        return run_cli.invoke(main.app, ["list"], env={"COLUMNS": "200"}).stdout

    reporting.start("tuned")
    reporting.finish_trial("tuned", rates=[2.0], density=0.01, loss=0.31)
    assert "best loss 0.3100" in shown()
    reporting.finish()

    assert "0.3100" in shown() and "best loss" not in shown()


def test_jobs_are_listed_from_a_moment_on_as_the_service_writes_it(at: None, store: Store, job: JobSpec) -> None:
    made = [store.add_job(job)[0] for _ in range(2)]
    whens = [made[1].created_at.isoformat(), made[1].model_dump(mode="json")["created_at"], "2026-01-01T09:30"]

    found = [run_cli.invoke(main.app, ["list", "-q", "--created-after", when]).stdout.split() for when in whens]
    refused = run_cli.invoke(main.app, ["list", "--created-after", "yesterday"])

    assert found == [[made[1].id], [made[1].id], [made[1].id, made[0].id]]
    assert refused.exit_code == 2 and "'yesterday' is not a date or time like" in " ".join(refused.stderr.split())


def test_jobs_are_listed_by_label_and_sorted(at: None, store: Store, job: JobSpec) -> None:
    for name, team in (("b", "vision"), ("c", "text"), ("a", "vision")):
        store.add_job(job.model_copy(update={"name": name, "labels": {"team": team}}))

    def names(*options: str) -> list[str]:
        done = run_cli.invoke(main.app, ["list", "--json", *options])
        return [each["name"] for each in json.loads(done.stdout)["jobs"]]

    assert names() == ["a", "c", "b"]
    assert names("--label", "team=vision", "--sort", "name") == ["a", "b"]
    assert names("--limit", "2", "--sort", "name") == ["a", "b"]
    assert names("--sort", "name", "--reverse") == ["c", "b", "a"]
    assert names("--state", "queued", "--state", "running", "--text", "VIS") == ["a", "b"]
    assert names("--owner", "nobody") == names("--project", "nobody") == names("--created-before", "2026-01-01") == []
    assert names("--created-after", "2026-01-01T00:00:00Z", "--project", "default") == ["a", "c", "b"]
    shown = run_cli.invoke(main.app, ["list", "--limit", "2"]).stdout
    assert names("--cursor", shown.split("--cursor ")[1].split(",")[0]) == ["b"]
    assert run_cli.invoke(main.app, ["list", "--label", "team"]).exit_code == 2
    assert run_cli.invoke(main.app, ["list", "--label", "team=a", "--label", "team=b"]).exit_code == 2


def test_a_list_has_the_fields_that_are_asked_for_and_as_csv_the_results(
    at: None, store: Store, job: JobSpec, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    store.add_job(job.model_copy(update={"name": "=1+1"}))
    columns = ["--column", "budget.seconds", "--column", "/arms/1/name"]

    shown = run_cli.invoke(main.app, ["list", *columns], env={"COLUMNS": "300"}).stdout
    rows = list(csv.DictReader(run_cli.invoke(main.app, ["list", "--csv", *columns]).stdout.splitlines()))

    assert {"budget.seconds", "/arms/1/name"} < {*shown.splitlines()[0].split()} and "40.0" in shown
    waiting, done = rows
    assert (waiting["name"], waiting["result"], waiting["bytes_sent"]) == ("'=1+1", "", "0")
    assert (done["id"], done["budget.seconds"], done["/arms/1/name"]) == (reporting.job_id, "40.0", "dense")
    assert float(done["result"]) == store.jobs().jobs[1].result and int(done["bytes_sent"]) > 0


def test_a_list_names_owners_and_projects_where_they_differ(at: None, store: Store, job: JobSpec) -> None:
    def headings() -> list[str]:
        return run_cli.invoke(main.app, ["list"], env={"COLUMNS": "200"}).stdout.splitlines()[0].split()

    store.add_job(job)
    assert not {"owner", "project"} & {*headings()}

    store.add_job(job, by=Principal(name="anna", role=Role.SUBMITTER, project="default", key_id="k", address=""))
    assert "owner" in headings() and "project" not in headings()

    store.add_job(job, by=Principal(name="anna", role=Role.SUBMITTER, project="red", key_id="k", address=""))
    assert {"owner", "project"} < {*headings()}


def test_a_job_is_labelled_noted_archived_and_deleted_by_a_part_of_its_id(at: None, store: Store, job: JobSpec) -> None:
    made = store.add_job(job.model_copy(update={"labels": {"team": "red", "draft": "yes"}}))[0].id

    def run(*words: str) -> Any:
        return run_cli.invoke(main.app, [words[0], made[-8:], *words[1:]])

    assert run("archive").exit_code == 2  # it is not over
    store.cancel(made)
    assert run("label", "paper=a=b", "draft-").stdout == f"labels of {made}: team=red paper=a=b\n"
    assert run("note", "for the paper").stdout == f"noted on {made}\n"
    assert json.loads(run("archive", "--json").stdout)["archived"]
    shown = run("show").stdout
    assert "labels: team=red, paper=a=b" in shown and "for the paper" in shown and "archived" in shown
    assert run_cli.invoke(main.app, ["list", "--json"]).stdout.count(made) == 0
    assert made in run_cli.invoke(main.app, ["list", "--archived"]).stdout
    assert run("unarchive").exit_code == 0
    assert made in run_cli.invoke(main.app, ["list"]).stdout
    unasked = run("delete")
    assert unasked.exit_code == 2 and "--yes; `wiretune show` shows" in unasked.output
    assert run("delete", "--yes").stdout == f"deleted {made}\n"
    assert run("show").exit_code == 2 and store.jobs().jobs == ()


def test_what_a_user_wrote_commands_no_terminal_of_another(at: None, store: Store, job: JobSpec) -> None:
    view, _ = store.add_job(job.model_copy(update={"name": "a\x1b]0;owned\x07b", "labels": {"team": "a\x9b31mb"}}))
    store.edit(view.id, JobEdit(notes="line\n\x1b[2Jtwo\x7f"))

    commands = ("list", f"show {view.id}", f"label {view.id} more=1")
    shown = [run_cli.invoke(main.app, each.split()).output for each in commands]

    assert not any(unicodedata.category(each) == "Cc" and each != "\n" for text in shown for each in text)
    for text, written in zip(shown, (r"a\x1b]0;owned\x07b", r"\x1b[2Jtwo\x7f", r"team=a\x9b31mb"), strict=True):
        assert written in text


def test_a_terminal_that_is_not_utf8_shows_the_rest_of_a_name(at: None, store: Store, job: JobSpec) -> None:
    store.add_job(job.model_copy(update={"name": "größer"}))

    listed = CliRunner(charset="ascii").invoke(main.app, ["list"])

    assert listed.exit_code == 0 and "gr??er" in listed.output


@pytest.mark.parametrize("change", ["team", "-", "=x"])
def test_what_is_no_label_is_refused(at: None, store: Store, job: JobSpec, change: str) -> None:
    made = store.add_job(job)[0].id

    done = run_cli.invoke(main.app, ["label", made, "--", change])

    assert done.exit_code == 2 and "NAME=VALUE, or NAME- to remove it" in done.stderr


def test_a_job_that_did_not_search_says_so_first_with_the_command_that_would(
    at: None, client: Client, store: Store, job: JobSpec
) -> None:
    reporting = Reporting(store, job.model_copy(update={"arms": job.arms[:1]}))
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=0.1, density=None)
    reporting.finish_trial("tuned", rates=[0.1], density=None, loss=0.4)
    reporting.finish()

    shown = run_cli.invoke(main.app, ["show", reporting.job_id]).stdout
    [trial] = client.report(reporting.job_id).trials

    assert trial.searching_budget is not None and trial.searching_budget.seconds is not None
    assert trial.searching_budget.seconds > 40
    command = f"wiretune clone {reporting.job_id} --set budget.seconds={trial.searching_budget.seconds}"
    assert shown.index("not searched") < shown.index(command) < shown.index("Bill")


def found_by(check: Callable[[], Found]) -> Found:
    return Found(**doctor.examine([("it", check)])[0].model_dump(exclude={"check"}))


def test_a_healthy_machine_has_nothing_that_fails(live_url: str, key: str, settings: Settings, store: Store) -> None:
    at = Service(live_url, key)

    found = doctor.examine(
        [
            ("versions", doctor.versions),
            ("state dir", lambda: doctor.state_dir(settings)),
            ("disk", lambda: doctor.disk(settings)),
            ("database", lambda: doctor.database(settings)),
            ("storage", lambda: doctor.storage(settings)),
            ("ray", lambda: doctor.ray(settings, may_start=False)),
            ("service", lambda: doctor.service(at)),
            ("clock", lambda: doctor.clock(at)),
            ("load", doctor.load),
        ]
    )

    assert [each for each in found if each.verdict == "fail"] == []
    assert "takes and gives a file" in found[4].text and "answers, version" in found[6].text


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    live_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    found = found_by(lambda: doctor.clock(Service(live_url, key)))

    assert found.verdict != "fail", found.text


def test_what_is_wrong_is_found_with_its_remedy(
    live_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    away = settings.model_copy(
        update={"database_url": "nonsense", "storage_url": "nowhere://x", "ray_address": "http://127.0.0.1:9"}
    )
    unwritable = settings.model_copy(update={"state_dir": Path("/dev/null/state")})

    wrong: dict[str, Callable[[], Found]] = {
        "WIRETUNE_DATABASE_URL": lambda: doctor.database(away),
        "WIRETUNE_STORAGE_URL": lambda: doctor.storage(away),
        "WIRETUNE_RAY_ADDRESS": lambda: doctor.ray(away, may_start=False),
        "WIRETUNE_STATE_DIR": lambda: doctor.state_dir(unwritable),
        "--key": lambda: doctor.service(Service(live_url, "wt_wrong")),
        "GLOO_SOCKET_IFNAME": lambda: doctor.interfaces(settings),
    }

    for remedy, check in wrong.items():
        found = found_by(check)
        assert found.verdict == "fail" and remedy in f"{found.text} {found.fix}", found


@pytest.mark.parametrize(
    ("address", "chosen", "verdict"),
    [("", "", "warn"), ("http://ray:8265", "", "warn"), ("http://ray:8265", "none0", "warn"), ("", "none0", "fail")],
)
def test_the_name_of_this_machine_fails_nobody_as_workers_of_jobs_do_not_use_it(
    address: str, chosen: str, verdict: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_address(name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", no_address)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)

    found = doctor.interfaces(settings.model_copy(update={"ray_address": address}))

    assert found.verdict == verdict and "GLOO_SOCKET_IFNAME" in f"{found.text} {found.fix}"
    assert ("their node in Ray" in found.text) == bool(address)


def test_a_check_that_raises_is_a_finding_and_the_exit_status_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faint() -> Any:
        raise RuntimeError("fell over")

    monkeypatch.setattr(doctor, "versions", faint)
    monkeypatch.setattr(doctor, "data_sets", lambda: Found("warn", "missing for fashion-conv", "install it"))

    done = run_cli.invoke(main.app, ["doctor"])
    as_json = json.loads(run_cli.invoke(main.app, ["doctor", "--json"]).stdout)

    assert done.exit_code == 1
    assert "RuntimeError: fell over" in done.stdout and "-> install it" in done.stdout
    assert as_json["healthy"] is False and as_json["findings"][0]["check"] == "versions"


def _announce(state_dir: Path, content: str) -> None:
    state_dir.mkdir(parents=True)
    (state_dir / "server.json").write_text(content)


def test_a_service_of_this_machine_that_cannot_be_asked_is_a_finding(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("versions", "data_sets", "load"):
        monkeypatch.setattr(doctor, name, lambda: Found("ok", "fine"))
    _announce(settings.state_dir, "[]")

    done = run_cli.invoke(main.app, ["doctor", "--json"])

    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1 and found["service"]["verdict"] == "fail" and found["clock"]["verdict"] == "ok"
    assert "server.json does not say which service runs" in found["service"]["text"]


def test_a_service_whose_key_is_gone_is_said_so(
    live_url: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Announced, "is_alive", True)
    settings = settings.model_copy(update={"state_dir": tmp_path / "other"})
    _announce(settings.state_dir, json.dumps({"url": live_url, "pid": 1, "started_at": 0}))

    with pytest.raises(LocalServerError, match=r"api_key: No such file or directory; give --url and --key"):
        running_server(settings)


def test_a_database_of_a_newer_release_fails_with_what_to_do(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "revisions", lambda url: ("9999", "0001"))

    assert doctor.database(settings) == Found(
        "fail", "its tables are at 9999: made by a newer release: install that one, or restore a backup"
    )


def test_a_machine_with_more_work_than_cores_is_said_to_be_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (400.0, 0.0, 0.0))

    assert doctor.load().verdict == "warn" and "overloaded, load 400.0" in doctor.load().text


def test_data_sets_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"digits-mlp": None, "fashion-conv": "get it with apt"}
    monkeypatch.setattr(doctor, "answers", lambda order, timeout_s: told)

    assert doctor.data_sets() == Found("warn", "missing for fashion-conv", "get it with apt")
