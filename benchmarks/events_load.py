"""Measure streams of events under load: their delay, events lost with connections, and the cost of idle readers.

    python benchmarks/events_load.py [--replicas 2 --database-url postgresql://...] [--readers 300] [--rate 20]

The service runs in processes of its own. A driver sends `--rate` batches a second to the first process over HTTP; each
batch is one event. All readers run in this process, on the same cores, spread over the replicas. There are three parts:

- delivery: the time from the commit, which the event carries, until a reader has parsed it;
- reconnects: readers are cut off at random, also in the middle of an event, and resume by `Last-Event-ID`; each must
  get every event exactly once;
- idle: the memory of the first process without readers, and with readers that only get heartbeats.
"""

import argparse
import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from statistics import quantiles
from urllib.parse import urlsplit

import httpx2
from replicas import Replica, load, running

_EVENT = re.compile(rb"id: (\d+)\nevent: (\w+)\ndata: ([^\n]*)\n\n")
_CONNECTS_AT_ONCE = 50


@dataclass
class Reader:
    """One stream of all events; `ids` and `delays_s` are of what it got."""

    replica: Replica
    ids: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    last: int | None = None
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None

    async def read_on(self) -> None:
        """Read until the task is cancelled; connect again whenever the connection is lost."""
        while True:
            try:
                await self._read()
            except (ConnectionError, asyncio.IncompleteReadError):
                continue

    async def _read(self) -> None:
        address = urlsplit(self.replica.reached["url"])
        reader, self.writer = await asyncio.open_connection(address.hostname, address.port)
        resume = "" if self.last is None else f"Last-Event-ID: {self.last}\r\n"
        self.writer.write(
            f"GET /v1/events HTTP/1.1\r\nHost: here\r\nAccept: text/event-stream\r\n{resume}"
            f"Authorization: Bearer {self.replica.reached['key']}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        waiting = await reader.readuntil(b"id: ") + await reader.readuntil(b"\n\n")
        if self.last is None:
            self.last = int(waiting.rpartition(b"id: ")[2])
        waiting = b""
        self.is_open.set()
        while piece := await reader.read(65536):
            now, end = time.time(), 0
            waiting += piece
            for found in _EVENT.finditer(waiting):
                end, event = found.end(), json.loads(found[3])
                self.last = int(found[1])
                self.ids.append(self.last)
                self.delays_s.append(now - datetime.fromisoformat(event["at"]).timestamp())
            waiting = waiting[end:]

    def cut(self) -> None:
        """Lose the connection, whatever is on its way."""
        if self.writer is not None:
            self.is_open.clear()
            self.writer.transport.abort()


class Driver:
    """Reports points as an attempt does; a batch is an event."""

    def __init__(self, replica: Replica) -> None:
        self._url = f"{replica.reached['url']}{replica.records_path}"
        self._headers = {"Authorization": f"Bearer {replica.reached['token']}"}
        self._trial, self.sequence = replica.reached["trial"], 0

    async def send_for(self, seconds: float, *, rate: float) -> None:
        """Send `rate` batches a second."""
        async with httpx2.AsyncClient(trust_env=False, headers=self._headers, timeout=60) as client:
            started = time.monotonic()
            for number in range(int(seconds * rate)):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                await self._send(client)

    async def _send(self, client: httpx2.AsyncClient) -> None:
        self.sequence += 1
        point = {"steps": [self.sequence], "seconds": [float(self.sequence)], "values": [1.0 / self.sequence]}
        record = {"kind": "metrics", "trial_id": self._trial, "name": "loss", **point}
        batch = {"stream": self._trial, "sequence": self.sequence, "records": [record]}
        answer = await client.post(self._url, json=batch)
        answer.raise_for_status()


async def stored(replica: Replica, *, after: int) -> list[int]:
    """Return the ids of all events behind `after`, page by page."""
    headers, ids = {"Authorization": f"Bearer {replica.reached['key']}"}, []
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as client:
        while True:
            page = (await client.get(f"{replica.reached['url']}/v1/events", params={"after": after})).json()
            ids += [event["id"] for event in page["events"]]
            if not page["events"]:
                return ids
            after = page["next_after"]


async def opened(readers: list[Reader]) -> "list[asyncio.Task[None]]":
    """Connect all readers, some at a time, and return their tasks."""
    tasks = []
    for first in range(0, len(readers), _CONNECTS_AT_ONCE):
        some = readers[first : first + _CONNECTS_AT_ONCE]
        tasks += [asyncio.create_task(reader.read_on()) for reader in some]
        await asyncio.gather(*(reader.is_open.wait() for reader in some))
    return tasks


async def closed(tasks: "list[asyncio.Task[None]]", readers: list[Reader]) -> None:
    """End the readers."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for reader in readers:
        reader.cut()


async def all_have(readers: list[Reader], last: int) -> None:
    """Return once every reader has had the event `last`; at most a minute."""
    deadline = time.monotonic() + 60
    while any(reader.last != last for reader in readers) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)


async def measure_delivery(
    replicas: list[Replica], driver: Driver, *, readers: int, rate: float, seconds: float
) -> None:
    """Print how soon events arrive at many readers."""
    found = [Reader(replicas[number % len(replicas)]) for number in range(readers)]
    tasks = await opened(found)
    begun = found[0].last
    assert begun is not None
    await driver.send_for(seconds, rate=rate)
    ids = await stored(replicas[0], after=begun)
    await all_have(found, ids[-1])
    await closed(tasks, found)
    cuts = quantiles([delay for reader in found for delay in reader.delays_s], n=1000)
    missed = sum(reader.ids != ids for reader in found)
    print(
        f"delivery: {readers} readers, {len(ids)} events at {rate:g}/s: p50 {cuts[499] * 1000:.0f} ms, "
        f"p99 {cuts[989] * 1000:.0f} ms, p99.9 {cuts[998] * 1000:.0f} ms; "
        f"readers with a gap or a double: {missed}; {load()}"
    )


async def measure_reconnects(replicas: list[Replica], driver: Driver, *, readers: int, rate: float, cuts: int) -> None:
    """Print whether readers that are cut off again and again miss an event, or get one twice."""
    draw = random.Random(0)
    found = [Reader(replicas[number % len(replicas)]) for number in range(readers)]
    tasks = await opened(found)
    begun = found[0].last
    assert begun is not None
    seconds = max(20.0, cuts / 50)
    sending = asyncio.create_task(driver.send_for(seconds, rate=rate))
    started, num_cut = time.monotonic(), 0
    while num_cut < cuts:
        reader = draw.choice(found)
        if reader.is_open.is_set():
            reader.cut()
            num_cut += 1
        await asyncio.sleep(draw.uniform(0, 2 * 0.9 * seconds / cuts))
    took_s = time.monotonic() - started
    await sending
    ids = await stored(replicas[0], after=begun)
    await all_have(found, ids[-1])
    await closed(tasks, found)
    gaps = sum(len(set(ids) - set(reader.ids)) for reader in found)
    doubles = sum(len(reader.ids) - len(set(reader.ids)) for reader in found)
    print(
        f"reconnects: {num_cut} in {took_s:.0f} s among {readers} readers, {len(ids)} events at {rate:g}/s: "
        f"{gaps} missed, {doubles} doubled, out of order: {sum(reader.ids != sorted(reader.ids) for reader in found)}; "
        f"{load()}"
    )


async def measure_idle(replicas: list[Replica], *, readers: int) -> None:
    """Print what readers cost who hear nothing."""
    before = replicas[0].rss_mb
    found = [Reader(replicas[0]) for _ in range(readers)]
    tasks = await opened(found)
    await asyncio.sleep(20)  # one heartbeat at least
    used, ticks = replicas[0].rss_mb, replicas[0].processor_s
    await asyncio.sleep(10)
    busy = (replicas[0].processor_s - ticks) / 10
    await closed(tasks, found)
    print(
        f"idle: {readers} readers: {used:.0f} MB resident, {before:.0f} MB before them; {busy:.1%} of a core; {load()}"
    )


async def run(replicas: list[Replica], arguments: argparse.Namespace) -> None:
    """Do the three parts, one after the other; idle readers first, while the memory is that of a fresh process."""
    driver = Driver(replicas[0])
    await measure_idle(replicas, readers=arguments.idle)
    await measure_delivery(replicas, driver, readers=arguments.readers, rate=arguments.rate, seconds=arguments.seconds)
    await measure_reconnects(replicas, driver, readers=100, rate=arguments.rate, cuts=arguments.reconnects)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--readers", type=int, default=300)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--reconnects", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=1000)
    arguments = parser.parse_args()
    with running(arguments.replicas, database_url=arguments.database_url) as replicas:
        asyncio.run(run(replicas, arguments))


if __name__ == "__main__":
    main()
