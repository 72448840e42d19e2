"""Start processes of the service to put under load, without a reconciler, and read the load of this machine.

    python benchmarks/replicas.py FOLDER [--database-url URL]

Each has a job with one attempt, whose records a benchmark may report.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from api.http.app import create_app
from api.http.connections import Deadlines
from api.http.server import bind, prepare_process, server_config
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings

SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


@dataclass
class Replica:
    """A process of the service; its `url`, `key` and `database`; `job`, `trial`, `number`, `token` to report."""

    process: "subprocess.Popen[str]"
    reached: dict[str, str]

    @property
    def rss_mb(self) -> float:
        """Return the memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    @property
    def processor_s(self) -> float:
        """Return the seconds of processor that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def records_path(self) -> str:
        """Return the path to which the attempt reports."""
        return f"/v1/attempts/{self.reached['job']}/{self.reached['number']}/records"


@contextmanager
def running(num_replicas: int = 1, *, database_url: str = "") -> Iterator[list[Replica]]:
    """Run replicas over one database, or one over SQLite, and end them."""
    prepare_process()  # as many connections here
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WIRETUNE_SECRET"] = "benchmark"  # replicas need the same
        replicas = [_started(f"{folder}/{number}", database_url) for number in range(num_replicas)]
        try:
            yield replicas
        finally:
            for replica in replicas:
                replica.process.terminate()
                replica.process.wait()


def _started(folder: str, database_url: str) -> Replica:
    process = subprocess.Popen(
        [sys.executable, __file__, folder, "--database-url", database_url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return Replica(process, json.loads(process.stdout.readline()))


def load() -> str:
    """Return what this machine has to do, in words."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def serve(state_dir: str, database_url: str) -> None:
    """Run one replica with a job that reports; print how to reach both as JSON."""
    settings = Settings(state_dir=Path(state_dir), database_url=database_url)
    store = Store.open(settings)
    job_id = store.add_job(SPEC)[0].id
    number = store.attempts.begin(job_id).attempt
    with bind("127.0.0.1", 0) as bound:
        bound.listen(1024)  # whoever comes before the server waits
        reached = {
            "url": f"http://127.0.0.1:{bound.getsockname()[1]}",
            "key": store.add_key("benchmark"),
            "job": job_id,
            "trial": store.trials(job_id)[0].trial_id,
            "number": number,
            "token": store.attempts.token(job_id, number),
            "database": settings.resolved_database_url,
        }
        print(json.dumps(reached), flush=True)
        prepare_process()
        uvicorn.Server(server_config(create_app(store), Deadlines())).run(sockets=[bound])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--database-url", default="")
    given = parser.parse_args()
    serve(given.folder, given.database_url)
