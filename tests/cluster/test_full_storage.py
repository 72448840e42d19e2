"""A checkpoint that cannot be written leaves nothing behind, and what was there stays."""

import errno
from pathlib import Path

import pytest

from service.cluster.checkpoints import Keeper


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
