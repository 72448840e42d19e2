"""The embedded Ray starts when needed, in parallel to the reconciler's rounds, and is released when not."""

from pathlib import Path

import pytest

from service.control.database.locks import lock
from service.control.queue.capacity import Node
from service.control.ray_cluster import clusters, embedded
from service.control.ray_cluster.clusters import EmbeddedCluster, RemoteCluster, cluster_of, found_gpus
from service.control.ray_cluster.ray_jobs import RayJobs, log_name
from service.errors import Unavailable
from service.settings import Settings
from tests.support.patience import PATIENCE_S


class Heads:
    """Stands for the processes behind `embedded`: what was started, what lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.failure = folder, None
        self.num_started, self.num_stopped, self.is_alive = 0, 0, False

    def ensure_head(self, settings):
        self.num_started += 1
        if self.failure:
            raise Unavailable(self.failure)
        self.is_alive = True
        token_path = self.folder / "token"
        token_path.write_text("secret")
        owner = lock(self.folder / "owner.lock", purpose="the test")
        return embedded.Head(
            address="http://127.0.0.1:1", token_path=token_path, log_dir=self.folder, pid=1, owner=owner
        )

    def stop_head(self, settings):
        self.num_stopped += 1
        self.is_alive = False


@pytest.fixture
def heads(tmp_path, monkeypatch):
    heads = Heads(tmp_path)
    monkeypatch.setattr(embedded, "ensure_head", heads.ensure_head)
    monkeypatch.setattr(embedded, "stop_head", heads.stop_head)
    monkeypatch.setattr(embedded, "is_alive", lambda _: heads.is_alive)
    monkeypatch.setattr(embedded, "head_status", lambda _: object() if heads.is_alive else None)
    return heads


@pytest.fixture
def cluster(tmp_path, heads):
    cluster = EmbeddedCluster(Settings(state_dir=tmp_path, num_cpus=3))
    yield cluster
    cluster.close()


def start(cluster):
    with pytest.raises(Unavailable):
        cluster.connect()
    cluster._starter.join(PATIENCE_S)


def test_looking_for_a_running_head_starts_none(cluster, heads):
    assert cluster.running() is None and heads.num_started == 0

    start(cluster)
    assert cluster.running() is cluster.connect()

    heads.is_alive = False
    assert cluster.running() is None


def test_only_a_head_that_was_left_behind_is_taken_over(cluster, heads):
    assert not cluster.adopt() and heads.num_started == 0

    heads.is_alive = True
    assert cluster.running() is None and cluster.adopt()
    cluster._starter.join(PATIENCE_S)

    assert cluster.running() is not None
    assert not cluster.adopt() and heads.num_started == 1


def test_the_first_call_starts_a_head_and_does_not_wait_for_it(cluster, heads):
    with pytest.raises(Unavailable, match="starting"):
        cluster.connect()
    cluster._starter.join(PATIENCE_S)

    assert cluster.connect() is cluster.connect()
    assert heads.num_started == 1


def test_a_head_that_died_is_replaced(cluster, heads):
    start(cluster)
    heads.is_alive = False

    start(cluster)

    assert heads.num_started == 2
    assert cluster.connect() is not None


def test_a_start_that_failed_says_why_and_is_not_repeated_at_once(cluster, heads):
    heads.failure = "see the log"
    start(cluster)

    with pytest.raises(Unavailable, match="see the log"):
        cluster.connect()

    assert heads.num_started == 1


def test_the_output_of_a_driver_goes_with_it_and_not_before_ray_has_forgotten_it(cluster, tmp_path, monkeypatch):
    outputs = [tmp_path / log_name(name) for name in ("one", "two")]
    for each in outputs:
        each.touch()
    start(cluster)
    ray = cluster.connect()

    with pytest.raises(Unavailable):
        ray.delete("one")  # nobody answers there
    assert all(each.exists() for each in outputs)
    monkeypatch.setattr(RayJobs, "delete", lambda *_: None)
    ray.delete("one")

    assert [each.exists() for each in outputs] == [False, True]


@pytest.mark.parametrize(("idle_s", "is_spent"), [(119, False), (120, True)])
def test_an_idle_head_is_spent_after_its_time(cluster, heads, idle_s, is_spent):
    assert not cluster.is_spent(idle_s)  # there is none yet

    start(cluster)

    assert cluster.is_spent(idle_s) is is_spent


def test_a_close_stops_the_head_once(cluster, heads):
    start(cluster)

    cluster.close()
    cluster.close()

    assert heads.num_stopped == 1


def test_what_the_machine_has_is_known_before_the_start(cluster):
    (node,) = cluster.declared()

    assert node == Node(cpus=3, gpus=found_gpus(Path("/dev")))


@pytest.mark.parametrize(
    ("devices", "num_gpus"),
    [
        (["null", "nvidiactl", "nvidia-uvm", "dri/renderD128"], 0),  # a screen is no GPU to train on
        (["nvidia0", "nvidia1", "nvidiactl"], 2),
        (["kfd", "dri/renderD128", "dri/renderD129", "dri/card0"], 2),
        (["dxg"], 1),
    ],
)
def test_gpus_are_counted_by_their_devices(tmp_path, devices, num_gpus):
    for device in devices:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()

    assert found_gpus(tmp_path) == num_gpus


def test_a_remote_cluster_is_used_with_its_token_and_never_stopped(tmp_path, heads):
    token_path = tmp_path / "token"
    token_path.write_text("secret\n")
    cluster = cluster_of(Settings(state_dir=tmp_path, ray_address="http://127.0.0.1:8265", ray_token_path=token_path))

    assert not cluster.is_spent(1e9)
    cluster.close()

    assert isinstance(cluster, RemoteCluster)
    assert cluster.declared() is None
    assert (heads.num_started, heads.num_stopped) == (0, 0)


def test_a_token_that_cannot_be_read_names_the_file_and_the_variable(tmp_path):
    settings = Settings(state_dir=tmp_path, ray_address="http://127.0.0.1:8265", ray_token_path=tmp_path / "missing")

    with pytest.raises(Unavailable, match=r"missing: No such file.*WIRETUNE_RAY_TOKEN_PATH"):
        cluster_of(settings)


def test_a_service_without_an_address_gets_an_embedded_one(tmp_path):
    assert isinstance(clusters.cluster_of(Settings(state_dir=tmp_path)), EmbeddedCluster)
