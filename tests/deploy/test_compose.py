"""The compose files are what Docker accepts, and name the services and variables that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from service.settings import SECRETS_DIR, Settings

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
HOSTS = COMPOSE.parent / "deploy" / "compose.hosts.yml"
#: The private addresses of the first host, and of the host that a command is on.
HEAD, NODE = "${WIRETUNE_HEAD_ADDRESS}", "${WIRETUNE_NODE_ADDRESS}"


@pytest.mark.parametrize("path", [COMPOSE, HOSTS], ids=lambda path: path.name)
def test_a_compose_file_follows_the_compose_specification(path: Path) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]

    checked = subprocess.run(checker, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout


def test_the_api_service_sets_only_variables_that_the_service_reads() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    assert set(services) == {"api", "head", "worker", "worker-gpu", "postgres", "prometheus"}
    for name in services["api"]["environment"]:
        assert name == SECRETS_DIR or name.removeprefix("WIRETUNE_").lower() in Settings.model_fields


def test_no_secret_is_in_a_variable_and_each_is_a_file_that_secrets_sh_makes() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    made = (COMPOSE.parent / "deploy" / "secrets.sh").read_text()

    assert "PASSWORD}" not in COMPOSE.read_text()
    used = {secret for service in compose["services"].values() for secret in service.get("secrets", ())}
    assert used == set(compose["secrets"])
    assert not [name for name in used if name not in made]


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_the_cores_of_the_host_are_counted_once(name: str) -> None:
    worker = yaml.safe_load(COMPOSE.read_text())["services"][name]

    assert worker.get("deploy", {}).get("replicas", 1) == 1 or "--num-cpus" in worker["command"]


def test_each_service_says_whether_it_is_healthy_and_workers_have_a_profile() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    assert {name for name, service in services.items() if "healthcheck" not in service} == {"prometheus"}
    assert {name: service["profiles"] for name, service in services.items() if "profiles" in service} == {
        "worker": ["cpu"],
        "worker-gpu": ["gpu"],
        "prometheus": ["monitoring"],
    }
    assert services["worker"]["command"] == services["worker-gpu"]["command"]


def test_the_logs_of_each_container_and_of_ray_are_bounded() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    assert {service["logging"]["driver"] for service in services.values()} == {"local"}
    for name in ("head", "worker", "worker-gpu"):
        environment = services[name]["environment"]
        size, number = (int(environment[f"RAY_ROTATION_{each}"]) for each in ("MAX_BYTES", "BACKUP_COUNT"))
        assert size * (number + 1) < 250e6


def test_the_service_refuses_code_of_users_unless_a_variable_allows_it() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    assert services["api"]["environment"]["WIRETUNE_USER_CODE"] == "${WIRETUNE_USER_CODE:-false}"


def test_on_several_hosts_ray_is_on_the_hosts_network_and_the_api_beside_its_database() -> None:
    services = yaml.safe_load(HOSTS.read_text())["services"]

    ray = {name: service for name, service in services.items() if service.get("network_mode") == "host"}
    assert set(ray) == {"head", "worker", "worker-gpu"} and set(services) == {*ray, "api"}
    assert services["worker"] == services["worker-gpu"]
    assert services["api"]["ports"] == [f"{HEAD}:8470:8470"]


@pytest.mark.parametrize("name", ["head", "worker", "worker-gpu"])
def test_on_several_hosts_ray_starts_as_on_one_at_addresses_that_the_others_reach(name: str) -> None:
    here, there = (yaml.safe_load(path.read_text())["services"][name] for path in (COMPOSE, HOSTS))

    added = set(_words(there["command"])) - set(_words(here["command"]))
    own = HEAD if name == "head" else NODE
    far = {f"--dashboard-host={HEAD}"} if name == "head" else {f"--address={HEAD}:6379"}
    assert added == {f"--node-ip-address={own}", *far}
    assert set(_words(here["command"])) - set(_words(there["command"])) <= {
        "--address=head:6379",
        "--dashboard-host=0.0.0.0",
    }
    assert there["healthcheck"]["test"] == ["CMD-SHELL", f"ray health-check --address {HEAD}:6379"]


def test_on_several_hosts_results_are_in_one_place_and_nothing_is_reached_by_a_name_of_the_first_host() -> None:
    one, several = (yaml.safe_load(path.read_text())["services"] for path in (COMPOSE, HOSTS))

    with_results = {name for name, service in one.items() if "results:/results" in service.get("volumes", ())}
    assert {name for name, service in several.items() if "/mnt/results:/results" in service["volumes"]} == with_results
    environment = several["api"]["environment"]
    assert environment.keys() == {
        name for name, value in one["api"]["environment"].items() if re.match(r"http://(head|api)\b", value)
    }
    assert all(value.startswith(f"http://{HEAD}:") for value in environment.values())


def _words(command: str) -> list[str]:
    """Return the words of a command, without what compose says of a variable that is not set."""
    return re.sub(r":\?[^}]*}", "}", command).split()
