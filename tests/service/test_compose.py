"""docker-compose.yml is what Docker accepts, and names the services and variables that exist."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from service.settings import SECRETS_DIR, Settings

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


def test_the_compose_file_follows_the_compose_specification() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]

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
