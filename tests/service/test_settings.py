"""Unworkable settings are refused at the start, each by its variable."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import make_url

from service import cores
from service.control.access.keys import server_secret
from service.settings import Settings, refusals_of
from service.wire.access import Role


@pytest.mark.parametrize("given", ["state", "./state", "~/state"])
def test_the_state_dir_is_one_place_for_every_working_directory(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WIRETUNE_STATE_DIR", given)

    settings = Settings()

    assert settings.state_dir == tmp_path / "state"
    assert settings.resolved_storage_url == f"file://{tmp_path}/state/results"
    assert settings.resolved_database_url == f"sqlite:///{tmp_path}/state/wiretune.db"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a b", "ä"])
def test_the_database_is_in_the_state_dir_however_that_is_named(name, tmp_path):
    settings = Settings(state_dir=tmp_path / name)

    assert make_url(settings.resolved_database_url).database == str(tmp_path / name / "wiretune.db")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PORT": "abc"}, "WIRETUNE_PORT is 'abc'; allowed: an integer from 0 to 65535"),
        ({"PORT": "70000"}, "WIRETUNE_PORT is '70000'; allowed: an integer from 0 to 65535"),
        ({"NUM_GPUS": "-1"}, "WIRETUNE_NUM_GPUS is '-1'; allowed: an integer from 0"),
        ({"MAX_SILENCE_S": "0"}, "WIRETUNE_MAX_SILENCE_S is '0'; allowed: a number above 0"),
        ({"RENEW_S": "7.5"}, "WIRETUNE_RENEW_S: `renew_s` is 7.5; allowed: above 0 and below 7.5, half of `lease_s`"),
        ({"LEASE_S": "8"}, "WIRETUNE_RENEW_S: `renew_s` is 5; allowed: above 0 and below 4, half of `lease_s`"),
        ({"HOST": "0.0.0.0"}, "WIRETUNE_ALLOW_PLAIN_HTTP: `host` is 0.0.0.0, which other machines reach, and"),
        ({"HOST": "fd00::1", "ALLOW_PLAIN_HTTP": "false"}, "WIRETUNE_ALLOW_PLAIN_HTTP: `host` is fd00::1, which"),
        ({"STATE_DIR": "~nobody-has-this-name/x"}, "WIRETUNE_STATE_DIR: `state_dir` is ~nobody-has-this-name/x"),
        (
            {"OIDC_ISSUER": "http://sso.example", "OIDC_AUDIENCE": "a"},
            "WIRETUNE_OIDC_ISSUER: `oidc_issuer` is http://sso.example; allowed: an https:// URL",
        ),
        (
            {"OIDC_ISSUER": "https://sso.example"},
            "WIRETUNE_OIDC_AUDIENCE: `oidc_audience` is empty while `oidc_issuer`",
        ),
        (
            {"WEBHOOK_URL": "hooks.example/x"},
            "WIRETUNE_WEBHOOK_URL: its value, which is not shown here, is no URL; allowed",
        ),
        ({"WEBHOOK_ON": '["lost"]'}, "WIRETUNE_WEBHOOK_ON: `webhook_on` is '[\"lost\"]'; allowed: JSON such as"),
        ({"OIDC_CLIENT_ID": "page"}, "WIRETUNE_OIDC_CLIENT_ID: `oidc_client_id` is page while `oidc_issuer` is empty"),
        ({"OIDC_ROLES": "staff"}, "WIRETUNE_OIDC_ROLES: `oidc_roles` is 'staff'; allowed: JSON such as"),
        ({"OIDC_ROLES": '{"staff": "boss"}'}, 'WIRETUNE_OIDC_ROLES: `oidc_roles` is \'{"staff": "boss"}\'; allowed'),
        (
            {"RAY_ADDRESS": "http://head:8265", "STORAGE_URL": "file:///shared"},
            "WIRETUNE_API_URL: `api_url` is empty while `ray_address` is http://head",
        ),
        (
            {"RAY_ADDRESS": "http://head:8265", "API_URL": "http://api:8470"},
            "WIRETUNE_STORAGE_URL: `storage_url` is empty while `ray_address` is http://head:8265; required: a folder",
        ),
    ],
)
def test_a_refusal_names_the_variable_its_value_and_what_is_allowed(variables, said, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(f"WIRETUNE_{name}", value)

    with pytest.raises(ValidationError) as refusal:
        Settings()

    (line,) = refusals_of(refusal.value)
    assert line.startswith(said)


@pytest.mark.parametrize(
    "given",
    [
        {"ray_address": "http://127.0.0.1:8265"},
        {"ray_address": "http://localhost:8265"},
        {"ray_address": "http://[::1]:8265"},
        {"ray_address": "http://head:8265", "api_url": "http://api:8470", "storage_url": "file:///shared"},
    ],
)
def test_a_cluster_that_can_reach_the_api_and_one_storage_needs_no_more(given, tmp_path: Path):
    assert Settings(state_dir=tmp_path, **given).ray_address == given["ray_address"]


@pytest.mark.parametrize(
    "given", [{"host": "127.0.0.2"}, {"host": "::1"}, {"host": "localhost"}, {"host": "::", "allow_plain_http": True}]
)
def test_loopback_needs_no_leave_and_elsewhere_plain_http_needs_it(given, tmp_path: Path):
    assert Settings(state_dir=tmp_path, **given).host == given["host"]


def test_the_roles_of_groups_are_json(monkeypatch):
    monkeypatch.setenv("WIRETUNE_OIDC_ROLES", '{"staff": "submitter", "cn=root,dc=example": "admin"}')

    assert Settings().oidc_roles == {"staff": Role.SUBMITTER, "cn=root,dc=example": Role.ADMIN}


def test_secrets_may_be_files_and_a_variable_comes_before_its_file(tmp_path, monkeypatch):
    (tmp_path / "wiretune_database_url").write_text("postgresql://wiretune:secret@db/wiretune\n")
    (tmp_path / "wiretune_secret").write_text("of all replicas\n")
    (tmp_path / "ray_token").write_text("not one of ours")
    monkeypatch.setenv("WIRETUNE_SECRETS_DIR", str(tmp_path))
    monkeypatch.delenv("WIRETUNE_SECRET", raising=False)

    assert Settings().database_url == "postgresql://wiretune:secret@db/wiretune"
    assert server_secret(tmp_path / "state") == b"of all replicas"
    monkeypatch.setenv("WIRETUNE_DATABASE_URL", "sqlite:///x.db")
    assert Settings().database_url == "sqlite:///x.db"


@pytest.mark.parametrize(("name", "allowed"), [("FORMAT", "text, json"), ("LEVEL", "debug, info, warning, error")])
def test_a_format_or_level_of_logs_that_there_is_not_is_refused_with_those_that_there_are(name, allowed, monkeypatch):
    monkeypatch.setenv(f"WIRETUNE_LOG_{name}", "xml")

    with pytest.raises(ValidationError) as refusal:
        Settings()

    assert refusals_of(refusal.value) == [f"WIRETUNE_LOG_{name} is 'xml'; allowed: {allowed}"]


def test_an_embedded_ray_has_the_cores_that_the_service_may_use_and_at_least_two(monkeypatch):
    monkeypatch.setattr(cores, "usable", lambda: 5)
    assert Settings().num_cpus == 5

    monkeypatch.setattr(cores, "usable", lambda: 1)
    assert Settings().num_cpus == 2


@pytest.mark.parametrize(
    ("of_process", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/on/its/host", {"cpu.max": "300000 100000"}, 3),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("5:cpuset:/a", {"cpuset/a/cpu.max": "100000 100000"}, 8),
        (None, {}, 8),
    ],
)
def test_a_quota_and_an_affinity_leave_a_process_fewer_cores_than_its_machine_has(
    of_process, files, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    own = tmp_path / "own"
    if of_process is not None:
        own.write_text(f"{of_process}\n")

    assert cores.usable(tmp_path, own) == expected


def test_a_system_without_affinity_has_the_cores_of_its_machine(tmp_path, monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)

    assert cores.usable(tmp_path, tmp_path / "none") == 6
