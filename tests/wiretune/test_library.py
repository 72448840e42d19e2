"""The package `wiretune`: public names resolve, are documented on a page, and load nothing before their use."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import wiretune

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "pydantic", "httpx2", "numpy")


@pytest.mark.parametrize("name", wiretune.__all__)
def test_a_public_name_is_there(name: str):
    assert getattr(wiretune, name).__name__ == name


def test_the_page_explains_the_public_names_and_no_others():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/library.md").read_text(), re.M)

    assert sorted(rows) == wiretune.__all__


def test_a_type_checker_sees_the_names_that_there_are():
    stated = re.findall(r"(\w+) as \1", Path(wiretune.__file__).read_text())

    assert sorted(stated) == wiretune.__all__


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = wiretune.Trainer


def test_importing_it_loads_nothing_heavy():
    program = f"import sys, wiretune; print([each for each in {HEAVY} if each in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_module_that_hides_one_of_ours_is_named(tmp_path):
    (tmp_path / "search.py").write_text("answer = 42")

    done = subprocess.run([sys.executable, "-c", "import wiretune; wiretune.Budget"], cwd=tmp_path, capture_output=True)

    assert f"{tmp_path / 'search.py'} hides Wiretune's package `search`: rename it" in done.stderr.decode()


def test_a_package_that_is_not_installed_is_not_said_to_hide_one():
    program = "import sys, wiretune; sys.modules['pydantic'] = None; wiretune.Budget"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert "import of pydantic halted" in done.stderr and "hides" not in done.stderr
