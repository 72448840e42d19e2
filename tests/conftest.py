"""Databases without rows: a copied SQLite file, and PostgreSQL, one server a process, for every test that asks."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from sqlalchemy import Engine, delete, make_url

from service.control.database.engine import connect
from service.control.database.locks import prepare_state_dir
from service.control.database.schema import migrate
from service.control.models import Base
from service.settings import Settings
from tests.support.patience import crowd
from tests.support.postgres_server import HOW_TO_GET_ONE, VARIABLE, Databases, Server, find_programs
from trainers import overload

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

# how long an example takes is other work's matter, too
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Give a test more time where other work shares the processors; a hang still ends."""
    alone_s = item.config.getoption("timeout") or float(item.config.getini("timeout"))
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(alone_s * crowd()))


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else this machine does changes no message."""
    monkeypatch.setattr(overload, "here", lambda: None)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of the terminal that the tests run in folds nothing that they read."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def busy_machine(idle_machine: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The clause on this machine, at a load of 40 on 2 cores."""
    said = overload.at(40.0, 2)
    assert said is not None
    monkeypatch.setattr(overload, "here", lambda: said)
    return said


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator["S3Server"]:
    """An S3 server with an empty bucket, in the environment of this process and of those that it starts."""
    from tests.support import s3_server  # here: moto takes a second

    with s3_server.serving(monkeypatch.setenv) as server:
        yield server


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    """A process group of torch whose only rank is this process."""
    from torch import distributed  # here: most tests need no torch

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="session")
def put_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], None]:
    """Puts a database with the present schema where settings look for one: to migrate each takes four times as long."""
    migrated = Settings(state_dir=tmp_path_factory.mktemp("sqlite"), database_url="")
    engine = connect(migrated.resolved_database_url)
    migrate(engine)
    engine.dispose()

    def put(settings: Settings) -> None:
        prepare_state_dir(settings)
        shutil.copy(_file_of(migrated), _file_of(settings))

    return put


def _file_of(settings: Settings) -> str:
    return make_url(settings.resolved_database_url).database or ""


@pytest.fixture(scope="session")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that a test may crash; its log stays in pytest's folder of the run."""
    if VARIABLE in os.environ:
        pytest.skip(f"the server of {VARIABLE} may not be crashed")
    programs = find_programs()
    if programs is None:
        pytest.skip(HOW_TO_GET_ONE)
    try:
        server = Server(programs)
    except PermissionError as error:  # root starts the server as another user
        pytest.skip(f"{error}: the server cannot run as root, and others may not enter there; {HOW_TO_GET_ONE}")
    yield server
    shutil.copy(server.log, tmp_path_factory.mktemp("postgres"))
    server.stop()


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    url = os.environ.get(VARIABLE) or request.getfixturevalue("own_postgres").url
    databases = Databases(url)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def migrated(databases: Databases) -> Iterator[Engine]:
    """The database that most tests use one after the other: on a slow disk a new one costs more than a test."""
    url = databases.create()
    engine = connect(url)
    migrate(engine)
    yield engine
    engine.dispose()
    databases.drop(url)


@pytest.fixture
def postgres_url(migrated: Engine) -> Iterator[str]:
    """A database with the present schema and no rows."""
    yield migrated.url.render_as_string(hide_password=False)
    with migrated.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(delete(table))


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """A new database, without a table."""
    url = databases.create()
    yield url
    databases.drop(url)
