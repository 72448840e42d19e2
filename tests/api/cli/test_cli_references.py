"""References: a job by its id, a part of that, its name, or `latest`; a service by its host alone."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.async_client import AsyncClient
from api.cli import completion, main
from api.client import Client
from api.connection import with_scheme
from api.failures import ApiError, UnknownJob, Unreachable
from api.local_service import Server
from service.control.access.rules import LOCAL
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState

run_cli = CliRunner()
#: Whose the key is.
OWNER = replace(LOCAL, name="test")


@pytest.fixture
def ids(store: Store, job: JobSpec) -> list[str]:
    """Two jobs of one name, and the newest of another."""
    return [
        store.add_job(job.model_copy(update={"name": name}), by=OWNER)[0].id for name in ("twin", "twin", "newest one")
    ]


def test_a_job_goes_by_what_only_it_has(client: Client, ids: list[str]) -> None:
    whole, others = ids[-1], ids[:-1]
    begins = next(n for n in range(8, 29) if not any(other.startswith(whole[:n]) for other in others))
    ends = next(n for n in range(4, 25) if not any(other.endswith(whole[-n:]) for other in others))

    refs = ("latest", "newest one", whole, whole[4:], whole[:begins], whole[4:begins], whole[-ends:])

    assert [client.find(ref) for ref in refs] == [whole] * len(refs)


def test_an_ambiguous_word_lists_those_that_it_may_mean(client: Client, ids: list[str]) -> None:
    with pytest.raises(UnknownJob) as refused:
        client.find("twin")

    assert all(f"{job_id}  queued  twin" in str(refused.value) for job_id in ids[:2])
    assert ids[2] not in str(refused.value)


def test_a_word_that_no_job_goes_by_finds_none(client: Client, ids: list[str]) -> None:
    for ref in ("%", "_", "job-%", "nobody's", "0g"):
        with pytest.raises(UnknownJob, match="no job goes by"):
            client.find(ref)


def test_without_any_job_the_latest_is_not_there(client: Client) -> None:
    with pytest.raises(UnknownJob, match="no job is listed yet"):
        client.find("latest")


def test_the_latest_is_ones_own_whoever_was_there_later(live_url: str, key: str, store: Store, ids: list[str]) -> None:
    spec = store.job(ids[-1]).readable
    for other in (replace(OWNER, name="anna"), replace(OWNER, project="blue")):  # of whom one has the same name
        store.add_job(spec, by=other)

    async def awaited() -> str:
        async with AsyncClient(live_url, key) as client:
            return await client.find("latest")

    with Client(live_url, key) as client:
        assert client.find("latest") == asyncio.run(awaited()) == ids[-1]


def test_without_a_job_of_ones_own_the_newest_of_all_is_named_and_left_alone(
    live_url: str, key: str, store: Store, job: JobSpec
) -> None:
    theirs = store.add_job(job, by=replace(OWNER, name="anna"))[0].id

    cancelled = run_cli.invoke(main.app, ["cancel", "latest", "--url", live_url, "--key", key])

    assert cancelled.exit_code == 2 and store.job(theirs).state is JobState.QUEUED
    assert (
        f"no job of `test` in project `default` is listed; the newest that you see is\n  {theirs}" in cancelled.stderr
    )
    assert "of `anna`" in cancelled.stderr


def test_every_command_takes_such_a_word(
    live_url: str, key: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIRETUNE_URL", live_url.removeprefix("http://"))
    monkeypatch.setenv("WIRETUNE_API_KEY", key)

    shown = run_cli.invoke(main.app, ["show", "latest"])
    cancelled = run_cli.invoke(main.app, ["cancel", "newest one"])
    refused = run_cli.invoke(main.app, ["cancel", "twin"])

    assert shown.stdout.startswith(ids[-1]), shown.stderr
    assert cancelled.stdout.startswith(f"{ids[-1]} is cancelled")
    assert refused.exit_code == 2 and "ambiguous" in refused.stderr


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8470", "http://localhost:8470"),
        ("127.0.0.1:8470/", "http://127.0.0.1:8470"),
        ("[::1]:8470", "http://[::1]:8470"),
        ("tune.example.org", "https://tune.example.org"),
        ("http://tune.example.org/", "http://tune.example.org"),
    ],
)
def test_a_url_without_a_scheme_is_plain_on_this_machine_alone(given: str, url: str) -> None:
    assert with_scheme(given) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:84x70", "Invalid port: '84x70'"),
        ("http://[::1", "Invalid port"),
        ("http://a..b\xe4", "IDNA"),
        ("http://a..b", "idna"),
    ],
)
def test_a_url_that_can_be_none_is_unreachable(url: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        Client(url, "wt_any")

    listed = run_cli.invoke(main.app, ["list", "--url", url])

    assert listed.exit_code == 3 and listed.stderr.startswith(f"no Wiretune service answers at {url}: ")


def test_a_key_that_can_be_none_is_refused_at_once_without_the_key(live_url: str) -> None:
    with pytest.raises(ApiError, match=r"a key is ASCII, as `wt_...`; got '\\xe4' at character 5") as refused:
        Client(live_url, "wt_k\xe4y")

    assert refused.value.status == 401 and "wt_k" not in str(refused.value)


@pytest.mark.parametrize("name", ["twin\udcff", "\ud800"])
def test_text_that_no_request_can_hold_is_refused_by_name(live_url: str, key: str, name: str) -> None:
    with Client(live_url, key) as client:
        with pytest.raises(ApiError, match="text must be UTF-8, got"):
            client.submit({"name": name})
        with pytest.raises(ApiError, match="text must be UTF-8, got"):
            client.find(name)
        with pytest.raises(ApiError, match="text must be ASCII, got"):
            client.submit({"name": "a"}, idempotency_key=name)
        with pytest.raises(ApiError, match="text must be UTF-8, got"):
            next(client.events(name))
        with pytest.raises(ApiError, match="text must be UTF-8, got"):
            client.set_quota("owner", name)


def test_a_control_character_in_a_path_is_refused_by_name(live_url: str, key: str) -> None:
    with Client(live_url, key) as client, pytest.raises(ApiError, match=r"non-printable .* '\\x01'"):
        client.cancel("job-\x01")


@pytest.fixture
def closing() -> Iterator[int]:
    """The port of a listener that answers nothing: as TLS meets plain HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_who_hangs_up_on_plain_http_may_speak_tls(closing: int) -> None:
    with Client(f"http://127.0.0.1:{closing}", "wt_any") as client, pytest.raises(Unreachable, match="try https://"):
        client.jobs()


def test_a_service_without_tls_is_said_to_have_none(live_url: str) -> None:
    with Client(live_url.replace("http", "https"), "wt_any") as client, pytest.raises(Unreachable, match="try http://"):
        client.jobs()


def test_a_shell_completes_ids_of_the_service_that_answers(
    live_url: str, key: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "running_server", lambda settings, timeout_s: Server(live_url, key))
    monkeypatch.setattr(completion, "PATIENCE_S", 30.0)  # the machine may be busy

    assert completed("show job-") == {
        ids[0]: "queued: twin", ids[1]: "queued: twin", ids[2]: "queued: newest one"
    }  # fmt: skip
    assert completed(f"page {ids[2]}") == {ids[2]: "queued: newest one"}
    assert "latest" in completed("cancel l")


@pytest.mark.parametrize("place", ["options", "variables", "file"])
def test_a_shell_completes_ids_of_the_service_that_the_command_would_ask(
    live_url: str, key: str, ids: list[str], place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(completion, "running_server", lambda *_, **__: pytest.fail("another service was asked"))
    monkeypatch.setattr(completion, "PATIENCE_S", 30.0)  # the machine may be busy
    (tmp_path / "key").write_text(f"{key}\n")
    if place == "variables":
        monkeypatch.setenv("WIRETUNE_URL", live_url)
        monkeypatch.setenv("WIRETUNE_API_KEY", key)
    given = {"options": f"--url {live_url} --key {key} ", "file": f"--url {live_url} --key @{tmp_path / 'key'} "}

    assert completed(f"show {given.get(place, '')}{ids[2]}") == {ids[2]: "queued: newest one"}


@pytest.mark.parametrize("given", [["--key", "@{}"], []], ids=["option", "variable"])
def test_a_key_may_be_in_a_file(
    live_url: str, key: str, ids: list[str], given: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{key}\n")
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    if not given:
        monkeypatch.setenv("WIRETUNE_API_KEY_FILE", str(tmp_path / "key"))
    shown = run_cli.invoke(main.app, ["show", "latest", *(each.format(tmp_path / "key") for each in given)])
    missing = run_cli.invoke(main.app, ["show", "latest", "--key", f"@{tmp_path / 'none'}"])

    assert shown.stdout.startswith(ids[-1]), shown.stderr
    assert missing.exit_code == 2
    assert f"cannot read the key in {tmp_path / 'none'}: No such file or directory" in missing.stderr


def completed(typed: str) -> dict[str, str]:
    """Return what a shell is offered for the last word of `wiretune ...`, each with its help; else it hears nothing."""
    words = f"wiretune {typed}".split()
    environment = {"_WIRETUNE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": " ".join(words)}
    environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1]}
    done = run_cli.invoke(main.app, env=environment, prog_name="wiretune")
    assert done.stderr == ""  # it would be drawn into the line
    return dict(line.split("\t") for line in done.stdout.splitlines() if line)


def test_a_shell_hears_nothing_of_a_service_that_is_away(
    live_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "running_server", lambda settings, timeout_s: Server("http://127.0.0.1:9", key))

    assert completed("show job-") == {}


def test_a_shell_hears_nothing_of_a_key_that_cannot_be_read(
    live_url: str, ids: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    assert completed(f"show --key @{tmp_path / 'none'} job-") == {}

    monkeypatch.setenv("WIRETUNE_API_KEY_FILE", str(tmp_path / "none"))
    assert completed("show job-") == {}


def test_the_version_is_printed() -> None:
    assert run_cli.invoke(main.app, ["--version"]).stdout == f"wiretune {version('wiretune')}\n"
