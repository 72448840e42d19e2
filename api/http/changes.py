"""A job out of another one: changes as a JSON merge patch (RFC 7396), and what they come to."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from service.job.spec import JobSpec
from service.wire.views import Change

#: Fields that say what an object is: one of another kind takes nothing over from the one before.
_TAGS = ("kind", "mode")


def merged(base: Any, patch: Any) -> Any:
    """Return `base` with `patch` applied: objects field by field, null removes, everything else replaces.

    Beyond the RFC: an object whose `kind` (or `mode`) changes is replaced whole, for its other fields belong to that.
    """
    if not isinstance(patch, Mapping):
        return patch
    if not isinstance(base, Mapping) or any(_is_another(base, patch, tag) for tag in _TAGS):
        base = {}
    changed = {name: merged(base.get(name), value) for name, value in patch.items() if value is not None}
    return {name: value for name, value in base.items() if name not in patch} | changed


def _is_another(base: Mapping[str, Any], patch: Mapping[str, Any], tag: str) -> bool:
    return isinstance(patch.get(tag), str) and patch[tag] != base.get(tag)


def differences(before: JobSpec, after: JobSpec) -> tuple[Change, ...]:
    """Return every field in which the two jobs differ, defaults filled in, in the order of the first."""
    return tuple(_differences("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def _differences(pointer: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _differences(f"{pointer}/{_escaped(name)}", before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list) and any(isinstance(each, dict) for each in after):
        for index, (old, new) in enumerate(zip_longest(before, after)):
            yield from _differences(f"{pointer}/{index}", old, new)
    else:
        yield Change(pointer=pointer, before=before, after=after)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
