"""Each worker gets a GPU of its own, or the error names who holds it. Tables are as `nvidia-smi` prints them."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.cluster import gpus
from service.cluster.gpus import Gpu, Holder
from trainers.training.call_results import Outcome

FIRST, SECOND = "GPU-5a1c0b8e-31f5-7d02-9b57-0c2f4a6d8e11", "GPU-c7e9d2f4-8a60-1b3c-4d5e-6f708192a3b4"
GPUS = f"""\
0, {FIRST}, NVIDIA H200, 143771, 101380
1, {SECOND}, NVIDIA H200, 143771, 4
"""
PROCESSES = f"""\
{FIRST}, 4711, 100352, ray::RankActor.answer
{FIRST}, 4712, [N/A], /usr/bin/python3, -m train
"""
IDLE = Gpu(index=1, uuid=SECOND, name="NVIDIA H200", total_mib=143771, used_mib=4, holders=())
HELD = Gpu(
    index=0,
    uuid=FIRST,
    name="NVIDIA H200",
    total_mib=143771,
    used_mib=101380,
    holders=(
        Holder(pid=4711, name="ray::RankActor.answer", mib=100352),
        Holder(pid=4712, name="/usr/bin/python3, -m train", mib=None),
    ),
)
UNSEEN = Gpu(index=0, uuid=FIRST, name="NVIDIA H200", total_mib=143771, used_mib=101380, holders=())


def test_the_two_tables_tell_what_is_taken_and_by_whom() -> None:
    assert gpus.parse(GPUS, PROCESSES) == (HELD, IDLE)
    assert gpus.parse(GPUS, "") == (UNSEEN, IDLE)
    assert gpus.parse(f"0, {FIRST}, NVIDIA GB10, [N/A], [N/A]\n", "") == ()  # it shares the machine's memory


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, (HELD, IDLE)),
        ("1", (IDLE,)),
        ("0,1", (HELD, IDLE)),
        (SECOND, (IDLE,)),
        ("GPU-c7e9", (IDLE,)),
        ("", ()),
        ("MIG-c7e9d2f4-8a60-1b3c-4d5e-6f708192a3b4", ()),
    ],
)
def test_a_worker_looks_at_its_own_gpus(names: str | None, found: Sequence[Gpu]) -> None:
    assert gpus.visible((HELD, IDLE), names) == tuple(found)


@pytest.mark.parametrize(("gpu", "is_held"), [(IDLE, False), (HELD, True), (UNSEEN, True)])
def test_memory_is_held_by_a_process_whether_it_is_seen_or_not(gpu: Gpu, is_held: bool) -> None:
    assert gpu.is_held is is_held


def test_a_worker_waits_for_those_that_leave() -> None:
    looks = [(HELD,), (UNSEEN,), (IDLE,)]

    assert gpus.wait_until_free(lambda: looks.pop(0), every_s=0.0) == ""
    assert not looks


def test_those_that_stay_are_named_with_what_they_hold(caplog: pytest.LogCaptureFixture) -> None:
    said = gpus.wait_until_free(lambda: (HELD, IDLE), patience_s=0.0)

    assert said == (
        "of GPU 0 (NVIDIA H200) 99.0 of 140.4 GiB are held by process 4711 (ray::RankActor.answer, 98.0 GiB), "
        "process 4712 (/usr/bin/python3, -m train)"
    )
    assert said in caplog.text
    assert "not seen from here" in gpus.wait_until_free(lambda: (UNSEEN,), patience_s=0.0)


OUT_OF_MEMORY = """\
Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB.
"""


def test_memory_that_others_hold_may_be_free_in_the_next_attempt() -> None:
    blamed = gpus.blamed(Outcome("error", OUT_OF_MEMORY), gpus.described(HELD))

    assert blamed.kind == "machine_error"
    last = blamed.content.splitlines()[-1]
    assert "20.00 MiB more were needed; when this worker started, of GPU 0 (NVIDIA H200) 99.0 of 140.4 GiB" in last


@pytest.mark.parametrize(
    ("outcome", "held"),
    [
        (Outcome("error", OUT_OF_MEMORY), ""),  # a model that is too large is so the next time
        (Outcome("error", "ValueError: mine"), "of GPU 0 ..."),
        (Outcome("answer", {"loss": 1.0}), "of GPU 0 ..."),
    ],
)
def test_nobody_else_is_blamed_for_what_is_the_jobs_own(outcome: Outcome, held: str) -> None:
    assert gpus.blamed(outcome, held) is outcome


@pytest.mark.parametrize("said", [None, "exit 9", "echo 'Unable to determine the device handle for GPU0'"])
def test_where_nvidia_smi_does_not_tell_nothing_is_known_and_nobody_waits(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if said is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level("INFO")

    assert gpus.wait_until_free() == ""
    assert "is not known" in caplog.text


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="NOT SHOWN HERE: needs a GPU and `nvidia-smi`")
def test_this_machines_gpus_are_read_as_its_own_tool_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout

    assert [gpu.uuid in listed for gpu in gpus.look()] == [True] * sum("GPU-" in each for each in listed.splitlines())
