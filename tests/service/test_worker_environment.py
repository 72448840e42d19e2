"""Workers see only the listed variables of the service's environment."""

from service.control.ray_cluster.worker_environment import inherited


def test_only_what_is_listed_reaches_workers(monkeypatch):
    secrets = (
        "WIRETUNE_SECRET",
        "WIRETUNE_DATABASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "MYPATH",
    )
    for name in (*secrets, "OMP_NUM_THREADS", "WIRETUNE_DATA_DIR", "NCCL_SOCKET_IFNAME", "LC_ALL", "PYTHONPATH"):
        monkeypatch.setenv(name, "set")

    found = inherited("")

    assert not found.keys() & set(secrets)
    assert {
        "PATH",
        "OMP_NUM_THREADS",
        "WIRETUNE_DATA_DIR",
        "NCCL_SOCKET_IFNAME",
        "LC_ALL",
        "PYTHONPATH",
    } <= found.keys()


def test_an_operator_adds_names_and_patterns(monkeypatch):
    for name in ("AWS_REGION", "AWS_SECRET_ACCESS_KEY", "S3_KEY", "S3_KEYS"):
        monkeypatch.setenv(name, "set")

    assert {"AWS_REGION", "AWS_SECRET_ACCESS_KEY", "S3_KEY"} <= inherited(" AWS_*, S3_KEY,").keys()
    assert "S3_KEYS" not in inherited(" AWS_*, S3_KEY,")
