import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

from trainers import filesystem
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.training.checkpoint import CheckpointError, commit_manifest, weights
from trainers.training.replica import Replica

MakeConfig = Callable[..., ReplicaConfig]
SEGMENT = Segment(num_steps=5, learning_rate=0.1)


def trained(config: ReplicaConfig) -> Replica:
    replica = Replica(config, 0, 1, device="cpu")
    replica.run(SEGMENT)
    return replica


def write(replica: Replica, url: str) -> None:
    commit_manifest(url, replica.save(url))


def test_a_loaded_checkpoint_continues_with_equal_bits(
    make_config: MakeConfig,
    tmp_path: Path,
    optimizer_config: OptimizerConfig,
    exchange_config: NoneConfig | ThresholdConfig,
):
    config = make_config(optimizer=optimizer_config, exchange=exchange_config)
    original = trained(config)
    write(original, f"file://{tmp_path}/checkpoint")
    fresh = Replica(config, 0, 1, device="cpu")

    fresh.load(f"file://{tmp_path}/checkpoint")

    assert fresh.step == 5
    assert fresh.run(SEGMENT).losses == original.run(SEGMENT).losses


@pytest.mark.parametrize("num_taken", [0, 1])
def test_a_rank_with_a_pace_of_its_own_goes_on_from_a_checkpoint_whatever_it_did_before(
    make_config: MakeConfig, tmp_path: Path, num_taken: int
):
    config = make_config(sync=LocalSgdConfig(period=6))
    saved, used, fresh = (Replica(config, 0, 1, device="cpu") for _ in range(3))
    if num_taken:
        saved.run(Segment(num_steps=num_taken, learning_rate=0.1), until_average=True, pace=0.5)
    write(saved, str(tmp_path))
    used.run(Segment(num_steps=3, learning_rate=0.5), until_average=True, pace=0.5)

    for replica in (used, fresh):
        replica.load(str(tmp_path))

    resumed, expected = (replica.run(SEGMENT, until_average=True, pace=0.5).losses for replica in (used, fresh))
    assert resumed == expected


def test_tensors_that_share_memory_are_written_as_they_are():
    mask = torch.arange(6.0)
    views = {"mask": mask, "wide": mask[None], "part": mask[2:4]}

    written = load(weights(views))

    assert {name: written[name].tolist() for name in views} == {name: view.tolist() for name, view in views.items()}


def test_any_storage_that_fsspec_reaches_will_do(make_config: MakeConfig):
    replica = trained(make_config())

    write(replica, "memory://bucket/checkpoint")
    replica.run(SEGMENT)
    replica.load("memory://bucket/checkpoint")

    assert replica.step == 5


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_anybody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced, sync = [], os.fsync

    def noted(opened: int) -> None:
        held = Path(f"/proc/self/fd/{opened}").resolve()
        synced.append((held.is_dir() or held.read_bytes(), (tmp_path / "file").exists()))
        sync(opened)

    monkeypatch.setattr(os, "fsync", noted)
    filesystem.write(f"file://{tmp_path}/file", b"content")

    assert synced == [(b"content", False), (True, True)]


@pytest.mark.parametrize("name", ["shared.safetensors", "rank-0.safetensors"])
@pytest.mark.parametrize("place", [0.1, 0.9])
def test_a_flipped_bit_is_found_and_its_file_named(make_config: MakeConfig, tmp_path: Path, name: str, place: float):
    replica = trained(make_config(exchange=ThresholdConfig(density=0.1)))
    write(replica, str(tmp_path))
    content = bytearray((tmp_path / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (tmp_path / name).write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        replica.load(str(tmp_path))


@pytest.mark.parametrize("name", ["shared.safetensors", "rank-0.safetensors", "manifest.json"])
def test_a_missing_file_is_named(make_config: MakeConfig, tmp_path: Path, name: str):
    replica = trained(make_config())
    write(replica, str(tmp_path))
    (tmp_path / name).unlink()

    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        replica.load(str(tmp_path))


def test_a_torn_manifest_is_named(make_config: MakeConfig, tmp_path: Path):
    replica = trained(make_config())
    write(replica, str(tmp_path))
    (tmp_path / "manifest.json").write_text((tmp_path / "manifest.json").read_text()[:50])

    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        replica.load(str(tmp_path))


def test_a_refused_checkpoint_changes_nothing(make_config: MakeConfig, tmp_path: Path):
    replica, untouched = trained(make_config()), trained(make_config())
    write(replica, str(tmp_path))
    (tmp_path / "rank-0.safetensors").unlink()
    for one in (replica, untouched):
        one.run(SEGMENT)

    with pytest.raises(CheckpointError):
        replica.load(str(tmp_path))

    assert replica.run(SEGMENT).losses == untouched.run(SEGMENT).losses


def test_state_of_another_optimizer_is_refused(make_config: MakeConfig, tmp_path: Path):
    write(trained(make_config(optimizer=SgdConfig(momentum=0.0))), str(tmp_path))

    with pytest.raises(CheckpointError, match=r"shared.safetensors holds the state of another"):
        trained(make_config(optimizer=SgdConfig(momentum=0.9))).load(str(tmp_path))


def test_a_checkpoint_of_another_format_is_refused(make_config: MakeConfig, tmp_path: Path):
    replica = trained(make_config())
    write(replica, str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))

    with pytest.raises(CheckpointError, match="of format 2; needed is format 5"):
        replica.load(str(tmp_path))


def test_an_upload_that_ends_just_as_the_wait_for_it_does_is_complete():
    class Late(Future[list[str]]):
        def result(self, timeout: float | None = None) -> list[str]:
            if not self.done():
                self.set_result(["shard"])
                raise TimeoutError
            return super().result(timeout)

    assert Replica.saved(SimpleNamespace(_upload=Late()), 0.0) == ["shard"]  # type: ignore[arg-type]
