"""docker-compose.yml is what Docker accepts, and names the services and variables that exist."""

import subprocess
import sys
from pathlib import Path

import yaml

from service.settings import Settings

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


def test_the_compose_file_follows_the_compose_specification() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]

    checked = subprocess.run(checker, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout


def test_the_api_service_sets_only_variables_that_the_service_reads() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    assert set(services) == {"api", "head", "worker", "postgres", "prometheus"}
    for name in services["api"]["environment"]:
        assert name.removeprefix("WIRETUNE_").lower() in Settings.model_fields
