"""A run's checkpoints on storage: none is begun that does not fit on the disk."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from service.cluster.checkpoints import Keeper, NoRoom, remove_strays
from service.job.parts import Checkpointing
from trainers import filesystem

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the disk have so many bytes free."""

    def have(num_bytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, num_bytes))

    return have


def test_a_run_whose_checkpoints_do_not_fit_ends_with_its_first(
    arithmetic_group: Callable[..., Any], tmp_path: Path, disk: Callable[[int], None]
) -> None:
    group = arithmetic_group()
    group.rates = [0.5] * 1000
    size = len("[2, []]") + 1000 * len("0.5, ") - 2
    needed = (2 + 7 - 1) * size  # those kept and those besides, of which one is there

    disk(needed)
    Keeper(group, f"file://{tmp_path}/fits", keep=2).save(0)

    disk(needed - 1)
    with pytest.raises(NoRoom, match=r"for 8 checkpoints more: make room .*`wiretune retry`"):
        Keeper(group, f"file://{tmp_path}/full", keep=2).save(0)


@pytest.mark.parametrize("page", ["job", "production", "backup_and_upgrade"])
def test_the_docs_say_how_many_checkpoints_a_disk_needs_room_for(
    arithmetic_group: Callable[..., Any], disk: Callable[[int], None], tmp_path: Path, page: str
) -> None:
    keep = Checkpointing().keep
    disk(0)
    with pytest.raises(NoRoom, match="more") as full:
        Keeper(arithmetic_group(), f"file://{tmp_path}", keep=keep).save(0)
    all_of_them = 1 + int(re.findall(r"for (\d+) checkpoints more", str(full.value))[0])

    text = (DOCS / f"{page}.md").read_text()

    assert re.findall(r"keep` \+ (\d+)", text) == [str(all_of_them - keep)]
    assert set(re.findall(r"(\d+) by default", text[text.index("keep` +") :][:80])) <= {str(all_of_them)}


def test_one_written_beside_the_training_tells_of_the_room_once_it_is_complete(
    arithmetic_group: Callable[..., Any], tmp_path: Path, disk: Callable[[int], None]
) -> None:
    disk(0)
    keeper = Keeper(arithmetic_group(), f"file://{tmp_path}/full", keep=2)
    keeper.save(0, beside=True)

    with pytest.raises(NoRoom):
        keeper.is_saved()


def test_a_storage_that_does_not_say_what_is_free_is_trusted(
    arithmetic_group: Callable[..., Any], disk: Callable[[int], None]
) -> None:
    disk(0)

    assert Keeper(arithmetic_group(), "memory://run", keep=2).save(0) == "memory://run/000000-step-0"


def test_an_old_checkpoint_that_cannot_be_removed_ends_nothing_and_is_tried_again(
    arithmetic_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(arithmetic_group(), f"file://{tmp_path}", keep=1)
    first, second = keeper.save(0), keeper.save(1)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "rm", _refuse)
        third = keeper.save(2)
    assert keeper.saved == [first, second, third]

    fourth = keeper.save(3)

    assert keeper.saved == [third, fourth]
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("root", ["file://{}", "memory://{}", "s3://results{}"], ids=["file", "memory", "s3"])
def test_checkpoints_that_killed_attempts_left_go_and_what_a_run_goes_on_from_stays(
    root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if root.startswith("s3"):
        request.getfixturevalue("s3")
    job = f"{root.format(tmp_path)}/job-1"
    named = [
        "attempt-1/a.0/000001-step-10",
        "attempt-2/a.0/000000-step-20",
        "attempt-2/a.0/insurance/a.0/000000-step-1",
    ]
    strays = [
        "attempt-1/a.0/000011-step-10",
        "attempt-2/a.0/000001-step-30",
        "attempt-1/a.0/insurance/a.0/000000-step-1",
    ]
    others = ["attempt-3/a.0/000000-step-0", "attempt-2/b.0/000000-step-0"]  # it writes there itself; another trial
    weights = [f"{job}/attempt-1/a.0/weights.safetensors", f"{job}/attempt-1/a.0/last/weights.safetensors"]
    for folder in (*named, *strays, *others):
        filesystem.write(f"{job}/{folder}/rank-0.safetensors", b"state")
    for url in (*weights, f"{job}/attempt-1/a.0/weights.safetensors.1a2b.partial"):
        filesystem.write(url, b"weights")
    resume = {
        "checkpoint": f"{job}/{named[1]}",
        "stage": {"checkpoint": f"{job}/{named[0]}"},
        "insurance": {"checkpoints": [f"{job}/{named[2]}"]},
    }

    remove_strays(f"{job}/attempt-3", "a.0", number=3, resume=resume)

    with filesystem.reaching(job) as (reached, path):
        left = {found[len(path) + 1 :] for found in reached.find(path)}
    kept = {f"{folder}/rank-0.safetensors" for folder in (*named, *others)}
    assert left == kept | {url.removeprefix(f"{job}/") for url in weights}


def _refuse(*_: Any, **__: Any) -> None:
    raise PermissionError("the storage lets nothing go")
