"""A run's checkpoints on storage: none is begun that the disk cannot hold."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from service.cluster.checkpoints import Keeper, NoRoom


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
    needed = (2 + 6 - 1) * size  # those kept and those besides, of which one is there

    disk(needed)
    Keeper(group, f"file://{tmp_path}/fits", keep=2).save(0)

    disk(needed - 1)
    with pytest.raises(NoRoom, match=r"for 7 checkpoints more: make room .*`wiretune retry`"):
        Keeper(group, f"file://{tmp_path}/full", keep=2).save(0)


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


def _refuse(*_: Any, **__: Any) -> None:
    raise PermissionError("the storage lets nothing go")
