"""A checkpoint that cannot be written leaves nothing behind and damages nothing."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.cluster.checkpoints import Keeper, NoRoom


class FillingGroup:
    """Writes a file of a checkpoint; with a `failure` half of it, as on a disk that has become full."""

    failure: OSError | None = None

    def save(self, url: str) -> None:
        folder = Path(url.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "shared.safetensors").write_bytes(b"half")
        if self.failure is not None:
            raise self.failure
        (folder / "manifest.json").write_bytes(b"{}")


@pytest.mark.parametrize("keep", [1, 2])
def test_a_later_attempt_needs_no_room_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    group = FillingGroup()
    earlier = Keeper(group, f"file://{tmp_path}/1", keep=keep).save(0)  # type: ignore[arg-type]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))

    later = Keeper(group, f"file://{tmp_path}/2", keep=keep)  # type: ignore[arg-type]
    later.inherit([earlier])
    later.save(3)
    later.save(4)

    with pytest.raises(NoRoom):
        Keeper(group, f"file://{tmp_path}/3", keep=2).save(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_half_a_checkpoint_gives_its_room_back_and_the_last_one_stays(tmp_path: Path, number: int) -> None:
    group = FillingGroup()
    keeper = Keeper(group, f"file://{tmp_path}", keep=2)  # type: ignore[arg-type]
    whole = keeper.save(0)
    group.failure = OSError(number, "no room")

    with pytest.raises(OSError, match="no room"):
        keeper.save(10)

    assert keeper.saved == [whole]
    assert [folder.name for folder in tmp_path.iterdir()] == [Path(whole).name]
