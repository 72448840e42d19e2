"""A cluster node's report to `wiretune doctor --ray`."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from service.cluster import node_report


def test_a_file_that_the_system_refuses_to_look_for_is_waited_for_and_not_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_report, "SEEN_S", 0.0)
    refused = tmp_path / ("x" * 300)  # an error of root's, too; a folder of another user is none

    assert node_report.report(["torch"], str(refused))["sees"] is False


def test_a_node_whose_task_raises_tells_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(call: Any, *, timeout: float) -> Any:
        reason = PermissionError(13, "Permission denied")
        traceback = f"ray::report() (pid=7, ip=10.0.0.2)\n  in report\nPermissionError: {reason}\n"
        raise RayTaskError("report", traceback, reason).as_instanceof_cause()

    monkeypatch.setattr(ray, "get", get)

    assert node_report._answer(None) == {"error": "PermissionError: [Errno 13] Permission denied"}
