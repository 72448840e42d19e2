"""The standard library's source as text, and the transformer that reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import StdlibLm
from trainers.training import model
from trainers.training.replica import Replica
from trainers.workload import WorkloadError
from trainers.workloads import registry, stdlib

TEXT = StdlibLm(context=16, batch_size=4)


@pytest.fixture(scope="module")
def workload() -> stdlib.Stdlib:
    return stdlib.Stdlib(TEXT)


def write(library: Path, *names: str) -> None:
    for name in names:
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(f"# {name}\n")


def test_a_module_is_trained_on_or_held_out_whole(tmp_path: Path):
    names = [f"package{i % 3}/module{i}.py" for i in range(60)]
    write(tmp_path, *names)

    training, held_out = (part.decode().splitlines() for part in stdlib.read_source(tmp_path))

    assert sorted(training + held_out) == sorted(f"# {name}" for name in names)
    assert held_out == [f"# {name}" for name in sorted(names) if stdlib.is_held_out(name)]


def test_what_is_not_the_library_itself_is_left_out(tmp_path: Path):
    write(tmp_path, "os.py", "json/tool.py", "test/os.py", "json/tests/a.py", "site-packages/x.py", "idlelib/x.py")

    assert [path.name for path in stdlib.source_files(tmp_path)] == ["tool.py", "os.py"]


def test_a_python_without_source_is_refused(tmp_path: Path):
    with pytest.raises(WorkloadError, match=f"no source .* in {tmp_path}"):
        stdlib.read_source(tmp_path)


def test_about_one_byte_in_ten_is_held_out(workload: stdlib.Stdlib):
    training, held_out = stdlib.read_source(stdlib.library())

    assert 0.05 < len(held_out) / len(training + held_out) < 0.2
    assert len(workload.validation) in range(256, stdlib.NUM_VALIDATION_WINDOWS + 1)


def test_windows_are_the_text_in_order_without_overlap():
    text = bytes(range(100))

    rows = stdlib.windows(text, context=8)

    assert rows.shape == (11, 9)
    assert bytes(rows.flatten().tolist()) == text[:99]


def test_the_hash_is_that_of_the_training_text(workload: stdlib.Stdlib):
    assert stdlib.Stdlib(StdlibLm(context=32)).data_version == workload.data_version
    assert len(workload.data_version) == 64


def test_a_score_depends_on_earlier_bytes_alone(workload: stdlib.Stdlib):
    text = workload.training[0][0][None, :16].long()
    changed = text.clone()
    changed[0, 9] ^= 1
    net = model.build(workload, 0)

    differs = (net(text) != net(changed)).any(dim=2)[0]

    assert differs.tolist() == [False] * 9 + [True] * 7


def test_bits_per_byte_of_a_guess_without_knowledge_are_eight(workload: stdlib.Stdlib):
    net = model.build(workload, 0)
    torch.nn.init.zeros_(net.head.weight)

    measured = workload.evaluate(net, workload.validation[:4])

    assert measured["bits_per_byte"].item() == pytest.approx(8)


def test_checkpointing_changes_no_loss_and_no_gradient(workload: stdlib.Stdlib):
    results = []
    for checkpointing in (False, True):
        net = model.build(stdlib.Stdlib(TEXT.model_copy(update={"checkpointing": checkpointing})), 0)
        loss = workload.loss(net, workload.training[:4])
        loss.backward()
        results.append((loss, [parameter.grad for parameter in net.parameters()]))

    (plain, gradients), (saving, again) = results
    assert plain == saving
    assert all(map(torch.equal, gradients, again))


def test_the_embedding_is_exported_under_both_its_names(make_config: Callable[..., ReplicaConfig], tmp_path: Path):
    replica = Replica(make_config(workload=TEXT), 0, 1, device="cpu")
    replica.run(Segment(num_steps=1, learning_rate=0.01))
    path = tmp_path / "weights.safetensors"

    replica.export(str(path))

    fresh = registry.build(TEXT).model()
    fresh.load_state_dict(safetensors.torch.load_file(path), strict=True)
    assert torch.equal(fresh.head.weight, replica.model.get_parameter("embedding.weight"))
    assert model.fingerprint(fresh, replica.workload) == replica.fingerprint()
