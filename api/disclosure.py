"""Job content for files and trackers that others may read: without the places that hold secrets."""

import re
from typing import Any

_URL_WITH_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^\s?#]*)[?#]\S*", re.IGNORECASE)
_WEBHOOK = "webhook"


def without_secrets(content: Any) -> Any:
    """Return JSON content without webhooks, whose path may be a secret, and without the queries of URLs, as if signed.

    A difference between jobs in their webhooks is left out, too.
    """
    if isinstance(content, dict):
        return {name: without_secrets(value) for name, value in content.items() if name != _WEBHOOK}
    if isinstance(content, list):
        return [without_secrets(each) for each in content if not _is_of_webhooks(each)]
    if isinstance(content, str) and (found := _URL_WITH_QUERY.fullmatch(content)):
        return found[1]
    return content


def _is_of_webhooks(content: Any) -> bool:
    pointer = content.get("pointer") if isinstance(content, dict) else None
    return isinstance(pointer, str) and pointer.split("/")[1:2] == [_WEBHOOK]
