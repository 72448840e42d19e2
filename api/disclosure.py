"""Job content for files and trackers that others may read: without the places that hold secrets."""

import re
from typing import Any

#: A quote or a bracket ends a query, unless the query goes on behind it, as in `?a[0]=1&sig=...`: a secret may follow.
_QUERY_OF_URL = re.compile(r"""(://[^\s?#"<>]*)[?#](?:[^\s"'<>)\]}]|["')\]}]+(?=\.?[\w%&=]))*""")
_WEBHOOK = "webhook"


def without_secrets(content: Any) -> Any:
    """Return JSON content without webhooks, whose path may be a secret, and without the queries of URLs, as if signed.

    A sentence may name a URL, such as the reason why a job failed.
    A difference between jobs in their webhooks is left out, too.
    """
    if isinstance(content, dict):
        return {name: without_secrets(value) for name, value in content.items() if name != _WEBHOOK}
    if isinstance(content, list):
        return [without_secrets(each) for each in content if not _is_of_webhooks(each)]
    return _QUERY_OF_URL.sub(r"\1", content) if isinstance(content, str) else content


def _is_of_webhooks(content: Any) -> bool:
    pointer = content.get("pointer") if isinstance(content, dict) else None
    return isinstance(pointer, str) and pointer.split("/")[1:2] == [_WEBHOOK]
