"""A client finds the service and its key by itself, and survives a rotation of the key."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api import connection
from api.async_client import AsyncClient
from api.client import Client
from api.failures import ApiError, Unreachable
from api.local_service import KEY_NAME, Server
from service.settings import Settings


def name_of(url: str | None = None, key: str | None = None) -> str:
    """Return whose key a client uses that is given no more than this."""
    with Client(url, key) as client:
        return client.me().name


def test_a_client_asks_the_service_of_the_environment(at: str) -> None:
    async def awaited() -> str:
        async with AsyncClient() as client:
            return (await client.me()).name

    assert name_of() == asyncio.run(awaited()) == "test"


@pytest.mark.parametrize("given", ["argument", "variable"])
def test_a_key_may_be_in_a_file(
    live_url: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    if given == "variable":
        monkeypatch.setenv("WIRETUNE_API_KEY_FILE", str(file))

    assert name_of(key=f"@{file}" if given == "argument" else None) == "test"


def test_without_a_url_the_service_of_this_machine_is_asked(
    settings: Settings, live_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match="no service runs on this machine: start one with `wiretune serve`"):
        Client()

    monkeypatch.setattr(connection, "running_server", lambda settings: Server(live_url, key))
    (settings.state_dir / KEY_NAME).write_text("wt_old")
    with Client() as waiting:
        (settings.state_dir / KEY_NAME).write_text(key)  # by the command that rotates it

        assert waiting.me().name == "test"


def test_what_is_given_goes_before_the_environment(at: str) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        name_of("http://127.0.0.1:9")
    with pytest.raises(ApiError, match="send an API key"):
        name_of(key="")


def from_file(file: Path) -> Path | str | Callable[[], str]:
    return file


def from_function(file: Path) -> Path | str | Callable[[], str]:
    return lambda: file.read_text().strip()


@pytest.mark.parametrize("keep", [from_file, from_function])
def test_a_rotated_key_is_read_again(
    live_url: str, key: str, tmp_path: Path, keep: Callable[[Path], Path | str | Callable[[], str]]
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{key}\n")

    async def awaited() -> str:
        async with AsyncClient(live_url, keep(file)) as waiting:
            await waiting.me()
            rotate()
            return (await waiting.me()).name

    def rotate() -> None:
        with Client(live_url, f"@{file}") as owner:
            key_id = owner.me().key
            assert key_id is not None
            file.write_text(f"{owner.rotate_key(key_id).secret}\n")

    with Client(live_url, keep(file)) as waiting, Client(live_url, key) as other:
        waiting.me()
        rotate()
        assert waiting.me().name == asyncio.run(awaited()) == "test"
        with pytest.raises(ApiError, match="401"):
            other.me()  # whose key is text, and never changes


def test_a_file_that_is_empty_is_no_new_key(live_url: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("wt_old")

    with Client(live_url, file) as client:
        file.write_text("")
        with pytest.raises(ApiError, match="not known here"):
            client.me()
        file.write_text(key)
        assert client.me().name == "test"


def test_a_file_that_is_gone_leaves_the_refusal(live_url: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("wt_of_nobody")

    with Client(live_url, file) as client:
        file.unlink()
        with pytest.raises(ApiError, match="401"):
            client.me()
