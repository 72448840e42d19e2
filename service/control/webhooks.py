"""Send messages about jobs to webhooks, signed as standardwebhooks.com describes.

A user chose a job's URL. Unless the operator allows it, nothing is sent to an address that is not public. A name is
resolved once, its address checked, and the connection made to that address, so a second DNS answer cannot differ. The
operator's own URL is free of these rules.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import httpx2

from service.control.messages import AT_ONCE, OPERATORS, Message
from service.control.store import Store
from service.job.parts import Webhook
from service.job.problems import Problem
from service.settings import WEBHOOK_SECRET_PREFIX, Settings
from service.wire.jobs import WebhookPatch
from trainers.addresses import is_public

#: The timeout of a whole try. It is shorter than the first back-off, so two replicas never send a message at once.
_TIMEOUT_S = 10.0
_NUM_LOOKUPS = 64  # at a time: those of a round, and of a few owners some that hang since earlier ones
_GONE = 410  # "the subscription should be disabled", says standardwebhooks.com
_PRIVATE_REMEDY = "its operator allows that with WIRETUNE_WEBHOOK_PRIVATE=true"

_log = logging.getLogger(__name__)


def conflicts(webhook: Webhook | WebhookPatch | None, settings: Settings) -> list[Problem]:
    """Return the conflicts of a job, or of an edit of one, whose webhook this service would not call."""
    if webhook is None or webhook.url is None:  # an edit may leave the address out, which then was checked before
        return []
    message = _refusal(webhook.url, settings)
    return [Problem(pointer="/webhook/url", message=message, value=webhook.url)] if message else []


def _refusal(target: str, settings: Settings) -> str:
    """Return why nothing may be sent to the URL `target`; "" if it is allowed."""
    try:
        url = httpx2.URL(target)
    except httpx2.InvalidURL as error:
        return f"`url` names no host: {error}; allowed: https://HOST[:PORT][/PATH]"
    if not settings.webhook_secret.get_secret_value():
        return "the service has no secret to sign messages with: its operator sets WIRETUNE_WEBHOOK_SECRET"
    elif url.scheme != "https" and not settings.webhook_private:
        return f"`url` must begin with https://; the service does not send in plain: {_PRIVATE_REMEDY}"
    elif not settings.webhook_private and _is_private(url.host):
        return f"`url` leads to an address that is not public, and the service sends to none: {_PRIVATE_REMEDY}"
    return ""


def _is_private(host: str) -> bool:
    """Return whether the host is this machine or an address that is not public. Other names are resolved later."""
    try:
        return not is_public(host)
    except ValueError:
        return f".{host}".endswith(".localhost")


def signature(secret: str, message_id: str, timestamp: int, body: str) -> str:
    """Return the header `webhook-signature`: an HMAC-SHA256 of the message's id, its time and its body."""
    key = base64.b64decode(secret.removeprefix(WEBHOOK_SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


class _Result(NamedTuple):
    fault: str  # "": it arrived
    is_final: bool = False


class Webhooks:
    """Sends due messages, round by round."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        # A lookup cannot be cancelled. In asyncio's own executor, one that hangs would hold up the end of its round.
        self._resolver = ThreadPoolExecutor(_NUM_LOOKUPS, thread_name_prefix="webhook-lookup")
        self._lookups: dict[Future[Any], str] = {}  # those in flight, with the owners of their messages

    def send_due(self, _now: float) -> None:
        """Try due messages once, all at the same time.

        An owner whose lookups hang since an earlier round waits for them. Otherwise they would soon have all threads.
        No message is taken for which no thread is free: its try would count, and be none.
        """
        hanging = tuple(self._lookups.values())
        if due := self._store.outbox.due(but=set(hanging), most=min(AT_ONCE, _NUM_LOOKUPS - len(hanging))):
            asyncio.run(self._send_all(due))

    async def _send_all(self, due: list[Message]) -> None:
        done = await asyncio.gather(*map(self._deliver, due), return_exceptions=True)
        for error in done:  # after the others have been noted
            if error is not None:
                raise error

    async def _deliver(self, message: Message) -> None:
        """Try the message, and note its outcome at once, whatever others of the round still wait for."""
        result = await self._send(message)
        note = partial(self._store.outbox.note, message.id, fault=result.fault, is_final=result.is_final)
        again = await asyncio.to_thread(note)
        if result.fault:
            _log.warning("webhook %s: %s; %s", message.id, result.fault, "tried again" if again else "given up")

    async def _send(self, message: Message) -> _Result:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._post(message)
        except TimeoutError:
            return _Result(f"no answer within {_TIMEOUT_S:g} s")
        except (
            OSError,
            ValueError,
            httpx2.HTTPError,
            httpx2.InvalidURL,
        ) as error:
            return _Result(str(error) or type(error).__name__)

    async def _post(self, message: Message) -> _Result:
        if message.url == OPERATORS:
            url = httpx2.URL(self._settings.webhook_url.get_secret_value())
            return await self._post_to(url, url.host, message, by_proxy=True)
        url = httpx2.URL(message.url)
        address = await self._look_up(url, owner=message.owner)
        if not self._settings.webhook_private and not is_public(address):
            return _Result(f"{url.host} leads to an address that is not public", is_final=True)
        return await self._post_to(url, address, message, by_proxy=False)  # which would resolve the name again

    async def _look_up(self, url: httpx2.URL, *, owner: str) -> str:
        """Return the first address of the URL's host."""
        lookup = self._resolver.submit(socket.getaddrinfo, url.host, url.port, type=socket.SOCK_STREAM)
        self._lookups[lookup] = owner
        lookup.add_done_callback(self._lookups.pop)
        found = await asyncio.wrap_future(lookup)
        return str(found[0][4][0])

    async def _post_to(self, url: httpx2.URL, address: str, message: Message, *, by_proxy: bool) -> _Result:
        """Send the message to the host of `url` at `address`. A redirect is not followed: it could lead anywhere."""
        async with httpx2.AsyncClient(trust_env=by_proxy, follow_redirects=False, timeout=_TIMEOUT_S) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=address),
                content=message.body.encode(),
                headers={"Host": url.netloc.decode("ascii"), **self._headers(message)},
                extensions={"sni_hostname": url.host},  # the certificate is for the name
            )
            answer = await client.send(request, stream=True)
            await answer.aclose()  # the body is not read
        if answer.is_success:
            return _Result("")
        return _Result(f"{url.host} answered {answer.status_code}", is_final=answer.status_code == _GONE)

    def _headers(self, message: Message) -> dict[str, str]:
        timestamp, secret = int(time.time()), self._settings.webhook_secret.get_secret_value()
        headers = {"Content-Type": "application/json", "webhook-id": message.id, "webhook-timestamp": str(timestamp)}
        if secret:  # a job's webhook needs one, a chat of the operator's does not
            headers["webhook-signature"] = signature(secret, message.id, timestamp, message.body)
        return headers
